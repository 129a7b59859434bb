"""Running the drill: one short training a fault, and what the recorder said of it."""

from __future__ import annotations

import importlib
import pkgutil
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from workbench.errors import NonFiniteError, UsageError
from workbench.numerics import jsonio
from workbench.record.drill import faults as faults_package
from workbench.record.drill.clean import NO_FAULT, beyond, failure, require_clean
from workbench.record.drill.fault import Fault, Put
from workbench.record.drill.ranks import run_ranks
from workbench.record.group import write_all
from workbench.record.policy import Policy
from workbench.record.recorder import Recorder
from workbench.step.locate import step_reference
from workbench.step.rng import capture_rng, restore_rng

Result = Literal["caught", "missed", "not_applicable"]
STEPS = 4
Batches = Callable[[int], Any]
Records = Sequence[dict[str, Any]]


@dataclass(frozen=True)
class Row:
    """What became of one fault.

    Attributes:
        fault: Its name.
        what: What was done, in words.
        result: ``caught``, ``missed`` or ``not_applicable``.
        boundary: Which boundary caught it.
        put_at: The step it was put in.
        caught_at: The step it was caught at, or None.
        why: Why it does not apply, or what was seen instead.
    """

    fault: str
    what: str
    result: Result
    boundary: str | None
    put_at: int
    caught_at: int | None
    why: str = ""


@dataclass(frozen=True)
class Drill:
    """The result of a drill.

    Attributes:
        rows: One a fault.
    """

    rows: tuple[Row, ...]

    @property
    def missed(self) -> list[str]:
        """Names of the faults that nothing caught."""
        return [row.fault for row in self.rows if row.result == "missed"]

    def to_data(self) -> dict[str, Any]:
        """The result as ``workbench.drill/1``."""
        return {"schema": "workbench.drill/1", "faults": [vars(row) for row in self.rows]}


def faults() -> list[Fault]:
    """Every fault, by file name."""
    names = sorted(module.name for module in pkgutil.iter_modules(faults_package.__path__))
    found = [importlib.import_module(f"{faults_package.__name__}.{name}") for name in names]
    return [module.fault for module in found]


def run_drill(
    step: Any,
    batches: Batches,
    steps: int = STEPS,
    chosen: Sequence[Fault] | None = None,
    ranks: int = 1,
    bundle: str | None = None,
) -> Drill:
    """Run a training step for a few steps with each fault in turn, in a directory of its own.

    The first run has no fault: what it shows by itself is put down to no fault. All begin with the
    random numbers of now, which are put back at the end.

    Args:
        step: The training step; model and optimizer are built anew for every fault.
        batches: Gives the batch of a step by its number.
        steps: Steps of each run, at least 3: the fault comes one before the last.
        chosen: The faults; None takes all.
        ranks: With 2 and more, faults of one rank run too: torchrun starts so many processes, and
            each imports the step and takes its batches from ``bundle``, or from
            ``example_batch``.
        bundle: A recorded step whose batches the ranks train on; ``batches`` are taken from it.

    Raises:
        UsageError: Fewer than three steps.
        CannotRunError: The run without a fault failed, or the ranks did not start or ended
            otherwise.
    """
    if steps < 3:
        raise UsageError(
            f"A drill of {steps} steps has no calm step before its fault and none after. Use at "
            "least 3."
        )
    begin = capture_rng()
    try:
        own = _clean(step, batches, steps)
        rows = []
        for one in chosen or faults():
            restore_rng(begin)
            several = one.several_ranks and ranks > 1
            rows.append(
                _ranks_row(step, steps, one, ranks, bundle)
                if several
                else _row(step, batches, steps, one, own)
            )
    finally:
        restore_rng(begin)
    return Drill(tuple(rows))


def _clean(step: Any, batches: Batches, steps: int) -> Records:
    """The ledger of the run without a fault."""
    name = step_reference(step)["reference"] or type(step).__qualname__
    records: Records = []
    try:
        with tempfile.TemporaryDirectory(prefix="workbench-drill-") as folder:
            put = _put(step, steps - 2, NO_FAULT, folder)
            error = _train(put, NO_FAULT, batches, steps)
            put.recorder.close()
            records = read_ledger(Path(folder), put.recorder.run_id)
    except Exception as raised:  # noqa: BLE001 - the user's model and optimizer are built here
        error = raised
    require_clean(name, steps, failure(error, records))
    return records


