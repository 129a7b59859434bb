"""What the Compare tab says: masks first, then errors where both are finite."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from workbench.charts.words import KIND_WORDS, number
from workbench.evidence.wording import count_words, counted
from workbench.widgets.findings import items, mapping
from workbench.widgets.markup import esc, link, name, note, table
from workbench.widgets.state import Result

MAX_ROWS = 200
FIRST_ROWS = 12
"""Rows before all are asked for: what stands below the table stays in reach."""
RESULTS = {
    "gone": "the failure is gone",
    "moved": "it moves elsewhere",
    "benign_skip": "only a scaler skip is left",
    "unchanged": "it fails the same way",
    "appears": "a failure appears",
    "varies": "differs from run to run",
    "error": "did not run",
    "died": "the process died",
    "stopped": "stopped",
}


def comparison(data: Any, first: str, second: str, opened: bool) -> str:
    """Two runs or two bundles: the sentence, then the table."""
    rows = items(data, "rows")
    said = " ".join(sentences(data, first, second))
    remark = str(mapping(data).get("note") or "")
    dim = f'<p class="wb-dim">{esc(remark)}</p>' if remark else ""
    return f"<p>{esc(said)}</p>{dim}" + _rows(rows, first, second, opened)


def sentences(data: Any, first: str, second: str) -> list[str]:
    """What a comparison shows, masks before errors."""
    facts, rows = mapping(data), items(data, "rows")
    both = int(facts.get("compared_tensors") or 0)
    by_name = {str(row.get("name")): row for row in rows if not row.get("only")}
    if both and facts.get("bitwise") == both:
        found = [f"Equal bit by bit: the {counted(both, 'tensor')} that both have."]
    elif facts.get("masks_part_at") is None:
        found = [f"Non-finite sets: equal in the {counted(both, 'tensor')} that both have."]
    else:
        at = str(facts["masks_part_at"])
        masks = mask_words(by_name.get(at, {}), first, second)
        differ = both - int(facts.get("same_masks") or 0)
        where = f"{number(differ)} of {counted(both, 'tensor')}, first in {shown_name(at)}"
        found = [f"Non-finite sets differ in {where} ({masks})."]
    if facts.get("parts_at") is not None:
        at = str(facts["parts_at"])
        found.append(f"First place they part: {shown_name(at)}{_how(by_name.get(at, {}))}.")
    for key, which in (("only_a", first), ("only_b", second)):
        if facts.get(key):
            found.append(f"Only in {which}: {counted(int(facts[key]), 'tensor')}.")
    return found


def _how(row: Mapping[str, Any]) -> str:
    pieces = []
    if row.get("dtype_a") != row.get("dtype_b"):
        pieces.append(f"{row.get('dtype_a')} and {row.get('dtype_b')}")
    if row.get("shape_a") != row.get("shape_b"):
        pieces.append(f"shapes {row.get('shape_a')} and {row.get('shape_b')}")
    if row.get("max_abs") is not None:
        pieces.append(f"largest error where both are finite {number(row['max_abs'])}")
    return f" ({', '.join(pieces)})" if pieces else ""


def shown_name(what: str) -> str:
    """A tensor's name as it is read; the root module has none of its own."""
    # "[0]" is the first of several results
    return f"the model's output {what}".strip() if what == "" or what[0] == "[" else what


def mask_words(row: Mapping[str, Any], first: str, second: str) -> str:
    """One tensor's non-finite sets: equal, or only in one of them, with the first index."""
    said = []
    for mask in row.get("masks") or ():
        a, b, both = (int(mask.get(key) or 0) for key in ("a", "b", "both"))
        if not a and not b:
            continue
        word = KIND_WORDS.get(str(mask.get("kind")), str(mask.get("kind")))
        if a == b == both:
            said.append(f"{number(a)} {word}, equal")
            continue
        only = []
        if a > both:
            only.append(f"{number(a - both)} only in {first}")
        if b > both:
            only.append(f"{number(b - both)} only in {second}")
        if both:
            only.append(f"{number(both)} in both")
        where = mask.get("first_difference")
        at = f", first at {where}" if where else ""
        said.append(f"{word}: {', '.join(only)}{at}")
    return "; ".join(said) or "none"


def _rows(rows: list[Mapping[str, Any]], first: str, second: str, opened: bool) -> str:
    differing = [row for row in rows if row.get("only") or not row.get("bitwise")]
    masks = [row for row in differing if not row.get("only") and not row.get("same_masks")]
    shown = rows if opened else (masks + [row for row in differing if row not in masks])
    most = MAX_ROWS if opened else FIRST_ROWS
    cells = [_row(row, first, second) for row in shown[:most]]
    heads = (
        "Tensor",
        f"dtype of {first}, {second}",
        "Shape",
        "Non-finite elements",
        "Largest error, absolute",
        "relative",
        "Denominator at least",
    )
    more = len(shown) - most
    tail = note(f"{number(more)} more.") if more > 0 else ""
    label = "Show the first that differ" if opened else f"Show all {number(len(rows))}"
    order = "in the order they came to be" if opened else "those with differing masks first"
    what = "tensors" if opened else "tensors differ"
    caption = f"{number(len(shown))} {what}, {order}." if shown else "No tensor differs."
    head = f'<p class="wb-dim">{caption} '
    head += link("all_tensors", label) + "</p>"
    return head + (table(heads, cells) if cells else "") + tail


