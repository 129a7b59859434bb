"""What came before two incidents: loss, gradient norm and loss scale, aligned at both."""

from __future__ import annotations

from typing import Any

from workbench.charts import CHARTS
from workbench.charts.rows import Rows
from workbench.charts.words import number
from workbench.evidence.wording import counted
from workbench.numerics import jsonio
from workbench.reports import blocks
from workbench.reports.blocks import Block, Section
from workbench.reports.incident import Incident

_BEFORE = 12
Both = tuple[Incident, Incident]


def short_name(incident: Incident) -> str:
    """``NF-3f2a91 · run7, step 18,342``."""
    return f"{incident.fingerprint} · {incident.run_id}, step {number(incident.step)}"


def history(both: Both) -> Section:
    """Loss, gradient norm and loss scale of both before their incidents."""
    headers = ("Steps before", "Loss A", "Loss B", "Gradient norm A", "Gradient norm B")
    scales = ("Loss scale A", "Loss scale B")
    series = [_series(incident) for incident in both]
    known = [k for k in range(_BEFORE, -1, -1) if any(k in s for s in series)]
    with_scale = any(r.get("loss_scale") is not None for s in series for r in s.values())
    keys = ("loss", "grad_norm", *(("loss_scale",) if with_scale else ()))
    rows = tuple(
        (
            "the incident" if k == 0 else number(k),
            *(number(s.get(k, {}).get(key)) for key in keys for s in series),
        )
        for k in known
    )
    if not rows:
        text = "Neither bundle holds a ledger, so what came before is not known."
        return Section("history", [blocks.paragraph(text)])
    columns = (*headers, *(scales if with_scale else ()))
    caption = "Aligned at the incidents, not by step number."
    table = Rows(caption, columns, rows, numeric=tuple(range(1, len(columns))))
    shown: list[Block] = [blocks.paragraph(sentence(both)), blocks.table(table)]
    for letter, incident in zip("AB", both, strict=True):
        if len(incident.ledger) > 1:
            shown += [blocks.heading(f"{letter}: {short_name(incident)}"), _chart(letter, incident)]
    return Section("history", shown)


def _series(incident: Incident) -> dict[int, dict[str, Any]]:
    """Ledger records of the incident's rank by how many steps they are before the incident."""
    mine = [r for r in incident.ledger if r.get("rank") in (None, incident.rank)]
    return {
        incident.step - int(record["step"]): record
        for record in mine
        if isinstance(record.get("step"), int)
    }


def sentence(both: Both) -> str:
    """How far the losses of the two runs are equal."""
    a, b = (_by_step(incident) for incident in both)
    shared = sorted(a.keys() & b.keys())
    if not shared:
        return "No step number is in both ledgers."
    for step in shared:
        # as JSON, since NaN is not equal to itself
        if jsonio.dumps(a[step]) != jsonio.dumps(b[step]):
            if step == shared[0]:
                return f"The losses differ from step {number(step)} on, the first in both ledgers."
            before = max(other for other in shared if other < step)
            return (
                f"The losses are equal up to step {number(before)} and differ at step "
                f"{number(step)}."
            )
    return f"The losses are equal at the {counted(len(shared), 'step')} that both ledgers have."


def _by_step(incident: Incident) -> dict[int, Any]:
    return {
        int(record["step"]): record.get("loss")
        for record in incident.ledger
        if isinstance(record.get("step"), int)
    }


def _chart(letter: str, incident: Incident) -> Block:
    chart = CHARTS["timeline"]
    data: dict[str, Any] = {"ledger": incident.ledger, "incident": incident.step}
    if any(record.get("rank") == incident.rank for record in incident.ledger):
        data["rank"] = incident.rank
    block = blocks.chart(
        f"timeline-{letter.lower()}",
        chart.figure(**data, height=360),
        chart.table(**data),
        chart.drawing(**data),
    )
    return {**block, "caption": f"{letter}: {block['caption']}"}
