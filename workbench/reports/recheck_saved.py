"""A report checked without the step's code: what a replay found cannot be checked by reading it.

The page's texts are compared with the page's own findings, which shows an edit of the one but not
of both. Findings saved beside the bundle are a second witness, though not a replay.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from workbench.errors import BundleError
from workbench.evidence.scrub import scrub_tree
from workbench.reports.claims import CHANGED, SAME, UNCHECKED, Claim, compare_findings

if TYPE_CHECKING:
    from workbench.evidence import Bundle

NO_CODE: Final = (
    "it comes from a replay, and the step's code was not given (--step package.module:Name)"
)
_AS_SAVED: Final = f"{NO_CODE}; it is as in the findings saved beside the bundle"
_NOT_AS_SAVED: Final = "the findings saved beside the bundle say otherwise"
_AGREES: Final = f"{NO_CODE}; it agrees with the page's own findings, which shows little"
_REPLAYED: Final = frozenset(
    f"Text of section {name}" for name in ("top", "summary", "origin", "counterfactuals")
) | {"Summary"}
_LISTED: Final = ("Origin", "Cause of origin", "Counterfactual")


def saved_findings(bundle: Bundle) -> Mapping[str, Any] | None:
    """The findings of an earlier replay beside the bundle, if they are about exactly its bytes."""
    from workbench.diagnose import Findings

    try:
        found = Findings.load(bundle)
    except BundleError:
        return None
    if found is None or not found.replayed:
        return None
    data: Mapping[str, Any] = scrub_tree(found.data)  # as a page tells them: without folders
    return data


def against_saved(
    claims: Iterable[Claim], said: Mapping[str, Any], saved: Mapping[str, Any] | None
) -> Iterator[Claim]:
    """Claims that no replay checked, with what saved findings say of them.

    Args:
        claims: Those compared without code; a ``same`` that rests on a replay is taken back.
        said: The findings the page carries.
        saved: Those saved beside the bundle, if any.
    """
    found = {} if saved is None else {one.name: one for one in compare_findings(said, saved)}
    agrees = saved is not None and all(not _forged(one) for one in found.values())
    seen = set()
    for claim in claims:
        seen.add(claim.name)
        other = found.get(claim.name)
        if claim.status == SAME and claim.name in _REPLAYED:
            yield replace(claim, status=UNCHECKED, why=_AS_SAVED if agrees else _AGREES)
        elif claim.status == UNCHECKED and other is not None:
            yield _beside(claim, other)
        else:
            yield claim
    yield from (_named(one) for name, one in found.items() if name not in seen and _forged(one))


def _beside(claim: Claim, other: Claim) -> Claim:
    return _named(other) if _forged(other) else replace(claim, why=_AS_SAVED)


def _named(other: Claim) -> Claim:
    return replace(other, why=f"{_NOT_AS_SAVED}; {other.why}")


def _forged(one: Claim) -> bool:
    # a diagnosis made with more options has more parts; an origin left out is another matter
    more = one.why == "not in the report" and not one.name.startswith(_LISTED)
    return one.status == CHANGED and not more


__all__ = ["NO_CODE", "against_saved", "saved_findings"]
