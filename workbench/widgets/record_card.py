"""One record of the ledger in sentences, and the alerts of all: what stands under the timeline."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from workbench.charts.timeline import skip_words
from workbench.charts.words import number
from workbench.widgets.findings import mapping
from workbench.widgets.markup import esc, link, name

MOST_ALERTS = 5


def record_card(ledger: Sequence[Mapping[str, Any]], step: int, incident: int) -> str:
    """The record of a step.

    Args:
        ledger: The ledger's records.
        step: The step looked at.
        incident: The incident's step.
    """
    record = next((one for one in ledger if one.get("step") == step), None)
    if record is None:
        return ""
    title = f"step {number(step)}" + (" (the incident)" if step == incident else "")
    said = [f"<b>{esc(title)}</b>"]
    for label, key in (("loss", "loss"), ("gradient norm", "grad_norm"), ("scale", "loss_scale")):
        value = record.get(key)
        said.append(f"{label} {esc(number(value)) if value is not None else 'not recorded'}")
    for one in record.get("optimizers") or ():
        by = str(mapping(one).get("skipped_by") or "none")
        if by != "none":
            said.append(esc(skip_words(by)))
    fields = mapping(mapping(record.get("batch_summary")).get("fields"))
    if fields:
        said.append("batch " + ", ".join(name(f"{k} {v}", 40) for k, v in list(fields.items())[:4]))
    if record.get("checkpoint_parent"):
        said.append(f"after checkpoint {name(str(record['checkpoint_parent']), 40)}")
    said += [
        f"<b>!</b> {esc(mapping(alert).get('message') or mapping(alert).get('name'))}"
        for alert in record.get("alerts") or ()
    ]
    if step == incident:
        said.append(link("tab:origin", "Origin"))
    else:
        said.append(link(f"record:{incident}", "Back to the incident"))
    return " · ".join(said)


def alert_lines(ledger: Sequence[Mapping[str, Any]]) -> str:
    """The last alerts, each a link to its step; empty where there are none."""
    found = [
        (int(record.get("step") or 0), mapping(alert))
        for record in ledger
        for alert in record.get("alerts") or ()
    ]
    if not found:
        return ""
    said = [
        f"{link(f'record:{step}', f'step {number(step)}')} "
        f"{esc(alert.get('message') or alert.get('name'))}"
        for step, alert in found[-MOST_ALERTS:]
    ]
    more = len(found) - MOST_ALERTS
    before = f"{number(more)} earlier; " if more > 0 else ""
    return f"<b>!</b> Alerts: {before}{'; '.join(said)}"
