"""From bundles to incidents: the ranks of one incident count once, and so do copies."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from workbench.diagnose.triage.ledgers import Ledgers, episodes
from workbench.evidence.stages import STAGES, UNKNOWN, stage_code
from workbench.evidence.wording import joined, number

Row = dict[str, Any]


def incidents(rows: Iterable[Row]) -> list[Row]:
    """Put the bundles of one incident together.

    Args:
        rows: Readable rows of `reading.read_row`.

    Returns:
        One entry an incident: the fields of its first bad rank, and ``bundles``, ``ranks`` (those
        with a bundle), ``first_ranks`` and ``why_one`` (why several bundles are one incident).
    """
    known: dict[str, Row] = {}
    copies: dict[str, list[Row]] = {}
    for row in rows:
        # the digest goes through the manifest over every file: equal ones are one bundle twice
        if row["digest"] in known:
            copies.setdefault(row["digest"], []).append(row)
            _take_findings(known[row["digest"]], row)
        else:
            known[row["digest"]] = row
    found = [_one(members, copies) for members in _members(known.values())]
    return sorted(found, key=lambda one: (one["created"], one["url"]), reverse=True)


def _take_findings(kept: Row, copy: Row) -> None:
    if kept["origin"] is None and copy["origin"] is not None:
        kept |= {key: copy[key] for key in ("findings", "origin", "origins")}


def _members(rows: Iterable[Row]) -> list[list[Row]]:
    """Rows of each incident: by its id, else by run and step, where ranks differ."""
    groups: dict[tuple[Any, ...], list[Row]] = {}
    for row in rows:
        groups.setdefault(_key(row), []).append(row)
    found: list[list[Row]] = []
    for members in groups.values():
        if len({row["rank"] for row in members}) == len(members):
            found.append(members)
            continue
        # One rank twice: two runs of one name. Each lies in a folder of its own, or they stay apart
        folders: dict[str, list[Row]] = {}
        for row in members:
            folders.setdefault(row["folder"], []).append(row)
        for beside in folders.values():
            alone = len({row["rank"] for row in beside}) == len(beside)
            found += [beside] if alone else [[row] for row in beside]
    return found


def _key(row: Row) -> tuple[Any, ...]:
    if row["incident"]:
        return ("id", row["incident"])
    if row["world"] > 1:
        return ("step", row["run_id"], row["step"], row["world"])
    return ("bundle", row["digest"])


def _one(members: list[Row], copies: Mapping[str, list[Row]]) -> Row:
    """One incident: what its first bad rank says, and an origin if any rank has one."""
    ordered = sorted(members, key=_place)
    first = next((row for row in ordered if row["origin"] is not None), ordered[0])
    earliest = [row for row in ordered if _place(row)[:2] == _place(ordered[0])[:2]]
    incident = {k: v for k, v in first.items() if k not in ("folder", "bytes", "ledger", "error")}
    # what was caught, and so the fingerprint, is the earliest rank's, whoever was diagnosed
    incident |= {key: ordered[0][key] for key in ("caught", "fingerprint", "kind", "rank")}
    incident["stage"] = _stage(ordered[0])
    incident["bundles"] = [row["url"] for row in ordered]
    incident["copies"] = [copy["url"] for row in ordered for copy in copies.get(row["digest"], ())]
    incident["ranks"] = [row["rank"] for row in ordered]
    incident["first_ranks"] = sorted(row["rank"] for row in earliest)
    incident["bytes"] = sum(row["bytes"] for row in ordered)
    incident["why_one"] = _why_one(ordered)
    incident["spread"] = None
    incident["notes"] = list(dict.fromkeys(note for row in ordered for note in row["notes"]))
    return incident


def _place(row: Row) -> tuple[int, int, int, int]:
    """Step and stage, never a clock; the rank only makes the order certain."""
    caught = row["caught"]
    if caught is None:
        return row["step"], UNKNOWN, 0, row["rank"]
    return row["step"], stage_code(caught["stage"]), caught["micro_step"], row["rank"]


def _stage(row: Row) -> str | None:
    return None if row["caught"] is None else str(row["caught"]["stage"])


def _why_one(ordered: list[Row]) -> str:
    if len(ordered) == 1:
        return ""
    ranks = joined([number(row["rank"]) for row in ordered], 8)
    if ordered[0]["incident"]:
        return f"ranks {ranks} name the same incident"
    return f"ranks {ranks} of one run at the same step"


def add_spread(incident: Row, ledgers: Ledgers) -> None:
    """Add what the ledgers of all ranks say about an incident's step.

    Args:
        incident: The incident; ``spread`` and ``first_ranks`` are filled in.
        ledgers: The ledgers of its run.
    """
    step = incident["step"]
    for one in episodes(ledgers):
        if not one.first_step <= step <= one.last_step:
            continue
        incident["first_ranks"] = list(one.own or one.first)
        incident["stage"] = one.stage if one.stage in STAGES else incident["stage"]
        incident["spread"] = {
            "first_step": one.first_step,
            "last_step": one.last_step,
            "stage": one.stage,
            "own": list(one.own),
            "later": list(one.later),
            "ranks": one.ranks,
            "ended": list(one.ended),
            "sentence": spread_sentence(one),
        }
        return


def spread_sentence(one: Any) -> str:
    """How an episode spread over the ranks, in one sentence.

    Args:
        one: A `ledgers.Episode`.
    """
    at = f"At step {number(one.first_step)}"
    if one.own:
        word = "rank" if len(one.own) == 1 else "ranks"
        names = joined([number(rank) for rank in one.own], 8)
        text = f"{at} {word} {names} of {number(one.ranks)} went bad before the reduction"
        text += f", first at {one.stage}"
        if one.later:
            text += f"; {number(len(one.later))} others had it at the reduction or later"
    else:
        text = (
            f"{at} no rank was bad before the reduction; {number(len(one.later))} of "
            f"{number(one.ranks)} were at {one.stage}, so the ledgers do not say which rank made it"
        )
    if one.ended:
        text += f"; the ledgers of {number(len(one.ended))} ranks end before that step"
    return f"{text}."
