"""The run without a fault that comes first: what trips by itself is no fault's doing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from workbench.errors import CannotRunError, NonFiniteError
from workbench.evidence.wording import clean
from workbench.record.drill.fault import Fault


class _NoFault(Fault):
    name: ClassVar = "none"
    what: ClassVar = "no fault"
    boundaries: ClassVar = ()


NO_FAULT = _NoFault()


def failure(error: BaseException | None, records: Sequence[Mapping[str, Any]]) -> str | None:
    """What went wrong in a run without a fault, as one sentence; None where nothing did.

    Args:
        error: What the loop raised, if it did.
        records: The run's ledger.
    """
    if isinstance(error, NonFiniteError):
        return clean(str(error).partition("\n")[0], 300).removeprefix("✕").strip()
    if error is not None:
        message = clean(str(error).partition("\n")[0], 200)
        return f"It raised {type(error).__name__}{f': {message}' if message else ''}."
    bad = next((r for r in records if r["first_bad_stage"]), None)
    return None if bad is None else f"Step {bad['step']} tripped at {bad['first_bad_stage']}."


def require_clean(name: str, steps: int, said: str | None) -> None:
    """Refuse a drill whose training fails without any fault.

    Args:
        name: The training step, or the library's loop.
        steps: Steps of the run.
        said: What ``failure`` gave.

    Raises:
        CannotRunError: The run did not end well.
    """
    if said is None:
        return
    raise CannotRunError(
        f"The drill first trains {name!r} for {steps} steps without a fault, and that run failed "
        f"by itself: {said} What a fault adds to it cannot be told apart, so none was put in. "
        "Give the drill batches that train well, from example_batch(self, k) or a recorded bundle; "
        "what failed here is an incident of its own: train these batches under a Recorder."
    )


def beyond(
    records: Sequence[Mapping[str, Any]], own: Sequence[Mapping[str, Any]]
) -> list[dict[str, Any]]:
    """Records without what the run without a fault shows in the same step as well.

    Args:
        records: The ledger of a run with a fault.
        own: The ledger of the run without.
    """
    known = {record["step"]: record for record in own}
    return [_beyond(dict(record), known.get(record["step"])) for record in records]


def _beyond(record: dict[str, Any], own: Mapping[str, Any] | None) -> dict[str, Any]:
    if own is None:
        return record
    record["soft_gates"] = [one for one in record["soft_gates"] if one not in own["soft_gates"]]
    names = {alert["name"] for alert in own["alerts"]}
    record["alerts"] = [alert for alert in record["alerts"] if alert["name"] not in names]
    if any(one["skipped_by"] == "scaler" for one in own["optimizers"]):
        record["optimizers"] = [o for o in record["optimizers"] if o["skipped_by"] != "scaler"]
    return record
