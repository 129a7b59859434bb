"""Smallest sets with a property, by delta debugging; the property need not be monotone.

``ddmin`` of Zeller and Hildebrandt, with every probe remembered; what it returns is 1-minimal:
taking any single element away loses the property. Smaller sets are then tried as far as the budget
goes, so that the answer can say whether it is also a smallest one.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

FEW = 16
"""Up to so many elements each is tried alone first, so that all single ones are known."""

Subset = frozenset[str]
Test = Callable[[Subset], bool]
"""Whether a subset has the property; a probe that came to no answer has not."""


class OutOfProbes(Exception):
    """The budget of probes is used up."""


@dataclass
class Probes:
    """Remembers what was tried.

    Attributes:
        test: The property.
        most: Most probes.
        known: Every subset that was tried, with the answer.
    """

    test: Test
    most: int
    known: dict[Subset, bool] = field(default_factory=dict)

    def __call__(self, subset: Subset) -> bool:
        """Try a subset, once."""
        if subset not in self.known:
            if len(self.known) >= self.most:
                raise OutOfProbes
            self.known[subset] = self.test(subset)
        return self.known[subset]

    @property
    def monotone(self) -> bool:
        """Whether no subset was seen to have the property while a superset of it has not."""
        having = [s for s, yes in self.known.items() if yes]
        lacking = [s for s, yes in self.known.items() if not yes]
        return not any(a < b for a in having for b in lacking)


@dataclass(frozen=True)
class Smallest:
    """A set with the property.

    Attributes:
        found: The set in the order of the elements, or None where none that was tried has it.
        alternatives: Other sets of the same size that have it.
        one_minimal: Whether taking away any one element was seen to lose it.
        smallest: Whether every smaller set was tried.
        complete: Whether the budget was enough.
    """

    found: tuple[str, ...] | None
    alternatives: tuple[tuple[str, ...], ...] = ()
    one_minimal: bool = False
    smallest: bool = False
    complete: bool = True


def smallest_set(elements: Sequence[str], probe: Probes) -> Smallest:
    """Find a smallest set of elements that has a property.

    Args:
        elements: The elements; their order decides between sets of the same size.
        probe: The property.

    Returns:
        What was found within the budget.
    """
    everything = frozenset(elements)
    best: Subset | None = None
    try:
        if probe(frozenset()):
            return Smallest((), one_minimal=True, smallest=True)
        if len(elements) <= FEW:
            singles = [frozenset([e]) for e in elements if probe(frozenset([e]))]
            if singles:
                return _answer(elements, singles[0], singles[1:], probe, smallest=True)
        best = _start(elements, everything, probe)
        if best is None:
            return Smallest(None, smallest=len(elements) <= 2)
        best = ddmin(elements, best, probe)
        best, others, all_tried = _smaller(elements, best, probe)
        return _answer(elements, best, others, probe, smallest=all_tried)
    except OutOfProbes:
        having = [s for s, yes in probe.known.items() if yes]
        best = min(having, key=len, default=None)
        if best is None:
            return Smallest(None, complete=False)
        return _answer(elements, best, [], probe, smallest=False, complete=False)


def _start(elements: Sequence[str], everything: Subset, probe: Probes) -> Subset | None:
    """A set with the property to reduce: everything, or everything but one, or two of them."""
    if probe(everything):
        return everything
    for element in elements:
        if probe(everything - {element}):
            return everything - {element}
    for pair in itertools.combinations(elements, 2):
        if probe(frozenset(pair)):
            return frozenset(pair)
    return None


def ddmin(elements: Sequence[str], start: Subset, probe: Test) -> Subset:
    """Reduce a set that has the property to a 1-minimal one.

    Args:
        elements: All elements, in order.
        start: A set that has the property.
        probe: The property.
    """
    current = [e for e in elements if e in start]
    parts = 2
    while len(current) > 1:
        chunks = _chunks(current, parts)
        reduced = next((c for c in chunks if len(c) < len(current) and probe(frozenset(c))), None)
        if reduced is not None:
            current, parts = reduced, 2
            continue
        without = ([e for e in current if e not in chunk] for chunk in map(frozenset, chunks))
        reduced = next((w for w in without if w and probe(frozenset(w))), None)
        if reduced is not None:
            current, parts = reduced, max(parts - 1, 2)
        elif parts < len(current):
            parts = min(len(current), 2 * parts)
        else:
            break
    return frozenset(current)


def _chunks(items: list[str], parts: int) -> list[list[str]]:
    parts = min(parts, len(items))
    borders = [len(items) * i // parts for i in range(parts + 1)]
    return [items[a:b] for a, b in itertools.pairwise(borders)]


def _smaller(
    elements: Sequence[str], found: Subset, probe: Probes
) -> tuple[Subset, list[Subset], bool]:
    """Try every smaller set, as far as the budget goes: ddmin's answer is only locally minimal."""
    try:
        for size in range(1, len(found)):
            having = [
                frozenset(chosen)
                for chosen in itertools.combinations(elements, size)
                if probe(frozenset(chosen))
            ]
            if having:
                return having[0], having[1:], True
    except OutOfProbes:
        return found, [], False
    return found, [], True


def _answer(
    elements: Sequence[str],
    found: Subset,
    others: Sequence[Subset],
    probe: Probes,
    *,
    smallest: bool,
    complete: bool = True,
) -> Smallest:
    try:
        minimal = not any(probe(found - {element}) for element in found)
    except OutOfProbes:
        minimal = False
    ordered = [tuple(e for e in elements if e in chosen) for chosen in (found, *others)]
    return Smallest(ordered[0], tuple(ordered[1:]), minimal, smallest, complete)
