"""Checking a report against a bundle: the report is made again, and compared claim by claim.

The page is untrusted. Nothing it names is run: which code is run, and which template of one's own,
is said by whoever checks. Its other parameters are texts and numbers of the template it names.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from workbench import __version__
from workbench.errors import BundleError, UsageError
from workbench.evidence.notes import read_notes, write_notes
from workbench.evidence.reader import open_bundle
from workbench.evidence.schema import check_name
from workbench.evidence.wording import clean
from workbench.numerics import jsonio
from workbench.reports.claims import (
    CHANGED,
    FINDINGS,
    SAME,
    UNCHECKED,
    Claim,
    compare_charts,
    compare_findings,
    compare_notes,
    compare_statements,
    equal,
    findings_claims,
)
from workbench.reports.described import BUNDLES, environment_digest
from workbench.reports.execute import run_notebook
from workbench.reports.extract import CHART, Page, Statement, read_page
from workbench.reports.page import About, write_page
from workbench.reports.recheck_head import (
    FILES,
    bundle_claims,
    header_claims,
    table,
    template_of,
    version_of,
)
from workbench.reports.recheck_saved import NO_CODE, against_saved, saved_findings
from workbench.reports.run import step_reference
from workbench.reports.templates import Template, check_parameters

if TYPE_CHECKING:
    from workbench.evidence import Bundle

SCHEMA: Final = "workbench.recheck/1"
_OTHER_MACHINE: Final = "the report was made on another machine or with other versions"
# What follows from record and findings alone; the rest is drawn from a trace.
_WITHOUT_TRACE: Final = frozenset(
    "summary origin counterfactuals timeline environment how-to-check-this-report top".split()
)
_APART: Final = frozenset(("about", "notes"))


@dataclass
class Recheck:
    """What became of every claim of a report.

    Attributes:
        report: The report's file name.
        bundle: The bundle's file name.
        replayed: Whether the step was run again.
        claims: In the order of the page's importance.
    """

    report: str
    bundle: str
    replayed: bool = False
    claims: list[Claim] = field(default_factory=list)

    @property
    def changed(self) -> list[Claim]:
        """Claims that do not hold."""
        return [claim for claim in self.claims if claim.status == CHANGED]

    def count(self, status: str) -> int:
        """How many claims have a status."""
        return sum(claim.status == status for claim in self.claims)

    def to_data(self) -> dict[str, Any]:
        """The check as ``workbench.recheck/1``."""
        return {
            "schema": SCHEMA,
            "report": self.report,
            "bundle": self.bundle,
            "replayed": self.replayed,
            "claims": [claim.to_data() for claim in self.claims],
            "totals": {status: self.count(status) for status in (SAME, CHANGED, UNCHECKED)},
        }


def recheck(
    html: str | Path,
    bundle: Any,
    step: Any = None,
    trust: str | None = None,
    template: str | Path | None = None,
    progress: Callable[[str], None] | None = None,
) -> Recheck:
    """Run again what a report claims, and compare.

    Args:
        html: The report.
        bundle: The bundle it is about, or its path; two of them for a report that compares.
        step: Code of the training step; without it only what needs no replay is checked. What the
            page says about code is never followed.
        trust: ``import`` or ``source``: what of the bundle may be run.
        template: Path of the template, for a report made from one of one's own.
        progress: Called with the name of each part before it runs.

    Returns:
        Every claim with ``same``, ``changed`` or ``cannot be checked here``.

    Raises:
        BundleError: The page is no report, or there is no bundle.
        CannotRunError: The step's code cannot be loaded.
    """
    page = read_page(html)
    given = list(bundle) if isinstance(bundle, list | tuple) else [bundle]
    opened = [open_bundle(one) if isinstance(one, str | Path) else one for one in given]
    coded = _code_is_there(opened[0], step, trust)
    done = Recheck(Path(page.name).name, opened[0].path.name, coded)
    done.claims += bundle_claims(page, opened)
    damaged = any(claim.name == FILES and claim.status == CHANGED for claim in done.claims)
    found = template_of(page, template)
    done.claims += header_claims(page, found)
    if damaged:
        done.claims += _unchecked(page, "the bundle is damaged")
        return done
    try:
        again = made_again(page, opened, found, step if coded else None, trust, progress)
    except NotMadeError as error:
        done.claims += _unchecked(page, str(error))
        return done
    done.claims += compared(page, again, opened[0], coded=coded)
    return done


class NotMadeError(Exception):
    """The report cannot be made again here; the text says why."""


def _code_is_there(bundle: Bundle, step: Any, trust: str | None) -> bool:
    from workbench.step import load_step

    known = bundle.manifest.step_reference
    if step is None and trust is None and known.kind != "integration":
        return False
    # here, so that code that cannot be loaded is an error and not a page that says so
    load_step(bundle, step=step, trust=trust)
    return True


def _unchecked(page: Page, why: str) -> Iterator[Claim]:
    for name, (text, _) in findings_claims(page.findings or {}).items():
        yield Claim(name, UNCHECKED, clean(text, 160), why=why)
    yield Claim("Text of the page", UNCHECKED, why=why)


# -- the report made again --------------------------------------------------------------------


def made_again(
    page: Page,
    bundles: Sequence[Bundle],
    found: Template | None,
    step: Any,
    trust: str | None,
    progress: Callable[[str], None] | None,
) -> Page:
    """Make the report again, from these bundles and with this code.

    Without code, and where a replay stands behind the page, the page's own findings are laid
    beside the bundle: its text is then compared with what they say.

    Raises:
        NotMadeError: It cannot be made here.
    """
    if found is None:
        raise NotMadeError("its template is not here")
    with tempfile.TemporaryDirectory(prefix="workbench-recheck-") as folder:
        # nothing found earlier lies beside them, so everything is run again
        places = _places(page, bundles, Path(folder))
        _bring_notes(bundles, places)
        if step is None and trust is None and page.findings is not None and _replayed(page):
            _put_findings(page.findings, places[0])
        try:
            values = _values(page, found, places, step, trust)
        except UsageError as error:
            raise NotMadeError(f"its parameters are not those of the template ({error})") from error
        execution = run_notebook(found.notebook(), values, progress, None, found.modules)
    if execution.interrupt is not None:
        raise execution.interrupt
    if execution.failed:
        raise NotMadeError(f'cell "{execution.failed}" failed here: {clean(execution.reason, 300)}')
    rows = [(str(row[0]), str(row[1])) for row in page.about.get("rows") or [] if len(row) == 2]
    return read_page(write_page(execution.notebook, About(rows, _data(page))))


def _data(page: Page) -> dict[str, Any]:
    return {key: value for key, value in page.about.items() if key != "rows"}


def _places(page: Page, bundles: Sequence[Bundle], folder: Path) -> list[Path]:
    """The bundles under the names they have on the page; packed ones may have others by now."""
    named = page.about.get("bundles")
    named = named if isinstance(named, list) else [table(page.about, "bundle")]
    places = []
    for number, bundle in enumerate(bundles):
        said = named[number] if number < len(named) else {}
        name = str(said.get("name", "")) if isinstance(said, Mapping) else ""
        try:
            name = check_name(name) if "/" not in name else bundle.path.name
        except BundleError:
            name = bundle.path.name
        place = folder / str(number) / name
        place.parent.mkdir()
        place.symlink_to(bundle.path.resolve())
        places.append(place)
    return places


def _bring_notes(bundles: Sequence[Bundle], places: Sequence[Path]) -> None:
    """Notes are written by people: they are taken along, not made again."""
    for bundle, place in zip(bundles, places, strict=True):
        try:
            notes = read_notes(bundle)
        except BundleError:
            continue
        if notes:
            write_notes(open_bundle(place), notes)


def _replayed(page: Page) -> bool:
    found = page.findings or {}
    return found.get("schema") == FINDINGS and bool(table(found, "reproduction").get("verdict"))


def _put_findings(findings: Mapping[str, Any], place: Path) -> None:
    """Lay the page's own findings beside the bundle: does its text say what they say?"""
    folder = place.with_name(f"{place.name.removesuffix('.zip')}.findings")
    folder.mkdir(exist_ok=True)
    (folder / "findings.json").write_text(jsonio.dumps(findings), encoding="utf-8")


