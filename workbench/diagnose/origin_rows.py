"""Origins in the words of ``workbench.findings/1``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from workbench.diagnose.positions import positions

if TYPE_CHECKING:
    from workbench.diagnose.analysis import Judged
    from workbench.diagnose.growth import Growth
    from workbench.evidence import Bundle

_LEAF_OPS = {
    "poisoned_batch": ("input", "batch"),
    "poisoned_parameter": ("param", "module"),
    "poisoned_buffer": ("buffer", "module"),
    "poisoned_optimizer_state": ("optimizer_state", "optimizer"),
    "captured_tensor": ("captured", "module"),
}


def origin_row(judged: Judged, bundle: Bundle) -> dict[str, Any]:
    """One origin in the words of findings/1."""
    case, origin = judged.case, judged.case.origin
    event, raised = case.event, case.trace.raised
    row: dict[str, Any] = {
        "kind": origin.kind,
        "step": bundle.manifest.step,
        "micro_step": event.micro_step if event else 0,
        "rank": bundle.manifest.rank,
        "stage": event.stage if event else "input",
        "op": event.op if event else None,
        "where": event.where if event else "module",
        "module": event.module if event else "",
        "in_loss": event.in_loss if event else False,
        "autograd_node": event.node if event else None,
        "forward_op": None,
        "cause": judged.cause.label if judged.cause else None,
        "range": case.range,
        "dtype": case.dtype or None,
        "tensor": _tensor(judged),
        "source": event.source if event else "",
        "event": event.index if event else None,
        "explanation": judged.cause.explain(case) if judged.cause else "",
        "fix": judged.cause.fix if judged.cause else "",
    }
    if event is not None and event.forward_event is not None:
        row["forward_op"] = case.trace.graph[event.forward_event].op
    if origin.leaf is not None:
        op, where = _LEAF_OPS.get(origin.kind, ("captured", "module"))
        row |= {"stage": "input", "op": op, "where": where, "range": "none"}
        row |= {"autograd_node": None, "forward_op": None, "in_loss": False}
        row["module"] = origin.leaf if where == "module" else ""
    if origin.kind == "exception" and raised is not None:
        row |= {"op": "exception", "stage": raised.stage, "source": raised.source}
        if event is None:
            row["where"] = _exception_where(raised.stage)
            row["module"] = raised.module or ""
            if raised.module is not None:
                row["where"] = "module"
    return row


_SAME = ("kind", "stage", "op", "where", "module", "cause")


def grouped(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """One origin for what one place does to several tensors: the others are listed in ``also``.

    Within model and loss a place is a source line; what optimizer, clip or scaler do to one
    parameter after the other is one thing wherever its lines are.
    """
    kept: dict[tuple[Any, ...], dict[str, Any]] = {}
    for number, row in enumerate(rows):
        line = row["source"] if row["where"] in ("module", "loss") else ""
        alone = number if row["event"] is None else -1  # leaves and exceptions stand alone
        key = (*(row[name] for name in _SAME), line, alone)
        if key in kept:
            also = {"event": row["event"], "tensor": row["tensor"]}
            kept[key].setdefault("also", []).append(also)
        else:
            kept[key] = row
    return list(kept.values())


def growth_row(growth: Growth, bundle: Bundle) -> dict[str, Any]:
    """A growth origin: the step and the op where the values began to grow."""
    row = origin_row(growth.judged, bundle)
    row["step"] = growth.departure.step
    row["range"] = "none"
    row["tensor"]["name"] = growth.departure.parameter
    row["growth"] = {"ratio": growth.departure.ratio, "parameter": growth.departure.parameter}
    return row


def _exception_where(stage: str) -> str:
    return {
        "input": "batch",
        "forward": "module",
        "loss": "loss",
        "backward": "loss",
        "reduce": "reduce",
        "unscale": "scaler",
        "clip": "clip",
        "update": "optimizer",
        "after_update": "scaler",
        "logging": "logging",
    }.get(stage, "module")


def _tensor(judged: Judged) -> dict[str, Any]:
    """Name and positions of the bad values at the origin."""
    case, origin = judged.case, judged.case.origin
    empty: dict[str, Any] = {"count": 0, "first": None, "samples": [], "axes": [], "sentence": ""}
    event = case.event
    if origin.leaf is not None:
        read = (
            next((r for r in event.reads if r.argument == origin.argument), None) if event else None
        )
        count = sum(read.counts) if read is not None else 0
        write = next((w for w in event.writes if w.bad), None) if event else None
        samples: list[int] = []
        if origin.kind == "poisoned_batch" and write is not None and read is not None:
            same = write.shape[:1] == read.shape[:1]
            samples = list(write.samples) if same and event and event.where == "module" else []
        return {"name": origin.leaf, "positions": empty | {"count": count, "samples": samples}}
    if event is None:
        return {"name": "", "positions": empty}
    write = next((w for w in event.writes if w.bad), event.writes[0] if event.writes else None)
    if write is None:
        return {"name": event.op, "positions": empty}
    return {"name": f"{write.slot} of {event.op}", "positions": positions(case)}
