"""What a report claims, claim by claim, and how two of them compare."""

from __future__ import annotations

import base64
import difflib
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any, Final, Literal

import numpy as np

from workbench.evidence.wording import clean, count_words, counted, number
from workbench.numerics import jsonio
from workbench.reports.claim_text import apart, readable
from workbench.reports.extract import Statement

Status = Literal["same", "changed", "cannot be checked here"]
SAME: Final[Status] = "same"
CHANGED: Final[Status] = "changed"
UNCHECKED: Final[Status] = "cannot be checked here"

_SHOWN: Final = 160
_MOST_DIFFERENCES: Final = 8
_LONGEST_SEARCH: Final = 4_000_000
# How far two machines may differ in a number that both show; bits are for the verdict.
_TOLERANCE: Final = 1e-3
_NUMBER: Final = re.compile(r"[−-]?\d[\d,]*(?:\.\d+)?(?:e[−+-]?\d+)?")
# Where findings came from differs between a report and its check, and is no claim of either.
_ORIGIN_NOTE: Final = re.compile(
    r"Findings (?:saved|made|packed|from)\b[^.]*\.(?: They were made [^|]{0,200}\.)?"
)


@dataclass(frozen=True)
class Claim:
    """One claim of a report and what became of it.

    Attributes:
        name: What is claimed.
        status: ``same``, ``changed`` or ``cannot be checked here``.
        said: What the report says.
        found: What was found now, where it differs.
        why: Why it cannot be checked, or what the difference is.
    """

    name: str
    status: Status
    said: str = ""
    found: str = ""
    why: str = ""

    def to_data(self) -> dict[str, Any]:
        """The claim as plain values."""
        return {
            "name": self.name,
            "status": self.status,
            "said": self.said,
            "found": self.found,
            "why": self.why,
        }


def equal(name: str, said: Any, found: Any, why: str = "") -> Claim:
    """Compare two texts or plain values."""
    left, right = _text(said), _text(found)
    if left == right:
        return Claim(name, SAME, clean(readable(said), _SHOWN))
    return Claim(name, CHANGED, *apart(said, found, _SHOWN), why)


def _text(value: Any) -> str:
    return value if isinstance(value, str) else jsonio.dumps(value)


# -- findings ---------------------------------------------------------------------------------

FINDINGS: Final = "workbench.findings/1"
# What a reader would miss first comes first; what is not named here is compared all the same.
_NAMED: Final = (
    "first_bad reproduction origins counterfactuals chain contributors contamination absorbed "
    "step_order alerts summary limits"
).split()
FROM_RECORD: Final = frozenset(("First bad", "Alerts"))


def findings_claims(findings: Mapping[str, Any]) -> dict[str, tuple[str, Any]]:
    """Every claim of findings: its name, how it reads, and the value it stands for.

    Of what is no ``workbench.findings/1`` every part is a claim under its own name.
    """
    if findings.get("schema") != FINDINGS:
        return {
            _word(key).capitalize(): (_counted(value), value)
            for key, value in findings.items()
            if key not in ("schema", "bundle")
        }
    found: dict[str, tuple[str, Any]] = {
        "First bad": (_first_bad(findings.get("first_bad")), findings.get("first_bad")),
        "Verdict": (_verdict(findings.get("reproduction")), findings.get("reproduction")),
    }
    for place, origin in enumerate(_rows(findings, "origins"), 1):
        cause = {key: origin.get(key) for key in ("cause", "range", "explanation", "fix")}
        found[f"Origin {place}"] = (
            _origin(origin),
            {key: value for key, value in origin.items() if key not in cause},
        )
        found[f"Cause of origin {place}"] = (_word(origin.get("cause") or "not classified"), cause)
    for place, trial in enumerate(_rows(findings, "counterfactuals"), 1):
        text = f"{trial.get('intervention')}: {_word(trial.get('result'))}"
        text += f"; placebo {_word(trial.get('placebo') or 'not run')}"
        found[f"Counterfactual {place}"] = (text, trial)
    done = {"first_bad", "reproduction", "origins", "counterfactuals", "bundle", "schema"}
    for key in [*_NAMED, *sorted(set(findings) - set(_NAMED))]:
        if key in done or key not in findings:
            continue
        found[_word(key).capitalize()] = (_counted(findings[key]), findings[key])
    return found


def _counted(value: Any) -> str:
    return counted(len(value), "entry", "entries") if isinstance(value, list) else readable(value)


