"""Plain data of the replay process as values of the panel's state."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, get_args

from workbench.widgets.state import Counts, StageView, Status, fresh_stages

KNOWN = frozenset(get_args(Status))


def counts_of(data: Any) -> Counts | None:
    """Counts from a mapping, or None."""
    if not isinstance(data, Mapping):
        return None
    return Counts(**{key: int(data.get(key) or 0) for key in Counts.__dataclass_fields__})


def stage_view(data: Mapping[str, Any]) -> StageView:
    """One stage from its plain data."""
    status = data.get("status")
    if data.get("scaler_skip"):
        status = "skip"
    return StageView(
        name=str(data.get("stage")),
        status=status if status in KNOWN else "clean",  # type: ignore[arg-type]
        tensor=str(data.get("tensor") or ""),
        counts=counts_of(data.get("counts")),
        reason=str(data.get("reason") or ""),
        sentence=str(data.get("sentence") or ""),
    )


def stage_views(
    stages: Iterable[Mapping[str, Any]], missing: tuple[tuple[str, str], ...]
) -> tuple[StageView, ...]:
    """All ten stages; one that the data does not name is not run, or not available."""
    found = {view.name: view for view in (stage_view(one) for one in stages)}
    return tuple(found.get(view.name, view) for view in fresh_stages(missing))


def table_of(data: Any) -> Any:
    """A table from ``{"columns": {name: list}, "attrs": {…}}``; numbers become arrays."""
    from workbench.evidence import Table

    if isinstance(data, Table):
        return data
    columns = {str(name): _column(values) for name, values in dict(data["columns"]).items()}
    return Table(columns=columns, attrs=dict(data.get("attrs") or {}))


def _column(values: list[Any]) -> Any:
    import numpy as np

    kinds = {type(value) for value in values}
    if kinds <= {int} or kinds <= {bool}:
        return np.array(values)
    if kinds <= {int, float, type(None)} and float in kinds:
        return np.array([np.nan if value is None else value for value in values], dtype=np.float64)
    return list(values)


def layers_of(event: Mapping[str, Any]) -> Any:
    """The layers table of a traced replay, with the ops of the loss as further rows."""
    from workbench.charts.loss_rows import with_loss

    events = event.get("loss_events")
    return with_loss(table_of(event["layers"]), None if events is None else table_of(events))