def _values(
    page: Page, found: Template, places: Sequence[Path], step: Any, trust: str | None
) -> dict[str, Any]:
    said = table(page.about, "parameters")
    mine = (*BUNDLES, "step", "trust")
    values = {key: value for key, value in said.items() if key not in mine}
    values |= {name: str(place) for name, place in zip(BUNDLES, places, strict=False)}
    if step is not None:
        values["step"] = step_reference(step)
    if trust is not None:
        values["trust"] = trust
    return check_parameters(found, values)


# -- the comparison ---------------------------------------------------------------------------


def compared(page: Page, again: Page, bundle: Bundle, *, coded: bool) -> Iterator[Claim]:
    """Compare a page with the page made again: findings, texts, charts, programs.

    Without code, what rests on a replay is ``same`` nowhere: it cannot be checked, or is
    ``changed`` against the findings saved beside the bundle.
    """
    claims = _compared(page, again, bundle, coded=coded)
    if coded or not _replayed(page):
        yield from claims
    else:
        yield from against_saved(claims, page.findings or {}, saved_findings(bundle))


def _compared(page: Page, again: Page, bundle: Bundle, *, coded: bool) -> Iterator[Claim]:
    other = _other_machine(page)
    if other:
        yield Claim("Machine", UNCHECKED, clean(page.about.get("device", ""), 80), why=other)
    yield from _findings_compared(page, again, bundle, coded=coded)
    whole = coded or not _replayed(page)
    said, found = _checkable(page.statements, whole), _checkable(again.statements, whole)
    if other:
        said, found = (_without(one, "environment") for one in (said, found))
        yield Claim("Text of section environment", UNCHECKED, why=other)
    notes = (
        [s for s in one if s.section == "notes"] for one in (page.statements, again.statements)
    )
    yield from compare_notes(*notes)
    said, found = (_without(one, "notes") for one in (said, found))
    if page.about.get("complete") is False:
        yield Claim("Text of the page", UNCHECKED, why="the report says it is incomplete")
    else:
        yield from compare_statements(said, found, other_machine=bool(other))
    if whole:
        yield from compare_charts(page.charts, again.charts, other_machine=bool(other))
        yield _programs(page, again)
        return
    for name in page.charts:
        if name in again.charts and "timeline" in name:
            data = ({name: one.charts[name]} for one in (page, again))
            yield from compare_charts(*data, other_machine=bool(other))
        else:
            yield Claim(f"Data of {clean(name, 80)}", UNCHECKED, why=NO_CODE)
    for section in sorted({one.section for one in page.statements} - _WITHOUT_TRACE - _APART):
        yield Claim(f"Text of section {clean(section, 60)}", UNCHECKED, why=NO_CODE)


