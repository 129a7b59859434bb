"""`workbench.findings/1`: claims with their evidence, their conditions and their limits."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from workbench.diagnose.chain import chain_rows
from workbench.errors import BundleError
from workbench.evidence import summary_facts, summary_lines
from workbench.evidence.table import read_table, write_table
from workbench.numerics import jsonio

if TYPE_CHECKING:
    from workbench.diagnose.analysis import Analysis, Judged
    from workbench.diagnose.growth import Growth
    from workbench.evidence import Bundle, Table
    from workbench.replay import Reproduction

SCHEMA = "workbench.findings/1"
_LEAF_OPS = {
    "poisoned_batch": ("input", "batch"),
    "poisoned_parameter": ("param", "module"),
    "poisoned_buffer": ("buffer", "module"),
    "poisoned_optimizer_state": ("optimizer_state", "optimizer"),
    "captured_tensor": ("captured", "module"),
}


@dataclass
class Findings:
    """The findings of one incident.

    Attributes:
        data: The ``workbench.findings/1`` object as plain data.
        events: Event table of the traced replay, or None when there was none.
        layers: Range table of the traced replay, or None.
    """

    data: dict[str, Any]
    events: Table | None = None
    layers: Table | None = None

    @property
    def summary(self) -> list[str]:
        """The five lines."""
        return list(self.data["summary"])

    @property
    def replayed(self) -> bool:
        """Whether a replay stands behind them."""
        return bool((self.data.get("reproduction") or {}).get("verdict"))

    @property
    def origins(self) -> list[dict[str, Any]]:
        """The origins, first in time first."""
        return list(self.data["origins"])

    def to_json(self, *, indent: int | None = None) -> str:
        """Encode as strict JSON; non-finite numbers are tagged."""
        return jsonio.dumps(self.data, indent=indent)

    def _repr_html_(self) -> str:
        from html import escape

        lines = "".join(f"<div>{escape(line)}</div>" for line in self.summary)
        return f'<div class="wb-findings" style="white-space:pre-wrap">{lines}</div>'

    def save(self, directory: Path) -> Path:
        """Write ``findings.json`` and the trace's tables beside a bundle; returns the directory."""
        directory.mkdir(parents=True, exist_ok=True)
        if self.events is not None and self.layers is not None:
            write_table(directory / "trace", "events", self.events)
            write_table(directory / "trace", "layers", self.layers)
        part = directory / ".findings.json.part"
        part.write_text(self.to_json(indent=1) + "\n", encoding="utf-8")
        part.replace(directory / "findings.json")
        return directory

    @classmethod
    def load(cls, bundle: Bundle) -> Findings | None:
        """Read the findings saved beside a bundle.

        Returns:
            None when there are none, or when they are about other bytes than this bundle's.

        Raises:
            BundleError: The file is there but is not a findings document.
        """
        path = bundle.findings_dir / "findings.json"
        if not path.is_file():
            return None
        data = jsonio.loads(path.read_bytes())
        if not isinstance(data, dict) or data.get("schema") != SCHEMA:
            raise BundleError(
                f"The file '{path}' is not a '{SCHEMA}' document, so it cannot be shown beside "
                "the bundle. Run `workbench diagnose` again to write it anew."
            )
        if data.get("bundle", {}).get("digest") != bundle.digest:
            return None
        found = cls(data)
        if (bundle.findings_dir / "trace" / "events.json").is_file():
            found.events = read_table(bundle.findings_dir / "trace", "events")
            found.layers = read_table(bundle.findings_dir / "trace", "layers")
        return found


def build(
    bundle: Bundle,
    reproduction: Reproduction | None,
    analysis: Analysis | None,
    limits: list[str],
) -> Findings:
    """Put everything found into one document.

    Args:
        bundle: The bundle.
        reproduction: The replay's verdict, or None when nothing was replayed.
        analysis: The trace's analysis, or None.
        limits: Limits known so far (why a replay was not possible, say).
    """
    data: dict[str, Any] = {
        "schema": SCHEMA,
        "bundle": {"id": bundle.id, "digest": bundle.digest, "kind": bundle.kind},
        "first_bad": bundle.first_bad.as_dict() if bundle.first_bad else None,
        "reproduction": _reproduction(reproduction),
        "origins": [],
        "contributors": [],
        "chain": [],
        "counterfactuals": [],
        "contamination": _contamination(analysis),
        "absorbed": [],
        "step_order": [],
        "alerts": _alerts(bundle),
        "limits": list(limits),
    }
    result = Findings(data)
    if analysis is not None:
        _fill(data, bundle, analysis)
        result.events, result.layers = analysis.trace.events, analysis.trace.layers
    facts = summary_facts(bundle, data if reproduction is not None else None)
    first = data["origins"][0] if data["origins"] else None
    if first is not None:
        facts.cause, facts.fix = first["explanation"] or None, first["fix"] or None
    if data["absorbed"]:
        facts.silent = data["absorbed"][0]["sentence"]
    data["summary"] = summary_lines(facts)
    return result


