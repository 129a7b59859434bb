"""The search behind a bisect: candidates, their parts, and whether they reach what broke."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from workbench.diagnose.analysis import Judged
from workbench.diagnose.bisect import Bisection, Say
from workbench.diagnose.boundaries import Named, blocks, kind_of, parts_of
from workbench.diagnose.case import Case
from workbench.diagnose.held import sentence
from workbench.diagnose.origin_rows import origin_row
from workbench.diagnose.part_origin import Explained, exception_origin, explain
from workbench.diagnose.probes import ForwardScan, Place, Prober, Seen
from workbench.diagnose.probes_backward import GradientScan
from workbench.diagnose.slicing import slice_trace
from workbench.diagnose.starts import starts_of
from workbench.evidence.wording import counted
from workbench.replay.session import Session
from workbench.replay.trace_focus import Part, trace_part
from workbench.step.names import walk

if TYPE_CHECKING:
    from torch import nn

    from workbench.evidence import Bundle
    from workbench.replay import Replay
    from workbench.replay.trace import Trace

MAX_ROUNDS = 6
"""Candidates tried before a full trace is the cheaper way."""
AFTER = ("reduce", "unscale", "clip", "update", "after_update", "logging")


@dataclass(frozen=True)
class Candidate:
    """A boundary that turned bad, and the part of the step behind it.

    Attributes:
        place: The boundary between blocks, or None for a gate.
        part: What to trace.
        at: The boundary to slice from, within the part; None slices from what the gate found.
        block: Path of the block, or None outside of blocks.
        name: The part in words.
    """

    place: Place | None
    part: Part
    at: Place | None
    block: str | None
    name: str


class Search:
    """One search over one recorded step.

    Args:
        bundle: The bundle.
        replay: Its replay.
        say: Called with a sentence as each probe begins.
        halve: Halve over forward prefixes instead of scanning.
    """

    def __init__(self, bundle: Bundle, replay: Replay, say: Say, halve: bool) -> None:
        self.replay, self.say, self.halve = replay, say, halve
        self.prober = Prober(replay)
        self.result = Bisection(bundle, probes=self.prober.probes)
        self.model: nn.Module = Session(replay.source, replay.nearest).runner.model
        self.blocks = blocks(self.model)
        self.outside = Part(skip=tuple(path for path, _ in self.blocks))

    def run(self) -> Bisection:
        """Search, and let a full trace decide what boundaries cannot."""
        bad = self.replay.source.first_bad
        stage = bad.stage if bad is not None and bad.sink != "alert" else self._stage_here()
        if not stage:
            self.result.notes.append("Nothing is non-finite at a sink of this step here.")
            return self.result
        if stage in ("input", "forward", "loss"):
            self.result.direction = "forward"
            self._search(self._scan_forward, self._patch_forward)
        elif stage == "backward" or (stage in AFTER[:3] and not self._raised(bad)):
            self.result.direction = "backward"
            if self.halve:
                self.result.notes.append(
                    "Halving over prefixes does not apply to gradients, which need the whole "
                    "forward: they were scanned."
                )
            self._search(self._scan_gradients, self._patch_gradients)
        else:
            self.result.direction = "step"
            self._gate(bad.tensor if bad is not None else "")
        if self.result.origin is None:
            self._full_trace()
        return self.result

    def _raised(self, bad: Any) -> bool:
        return bad is not None and bad.sink == "exception"

    def _stage_here(self) -> str:
        """The stage that trips here, where the record does not say."""
        seen = self._probe("the whole step, without probes", self.prober.run)
        return seen.stage if seen.outcome is not None else ""

    # -- the search over blocks ---------------------------------------------------------------

    def _search(
        self, scan: Callable[[list[Place], list[Place]], Seen], patch: Callable[[list[Place]], Any]
    ) -> None:
        """Scan, trace what turned bad, show that it reaches the sink; else go on behind it."""
        passed: list[Place] = []
        accepted: list[tuple[Candidate, Explained]] = []
        for _ in range(MAX_ROUNDS):
            patches = [c.place for c, _ in accepted if c.place is not None]
            seen = scan(passed, patches)
            if seen.place is None and seen.outcome is None:
                break
            if _raised_unseen(seen):
                return
            candidates = self._candidates(seen, passed)
            found = self._explain(candidates, patch(patches) if patches else None)
            if found is None:
                if seen.place is None or self.result.direction == "backward":
                    return
                passed += [c.place for c in candidates if c.place is not None]
                continue
            accepted.append(found)
            if found[0].place is None:
                # a gate's own part: by construction it reaches the sink
                if len(accepted) == 1:
                    self._answer(*found)
                return
            patches = [c.place for c, _ in accepted if c.place is not None]
            what = f"{found[0].name}{' and what was found before it' if accepted[1:] else ''}"
            if not self._fails(patch(patches), f"{what} set finite"):
                break
        self._answer_first(accepted, patch)

    def _answer_first(
        self, accepted: list[tuple[Candidate, Explained]], patch: Callable[[list[Place]], Any]
    ) -> None:
        """Take the first candidate without which the others do not make the step finite."""
        unpatched = accepted[:1]
        accepted = sorted(accepted, key=lambda pair: pair[1].origin.order)
        places = [c.place for c, _ in accepted if c.place is not None]
        for number, found in enumerate(accepted):
            others = places[:number] + places[number + 1 :]
            if not others or self._fails(patch(others), f"all but number {number + 1} set finite"):
                # what was found while others were set finite may be born only because of it
                again = found if found in unpatched else self._explain([found[0]], None)
                if again is not None:
                    self._answer(*again)
                return

    def _candidates(self, seen: Seen, passed: Sequence[Place]) -> list[Candidate]:
        noted = [self._at_output(p) for p in seen.noted[-3:] if p not in passed]
        if seen.place is None:
            return [*noted, self._of_gate(seen)]
        if seen.place.side in ("gradient", "parameter"):
            return [self._of_gradient(seen)]
        return [*noted, self._descend(seen.place)]

    def _explain(
        self, candidates: list[Candidate], install: Any
    ) -> tuple[Candidate, Explained] | None:
        self.say(f"Tracing {candidates[-1].name}")
        traced = trace_part(self.replay, [c.part for c in candidates], install)
        self.prober.note(
            f"op trace of {', '.join(c.name for c in candidates)}",
            f"{traced.looked_at():,} of {len(traced.trace.graph):,} ops looked at",
        )
        self.result.looked_at = (traced.looked_at(), len(traced.trace.graph))
        raises = self._raised(self.replay.source.first_bad)
        for candidate in candidates:
            found = explain(traced, candidate.part, candidate.at, raises)
            if found is not None:
                return candidate, found
        return None

    # -- parts --------------------------------------------------------------------------------

    def _at_output(self, place: Place) -> Candidate:
        if place.side != "output":
            return Candidate(place, self.outside, place, None, "the code between the blocks")
        return Candidate(place, Part((place.module,)), place, place.module, f"'{place.module}'")

    def _of_gate(self, seen: Seen) -> Candidate:
        bad = seen.outcome.bad if seen.outcome is not None else ()
        if bad and bad[0].kind == "buffer":
            owner = bad[0].name.partition(":")[2].rpartition(".")[0]
            return Candidate(None, Part((owner,)), None, owner, f"'{owner}', which owns a buffer")
        if seen.stage in ("forward", "loss"):
            return Candidate(None, Part(stages=(seen.stage,)), None, None, f"the {seen.stage}")
        if seen.stage == "backward":
            return Candidate(None, self.outside, None, None, "the code outside the blocks")
        return Candidate(None, Part(stages=AFTER), None, None, "what follows backward")

    def _of_gradient(self, seen: Seen) -> Candidate:
        place = seen.place
        paths = [user.module for user in seen.consumers]
        if place is not None and place.side == "parameter":
            owners = (path for path, _ in self.blocks if place.module.startswith(f"{path}."))
            paths = list(owners)[:1]
        if not paths:
            return Candidate(place, self.outside, place, None, "the code outside the blocks")
        known = dict(self.blocks)
        part, name = Part(tuple(dict.fromkeys(paths))), " and ".join(f"'{p}'" for p in paths)
        if len(set(paths)) == 1 and paths[0] in known and parts_of(paths[0], known[paths[0]]):
            part, name = self._descend_gradient(paths[0], known[paths[0]])
        return Candidate(place, part, place, paths[0], name)

    def _descend_gradient(self, path: str, block: nn.Module) -> tuple[Part, str]:
        inner = parts_of(path, block)
        scan = GradientScan(self._named(inner))
        seen = self._probe(f"gradients of the parts of '{path}'", lambda: self.prober.run(scan))
        users = [user.module for user in seen.consumers]
        if seen.place is not None and seen.place.side == "parameter":
            users = [p for p, _ in inner if seen.place.module.startswith(f"{p}.")][:1]
        if users:
            kinds = [kind_of(dict(inner)[user]) for user in users if user in dict(inner)]
            return Part(tuple(users)), f"'{users[0]}' ({', '.join(kinds)})"
        return Part((path,), skip=tuple(p for p, _ in inner)), f"the own code of '{path}'"

    def _descend(self, place: Place) -> Candidate:
        """From a block that turned bad to the part of it that did."""
        if place.side == "tail":
            return Candidate(place, self.outside, None, None, "the code after the blocks")
        if place.side == "input":
            # with the block that reads it, so that the first op that does is named
            others = tuple(path for path, _ in self.blocks if path != place.module)
            at = Place("output", place.module, place.nth)
            name = f"the code before '{place.module}'"
            return Candidate(place, Part(skip=others), at, None, name)
        block = dict(self.blocks)[place.module]
        inner = self._named(parts_of(place.module, block))
        if not inner:
            name = f"'{place.module}' ({kind_of(block)})"
            return Candidate(place, Part((place.module,)), place, place.module, name)
        scan = ForwardScan(inner, within=(place.module, block))
        seen = self._probe(f"parts of '{place.module}'", lambda: self.prober.run(scan))
        own = Part((place.module,), skip=tuple(path for path, _ in inner))
        at, part, name = place, own, f"the own code of '{place.module}'"
        if seen.place is not None and seen.place.side == "output":
            at, part = seen.place, Part((seen.place.module,))
            name = f"'{seen.place.module}' ({kind_of(dict(inner)[seen.place.module])})"
        elif seen.place is not None and seen.place.side == "input":
            at = seen.place
        if seen.noted:
            part = Part((place.module,))  # a -Inf made by another part may be what was converted
        return Candidate(place, part, at, place.module, name)

    def _named(self, modules: list[Named]) -> list[Named]:
        known = dict(walk(self.model))
        return [named for named in modules if named[0] in known]

    # -- probes -------------------------------------------------------------------------------

    def _probe(self, what: str, run: Callable[[], Seen]) -> Seen:
        self.say(f"Probe {len(self.prober.probes) + 1}: {what}")
        seen = run()
        self.prober.note(what, _in_words(seen))
        return seen

    def _fails(self, install: Any, what: str) -> bool:
        self.say(f"Probe {len(self.prober.probes) + 1}: {what}")
        fails = self.prober.still_fails(install)
        self.prober.note(what, "still bad" if fails else "finite")
        return fails

    def _scan_forward(self, passed: list[Place], patches: list[Place]) -> Seen:
        start = self._halve() if self.halve and not passed and not patches else 0
        halved = self._unit() if start else None
        scan = ForwardScan(self._named(self.blocks), passed, patches, start=start, unit=halved)
        what = f"boundaries of {counted(len(self.blocks), 'block')}"
        return self._probe(what, lambda: scan.add_to(self.prober.run(scan)))

    def _unit(self) -> tuple[str, int] | None:
        """Phase and micro-batch that the record stopped in: prefixes are those of its forward."""
        bad, phase = self.replay.source.first_bad, self.replay.source.evidence.get("phase")
        return None if bad is None or not isinstance(phase, str) else (phase, bad.micro_step)

    def _halve(self) -> int:
        """The first block call whose output is bad, by prefix runs of one boundary each."""
        targets = self._named(self.blocks)
        low, high = -1, len(targets)
        while high - low > 1:
            middle = (low + high) // 2
            scan = ForwardScan(targets, only=middle, unit=self._unit())
            what = f"the first {middle + 1} of {counted(len(targets), 'block')}"
            seen = self._probe(what, lambda scan=scan: self.prober.run(scan))  # type: ignore[misc]
            if seen.place is not None and not seen.kinds - {"-inf"}:
                low = middle
            else:
                high = middle
        self.result.notes.append(
            "Halving takes it that what is bad stays bad from block to block. The boundaries on "
            "both sides of the answer were looked at; those before it were not all."
        )
        return max(0, min(high, len(targets)))

    def _patch_forward(self, places: list[Place]) -> ForwardScan:
        return _Patched(self._named(self.blocks), (), places)

    def _scan_gradients(self, passed: list[Place], patches: list[Place]) -> Seen:
        scan = GradientScan(self._named(self.blocks), passed, patches)
        what = f"gradients at the boundaries of {counted(len(self.blocks), 'block')}"
        return self._probe(what, lambda: self.prober.run(scan))

    def _patch_gradients(self, places: list[Place]) -> GradientScan:
        return GradientScan(self._named(self.blocks), (), places, stop=False)

    # -- the answer ---------------------------------------------------------------------------

    def _gate(self, sink: str) -> None:
        """A sink after backward: trace what follows, or the module that owns a bad buffer."""
        candidate = Candidate(None, Part(stages=AFTER), None, None, "what follows backward")
        if sink.startswith("buffer:"):
            owner = sink.partition(":")[2].rpartition(".")[0]
            candidate = Candidate(None, Part((owner,)), None, owner, f"'{owner}'")
        found = self._explain([candidate], None)
        if found is not None:
            self._answer(*found)

    def _answer(self, candidate: Candidate, found: Explained) -> None:
        self.result.block, self.result.part = candidate.block, candidate.name
        self.result.origin = self._row(found)

    def _row(self, found: Explained) -> dict[str, Any]:
        case = Case(found.trace, found.slice, found.origin)
        row = origin_row(Judged(case, None), self.result.bundle)
        return {key: row[key] for key in _KEPT}

    def _full_trace(self) -> None:
        self.say("Tracing every op")
        trace: Trace = self.replay.trace(exponents=False)
        total = len(trace.graph)
        self.prober.note("op trace of the whole step", f"{total:,} of {total:,} ops looked at")
        self.result.used_full_trace, self.result.looked_at = True, (total, total)
        self.result.notes.append(
            "Boundaries could not settle it, so every op was traced: the answer is a full trace's."
        )
        sliced = slice_trace(trace, starts_of(trace))
        bad = self.replay.source.first_bad
        origins = sliced.origins or (exception_origin(trace) if self._raised(bad) else [])
        self.result.block, self.result.part = None, "the whole step"
        if not origins:
            held = [sentence(one, trace.graph) for one in sliced.held]
            self.result.notes += held or ["Nothing non-finite reaches a sink of this step."]
            return
        self.result.origin = self._row(Explained(trace, sliced, origins[0]))
        module = self.result.origin["module"]
        known = [p for p, _ in self.blocks if module == p or module.startswith(f"{p}.")]
        self.result.block = known[0] if known else None


_KEPT = (
    "kind", "stage", "op", "where", "module", "in_loss", "autograd_node", "forward_op", "dtype",
    "tensor", "source", "event",
)  # fmt: skip


class _Patched(ForwardScan):
    """Sets values finite at some boundaries and stops at none."""

    def _judge(self, place: Place, kinds: Any) -> None:
        """Look at nothing."""


def _raised_unseen(seen: Seen) -> bool:
    """Whether backward raised before any hook saw a bad gradient (anomaly mode does)."""
    raised = seen.outcome is not None and seen.outcome.exception is not None
    return raised and seen.place is None and seen.stage == "backward"


def _in_words(seen: Seen) -> str:
    kinds = ", ".join(sorted(seen.kinds))
    if seen.place is not None:
        if not kinds:
            return f"finite at the {seen.place.side} of '{seen.place.module}'"
        return f"{kinds} at {_place(seen.place)}"
    if seen.outcome is not None:
        return f"no boundary turned bad; {seen.outcome.tensor} is bad at {seen.stage}"
    return "nothing bad"


def _place(place: Place) -> str:
    call = f", call {place.nth + 1}" if place.nth else ""
    if place.side == "tail":
        return f"the end of '{place.module}'" if place.module else "the model's outputs"
    if place.side == "gradient":
        return f"the gradient of the {place.module}{call}"
    return f"the {place.side} of '{place.module}'{call}"
