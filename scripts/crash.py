"""Kill a recording process at random moments: ``python scripts/crash.py [--times 300]``.

A child trains a small model that trips, alerts and saves bundles all the time, and is ended by
SIGKILL after a random while. Then, every time:

- no bundle opens as sealed and differs from what its manifest says;
- a bundle that is not sealed says so, and what it lists is whole;
- every step up to the last trip that the child told of is in the ledger: records of the few steps
  after it, in which nothing is wrong, may wait for 50 ms, and go with the process;
- first_bad.json is whole or absent;
- the next child, with the same run id and directory, starts and records.

Power loss is tried on the last bundle: every file of it cut at sampled places. Exit code 0 when
all held.
"""

from __future__ import annotations

import argparse
import logging
import os
import random
import shutil
import signal
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))
RUN = "crash"


def hold(condition: object, message: str) -> None:
    """Say what does not hold.

    Raises:
        AssertionError: It does not.
    """
    if not condition:
        raise AssertionError(message)


def train(directory: Path, first: int, say: int) -> None:
    """Train for ever, a bad batch at every fourth step; tell of a step once it is recorded."""
    import torch

    import workbench

    class Step(workbench.TrainingStep):
        def build_model(self) -> torch.nn.Module:
            return torch.nn.Linear(64, 64)

        def build_optimizer(self, model: torch.nn.Module) -> torch.optim.Optimizer:
            return torch.optim.SGD(model.parameters(), lr=0.01)

        def forward(self, model: torch.nn.Module, batch: torch.Tensor) -> torch.Tensor:
            return model(batch)

        def loss(self, outputs: torch.Tensor, batch: torch.Tensor) -> torch.Tensor:
            return outputs.square().mean()

    torch.set_num_threads(1)
    logging.getLogger("workbench").setLevel(logging.CRITICAL)
    policy = workbench.Policy(on_nonfinite="skip", recovery_every=3, max_bundles=10**6)
    step = Step()
    model = step.build_model()
    optimizer = step.build_optimizer(model)
    recorder = workbench.Recorder(
        step, model, optimizer, directory=directory, run_id=RUN, policy=policy, first_step=first
    )
    os.write(say, b"ready\n")
    number = first
    while True:
        batch = torch.randn(8, 64)
        if trips(number):
            batch[0, 0] = float("inf")
        recorder.train_step(batch)
        os.write(say, b"%d\n" % number)
        number += 1


class Child:
    """One recording process, forked so that torch is loaded once for all of them.

    Args:
        directory: Where it records.
        first: Its first step.
    """

    def __init__(self, directory: Path, first: int) -> None:
        hear, say = os.pipe()
        self.pid = os.fork()
        if self.pid == 0:
            os.close(hear)
            try:
                train(directory, first, say)
            finally:
                os._exit(1)
        os.close(say)
        self._said = os.fdopen(hear, "rb")

    def ready(self) -> None:
        """Wait until it records."""
        line = self._said.readline()
        hold(line == b"ready\n", f"the run did not start: {line!r}")

    def kill(self, after: float) -> list[int]:
        """End it after so many seconds; the steps it told of."""
        time.sleep(after)
        os.kill(self.pid, signal.SIGKILL)
        with self._said:
            lines = self._said.read().split(b"\n")[:-1]
        os.waitpid(self.pid, 0)
        return [int(line) for line in lines]


def check_bundles(directory: Path) -> tuple[int, int]:
    """Every bundle is whole or says that it is not; how many are sealed, and how many are not."""
    from workbench.evidence import find_bundles, open_bundle

    sealed = unsealed = 0
    for path in find_bundles(directory):
        bundle = open_bundle(path)
        wrong = [check for check in bundle.verify() if check.status != "ok"]
        hold(not wrong, f"{path.name} lists what is not so: {wrong}")
        if bundle.sealed:
            sealed += 1
            bundle.ledger()
            bundle.pytree("batch")
            hold(bundle.evidence()["kind"] == "nonfinite", f"{path.name} is of another kind")
        else:
            unsealed += 1
            whole = dict.fromkeys(bundle.completeness, "complete")
            hold(not whole or bundle.completeness != whole, f"{path.name} says it is complete")
    return sealed, unsealed


def trips(step: int) -> bool:
    """Whether the child's batch of a step is bad."""
    return step % 4 == 3


