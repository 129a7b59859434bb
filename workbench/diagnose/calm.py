"""Calm steps to compare a finite incident with: kept steps at which nothing was unusual."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from workbench.errors import WorkbenchError
from workbench.replay.kept_steps import merge
from workbench.step import read_state
from workbench.step.classes import classes_of

if TYPE_CHECKING:
    from workbench.evidence import Bundle
    from workbench.replay import Replay
    from workbench.replay.source import Source

AT_MOST = 3
TRAJECTORY, CALM = "trajectory/index.json", "calm/index.json"


@dataclass(frozen=True)
class Calm:
    """One calm step, ready to be replayed.

    Attributes:
        step: Its number.
        source: What its replay starts from.
        own_parameters: Whether its own parameters were kept; else it runs through those of the
            incident's step, which leaves the batch and the random numbers as what differs.
    """

    step: int
    source: Source
    own_parameters: bool


def calm_steps(bundle: Bundle, replay: Replay, before: int | None = None) -> list[Calm]:
    """Read the newest calm steps of a bundle, oldest first; empty when none was kept.

    Args:
        bundle: The bundle.
        replay: Its replay.
        before: Steps from this one on are not calm: something had left its range by then.
    """
    entries = _entries(bundle, TRAJECTORY) or _entries(bundle, CALM)
    unusual = _unusual_steps(bundle)
    here = replay.source
    end = here.step_index if before is None else min(before, here.step_index)
    found: list[Calm] = []
    for entry in reversed(entries):
        step = int(entry["step"])
        if step >= end or step in unusual:
            continue
        try:
            state = read_state(bundle, str(entry["prefix"]), classes_of(here.step, bundle))
        except WorkbenchError:
            continue
        own = state.model is not None
        state = state if own else merge(state, here.state)
        source = replace(
            here, state=state, kind="captured", first_bad=None, evidence={}, bundle=None
        )
        found.append(Calm(step, source, own))
        if len(found) == AT_MOST:
            break
    # steps with parameters of their own and steps without are not one envelope
    kind = found[0].own_parameters if found else False
    return [calm for calm in reversed(found) if calm.own_parameters == kind]


def _entries(bundle: Bundle, index: str) -> list[Mapping[str, Any]]:
    if not bundle.has(index):
        return []
    data = bundle.json(index)
    listed = data.get("steps", [data]) if isinstance(data, Mapping) else []
    return [
        e
        for e in listed
        if isinstance(e, Mapping) and isinstance(e.get("step"), int) and "prefix" in e
    ]


def _unusual_steps(bundle: Bundle) -> set[int]:
    """Steps with an alert, a skip or something non-finite, by the ledger."""
    records = bundle.ledger() if bundle.has("ledger.jsonl") else []
    return {
        int(r["step"])
        for r in records
        if isinstance(r.get("step"), int)
        and (r.get("alerts") or r.get("consecutive_skips") or r.get("first_bad_stage"))
    }
