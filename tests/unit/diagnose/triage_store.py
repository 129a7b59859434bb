"""Stores of small bundles for triage: what a fleet leaves, without training anything."""

from __future__ import annotations

from workbench.evidence import BundleWriter, FirstBad, open_bundle
from workbench.numerics import jsonio

LOG_OF_ZERO = {
    "kind": "birth",
    "stage": "loss",
    "op": "aten.log.default",
    "where": "loss",
    "module": "",
    "cause": "log_of_zero",
    "source": "train.py:31",
    "rank": 0,
}
OVERFLOW = LOG_OF_ZERO | {
    "stage": "forward",
    "op": "aten.addmm.default",
    "where": "module",
    "module": "blocks.3.mlp",
    "cause": "low_precision_overflow",
}


def bundle(
    folder,
    run_id,
    step,
    *,
    stage="loss",
    tensor="loss",
    day=1,
    rank=0,
    world=1,
    origins=None,
    kind="nonfinite",
    heavy=0,
    **fields,
):
    """Write a sealed bundle; with ``origins`` findings lie beside it."""
    ending = f"-rank{rank:05d}" if world > 1 else ""
    writer = BundleWriter(folder, f"{run_id}-step{step:08d}{ending}")
    writer.add_lines("ledger.jsonl", records(rank, step + 1, {step: stage}, first=step - 2))
    if heavy:
        writer.add_bytes("state/model.safetensors", b"\0" * heavy)
    bad = FirstBad(run_id=run_id, step=step, rank=rank, stage=stage, tensor=tensor)
    created = {"created": f"2026-11-{day:02d}T06:00:00Z"}
    writer.update(
        run_id=run_id, step=step, rank=rank, world=world, kind=kind, first_bad=bad,
        **created | fields,
    )  # fmt: skip
    writer.publish()
    path = writer.seal()
    if origins is not None:
        save_findings(path, origins)
    return path


def save_findings(path, origins):
    """Findings beside a bundle, as a diagnosis leaves them; only what triage reads."""
    opened = open_bundle(path)
    about = {"id": opened.id, "digest": opened.digest, "kind": opened.kind}
    data = {"schema": "workbench.findings/1", "bundle": about, "origins": origins}
    opened.findings_dir.mkdir()
    (opened.findings_dir / "findings.json").write_text(jsonio.dumps(data))


def records(rank, last, bad, first=0, clock=0.0):
    """Ledger records of one rank; ``bad`` gives the stage by step."""
    return [
        {
            "run_id": "r",
            "step": step,
            "rank": rank,
            "time": clock + step,
            "loss": float("nan") if step in bad else 2.0,
            "micro_step": 0,
            "first_bad_stage": bad.get(step),
            "consecutive_skips": 0,
        }
        for step in range(max(0, first), last)
    ]


def fleet(folder):
    """Eleven bundles: two faults in three runs each, ranks of one incident, and bad neighbours."""
    for number, run in enumerate(("alpha", "beta", "gamma"), start=1):
        bundle(folder / run, run, 10 * number, day=number, origins=[LOG_OF_ZERO])
    for number, run in enumerate(("delta", "epsilon"), start=4):
        bundle(
            folder / run, run, 7, stage="forward", tensor="blocks.3.mlp", day=number,
            origins=[OVERFLOW],
        )  # fmt: skip
    bundle(folder / "zeta", "zeta", 3, day=6)  # caught like the first fault, not diagnosed
    many = folder / "many"
    bundle(many, "many", 5, stage="forward", tensor="h", rank=2, world=4, day=7, heavy=300_000)
    bundle(many, "many", 5, stage="reduce", tensor="gradient of w", rank=0, world=4, day=7)
    for rank in range(4):
        bad = {5: "forward" if rank == 2 else "reduce"}
        text = jsonio.dump_lines(records(rank, 7, bad, clock=1000.0 * rank))
        (many / f"many.rank{rank:05d}.ledger.jsonl").write_text(text)
    broken = bundle(folder / "broken", "broken", 1)
    (broken / "manifest.json").write_text('{"format": "1.0", "files": {"../../etc/passwd": 1}}')
    cut = bundle(folder / "cut", "cut", 1)
    (cut / "manifest.json").unlink()
    newer = bundle(folder / "newer", "newer", 1)
    text = (newer / "manifest.json").read_text().replace('"format": "1.0"', '"format": "9.0"')
    (newer / "manifest.json").write_text(text)
    return folder
