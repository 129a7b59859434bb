"""The text of an incident: the five lines, the bundle, the next two commands."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from workbench.evidence.facts import SummaryFacts, checkpoint_facts
from workbench.evidence.summary import summary_lines
from workbench.evidence.wording import byte_size, command_line
from workbench.record.ranks.first import First
from workbench.record.trip import Trip


def incident_text(
    trip: Trip,
    bundle: Path | None,
    size: int,
    withheld: bool,
    completeness: Mapping[str, str],
    failures: Sequence[str] = (),
    step: str = "",
    checkpoints: Mapping[str, Any] | None = None,
    first: First | None = None,
) -> str:
    """Compose the text of exception and log.

    Args:
        trip: What tripped.
        bundle: The sealed bundle, or None when there is none.
        size: Its bytes.
        withheld: Whether the update of this step was kept from happening.
        completeness: The bundle's, per recovery goal.
        failures: What failed while recording.
        step: Reference to the step's code, ``module:Name`` or ``file.py:Name``; empty where there
            is none.
        checkpoints: The run's checkpoints, where it keeps track of them.
        first: The rank whose bundle says where it began, where that is another one.
    """
    facts = SummaryFacts(
        first_bad=trip.first_bad,
        kind=trip.kind,
        completeness=completeness,
        update_withheld=withheld,
        **checkpoint_facts({"checkpoints": checkpoints}),
    )
    lines = summary_lines(facts)
    if bundle is None:
        lines.append("Bundle  none was written.")
    else:
        lines.append(f"Bundle  {bundle} ({byte_size(size)})")
    wanted = bundle if first is None else first.bundle
    if first is not None:
        lines.append(_began(first))
    if wanted is not None:
        code = ["--step", step] if step else []
        lines.append(f"        {command_line('diagnose', wanted, *code)}")
        lines.append(f"        {command_line('open', wanted)}")
    lines += [f"Note    {failure}" for failure in failures]
    return "\n".join(lines)


def _began(first: First) -> str:
    """Where the bundle lies that says where it began."""
    what = "raised" if first.raised else "went bad first"
    where = "" if first.shared else ", on the machine of that rank; there, or once it is here:"
    return f"First   rank {first.rank} {what}: {first.bundle}{where}"