def compare_findings(
    said: Mapping[str, Any], found: Mapping[str, Any], unchecked: str = ""
) -> list[Claim]:
    """Compare the findings a page carries with others.

    Args:
        said: Of the page.
        found: Made now.
        unchecked: Why what a replay shows cannot be checked; empty when it was replayed.
    """
    left, right = findings_claims(said), findings_claims(found)
    claims = []
    for name in [*left, *(name for name in right if name not in left)]:
        text, value = left.get(name, ("", None))
        other_text, other = right.get(name, ("", None))
        if unchecked and name not in FROM_RECORD:
            claims.append(Claim(name, UNCHECKED, clean(text, _SHOWN), why=unchecked))
        elif name not in left or name not in right:
            side = "not in the report" if name not in left else "not found now"
            claims.append(
                Claim(name, CHANGED, clean(text, _SHOWN), clean(other_text, _SHOWN), side)
            )
        elif _text(value) == _text(other):
            claims.append(Claim(name, SAME, clean(text, _SHOWN)))
        else:
            where = _difference(value, other)
            shown = (clean(text, _SHOWN), clean(other_text, _SHOWN))
            claims.append(Claim(name, CHANGED, *shown, f"differs in {where}"))
    return claims


def _rows(findings: Mapping[str, Any], key: str) -> list[Mapping[str, Any]]:
    value = findings.get(key)
    return [row for row in value if isinstance(row, Mapping)] if isinstance(value, list) else []


def _word(value: Any) -> str:
    return str(value).replace("_", " ")


def _first_bad(bad: Any) -> str:
    if not isinstance(bad, Mapping):
        return "nothing tripped"
    counts = bad.get("counts")
    what = count_words(counts) if isinstance(counts, Mapping) and counts else bad.get("kind")
    place = f"step {bad.get('step')}, micro-step {bad.get('micro_step', 0)}, rank {bad.get('rank')}"
    return f"{bad.get('tensor')} at {_word(bad.get('stage'))}, {place}: {what}"


def _verdict(reproduction: Any) -> str:
    found = reproduction if isinstance(reproduction, Mapping) else {}
    if not found.get("verdict"):
        return "not replayed"
    survives = found.get("survives_instrumentation")
    probes = "fails with probes too" if survives is True else "not with probes"
    probes = "not tried with probes" if survives is None else probes
    steady = "deterministic here" if found.get("deterministic_here") else "not deterministic here"
    return f"{_word(found['verdict'])}; {steady}; {probes}"


def _origin(origin: Mapping[str, Any]) -> str:
    place = origin.get("module") if origin.get("where") == "module" else origin.get("where")
    text = f"{_word(origin.get('kind'))}: {origin.get('op')} in {place or 'the model'}"
    return f"{text}, {origin.get('stage')}, {origin.get('source') or 'no source line'}"


def _difference(said: Any, found: Any, path: str = "") -> str:
    """The first place where two plain values differ, in words."""
    if isinstance(said, Mapping) and isinstance(found, Mapping):
        for key in sorted({*map(str, said), *map(str, found)}):
            if _text(said.get(key)) != _text(found.get(key)):
                return _difference(said.get(key), found.get(key), f"{path}.{key}")
    if isinstance(said, list) and isinstance(found, list) and len(said) == len(found):
        for place, (left, right) in enumerate(zip(said, found, strict=True), 1):
            if _text(left) != _text(right):
                return _difference(left, right, f"{path}[{place}]")
    name = clean(path.lstrip("."), 80) or "its value"
    left, right = apart(said, found, 80)
    return f"{name}: {left}, now {right}"


# -- what is seen -----------------------------------------------------------------------------


def compare_statements(
    said: Sequence[Statement], found: Sequence[Statement], *, other_machine: bool
) -> Iterator[Claim]:
    """Compare what two pages show, section by section.

    Args:
        said: Of the page that is checked.
        found: Of the page made again.
        other_machine: Whether numbers may differ in their last digits.
    """
    left, right = _by_section(said), _by_section(found)
    for section in [*left, *(name for name in right if name not in left)]:
        name = f"Text of section {clean(section, 60)}"
        differences = list(
            _differences(left.get(section, []), right.get(section, []), other_machine)
        )
        if not differences:
            yield Claim(name, SAME, f"{number(len(left[section]))} texts")
        for here, there in differences[:_MOST_DIFFERENCES]:
            key = clean((here or there).key, 60)
            left_text, right_text = apart(
                here.text if here else "", there.text if there else "", _SHOWN
            )
            why = "" if here and there else "only in the report" if here else "not in the report"
            yield Claim(f"{name}, {key}", CHANGED, left_text, right_text, why)
        rest = len(differences) - _MOST_DIFFERENCES
        if rest > 0:
            yield Claim(f"{name}, the rest", CHANGED, why=f"{number(rest)} more texts differ")


def compare_notes(said: Sequence[Statement], found: Sequence[Statement]) -> Iterator[Claim]:
    """Compare the notes on two pages; notes that were pinned since then change nothing."""
    here = {one.text for one in found}
    lost = [one for one in said if one.text not in here]
    if not said or not lost:
        yield from [Claim("Notes", SAME, f"{number(len(said))} texts")] if said else []
    elif not any(one.place.startswith("h3") for one in found):
        yield Claim("Notes", UNCHECKED, why="no note lies beside the bundle here")
    for one in lost if any(one.place.startswith("h3") for one in found) else ():
        yield Claim("Notes", CHANGED, clean(one.text, _SHOWN), why="no such note beside the bundle")