def _findings_compared(page: Page, again: Page, bundle: Bundle, *, coded: bool) -> Iterator[Claim]:
    if page.findings is None and again.findings is None:
        return
    said, found = page.findings or {}, again.findings or {}
    if coded or not _replayed(page):
        yield from compare_findings(said, found)
        yield equal("Findings", jsonio.dumps(said), jsonio.dumps(found))
        return
    recorded = None if bundle.first_bad is None else bundle.first_bad.as_dict()
    alerts = bundle.evidence().get("alerts", []) if bundle.kind == "alert" else []
    known = {**said, "first_bad": recorded, "alerts": alerts, "summary": _summary(bundle, said)}
    for claim in compare_findings(said, known, NO_CODE):
        if claim.name == "Summary":
            why = "the five lines do not follow from record and findings"
            yield equal("Summary", said.get("summary"), known["summary"], why)
        else:
            yield claim


def _summary(bundle: Bundle, findings: Mapping[str, Any]) -> list[str]:
    """The five lines that record and findings give."""
    from workbench.evidence import summary_facts, summary_lines

    facts = summary_facts(bundle, findings)
    origins, absorbed = findings.get("origins"), findings.get("absorbed")
    if isinstance(origins, list) and origins and isinstance(origins[0], Mapping):
        facts.cause = origins[0].get("explanation") or None
        facts.fix = origins[0].get("fix") or None
    if isinstance(absorbed, list) and absorbed and isinstance(absorbed[0], Mapping):
        facts.silent = absorbed[0].get("sentence")
    return summary_lines(facts)


def _other_machine(page: Page) -> str:
    """Why numbers may differ here in their last digits, or nothing."""
    from workbench.evidence import environment

    return (
        "" if page.about.get("environment") == environment_digest(environment()) else _OTHER_MACHINE
    )


def _checkable(statements: list[Statement], whole: bool) -> list[Statement]:
    """What can be compared; the end of the page is checked against its own data."""
    kept = _without(statements, "about")
    if whole:
        return kept
    # the first screen has another chart where there is no trace
    return [
        one
        for one in kept
        if one.section in _WITHOUT_TRACE
        and not (one.section == "summary" and one.place.startswith(CHART))
    ]


def _without(statements: list[Statement], section: str) -> list[Statement]:
    return [one for one in statements if one.section != section]


def _programs(page: Page, again: Page) -> Claim:
    if version_of(page) != __version__:
        return Claim("Style and programs", UNCHECKED, why="they are of another version")
    if page.programs == again.programs:
        return Claim("Style and programs", SAME, "as this version writes them")
    strange = [one for one in page.programs if one not in again.programs]
    return Claim(
        "Style and programs", CHANGED, clean(strange[0], 160) if strange else "some left out"
    )


__all__ = ["Recheck", "recheck"]
