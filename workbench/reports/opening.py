"""The first screen and the setup that all templates but ``incident`` share."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from workbench.errors import CannotRunError
from workbench.evidence.wording import command_line
from workbench.numerics import jsonio
from workbench.reports import blocks, wording
from workbench.reports.blocks import Block, Section
from workbench.reports.incident import Incident

Fact = tuple[str, str, str]
_VARIES = ("seconds", "kept")


def opening(
    incident: Incident,
    kind: str,
    headline: tuple[str, str],
    facts: Sequence[Fact],
    data: Mapping[str, Any] | None = None,
    more: Sequence[Block] = (),
) -> Section:
    """The first screen: what was done, what came of it in one sentence, and the facts.

    Args:
        incident: The incident.
        kind: What the report is, for its title, for example ``Sweep``.
        headline: The sentence and its tone: ``bad``, ``alert`` or empty.
        facts: ``(name, text, anchor of the evidence)``.
        data: What travels with the page for programs.
        more: Further blocks, before the contents.
    """
    what, _ = wording.headline(incident)
    own = incident.about.get("title")
    named = wording.title(incident)
    title = own or f"{kind} of {named[:1].lower()}{named[1:]}"
    damaged = [("Damaged", " ".join(incident.damaged), "")] if incident.damaged else []
    shown = [
        blocks.title(title, wording.when(incident), *headline),
        blocks.facts([("Incident", what, ""), *facts, *damaged]),
        *more,
        blocks.contents(),
    ]
    return Section("summary", shown, "" if data is None else jsonio.dumps(steady(data)))


def steady(value: Any) -> Any:
    """Data without what differs from run to run: times, and whether a result was kept."""
    if isinstance(value, Mapping):
        return {key: steady(item) for key, item in value.items() if key not in _VARIES}
    if isinstance(value, (list, tuple)):
        return [steady(item) for item in value]
    return value


def require_code(incident: Incident, template: str, step: str, trust: str) -> None:
    """Refuse before anything runs when nobody named or trusted the step's code.

    Raises:
        CannotRunError: Neither ``step`` nor ``trust`` was given.
    """
    if step or trust or incident.manifest.get("step_kind") == "integration":
        return
    known = incident.manifest.get("step_reference") or "package.module:Name"
    raise CannotRunError(
        f"The template {template!r} replays the step, and that runs its code, {known!r}; opening "
        "a bundle trusts nothing in it, so nothing was run. When you trust it, make the report "
        "again with it, or with your own copy of the code (--step REFERENCE): "
        f"{command_line('report', incident.name, '--template', template, '--trust', 'import')}"
    )