def _fill(data: dict[str, Any], bundle: Bundle, analysis: Analysis) -> None:
    data["origins"] = _grouped([origin_row(judged, bundle) for judged in analysis.origins])
    if analysis.growth is not None:
        data["origins"].insert(0, growth_row(analysis.growth, bundle))
    data["contributors"] = _contributors(analysis)
    data["chain"] = chain_rows(analysis)
    data["counterfactuals"] = list(analysis.counterfactuals)
    data["absorbed"] = [
        _absorbed_row(absorption.absorber, absorption.elements, judged, bundle)
        for absorption, judged in analysis.absorbed
    ]
    if not analysis.stable:
        data["limits"].append(
            "Unstable trace: a second pass executed other ops than the first, so operands were "
            "not looked at and range and cause are not judged."
        )
    named = [*analysis.origins, *([analysis.growth.judged] if analysis.growth else [])]
    for judged in named:
        if judged.cause is not None and judged.cause.limits not in data["limits"]:
            data["limits"].append(judged.cause.limits)


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


def _grouped(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
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
    positions: dict[str, Any] = {"count": 0, "first": None, "samples": []}
    event = case.event
    if origin.leaf is not None:
        read = (
            next((r for r in event.reads if r.argument == origin.argument), None) if event else None
        )
        count = sum(read.counts) if read is not None else 0
        write = next((w for w in event.writes if w.bad), None) if event else None
        samples = (
            list(write.samples) if write is not None and event and event.where == "module" else []
        )
        return {"name": origin.leaf, "positions": positions | {"count": count, "samples": samples}}
    if event is None:
        return {"name": "", "positions": positions}
    write = next((w for w in event.writes if w.bad), event.writes[0] if event.writes else None)
    if write is None:
        return {"name": event.op, "positions": positions}
    positions = {
        "count": sum(write.counts),
        "first": list(write.first) if write.first is not None else None,
        "samples": list(write.samples),
    }
    return {"name": f"{write.slot} of {event.op}", "positions": positions}


def _contributors(analysis: Analysis) -> list[dict[str, Any]]:
    rows = []
    seen: set[tuple[int, str]] = set()
    pairs = list(analysis.slice.contributors)
    for judged in analysis.origins:
        pairs += [(index, "underflow_to_zero") for index, _ in judged.case.zero_makers()]
        pairs += [(index, "epsilon_rounded_to_zero") for index, _ in judged.case.lost_scalars()]
    for index, role in pairs:
        if (index, role) in seen or not 0 <= index < len(analysis.trace.graph):
            continue
        seen.add((index, role))
        event = analysis.trace.graph[index]
        rows.append(
            {
                "event": index,
                "op": event.op,
                "role": role,
                "stage": event.stage,
                "where": event.where,
                "module": event.module,
                "source": event.source,
            }
        )
    return rows


def _absorbed_row(absorber: int, elements: int, judged: Judged, bundle: Bundle) -> dict[str, Any]:
    event = judged.case.trace.graph[absorber]
    row = origin_row(judged, bundle)
    place = event.module or event.where
    row["absorbed_by"] = {
        "event": absorber,
        "op": event.op,
        "module": event.module,
        "source": event.source,
    }
    row["elements"] = elements
    row["sentence"] = (
        f"Silent: an overflow was absorbed; {event.op} in {place} made finite values of "
        f"{elements:,} infinite one{'s' if elements != 1 else ''}, and they are wrong."
    )
    return row


def _reproduction(reproduction: Reproduction | None) -> dict[str, Any]:
    if reproduction is None:
        return {
            "verdict": None,
            "deterministic_here": None,
            "survives_instrumentation": None,
            "differences": [],
        }
    return reproduction.to_data()


def _contamination(analysis: Analysis | None) -> dict[str, Any]:
    """What holds bad values where the replay stopped; None marks what is not known."""
    if analysis is None:
        return {
            "collective": None,
            "parameters": None,
            "optimizer_state": None,
            "buffers": None,
            "checkpoints": None,
        }
    found = analysis.trace.contaminated
    return {
        "collective": False,
        "parameters": found.get("parameters", []),
        "optimizer_state": found.get("optimizer_state", []),
        "buffers": found.get("buffers", []),
        "checkpoints": [],
    }


def _alerts(bundle: Bundle) -> list[Any]:
    if bundle.kind != "alert" or not bundle.has("evidence.json"):
        return []
    alerts = bundle.json("evidence.json").get("alerts", [])
    return list(alerts) if isinstance(alerts, list) else []
