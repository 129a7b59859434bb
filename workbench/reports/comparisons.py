"""Sections of the template ``incident-comparison``: two bundles, what is the same, what differs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from workbench.charts.rows import Rows
from workbench.charts.words import KIND_WORDS, MISSING, number
from workbench.diagnose.answers import born
from workbench.errors import BundleError
from workbench.evidence.wording import command_line, count_words, counted, joined, origin_place
from workbench.numerics import jsonio
from workbench.reports import blocks, histories, wording
from workbench.reports.blocks import Block, Section
from workbench.reports.histories import short_name
from workbench.reports.incident import Incident
from workbench.reports.opening import steady
from workbench.reports.telling import tell

_MOST_ROWS = 40


@dataclass
class ComparisonReport:
    """Two incidents as a report sees them.

    Attributes:
        a: The one.
        b: The other.
        data: ``workbench.comparison/1`` of their recorded tensors.
        masks: Per sink of the first bad stage, digest of its non-finite set in A and in B.
    """

    a: Incident
    b: Incident
    data: dict[str, Any]
    masks: dict[str, tuple[str, str]]

    @property
    def both(self) -> tuple[Incident, Incident]:
        """A and B."""
        return self.a, self.b


def compare(a: Incident, b: Incident, bundle: str, other: str) -> ComparisonReport:
    """Compare two bundles: facts, then non-finite sets, then values; no code of either is run.

    Raises:
        BundleError: One of the two is damaged.
    """
    from workbench.evidence import open_bundle
    from workbench.replay.side_by_side import compare_bundles

    opened = [open_bundle(bundle), open_bundle(other)]
    data = compare_bundles(opened[0], opened[1], tell)
    masks = [_masks(one) for one in opened]
    names = dict.fromkeys((*masks[0], *masks[1]))
    pairs = {name: (masks[0].get(name, ""), masks[1].get(name, "")) for name in names}
    return ComparisonReport(a, b, jsonio.loads(jsonio.dumps(data)), pairs)


def _masks(opened: Any) -> dict[str, str]:
    try:
        digests = opened.evidence().get("digests") or {}
    except BundleError:
        return {}
    found = digests.get("masks")
    return {str(k): str(v) for k, v in found.items()} if isinstance(found, dict) else {}


def first_screen(report: ComparisonReport) -> Section:
    """Whether it is one failure or two, and what is and is not the same."""
    a, b = report.both
    rows = _facts(report)
    same = [name for name, x, y in rows if x == y and x != MISSING]
    differs = [name for name, x, y in rows if x != y]
    shown = [
        blocks.title(
            a.about.get("title") or f"Comparison of {short_name(a)} and {short_name(b)}",
            "",
            *_headline(report),
        ),
        blocks.facts(
            [
                ("A", f"{short_name(a)}: {wording.headline(a)[0]}", ""),
                ("B", f"{short_name(b)}: {wording.headline(b)[0]}", ""),
                ("The same", f"{joined(same, 12) or 'None of the facts'}.", "facts"),
                ("Differs", f"{joined(differs, 12) or 'None of the facts'}.", "facts"),
                ("Non-finite", _mask_sentence(report), "non-finite-elements-then-values"),
                ("Values", _value_sentence(report), "non-finite-elements-then-values"),
                ("Conditions", _changed(report.data["conditions"]), "conditions-and-environment"),
                ("Environment", _changed(report.data["environment"]), "conditions-and-environment"),
                ("History", histories.sentence(report.both), "history"),
                ("Not shown", "That what differs is what made one fail otherwise.", ""),
                *[
                    (f"{letter} is damaged", " ".join(incident.damaged), "")
                    for letter, incident in zip("AB", report.both, strict=True)
                    if incident.damaged
                ],
            ]
        ),
        blocks.contents(),
    ]
    whole = {
        "schema": "workbench.comparison-report/1",
        "a": {"bundle": a.digest, "findings": a.findings},
        "b": {"bundle": b.digest, "findings": b.findings},
        "comparison": {**report.data, "rows": report.data["rows"][:_MOST_ROWS]},
    }
    return Section("summary", shown, jsonio.dumps(steady(whole)))


def _headline(report: ComparisonReport) -> tuple[str, str]:
    a, b = report.both
    if a.digest == b.digest and (a.damaged or b.damaged):
        return "Both say that they are the same bundle, and files of one are damaged.", "alert"
    if a.digest == b.digest:
        return "Both are the same bundle.", ""
    facts = {name: (x, y) for name, x, y in _facts(report)}
    caught = all(facts[name][0] == facts[name][1] for name in ("Stage", "Tensor", "Kinds"))
    found = [wording.origins(incident) for incident in report.both]
    if all(found):
        cause = wording.words(found[0][0].get("cause") or "no cause named")
        alike = all(facts[name][0] == facts[name][1] for name in ("Op", "Place", "Cause"))
        if alike:
            where = f"born at {facts['Op'][0]} in {facts['Place'][0]}"
            return f"The same failure in both: {where} ({cause}).", "bad"
        return (
            f"Two failures: A is born at {born(found[0][0])}, B at {born(found[1][0])}.",
            "bad",
        )
    if caught:
        return "Both are caught alike; not both are diagnosed, so the birth is not compared.", "bad"
    places = [f"{facts['Stage'][i]} ({facts['Tensor'][i]})" for i in (0, 1)]
    return f"Caught at different places: A at {places[0]}, B at {places[1]}.", "bad"


def _facts(report: ComparisonReport) -> list[tuple[str, str, str]]:
    """``(fact, of A, of B)``, from the record and from the first origin of each."""
    pairs = [_of_one(incident) for incident in report.both]
    return [(name, pairs[0][name], pairs[1][name]) for name in pairs[0]]


def _of_one(incident: Incident) -> dict[str, str]:
    bad = incident.first_bad or {}
    origin: Mapping[str, Any] = next(iter(wording.origins(incident)), {})
    found = bad.get("counts") or {}
    kinds = [KIND_WORDS[kind] for kind in KIND_WORDS if found.get(kind)]
    reproduction = (incident.findings or {}).get("reproduction") or {}
    known = {
        "Fingerprint": incident.fingerprint,
        "Kind": incident.kind,
        "Stage": wording.words(bad.get("stage")) if bad else "",
        "Tensor": str(bad.get("tensor") or ""),
        "Kinds": joined(kinds),
        "Counts": count_words(found) if found else "",
        "Op": str(origin.get("op") or wording.words(origin.get("kind")) if origin else ""),
        "Place": origin_place(origin) if origin else "",
        "Autograd node": str(origin.get("autograd_node") or ""),
        "Cause": wording.words(origin.get("cause")) if origin.get("cause") else "",
        "Source line": str(origin.get("source") or ""),
        "Replayed": str(reproduction.get("verdict") or ""),
    }
    return {name: text or MISSING for name, text in known.items()}


def facts(report: ComparisonReport) -> Section:
    """One row per fact: A, B, and whether they are equal."""
    rows = tuple((name, x, y, _equal(x, y)) for name, x, y in _facts(report))
    caption = "What each record says of what was caught, and its findings of what was born."
    headers = ("Fact", "A", "B", "Compared")
    notes = [
        f"{letter}: {incident.origin_note}"
        for letter, incident in zip("AB", report.both, strict=True)
    ]
    return Section("facts", [blocks.table(Rows(caption, headers, rows)), blocks.bullets(notes)])


def _equal(x: str, y: str) -> str:
    if MISSING in (x, y):
        return "not known of both" if x != y else MISSING
    return "same" if x == y else "differs"


def _mask_sentence(report: ComparisonReport) -> str:
    pairs = [(name, x, y) for name, (x, y) in report.masks.items()]
    shared = [(name, x == y) for name, x, y in pairs if x and y]
    if not shared:
        return "No tensor is bad in both where they were caught."
    equal = [name for name, same in shared if same]
    other = [name for name, same in shared if not same]
    parts = []
    if equal:
        parts.append(f"the same elements in {joined(equal, 4)}")
    if other:
        parts.append(f"other elements in {joined(other, 4)}")
    text = "; ".join(parts)
    return f"{text[:1].upper()}{text[1:]}."


def _value_sentence(report: ComparisonReport) -> str:
    data = report.data
    compared = int(data["compared_tensors"])
    if not compared:
        return "No recorded tensor is in both."
    if data["bitwise"] == compared:
        return f"Equal, bit for bit: the {counted(compared, 'tensor')} that both recorded."
    return (
        f"{number(int(data['bitwise']))} of {number(compared)} recorded tensors are equal; the "
        f"first that differs is {data['parts_at']}."
    )


def _changed(rows: Sequence[Mapping[str, Any]]) -> str:
    names = [str(row["field"]) for row in rows]
    return f"Differ in {joined(names, 4)}." if names else "Equal."


def tensors(report: ComparisonReport) -> Section:
    """Recorded tensors: non-finite sets first, then values where both are finite."""
    shown: list[Block] = []
    if report.masks:
        rows = tuple(
            (name, _has(x), _has(y), _alike(x, y)) for name, (x, y) in report.masks.items()
        )
        caption = "Which elements are non-finite in the tensors that tripped, by digest."
        shown.append(blocks.table(Rows(caption, ("Tensor", "A", "B", "Compared"), rows)))
    differing = [row for row in report.data["rows"] if row["only"] or not row["bitwise"]]
    headers = ("Tensor", "Shape", "Non-finite elements", "Largest difference", "Relative", "In")
    lines = tuple(_tensor_line(row) for row in differing[:_MOST_ROWS])
    if lines:
        more = len(differing) - len(lines)
        rest = f" {number(more)} more are not listed." if more > 0 else ""
        caption = (
            f"Recorded tensors that differ: {number(len(differing))} of "
            f"{number(len(report.data['rows']))}.{rest}"
        )
        shown.append(blocks.table(Rows(caption, headers, lines, numeric=(3, 4))))
    shown.append(blocks.paragraph(_value_sentence(report)))
    if report.data["note"]:
        shown.append(blocks.paragraph(str(report.data["note"]), "muted"))
    return Section("tensors", shown)


def _alike(x: str, y: str) -> str:
    if x and y:
        return "the same elements" if x == y else "other elements"
    return f"bad in {'A' if x else 'B'} only"


def _has(digest: str) -> str:
    return f"{digest[:12]}…" if digest else "not bad"


def _tensor_line(row: Mapping[str, Any]) -> tuple[str, ...]:
    where = str(row.get("file", ""))
    if row["only"]:
        only = str(row["only"]).upper()
        shape = row[f"shape_{row['only']}"]
        return (str(row["name"]), str(shape), f"only in {only}", MISSING, MISSING, where)
    if row["shape_a"] != row["shape_b"]:
        shape = f"{row['shape_a']} and {row['shape_b']}"
        return (str(row["name"]), shape, "not compared", MISSING, MISSING, where)
    masks = "the same" if row["same_masks"] else _mask_words(row["masks"])
    absolute, relative = row.get("max_abs"), row.get("max_rel")
    return (
        str(row["name"]),
        str(row["shape_a"]),
        masks,
        number(absolute),
        number(relative),
        where,
    )


def _mask_words(masks: Sequence[Mapping[str, Any]]) -> str:
    parts = [
        f"{KIND_WORDS.get(str(mask['kind']), str(mask['kind']))}: {number(mask['a'])} in A, "
        f"{number(mask['b'])} in B"
        for mask in masks
        if mask["a"] or mask["b"]
    ]
    return "; ".join(parts)


def surroundings(report: ComparisonReport) -> Section:
    """Conditions and environments that differ."""
    shown: list[Block] = []
    for caption, rows, keys in (
        ("Recorded conditions that differ.", report.data["conditions"], ("a", "b")),
        ("Environments: what differs.", report.data["environment"], ("recorded", "here")),
    ):
        lines = tuple(
            (str(row["field"]), number(row.get(keys[0])), number(row.get(keys[1]))) for row in rows
        )
        if lines:
            shown.append(blocks.table(Rows(caption, ("Field", "A", "B"), lines)))
        else:
            shown.append(blocks.paragraph(f"{caption.rstrip('.')}: nothing."))
    return Section("surroundings", shown)


def history(report: ComparisonReport) -> Section:
    """Loss, gradient norm and loss scale of both before their incidents."""
    return histories.history(report.both)


def check(report: ComparisonReport) -> Section:
    """How a reader can check the comparison."""
    rows = []
    for letter, incident in zip("AB", report.both, strict=True):
        rows += [(f"Bundle {letter}", incident.name), (f"Digest of {letter}", incident.digest)]
    rows.append(("Author", report.a.about.get("author") or "not named"))
    names = (report.a.name, report.b.name)
    again = command_line("report", *names, "--template", "incident-comparison")
    return Section(
        "check",
        [
            blocks.table(Rows("", ("Fact", "Value"), tuple(rows))),
            blocks.code(again, "Makes this report again"),
            blocks.code(command_line("verify", report.a.name), "Checks every file of a bundle"),
        ],
    )
