"""The drill with several ranks: torchrun starts them, gloo joins them, DDP reduces their gradients.

``python -m torch.distributed.run … -m workbench.record.drill.ranks STEP FOLDER STEPS FAULT BUNDLE``
is what each rank runs; the process that asked reads the ledgers of all ranks afterwards.
"""

from __future__ import annotations

import logging
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from workbench.errors import CannotRunError, UsageError
from workbench.numerics import jsonio
from workbench.record.drill.clean import require_clean

if TYPE_CHECKING:
    from workbench.record.drill.fault import Fault

RUN: Final = "drill"
TIMEOUT_S: Final = 300.0


def run_ranks(
    reference: str, fault: Fault, steps: int, ranks: int, bundle: str | None = None
) -> tuple[str | None, str]:
    """Train for a few steps on several ranks with one fault, and look at what all of them did.

    Args:
        reference: The step, as ``package.module:Name`` or ``file.py:Name``.
        fault: The fault; it is put in by each rank for itself.
        steps: Steps of the run.
        ranks: How many processes.
        bundle: A recorded step whose batches are taken; None takes them from ``example_batch``.

    Returns:
        The boundary that caught it on all ranks alike, or None; and why not, or "".

    Raises:
        CannotRunError: The ranks did not start, a rank ended otherwise, or the run that they make
            without a fault failed.
    """
    if not reference:
        raise UsageError(
            "The drill with several ranks imports the step in each of them, and this step ('') has "
            "no place it could be imported from. Put it into a file or a module."
        )
    with tempfile.TemporaryDirectory(prefix="workbench-drill-") as folder:
        command = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
        command += ["--nproc-per-node", str(ranks), "-m", "workbench.record.drill.ranks"]
        command += [reference, folder, str(steps), fault.name, bundle or ""]
        try:
            done = subprocess.run(
                command, capture_output=True, text=True, timeout=TIMEOUT_S, check=False
            )
        except subprocess.TimeoutExpired as error:
            raise CannotRunError(
                f"The drill of {reference!r} on {ranks} ranks did not end within {TIMEOUT_S:g} s, "
                "so it hangs somewhere. Run it by hand with torchrun to see where."
            ) from error
        said = [Path(folder, f"said{rank}.json") for rank in range(ranks)]
        if done.returncode or not all(path.is_file() for path in said):
            tail = " ".join(done.stderr.strip().splitlines()[-1:])
            raise CannotRunError(
                f"The drill of {reference!r} on {ranks} ranks ended with code {done.returncode}: "
                f"{tail!r}. Run torchrun with a few steps of it by hand first."
            )
        found = [jsonio.loads(path.read_bytes()) for path in said]
        require_clean(f"{reference} on {ranks} ranks", steps, found[0]["failed"])
        return _judge(found, steps - 2)


def _judge(said: list[dict[str, Any]], at: int) -> tuple[str | None, str]:
    """What all ranks did in the step of the fault."""
    records = [next((r for r in one["ledger"] if r["step"] == at), None) for one in said]
    if any(record is None for record in records):
        return None, "not every rank came to the step"
    made = [
        [(o["attempted"], o["updated"], o["skipped_by"]) for o in record["optimizers"]]
        for record in records
        if record is not None
    ]
    if any(one != made[0] for one in made):
        return None, f"the ranks did not act alike: {made}"
    last = records[-1] or {}
    if not (last.get("reduce") or {}).get("bad_before"):
        return None, "the last rank's gradient was not seen to be bad before the reduction"
    if any((r or {}).get("reduce", {}).get("bad_before") for r in records[:-1]):
        return None, "another rank's gradient was taken to be bad before the reduction"
    decision = last.get("decision")
    if decision is None:
        return ("scaler_skip" if made[0] and made[0][0][2] == "scaler" else None), ""
    if decision["rank"] != len(said) - 1:
        return decision["stage"], f"rank {decision['rank']} was named as the first bad one"
    return decision["stage"], ""


def recorded_batches(bundle: str) -> Callable[[int], Any]:
    """The batches of a recorded step, over and over.

    Args:
        bundle: The path of its bundle.

    Raises:
        BundleError: It is damaged.
        UsageError: It has no batch.
    """
    from workbench.evidence import open_bundle
    from workbench.step import read_state

    batches = read_state(open_bundle(bundle)).micro_batches
    if not batches:
        raise UsageError(
            f"The bundle {bundle!r} has no batch, so there is nothing to train on. Give one that "
            "has, or write example_batch(self, k) in the step."
        )
    return lambda k: batches[k % len(batches)]


def _rank(reference: str, folder: Path, steps: int, name: str, bundle: str) -> None:
    """What one rank runs: the steps without a fault, and where all ranks are well, with it."""
    from torch import distributed as dist

    from workbench.record.drill.clean import NO_FAULT, failure
    from workbench.record.drill.run import faults
    from workbench.step import load_step

    logging.getLogger("workbench").setLevel(logging.CRITICAL)
    dist.init_process_group("gloo")
    step: Any = load_step(None, step=reference)
    batches = recorded_batches(bundle) if bundle else step.example_batch
    error, own = _train(step, batches, folder / "clean", steps, NO_FAULT)
    failed: list[str | None] = [None] * dist.get_world_size()
    dist.all_gather_object(failed, failure(error, own))
    why = next((one for one in failed if one is not None), None)
    ledger: list[dict[str, Any]] = []
    if why is None:
        fault = next(one for one in faults() if one.name == name)
        _, ledger = _train(step, batches, folder, steps, fault)
    said = {"ledger": ledger, "failed": why}
    Path(folder, f"said{dist.get_rank()}.json").write_text(jsonio.dumps(said), encoding="utf-8")
    dist.barrier()


def _train(
    step: Any, batches: Callable[[int], Any], folder: Path, steps: int, fault: Fault
) -> tuple[Exception | None, list[dict[str, Any]]]:
    """Train under DDP; gives what the loop raised, if it did, and the ledger."""
    import torch

    from workbench.record.drill.fault import Put
    from workbench.record.policy import Policy
    from workbench.record.recorder import Recorder

    torch.manual_seed(0)
    model = torch.nn.parallel.DistributedDataParallel(step.build_model())
    built = step.build_optimizer(model)
    optimizers = list(built) if isinstance(built, list | tuple) else [built]
    policy = Policy(on_nonfinite="skip", deep_scan_every=1, save="statistics")
    scaler = step.build_scaler()
    recorder = Recorder(step, model, optimizers, scaler, folder, RUN, policy)
    put = Put(model, optimizers, scaler, step, steps - 2, recorder)
    error: Exception | None = None
    try:
        for k in range(steps):
            with fault.during(put, k):
                recorder.train_step(batches(k))
    except Exception as raised:  # noqa: BLE001 - the ledger says what was caught
        error = raised
    recorder.close()
    path = recorder.ledger.path
    return error, jsonio.load_lines(path.read_bytes()) if path.is_file() else []


if __name__ == "__main__":
    _rank(sys.argv[1], Path(sys.argv[2]), int(sys.argv[3]), sys.argv[4], sys.argv[5])
