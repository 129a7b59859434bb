"""Ledgers of 4,096 ranks × 1,000 steps: ingested, ordered and clustered; time and peak memory.

    python benchmarks/fleet.py [--ranks 4096] [--steps 1000] [--collective]

The text of each rank is made while the clock stands still and given to the product's own
`workbench.diagnose.triage.ledgers`, one rank after the other, as triage does. Clocks of the ranks
are wrong by up to ten seconds on purpose. `--collective` measures a small all-reduce with gloo at
2 and 4 processes.
"""

from __future__ import annotations

import argparse
import os
import random
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from workbench.diagnose.triage.ledgers import clusters, episodes, merge, read_part
from workbench.numerics import jsonio

SCENARIOS = ("none", "one", "several")


def bad_records(scenario, ranks, steps):
    """What goes bad: ``{step: {rank: stage}}`` of the ranks that make it."""
    if scenario == "none":
        return {}
    if scenario == "one":  # a broken machine, again and again
        return {step: {ranks // 3: "forward"} for step in range(steps // 2, steps, 50)}
    chooser = random.Random(0)
    made = {}
    for step in range(steps // 10, steps, 25):
        count = chooser.randint(1, 4)
        stages = ("forward", "loss", "backward")
        made[step] = {chooser.randrange(ranks): chooser.choice(stages) for _ in range(count)}
    return made


def text(rank, steps, bad, template):
    """The ledger of one rank; every other rank gets it at the reduction."""
    clock = 1.7e9 + random.Random(rank).uniform(-10, 10)
    lines = []
    for step in range(steps):
        made = bad.get(step)
        stage = "null"
        if made is not None:
            stage = f'"{made.get(rank, "reduce")}"'
        lines.append(
            template.replace("@STEP@", str(step))
            .replace("@RANK@", str(rank))
            .replace("@TIME@", f"{clock + step:.3f}")
            .replace('"@STAGE@"', stage)
        )
    return ("\n".join(lines) + "\n").encode()


def template(world):
    """One L1 record with all of its fields, as the recorder writes it."""
    from workbench.record.ledger import FIELDS

    record = dict.fromkeys(FIELDS)
    record |= {
        "run_id": "pretrain-7b-2026-11", "step": "@STEP@", "micro_step": 0, "time": "@TIME@",
        "rank": "@RANK@", "world": world, "dp_rank": "@RANK@", "precision": "bfloat16",
        "mode": "train", "loss": 2.345678, "loss_components": {"ce": 2.3, "z": 0.045678},
        "loss_scale": 65536.0, "loss_scale_previous": 65536.0, "growth_tracker": 17,
        "learning_rates": [[0.0003, 0.0003]], "grad_norm": 0.81723, "grad_norm_is_scaled": False,
        "optimizers": [
            {"attempted": True, "updated": "yes", "skipped_by": "none", "found_inf": False}
        ],
        "consecutive_skips": 0, "batch_fingerprint": "sha256:" + "0" * 64,
        "sample_ids": list(range(8)), "rng_digest": "sha256:" + "1" * 64, "soft_gates": {},
        "first_bad_stage": "@STAGE@", "alerts": [], "order": [],
    }  # fmt: skip
    line = jsonio.dumps(record)
    for name in ("STEP", "RANK", "TIME"):
        line = line.replace(f'"@{name}@"', f"@{name}@")
    return line


def run(scenario, ranks, steps):
    bad = bad_records(scenario, ranks, steps)
    line = template(ranks)
    reading, size, parts = 0.0, 0, []
    for rank in range(ranks):
        data = text(rank, steps, bad, line)
        size += len(data)
        started = time.process_time()
        parts.append(read_part(data))
        reading += time.process_time() - started
    started = time.process_time()
    ledgers = merge(parts)
    ordering = time.process_time() - started
    started = time.process_time()
    found = episodes(ledgers)
    groups = clusters(found)
    clustering = time.process_time() - started
    wrong = sum(set(one.own) != set(bad[one.first_step]) for one in found) + abs(
        len(found) - len(bad)
    )
    return {
        "scenario": scenario,
        "records": ledgers.records,
        "bytes": size,
        "bad_records": len(ledgers.bad),
        "ingest_s": round(reading, 2),
        "order_s": round(ordering, 3),
        "cluster_s": round(clustering, 3),
        "episodes": len(found),
        "clusters": len(groups),
        "episodes_with_wrong_ranks": wrong,
        "peak_memory_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024,
    }


RANK = """
import statistics, time
import torch, torch.distributed as dist
dist.init_process_group("gloo")
code = torch.zeros(8, dtype=torch.int64)  # the row of workbench.record.ranks.codes
took = []
for n in range(250):
    dist.barrier()
    began = time.perf_counter()
    dist.all_reduce(code, op=dist.ReduceOp.MAX)
    took.append((time.perf_counter() - began) * 1e6)
took = took[50:]
if dist.get_rank() == 0:
    took.sort()
    print("us", took[0], took[len(took) // 10], statistics.median(took))
dist.destroy_process_group()
"""


def collective(world):
    """Fastest, 10th percentile and median in microseconds of an all-reduce of 8 integers."""
    with tempfile.TemporaryDirectory() as folder:
        script = Path(folder) / "rank.py"
        script.write_text(RANK)
        done = subprocess.run(
            [
                sys.executable, "-m", "torch.distributed.run", "--standalone",
                f"--nproc-per-node={world}", str(script),
            ],
            capture_output=True, text=True, check=True, env=os.environ | {"OMP_NUM_THREADS": "1"},
        )  # fmt: skip
    words = next(line for line in done.stdout.splitlines() if line.startswith("us")).split()
    return [round(float(word), 1) for word in words[1:]]


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ranks", type=int, default=4096)
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--scenario", choices=SCENARIOS)
    parser.add_argument("--world", type=int, nargs="*", default=[2, 4])
    parser.add_argument("--collective", action="store_true")
    asked = parser.parse_args()
    if asked.collective:
        for world in asked.world:
            rounds = [collective(world) for _ in range(3)]
            print(world, "processes: fastest, 10 %, median in us", rounds, flush=True)
        return
    if asked.scenario:
        print(jsonio.dumps(run(asked.scenario, asked.ranks, asked.steps)))
        return
    for scenario in SCENARIOS:  # a process each, so that the peak memory is its own
        words = [sys.executable, __file__, "--scenario", scenario]
        words += ["--ranks", str(asked.ranks), "--steps", str(asked.steps)]
        subprocess.run(words, check=True)


if __name__ == "__main__":
    main()
