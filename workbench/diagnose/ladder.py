"""The backend ladder: one step under eager code and under each backend of ``torch.compile``.

A failure of a compiled run and one of the eager run are two reproductions, and stay two. Runs are
compared only once they are known to start from one state, masks before errors.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from workbench.diagnose.compiler_search import search
from workbench.diagnose.ladder_align import changed_shapes, differences, stale_caches
from workbench.diagnose.ladder_runs import (
    UNCOMPILED,
    Parting,
    Rung,
    first_module,
    partings,
    run_rung,
)
from workbench.errors import UsageError
from workbench.evidence import Bundle, open_bundle
from workbench.evidence.wording import joined
from workbench.replay import Replay
from workbench.replay.session import Session

if TYPE_CHECKING:
    from workbench.evidence import Conditions

SCHEMA = "workbench.ladder/1"
BACKENDS = ("eager", "aot_eager", "aot_eager_decomp_partition", "inductor")
"""Backends of ``torch.compile``, each with one more part of the compiler than the one before."""
OWN_RANDOM = ("aot_eager_decomp_partition", "inductor")
"""Backends that make random numbers in a way of their own."""
Say = Callable[[str], None]


@dataclass
class Ladder:
    """What the step does under each backend.

    Attributes:
        bundle: The bundle.
        recorded: The backend the step was recorded under, ``off`` for none.
        rungs: The runs, uncompiled first.
        aligned: Whether all started from one state.
        unaligned: What they did not start with alike, by backend.
        caches: Caches that did not follow a change of precision.
        trigger: Batch tensors whose shape is not the recorded one.
        first: The first backend that parts from the uncompiled run, or None.
        partings: How each backend parts from it.
        module: The first module that parts when modules are compiled one by one, or None.
        random: Per backend that parts in a step with random numbers (dropout): whether it agrees
            once it draws them as eager code does, and what still parts then.
        compiler: What torch's own compiler bisector says, or why it was not asked.
        notes: What limits the answer.
    """

    bundle: Bundle
    recorded: str = UNCOMPILED
    rungs: list[Rung] = field(default_factory=list)
    aligned: bool = True
    unaligned: dict[str, list[dict[str, str]]] = field(default_factory=dict)
    caches: list[dict[str, str]] = field(default_factory=list)
    trigger: list[dict[str, Any]] = field(default_factory=list)
    first: str | None = None
    partings: dict[str, list[Parting]] = field(default_factory=dict)
    module: dict[str, Any] | None = None
    random: dict[str, dict[str, Any]] = field(default_factory=dict)
    compiler: dict[str, Any] | None = None
    notes: list[str] = field(default_factory=list)

    @property
    def conclusion(self) -> str:
        """Which backend is the first to differ, or which of those that ran do not."""
        if self.first is not None:
            return f"First to differ from uncompiled code: {self.first}."
        compiled = [one.backend for one in self.rungs if one.compiled]
        if not compiled:
            return "Nothing was compiled, so nothing was learnt about the compiler."
        drawn = any(one["agrees"] for one in self.random.values())
        left = [name for name in BACKENDS if name not in compiled]
        return (
            f"Not different from uncompiled code{' but in random numbers' if drawn else ''}: "
            f"{joined(compiled, len(BACKENDS))}."
            + (f" Not run: {joined(left, len(BACKENDS))}." if left else "")
        )

    def to_data(self) -> dict[str, Any]:
        """As ``workbench.ladder/1``."""
        return {
            "schema": SCHEMA,
            "bundle": {"id": self.bundle.id, "digest": self.bundle.digest},
            "recorded_backend": self.recorded,
            "aligned": self.aligned,
            "unaligned": self.unaligned,
            "stale_caches": self.caches,
            "changed_trigger": self.trigger,
            "reproductions": [self._reproduction(rung) for rung in self.rungs],
            "first_different": self.first,
            "conclusion": self.conclusion,
            "random_numbers": self.random,
            "first_module": self.module,
            "compiler_bisector": self.compiler,
            "notes": self.notes,
        }

    def _reproduction(self, rung: Rung) -> dict[str, Any]:
        bad = rung.first_bad
        parts = self.partings.get(rung.backend, [])
        return {
            "backend": rung.backend,
            "original": rung.backend == self.recorded,
            "compiled": rung.compiled,
            "fails": bad is not None,
            "first_bad": None if bad is None else {"stage": bad[0], "tensor": bad[1]},
            "error": rung.error,
            "first_parting": parts[0].to_data() if parts else None,
            "partings": [{"name": part.name, "how": part.how} for part in parts],
        }


def ladder(
    bundle: Bundle | str | Path,
    step: Any = None,
    trust: str | None = None,
    *,
    backends: Sequence[str] = BACKENDS,
    conditions: Conditions | None = None,
    search_compiler: bool = True,
    timeout_s: float = 1800.0,
    progress: Say | None = None,
) -> Ladder:
    """Run a recorded step under eager code and under compile backends, and say where they part.

    Args:
        bundle: A bundle or its path.
        step: The training step to replay.
        trust: ``"import"`` or ``"source"``: what code named by the bundle may run.
        backends: Of ``BACKENDS``, in the order to run.
        conditions: Other conditions to run all rungs under; None takes the recorded ones.
        search_compiler: Whether torch's compiler bisector is asked when ``inductor`` is the first
            to differ. It compiles many times.
        timeout_s: Seconds the compiler bisector may take.
        progress: Called with a sentence as each run begins.

    Raises:
        UsageError: No such backend.
        BundleError: The bundle is damaged.
        CannotRunError: The step cannot be replayed here.
    """
    unknown = [backend for backend in backends if backend not in BACKENDS]
    if unknown or not backends:
        raise UsageError(
            f"The backend '{', '.join(unknown)}' is no rung of the ladder, so nothing was run. The "
            f"rungs are: {', '.join(BACKENDS)}."
        )
    opened = bundle if isinstance(bundle, Bundle) else open_bundle(bundle)
    replay = Replay(opened, step=step, trust=trust)
    replay.source.require("loss")
    wanted = conditions or replay.nearest
    say = progress or (lambda sentence: None)
    result = _climb(
        Ladder(opened, recorded=opened.conditions.compile), replay, wanted, backends, say
    )
    if result.first is None:
        return result
    say(f"Compiling modules one by one with {result.first}")
    drawn = result.first in result.random
    result.module = first_module(replay, wanted, result.first, eager_random=drawn)
    if result.module["module"] is None:
        result.notes.append(
            "No block parts when it is compiled alone: the difference depends on what is compiled "
            "together."
        )
    if result.first == "inductor":
        say("Asking torch's compiler bisector")
        asked = search_compiler
        result.compiler = (
            search(opened, step, trust, wanted, timeout_s, eager_random=drawn)
            if asked
            else {"status": "not asked", "why": "it was switched off"}
        )
    return result


def _climb(
    result: Ladder, replay: Replay, conditions: Conditions, backends: Sequence[str], say: Say
) -> Ladder:
    start = Session(replay.source, conditions.replace(compile=UNCOMPILED))
    result.caches = stale_caches(start.runner.model)
    result.trigger = changed_shapes(start)
    if result.trigger:
        result.notes.append(
            "The batch has other shapes than the recorded one: this is a changed trigger, and what "
            "is found is about that, not about the record."
        )
    say("Running the step uncompiled")
    base = run_rung(replay, conditions, UNCOMPILED)
    result.rungs.append(base)
    for backend in backends:
        say(f"Running the step under {backend}")
        rung = run_rung(replay, conditions, backend)
        result.rungs.append(rung)
        if base.aligned is not None and rung.aligned is not None:
            unlike = differences(rung.aligned, base.aligned)
            if unlike:
                result.unaligned[backend] = unlike
        if rung.error is not None and not rung.values:
            continue
        result.partings[backend] = found = partings(rung.values, base.values)
        if found and backend in OWN_RANDOM and base.draws:
            say(f"Running the step under {backend} with eager code's random numbers")
            again = run_rung(replay, conditions, backend, eager_random=True)
            found = _with_same_random(result, backend, again, base)
        if result.first is None and backend not in result.unaligned and found:
            result.first = backend
    result.aligned = not result.unaligned
    _note_two(result, base)
    idle = [r.backend for r in result.rungs[1:] if not r.compiled and r.error is None]
    if idle:
        result.notes.append(
            f"Under {', '.join(idle)} torch.compile captured no graph of this model, so the run is "
            "the uncompiled one and says nothing about the compiler."
        )
    return result


def _with_same_random(result: Ladder, backend: str, again: Rung, base: Rung) -> list[Parting]:
    """What still parts once a backend draws its random numbers as eager code does."""
    if again.error is not None and not again.values:
        result.notes.append(
            f"{backend} draws its random numbers another way than eager code, and could not be run "
            f"with eager code's ({again.error}): what parts may be no more than that."
        )
        return result.partings[backend]
    found = partings(again.values, base.values)
    bad = again.first_bad
    result.random[backend] = {
        "agrees": not found,
        "partings": [{"name": part.name, "how": part.how} for part in found],
        "first_bad": None if bad is None else {"stage": bad[0], "tensor": bad[1]},
    }
    how = f"{backend} draws other random numbers than eager code from the same state"
    if not found:
        result.notes.append(
            f"{how} (dropout). With eager code's numbers the two agree, so what parts is the "
            "random numbers and not what was computed from them."
        )
    else:
        result.partings[backend] = found
        result.notes.append(
            f"{how}. It was run again with eager code's numbers, and parts all the same: what is "
            "listed is from that run."
        )
    return found


def _note_two(result: Ladder, base: Rung) -> None:
    """Say when eager and compiled runs disagree about the failure itself."""
    fails = base.first_bad is not None
    other = [rung.backend for rung in result.rungs if (rung.first_bad is not None) != fails]
    if not other:
        return
    backends = ", ".join(other)
    if fails:
        text = f"The uncompiled run fails and {backends} does not"
    else:
        text = f"{backends} fails and the uncompiled run does not"
    result.notes.append(
        f"{text}: these are two reproductions. A trace runs eagerly, so what it shows is about the "
        "uncompiled one."
    )