def _by_section(statements: Iterable[Statement]) -> dict[str, list[Statement]]:
    found: dict[str, list[Statement]] = {}
    for section, group in groupby(statements, key=lambda one: one.section):
        found.setdefault(section, []).extend(group)
    return found


_Pair = tuple[Statement, Statement | None] | tuple[None, Statement]


def _differences(
    said: list[Statement], found: list[Statement], other_machine: bool
) -> Iterator[Any]:
    left = [(one.place, _ORIGIN_NOTE.sub("Findings.", one.text)) for one in said]
    right = [(one.place, _ORIGIN_NOTE.sub("Findings.", one.text)) for one in found]
    for a, b, c, d in _changed_spans(left, right):
        for place in range(max(b - a, d - c)):
            here = said[a + place] if a + place < b else None
            there = found[c + place] if c + place < d else None
            if here and there and (here.place, here.text) == (there.place, there.text):
                continue
            if other_machine and here and there and _close_texts(here.text, there.text):
                continue
            yield here, there


def _changed_spans(left: list[Any], right: list[Any]) -> list[tuple[int, int, int, int]]:
    """The places that differ; very long ones are compared place by place."""
    if left == right:
        return []
    if len(left) * len(right) > _LONGEST_SEARCH:
        return [(0, len(left), 0, len(right))]
    matcher = difflib.SequenceMatcher(None, left, right, autojunk=False)
    return [tuple(rest) for tag, *rest in matcher.get_opcodes() if tag != "equal"]  # type: ignore[misc]


def _close_texts(said: str, found: str) -> bool:
    """Whether two texts differ in the last digits of numbers only."""
    if _NUMBER.sub("#", said) != _NUMBER.sub("#", found):
        return False
    pairs = zip(_NUMBER.findall(said), _NUMBER.findall(found), strict=True)
    return all(left == right or _close(_read(left), _read(right)) for left, right in pairs)


def _read(text: str) -> float:
    return float(text.replace(",", "").replace("−", "-"))


def _close(said: float, found: float) -> bool:
    # whole numbers are counts, steps, places: they are equal or they are not
    if said == int(said) and found == int(found):
        return said == found
    return abs(said - found) <= _TOLERANCE * max(abs(said), abs(found))


# -- charts -----------------------------------------------------------------------------------


def compare_charts(
    said: Mapping[str, Any], found: Mapping[str, Any], *, other_machine: bool
) -> Iterator[Claim]:
    """Compare the numbers and texts behind the charts of two pages."""
    for name in [*said, *(name for name in found if name not in said)]:
        label = f"Data of {clean(name, 80)}"
        if name not in said or name not in found:
            side = "not in the report" if name not in said else "only in the report"
            yield Claim(label, CHANGED, why=side)
        elif _text(said[name]) == _text(found[name]):
            yield Claim(label, SAME, f"{counted(len(_text(said[name])), 'character')}, equal")
        elif other_machine and _close_values(said[name], found[name]):
            yield Claim(label, SAME, "equal to three digits, on another machine")
        else:
            yield Claim(label, CHANGED, why=f"differs in {_difference(said[name], found[name])}")


def _close_values(said: Any, found: Any) -> bool:
    if isinstance(said, Mapping) and isinstance(found, Mapping):
        if "bdata" in said and "bdata" in found:
            return _close_arrays(said, found)
        return said.keys() == found.keys() and all(_close_values(said[k], found[k]) for k in said)
    if isinstance(said, list) and isinstance(found, list):
        pairs = zip(said, found, strict=False)
        return len(said) == len(found) and all(_close_values(a, b) for a, b in pairs)
    if isinstance(said, float) and isinstance(found, float):
        return said == found or _text(said) == _text(found) or _close_floats(said, found)
    if isinstance(said, str) and isinstance(found, str):
        return said == found or _close_texts(said, found)
    return type(said) is type(found) and bool(said == found)


def _close_floats(said: float, found: float) -> bool:
    return abs(said - found) <= _TOLERANCE * max(abs(said), abs(found))


def _close_arrays(said: Mapping[str, Any], found: Mapping[str, Any]) -> bool:
    kept = {key: value for key, value in said.items() if key != "bdata"}
    if kept != {key: value for key, value in found.items() if key != "bdata"}:
        return False
    try:
        left, right = (
            np.frombuffer(base64.b64decode(str(one["bdata"]), validate=True), str(one["dtype"]))
            for one in (said, found)
        )
    except (ValueError, TypeError):
        return False
    if left.shape != right.shape or left.dtype.kind not in "fiu":
        return False
    return bool(np.allclose(left, right, rtol=_TOLERANCE, atol=0, equal_nan=True))