def acknowledged(told: list[int]) -> list[int]:
    """The steps of one child whose records must be there: up to the last trip it told of."""
    last = max((step for step in told if trips(step)), default=-1)
    return [step for step in told if step <= last]


def check_ledger(directory: Path, kept: list[int]) -> None:
    """Every acknowledged record is there; only a line at a kill may be torn."""
    from workbench.errors import StrictJsonError
    from workbench.numerics import jsonio

    steps = []
    path = directory / f"{RUN}.ledger.jsonl"
    for line in path.read_bytes().split(b"\n") if path.exists() else []:
        try:
            steps.append(jsonio.loads(line)["step"] if line else None)
        except StrictJsonError:
            continue
    missing = set(kept) - set(steps)
    hold(not missing, f"the ledger lost steps {sorted(missing)[:5]}")
    found = directory / f"{RUN}.first_bad.json"
    if found.exists():
        hold(trips(jsonio.loads(found.read_bytes())["first_bad"]["step"]), "a calm step")


def check_power_loss(directory: Path, rng: random.Random, places: int, files: int) -> int:
    """Cut files of a sealed bundle at sampled places: damage is said, never shown.

    Of more than ``files`` files (a step has several, and a ring has many steps) so many are drawn.
    """
    from workbench.errors import BundleError
    from workbench.evidence import find_bundles, open_bundle

    sealed = next(path for path in find_bundles(directory) if open_bundle(path).sealed)
    tried = 0
    names = sorted(open_bundle(sealed).files())
    for rel in ["manifest.json", *(rng.sample(names, files) if len(names) > files else names)]:
        file = sealed / rel
        whole = file.read_bytes()
        cuts = {0, len(whole) // 2, max(0, len(whole) - 1)}
        cuts |= {rng.randrange(max(1, len(whole))) for _ in range(places)}
        for cut in sorted(c for c in cuts if c < len(whole)):
            file.write_bytes(whole[:cut])
            tried += 1
            try:
                bundle = open_bundle(sealed)
                # the codec is strict, but a manifest whose last newline is gone is the same
                same = rel == "manifest.json" and whole[cut:].strip() == b""
                bad = [check.rel for check in bundle.verify() if check.status != "ok"]
                hold(same or bad == [rel], f"{rel} cut at {cut} was not noticed")
            except BundleError:
                pass
        file.write_bytes(whole)
    again = [check.rel for check in open_bundle(sealed).verify() if check.status != "ok"]
    hold(not again, f"{again} is not what it was")
    return tried


def run(
    times: int, seed: int, directory: Path, places: int = 8, files: int = 10**6
) -> dict[str, int]:
    """Kill so many times; what was seen.

    Raises:
        AssertionError: Something that must hold does not.
    """
    import torch  # noqa: F401 - once, before the first fork

    import workbench.record
    import workbench.replay  # noqa: F401

    rng = random.Random(seed)
    told: list[int] = []
    kept: list[int] = []
    sealed = unsealed = most = 0
    waiting = Child(directory, 0)
    for _ in range(times):
        child = waiting
        child.ready()
        said = child.kill(rng.choice([rng.random() * 0.02, rng.random() * 0.3, rng.random()]))
        told += said
        kept += acknowledged(said)
        waiting = Child(directory, (told[-1] + 2) if told else 0)
        sealed, unsealed = check_bundles(directory)
        check_ledger(directory, kept)
        most = max(most, unsealed)
        for bundle in sorted(directory.glob("*.bundle"))[:-6]:  # old ones were looked at often
            shutil.rmtree(bundle)
    waiting.ready()
    said = waiting.kill(2.0)
    told += said
    kept += acknowledged(said)
    check_ledger(directory, kept)
    sealed, unsealed = check_bundles(directory)
    tried = check_power_loss(directory, rng, places, files)
    hidden = len(list(directory.glob(".*")))
    return {
        "kills": times + 1, "steps_told": len(told), "acknowledged": len(kept),
        "sealed_at_end": sealed,
        "unsealed_seen_at_once": most, "cuts": tried, "hidden_leftovers": hidden,
    }  # fmt: skip


def main() -> int:
    """Run and print what was seen."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--times", type=int, default=300)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    with tempfile.TemporaryDirectory() as folder:
        print(run(given.times, given.seed, Path(folder)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