def _row(row: Mapping[str, Any], first: str, second: str) -> tuple[str, ...]:
    title = name(shown_name(str(row.get("name"))), 60)
    only = row.get("only")
    if only:
        which = first if only == "a" else second
        return (title, "", esc(row.get("shape_a")), esc(f"only in {which}"), "", "", "")
    same = row.get("dtype_a") == row.get("dtype_b")
    dtypes = str(row.get("dtype_a")) if same else f"{row.get('dtype_a')}, {row.get('dtype_b')}"
    shapes = str(row.get("shape_a"))
    if row.get("shape_a") != row.get("shape_b"):
        return (
            title,
            esc(dtypes),
            esc(f"{shapes}, {row.get('shape_b')}"),
            "not compared",
            *[""] * 3,
        )
    colour = "" if row.get("same_masks") else ' class="wb-bad"'
    masks = f"<span{colour}>{esc(mask_words(row, first, second))}</span>"
    if row.get("bitwise"):
        return (title, esc(dtypes), esc(shapes), masks, "equal bit by bit", "", "")
    if row.get("max_abs") is None:
        return (title, esc(dtypes), esc(shapes), masks, "nowhere both finite", "", "")
    errors = (number(row.get(key)) for key in ("max_abs", "max_rel", "floor"))
    return (title, esc(dtypes), esc(shapes), masks, *errors)


def bundles(data: Any, opened: bool) -> str:
    """What two bundles recorded: what was caught, conditions, machine, then tensors."""
    facts = mapping(data)
    caught = mapping(facts.get("caught"))
    rows = [("Caught at", *(esc(_caught(caught.get(key))) for key in ("a", "b")))]
    for title, key in (("Condition", "conditions"), ("Environment", "environment")):
        for one in items(data, key):
            a, b = one.get("a", one.get("recorded")), one.get("b", one.get("here"))
            label = f"{title}: {one.get('field')}"
            rows.append((esc(label), name(str(a), 80), name(str(b), 80)))
    body = table(("Of each, and what differs", "This bundle", "The other"), rows)
    return body + comparison(data, "this bundle", "the other", opened)


def _caught(what: Any) -> str:
    bad = mapping(what)
    if not bad:
        return "nothing"
    found = count_words(mapping(bad.get("counts"))) if bad.get("counts") else ""
    return f"step {number(bad.get('step'))}, {bad.get('stage')}, {bad.get('tensor')} ({found})"


def sweep(found: Result) -> str:
    """The sweep's table and what its finite cells show."""
    rows = []
    for row in items(found.data, "cells"):
        idle = row.get("without_effect") or ()
        glyph = "◇" if row.get("diagnostic") else "●"
        result = RESULTS.get(str(row.get("result")), str(row.get("result")))
        if idle:
            result += ". No effect here: " + ", ".join(str(key) for key in idle)
        where = f"{row.get('stage')}: {row.get('tensor')}" if row.get("tensor") else ""
        mask = "" if row.get("mask") in (None, "unknown") else str(row.get("mask"))
        rows.append(
            (
                esc(f"{glyph} {row.get('name')}"),
                esc(result),
                esc(where or row.get("error") or "–"),
                esc(number(row.get("loss"))),
                esc(mask),
            )
        )
    heads = ("Conditions", "Result", "Caught at", "Loss", "Non-finite set against the original's")
    said = "".join(f"<li>{esc(one.get('sentence'))}</li>" for one in items(found.data, "findings"))
    shown = f"<ul>{said}</ul>" if said else ""
    return f'<p class="wb-dim">{esc(found.source)}</p>' + table(heads, rows) + shown


def minimal(found: Result) -> str:
    """The smallest set of changes, in sentences."""
    lines = mapping(found.data).get("sentences")
    said = "".join(f"<li>{esc(one)}</li>" for one in lines) if isinstance(lines, list) else ""
    probes = counted(int(mapping(found.data).get("probes") or 0), "run")
    return f'<p class="wb-dim">{esc(found.source)} {esc(probes)}.</p><ul>{said}</ul>'


def ladder(found: Result) -> str:
    """The rungs and where they part."""
    data = mapping(found.data)
    rows = []
    for run in items(found.data, "reproductions"):
        backend = "uncompiled" if run.get("backend") == "off" else str(run.get("backend"))
        bad, part = mapping(run.get("first_bad")), mapping(run.get("first_parting"))
        fails = f"✕ {bad.get('stage')}: {bad.get('tensor')}" if bad else "finite"
        if run.get("error") and not bad:
            fails = f"did not run: {run.get('error')}"
        parts = f"{part.get('name')} ({part.get('how')})" if part else "–"
        rows.append((esc(backend), esc(fails), esc(parts)))
    said = str(data.get("conclusion") or "")
    notes = [str(one) for one in data.get("notes") or ()]
    body = table(("Backend", "Result", "First place it parts from uncompiled code"), rows)
    return f'<p class="wb-dim">{esc(found.source)}</p><p>{esc(" ".join([said, *notes]))}</p>{body}'
