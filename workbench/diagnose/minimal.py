"""The smallest changes under which a step is finite, and the smallest part that keeps it failing.

Over conditions, and over modules (which of them must leave low precision). Neither is assumed to be
monotone: every set is probed, and the answer says how far smaller sets were tried. Finite under a
set of changes narrows the failure down; it is no repair.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from workbench.diagnose.dependence import condition_words, finite_sentence, plain
from workbench.diagnose.probe import Data, Prober, Say, fails, is_finite
from workbench.diagnose.subsets import OutOfProbes, Probes, Smallest, Subset, ddmin, smallest_set
from workbench.errors import CannotRunError, UsageError
from workbench.evidence.wording import counted, joined

if TYPE_CHECKING:
    from workbench.evidence import Conditions

SCHEMA = "workbench.minimal/1"
MOST_PROBES = 96
_USUAL: dict[str, tuple[Any, ...]] = {
    "autocast": ("off",),
    "dtype": ("float64",),
    "matmul_precision": ("highest",),
    "matmul_tf32": (False,),
    "cudnn": (False,),
    "cudnn_tf32": (False,),
    "cudnn_benchmark": (False,),
    "deterministic": ("on",),
    "sdpa": ("math",),
    "compile": ("off",),
    "scale": (1.0,),
    "mode": ("eval",),
    "optimizer": ("for_loop",),
    "threads": (1,),
}
"""Changes tried when none are named: each takes away one way in which a step can go wrong."""


@dataclass
class Minimal:
    """A minimal set of changes, and its mirror image.

    Attributes:
        over: ``conditions`` or ``modules``.
        candidates: The changes that were considered.
        fixing: The smallest set under which the step is finite.
        failing: The smallest set whose original settings are enough to fail while all else is
            changed; None where it was not looked for.
        probes: How many different sets were run.
        monotone: Whether no larger set was seen to fail where a smaller one was finite.
        sentences: All of it for people.
        original_after: The original, run again after the last finite run.
        idle: Candidates that cannot act here, with the reason.
    """

    over: str
    candidates: tuple[str, ...]
    fixing: Smallest
    failing: Smallest | None
    probes: int
    monotone: bool
    sentences: list[str]
    original_after: Data | None = None
    values: Data = field(default_factory=dict)
    idle: dict[str, str] = field(default_factory=dict)

    def to_data(self) -> Data:
        """Return it as ``workbench.minimal/1``."""
        return {
            "schema": SCHEMA,
            "over": self.over,
            "candidates": list(self.candidates),
            "values": plain(self.values),
            "fixing": _set_data(self.fixing),
            "failing": None if self.failing is None else _set_data(self.failing),
            "probes": self.probes,
            "monotone": self.monotone,
            "original_after": self.original_after,
            "without_effect": self.idle,
            "sentences": self.sentences,
        }


def usual_changes(nearest: Conditions) -> Data:
    """The changes tried when none are named: those that differ from the original conditions."""
    found: Data = {}
    for key, (value,) in _USUAL.items():
        if key == "scale" and nearest.scale is None:
            continue
        if nearest.changes(nearest.replace(**{key: value})):
            found[key] = value
    return found


def minimal_changes(
    prober: Prober,
    changes: Mapping[str, Any],
    most_probes: int = MOST_PROBES,
    say: Say | None = None,
) -> Minimal:
    """Find the smallest changes of condition under which the step is finite, and the reverse.

    Args:
        prober: Runs the step.
        changes: Candidates: one value by condition.
        most_probes: Most different sets that are run for each of the two questions.
        say: Called with a sentence as each set begins.

    Raises:
        UsageError: No candidates.
        CannotRunError: The original does not fail here, so there is nothing to fix.
    """
    if not changes:
        raise UsageError(
            "No change of condition was named ('{}'), and none of the usual ones differs from the "
            "recorded conditions. Name some, for example --set autocast=off."
        )
    seen = _Seen(prober, say)
    seen.require_failing()
    idle: dict[str, str] = {}
    for item in seen.run(changes)["runs"][:1]:
        idle = {entry["key"]: entry["why"] for entry in item["without_effect"]}
    names = [key for key in changes if key not in idle] or list(changes)

    def chosen(subset: Subset) -> Data:
        return {key: changes[key] for key in names if key in subset}

    fixing_probes = Probes(lambda s: is_finite(seen.run(chosen(s))), most_probes)
    fixing = smallest_set(names, fixing_probes)
    everything = frozenset(names)
    failing_probes = Probes(lambda s: fails(seen.run(chosen(everything - s))), most_probes)
    failing = smallest_set(names, failing_probes) if fixing.found else None
    result = Minimal(
        "conditions",
        tuple(names),
        fixing,
        failing,
        seen.count,
        fixing_probes.monotone and failing_probes.monotone,
        [],
        values={key: changes[key] for key in names},
        idle=idle,
    )
    _conclude(result, seen, None if fixing.found is None else chosen(frozenset(fixing.found)))
    return result


def minimal_modules(
    prober: Prober,
    modules: Sequence[str],
    most_probes: int = MOST_PROBES,
    say: Say | None = None,
) -> Minimal:
    """Find which modules must leave low precision for the step to be finite, and the reverse.

    Blocks first, then their parts: a block is replaced by its parts where those are enough, and
    stays where ops of its own forward must leave as well.

    Args:
        prober: Runs the step.
        modules: Every module path of the model, as ``named_modules()`` gives them.
        most_probes: Most different sets that are run for each of the two questions.
        say: Called with a sentence as each set begins.

    Raises:
        CannotRunError: The original does not fail here, so there is nothing to fix.
    """
    seen = _Seen(prober, say)
    seen.require_failing()
    children = _children(modules)

    def run(subset: Subset) -> Data:
        return seen.run({"float32_modules": tuple(m for m in modules if m in subset)})

    probes = Probes(lambda s: bool(s) and is_finite(run(s)), most_probes)
    fixing = _by_levels(modules, children, probes)
    leaves = [m for m in modules if m and not children.get(m)]
    failing = None
    kept = Probes(lambda s: fails(run(frozenset(leaves) - s)), most_probes)
    if fixing.found and leaves:
        failing = smallest_set(leaves, kept)
    result = Minimal(
        "modules",
        tuple(modules),
        fixing,
        failing,
        seen.count,
        probes.monotone and kept.monotone,
        [],
    )
    found = None if fixing.found is None else {"float32_modules": fixing.found}
    _conclude(result, seen, found)
    return result


class _Seen:
    """Runs each set of changes once and remembers what came of it."""

    def __init__(self, prober: Prober, say: Say | None) -> None:
        self._prober = prober
        self._say = say or (lambda sentence: None)
        self._known: dict[str, Data] = {}

    @property
    def count(self) -> int:
        return len(self._known)

    def run(self, changed: Mapping[str, Any]) -> Data:
        key = repr(sorted(changed.items()))
        if key not in self._known:
            self._say(f"Probe {self.count + 1:,}: {condition_words(changed)}")
            self._known[key] = self._prober(changed)
        return self._known[key]

    def require_failing(self) -> None:
        data = self.run({})
        if not fails(data):
            why = data["error"] or "it was finite"
            raise CannotRunError(
                f"The original conditions did not fail here ({why}), so there is no failure that a "
                "change could take away. Check the replay with: workbench replay"
            )


def _children(modules: Sequence[str]) -> dict[str, list[str]]:
    """The nearest named descendants of every module, in order."""
    known = set(modules)
    found: dict[str, list[str]] = {}
    for path in modules:
        parent = path
        while parent:
            parent = parent.rpartition(".")[0]
            if parent in known:
                found.setdefault(parent, []).append(path)
                break
    return found


def _by_levels(
    modules: Sequence[str], children: Mapping[str, list[str]], probe: Probes
) -> Smallest:
    """Hierarchical delta debugging: reduce a level, then try to replace each block by its parts."""
    roots = [m for m in modules if m == ""] or [m for m in modules if "." not in m]
    current: list[str] = roots
    try:
        if not probe(frozenset(current)):
            return smallest_set(children.get("", roots), probe)
        order = list(modules)
        current = [m for m in order if m in ddmin(order, frozenset(current), probe)]
        waiting = list(current)
        while waiting:
            block = waiting.pop(0)
            parts = children.get(block, [])
            rest = frozenset(current) - {block}
            if not parts or not probe(rest | frozenset(parts)):
                continue
            fewest = ddmin(parts, frozenset(parts), lambda s, rest=rest: probe(rest | s))  # type: ignore[misc]
            current = [m for m in order if m in rest | fewest]
            waiting += [m for m in parts if m in fewest]
        minimal = not any(probe(frozenset(current) - {m}) for m in current)
        if not minimal:  # not monotone across blocks
            current = [m for m in order if m in ddmin(order, frozenset(current), probe)]
            minimal = True
    except OutOfProbes:
        having = [s for s, yes in probe.known.items() if yes]
        if not having:
            return Smallest(None, complete=False)
        best = min(having, key=len)
        return Smallest(tuple(m for m in modules if m in best), complete=False)
    return Smallest(tuple(current), one_minimal=minimal, smallest=len(current) == 1)


def _set_data(found: Smallest) -> Data:
    return {
        "set": None if found.found is None else list(found.found),
        "alternatives": [list(one) for one in found.alternatives],
        "one_minimal": found.one_minimal,
        "smallest": found.smallest,
        "complete": found.complete,
    }


# -- what it says -------------------------------------------------------------------------------


def _conclude(result: Minimal, seen: _Seen, finite: Data | None) -> None:
    result.sentences = [_fixing_sentence(result, seen, finite)]
    if result.failing is not None and result.failing.found is not None:
        result.sentences.append(_failing_sentence(result))
    if not result.monotone:
        result.sentences.append(
            "The effect is not monotone: a larger set of changes fails where a smaller one is "
            "finite."
        )
    spent = not result.fixing.complete or (result.failing and not result.failing.complete)
    if spent:
        result.sentences.append(
            f"The budget of probes was used up after {result.probes:,}, so smaller sets may exist."
        )


def _fixing_sentence(result: Minimal, seen: _Seen, finite: Data | None) -> str:
    if finite is None:
        what = "modules run in float32" if result.over == "modules" else "these changes"
        probes = counted(result.probes, "probe")
        return f"It still fails with every set of {what} that was tried ({probes})."
    data = seen.run(finite)
    after = data["original_after"]
    result.original_after = (
        None if after is None else {k: after[k] for k in ("stage", "tensor", "loss", "verdict")}
    )
    still = after is not None and after["tensor"] is not None
    said = finite_sentence(finite, still)
    if len(result.fixing.found or ()) > 1:
        smaller = "No smaller set of these is enough." if result.fixing.smallest else ""
        said += f" {smaller or 'With any one of them left out it fails again.'}"
    if result.fixing.alternatives:
        others = "; ".join(", ".join(one) for one in result.fixing.alternatives[:3])
        said += f" Also finite, and as small: {others}."
    return said


def _failing_sentence(result: Minimal) -> str:
    assert result.failing is not None  # noqa: S101 - asked by the caller
    found = result.failing.found or ()
    if result.over == "modules":
        if not found:
            return (
                "It fails even with every innermost module in float32: the ops are between them, "
                "in the forward of a module around them."
            )
        return f"Low precision in {_all_of(found)} alone is enough to fail."
    if not found:
        return "It fails even with all of these changes together."
    return f"With {_all_of(found)} as recorded and all else changed, it still fails."


def _all_of(names: Sequence[str]) -> str:
    return joined([name or "the whole model" for name in names], at_most=len(names))
