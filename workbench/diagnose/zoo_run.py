"""Run one incident file: record it, replay and diagnose its bundle, compare with its label."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from workbench.diagnose.run import diagnose
from workbench.diagnose.zoo_step import IncidentStep, incident_step
from workbench.errors import NonFiniteError, WorkbenchError
from workbench.evidence import find_bundles, open_bundle
from workbench.record import Policy, Recorder

if TYPE_CHECKING:
    from workbench.diagnose.findings import Findings

_FLAT = (
    "step",
    "stage",
    "op",
    "where",
    "module",
    "autograd_node",
    "forward_op",
    "cause",
)


@dataclass(frozen=True)
class Recorded:
    """What recording an incident gave.

    Attributes:
        tripped: Whether a gate tripped by itself.
        bundle: The bundle to diagnose, or None when none was written.
        raised: What the last step raised, for the message when there is no bundle.
    """

    tripped: bool
    bundle: Path | None
    raised: str = ""


def run_incident(
    path: Path, directory: Path, label: dict[str, Any] | None, minimized: bool = False
) -> dict[str, Any]:
    """Record and diagnose one incident file.

    Args:
        path: The incident file.
        directory: An empty folder for bundles and ledger.
        label: Its entry in ``labels.json``; only ``step`` is used for running, the rest only to
            compare.
        minimized: Whether to minimise it too; ``minimized`` of the row says what came of it.

    Returns:
        The incident's entry of ``workbench.zoo/1``.
    """
    started = time.perf_counter()
    row = empty_row()
    try:
        with settings_kept():
            _run(row, path, directory, (label or {}).get("step"), minimized)
    except WorkbenchError as error:
        row["error"] = str(error)
    except Exception as error:  # noqa: BLE001 - one incident's failure is its row's error
        row["error"] = f"{type(error).__name__}: {error}"
    if label is not None and row["error"] is None:
        row["agrees"] = agreement(row, label)
    row["seconds"] = round(time.perf_counter() - started, 3)
    return row


def _run(
    row: dict[str, Any], path: Path, directory: Path, step: int | None, minimized: bool
) -> None:
    recorded = record(path, directory, step)
    row["tripped"] = recorded.tripped
    if recorded.bundle is None:
        why = f" The last step raised {recorded.raised}" if recorded.raised else ""
        row["error"] = f"No bundle was written, so there was nothing to diagnose.{why}"
        return
    findings = diagnose(recorded.bundle, step=incident_step(path), require="replay")
    _fill(row, findings, recorded.bundle)
    if minimized and (row["origins"] or row["absorbed"]):
        row["minimized"] = _minimized(path, directory, recorded.bundle)


def _minimized(path: Path, directory: Path, bundle: Path) -> dict[str, Any]:
    from workbench.diagnose.minimize import minimize

    try:
        made = minimize(open_bundle(bundle), directory / "repro", step=incident_step(path))
    except WorkbenchError as error:
        return {"checked": False, "why": str(error)}
    data = made.to_data()
    del data["script"]  # it lies in a folder that is gone when this is read
    return data


@contextmanager
def settings_kept() -> Iterator[None]:
    """Undo what an incident file does to the process: the next one must not inherit it."""
    deterministic = torch.are_deterministic_algorithms_enabled()
    anomaly = torch.is_anomaly_enabled()
    dtype, grad = torch.get_default_dtype(), torch.is_grad_enabled()
    precision, threads = torch.get_float32_matmul_precision(), torch.get_num_threads()
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(deterministic)
        torch.autograd.set_detect_anomaly(anomaly)
        torch.set_default_dtype(dtype)
        torch.set_grad_enabled(grad)
        torch.set_float32_matmul_precision(precision)
        torch.set_num_threads(threads)


def record(path: Path, directory: Path, labelled_step: int | None) -> Recorded:
    """Run an incident as a training loop under the recorder.

    Where nothing trips, it is run again and the labelled step, else the last one, is captured.
    """
    last, raised = _loop(path, directory / "run", None)
    found = find_bundles(directory / "run")
    if found:
        return Recorded(True, found[-1])  # the oldest: the first bad record
    wanted = last if labelled_step is None else labelled_step
    _, again = _loop(path, directory / "capture", wanted)
    raised = again or raised
    found = find_bundles(directory / "capture")
    return Recorded(False, found[-1] if found else None, raised)


def _loop(path: Path, directory: Path, capture_step: int | None) -> tuple[int | None, str]:
    """Train over all batches.

    Returns:
        Number of the last training step that was begun, and what it raised, if anything.
    """
    step = incident_step(path)
    model, optimizers, scaler, batches = step.build()
    recorder = Recorder(
        step,
        model,
        optimizers,
        scaler=scaler,
        directory=directory,
        run_id="incident",
        policy=Policy(recovery_every=1, deep_scan_every=1),
    )
    optimizer = optimizers if len(optimizers) > 1 else optimizers[0]
    last: int | None = None
    for number, batch in enumerate(batches):
        step.step_index = number
        step.before_step(model, optimizer, scaler)
        if isinstance(batch, dict) and batch.get("eval"):
            _evaluate(step, model, batch)
            continue
        last = number
        capture = "zoo" if number == capture_step else None
        recorder.step_index = number
        try:
            recorder.train_step(batch, capture=capture)
        except NonFiniteError:
            break
        except Exception as error:  # noqa: BLE001 - the incident's own, recorded as such
            return last, f"{type(error).__name__}: {error}"
        if capture is not None:
            break
        step.after_step(model, optimizer, scaler)
    return last, ""


def _evaluate(step: IncidentStep, model: torch.nn.Module, batch: Any) -> None:
    """An evaluation batch of the loop: no backward, not recorded."""
    model.eval()
    with torch.no_grad():
        step.loss(step.forward(model, batch), batch)
    model.train()


def empty_row() -> dict[str, Any]:
    """The row of an incident of which nothing is known yet."""
    row: dict[str, Any] = dict.fromkeys(("tripped", "caught", *_FLAT))
    row |= {
        "origins": [],
        "absorbed": [],
        "verdict": None,
        "survives_instrumentation": None,
        "counterfactuals": [],
        "agrees": None,
        "error": None,
        "seconds": 0.0,
    }
    return row


def _fill(row: dict[str, Any], findings: Findings, bundle: Path) -> None:
    data = findings.data
    first_bad = data["first_bad"]
    if first_bad is not None and open_bundle(bundle).kind != "captured":
        row["caught"] = {"step": first_bad["step"], "stage": first_bad["stage"]}
    row["origins"], row["absorbed"] = data["origins"], data["absorbed"]
    row["counterfactuals"] = [
        {key: c.get(key) for key in ("intervention", "result", "placebo")}
        for c in data["counterfactuals"]
    ]
    row["verdict"] = data["reproduction"]["verdict"]
    row["survives_instrumentation"] = data["reproduction"]["survives_instrumentation"]
    if data["origins"]:
        row |= {key: data["origins"][0][key] for key in _FLAT}


def agreement(row: dict[str, Any], label: dict[str, Any]) -> dict[str, bool]:
    """Compare an incident's answer with its label; a null field is not compared.

    A silent incident agrees under ``absorbed`` as well as under ``origins``.
    """
    if label.get("negative"):
        quiet = not row["origins"] and not row["absorbed"]
        return {"quiet": quiet, "all": quiet}
    answer = row
    if label.get("silent") and not row["origins"] and row["absorbed"]:
        answer = row["absorbed"][0]
    fields: dict[str, bool] = {}
    for key in ("step", "stage", "op", "autograd_node", "forward_op"):
        if label.get(key) is not None:
            fields[key] = answer.get(key) == label[key]
    if label.get("module") is not None:
        fields["place"] = _place_agrees(answer, label["module"])
    if label.get("cause") is not None:
        fields["cause"] = answer.get("cause") in (label["cause"], *label.get("accept", ()))
    fields["all"] = all(fields.values())
    return fields


_PLACES = {
    "batch": "batch",
    "loss": "loss",
    "optimizer": "optimizer",
    "clip": "clip",
    "scaler": "scaler",
    "log": "logging",
    "reduce": "reduce",
}


def _place_agrees(answer: dict[str, Any], place: str) -> bool:
    if place in _PLACES:
        return bool(answer.get("where") == _PLACES[place])
    module = "" if place == "model" else place
    return bool(answer.get("where") == "module" and answer.get("module") == module)
