"""The first claims of a report: which bundle, which template, and how it says it was made."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from workbench import __version__
from workbench.errors import UsageError
from workbench.evidence.wording import clean, counted, joined
from workbench.reports.claims import CHANGED, SAME, UNCHECKED, Claim, equal
from workbench.reports.extract import Page
from workbench.reports.templates import Template, find_template

if TYPE_CHECKING:
    from workbench.evidence import Bundle

FILES: Final = "Bundle files"


def bundle_claims(page: Page, bundles: Sequence[Bundle]) -> Iterator[Claim]:
    """Whether these are the bundles the page is about, and as they were recorded."""
    named = page.about.get("bundles")
    named = named if isinstance(named, list) and named else [table(page.about, "bundle")]
    said = [str(one.get("digest", "")) if isinstance(one, Mapping) else "" for one in named]
    found = [bundle.digest for bundle in bundles]
    why = "this is not the bundle the report is about, or it was changed since"
    if len(said) != len(found):
        why = f"the report is about {counted(len(said), 'bundle')}, and here there are {len(found)}"
    yield equal("Bundle digest", ", ".join(said), ", ".join(found), why)
    inside = table(page.findings or {}, "bundle").get("digest")
    if inside is not None:
        yield equal("Bundle digest in the findings", str(inside), found[0], why)
    for bundle in bundles:
        bad = [check.rel for check in bundle.verify() if check.status != "ok"]
        if bad:
            shown = joined([clean(rel, 60) for rel in bad], 3)
            yield Claim(FILES, CHANGED, "every file as recorded", f"not as recorded: {shown}")
        else:
            yield Claim(FILES, SAME, "every file matches its digest")


def table(data: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    """A table of untrusted data, empty where there is none."""
    value = data.get(key)
    return value if isinstance(value, Mapping) else {}


def template_of(page: Page, given: str | Path | None) -> Template | None:
    """The template: the one given, else one of the package by its name, else None."""
    name = str(table(page.about, "template").get("name", ""))
    if given is not None:
        return find_template(given)
    try:
        # a name only: a path on the page would point to a program of the page's choice
        return find_template(name) if name.replace("-", "").replace("_", "").isalnum() else None
    except UsageError:
        return None


def header_claims(page: Page, found: Template | None) -> Iterator[Claim]:
    """Whether the page says truly how it was made."""
    named = table(page.about, "template")
    name, digest = clean(named.get("name", ""), 80), str(named.get("digest", ""))
    if found is None:
        why = "no such template here; name your copy with --template"
        yield Claim("Template digest", UNCHECKED, f"{name}, {clean(digest, 80)}", why=why)
    elif found.digest == digest:
        yield Claim("Template digest", SAME, f"{found.name}, {digest}")
    elif table(page.about, "versions").get("workbench") == __version__:
        yield Claim("Template digest", CHANGED, clean(digest, 80), found.digest)
    else:
        why = f"the report was made by version {clean(version_of(page), 20)}, this is {__version__}"
        yield Claim("Template digest", UNCHECKED, clean(digest, 80), found.digest, why)
    yield from _rows_claim(page)


def version_of(page: Page) -> Any:
    """The version of this package that made the page, as it says."""
    return table(page.about, "versions").get("workbench", "unknown")


def _rows_claim(page: Page) -> Iterator[Claim]:
    """Whether the visible table of how the report was made says what the page carries."""
    rows = page.about.get("rows")
    rows = [row for row in rows if isinstance(row, list) and len(row) == 2] if rows else []
    carried = [" | ".join(" ".join(str(cell).split()) for cell in row) for row in rows]
    shown = [one.text for one in page.statements if one.section == "about" and one.place == "row"]
    yield equal("How the report was made", shown[1:], carried, "text and data of the page disagree")
    bundle, template = table(page.about, "bundle"), table(page.about, "template")
    versions = table(page.about, "versions")
    expected = [bundle.get("digest"), template.get("digest"), *versions.values()]
    missing = [clean(one, 80) for one in expected if not any(str(one) in text for text in shown)]
    if missing:
        yield Claim("How the report was made", CHANGED, found=joined(missing, 3), why="not shown")
    headline = " ".join(str(page.about.get("headline") or "").split())
    if headline and not any(one.text.endswith(headline) for one in page.statements):
        yield Claim("Headline", CHANGED, clean(headline, 160), why="not the headline that is shown")