def _ranks_row(step: Any, steps: int, fault: Fault, ranks: int, bundle: str | None) -> Row:
    boundary, why = run_ranks(step_reference(step)["reference"], fault, steps, ranks, bundle)
    caught = boundary in fault.boundaries and not why
    at = None if boundary is None else steps - 2
    result: Result = "caught" if caught else "missed"
    return Row(fault.name, fault.what, result, boundary, steps - 2, at, why)


def _row(step: Any, batches: Batches, steps: int, fault: Fault, own: Records) -> Row:
    at = steps - 2
    with tempfile.TemporaryDirectory(prefix="workbench-drill-") as folder:
        put = _put(step, at, fault, folder)
        why = fault.not_applicable(put, batches(at))
        if why is not None:
            return Row(fault.name, fault.what, "not_applicable", None, at, None, why)
        error = _train(put, fault, batches, steps)
        put.recorder.close()
        return judge(fault, put, error, read_ledger(Path(folder), put.recorder.run_id), own)


def _put(step: Any, at: int, fault: Fault, folder: str) -> Put:
    """A training of its own, recorded into a folder."""
    model = step.build_model()
    built = step.build_optimizer(model)
    optimizers = list(built) if isinstance(built, list | tuple) else [built]
    scaler = step.build_scaler()
    policy = fault.policy(Policy(on_nonfinite="raise", deep_scan_every=1))
    recorder = Recorder(step, model, optimizers, scaler, folder, "drill", policy)
    return Put(model, optimizers, scaler, step, at, recorder)


def _train(put: Put, fault: Fault, batches: Batches, steps: int) -> BaseException | None:
    for k in range(steps):
        try:
            with fault.during(put, k):
                put.recorder.train_step(fault.batch(put, k, batches(k)))
        except Exception as error:  # noqa: BLE001 - what the fault led to is what is looked at
            return error
    return None


def read_ledger(directory: Path, run_id: str) -> list[dict[str, Any]]:
    """The ledger of a run; nothing where none was written."""
    write_all()
    path = directory / f"{run_id}.ledger.jsonl"
    return jsonio.load_lines(path.read_bytes()) if path.is_file() else []


def judge(
    fault: Fault, put: Put, error: BaseException | None, records: Records, own: Records = ()
) -> Row:
    """Say which boundary caught a fault.

    Args:
        fault: The fault.
        put: Where it was put.
        error: What the loop raised, if it did.
        records: The run's ledger.
        own: The ledger of the run without a fault.
    """
    records = [r for r in beyond(records, own) if r["step"] >= put.at - 1]
    boundary, caught_at = _caught(put, error, records)
    right = boundary in fault.boundaries
    why = "" if right else _instead(boundary, error)
    result: Result = "caught" if right else "missed"
    return Row(fault.name, fault.what, result, boundary, put.at, caught_at, why)


def _caught(
    put: Put, error: BaseException | None, records: Records
) -> tuple[str | None, int | None]:
    """The first boundary that spoke, and at which step."""
    failures = put.recorder.failures
    if failures and isinstance(error, NonFiniteError) and error.bundle is None:
        return "recorder", put.recorder.step_index - 1
    for record in records:
        inputs = [gate for gate in record["soft_gates"] if _soft(gate["where"]) == "input"]
        if inputs:
            return "input", record["step"]
        if record["alerts"]:
            return "alert", record["step"]
        if record["first_bad_stage"]:
            return record["first_bad_stage"], record["step"]
        if any(one["skipped_by"] == "scaler" for one in record["optimizers"]) and not any(
            later["alerts"] or later["first_bad_stage"] for later in records
        ):
            return "scaler_skip", record["step"]
        if record["soft_gates"]:
            return _soft(record["soft_gates"][0]["where"]), record["step"]
    return None, None


def _soft(where: str) -> str:
    return {"batch": "input", "domain": "input", "outputs": "forward"}.get(where, where)


def _instead(boundary: str | None, error: BaseException | None) -> str:
    seen = "nothing was caught" if boundary is None else f"caught by {boundary} instead"
    return seen if error is None else f"{seen}; the loop raised {type(error).__name__}"
