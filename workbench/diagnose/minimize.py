"""Minimise: the smallest set of samples that still fails, then the smallest computation."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from workbench.diagnose.analysis import analyse
from workbench.diagnose.changed import classify, run_changed
from workbench.diagnose.computation import Computation
from workbench.diagnose.interventions import Intervention
from workbench.diagnose.repro import TENSORS, check_repro, write_repro
from workbench.diagnose.shown import first_that_fails
from workbench.diagnose.shrink import shrink
from workbench.diagnose.slicing import slice_trace
from workbench.diagnose.starts import starts_of
from workbench.diagnose.subsets import Probes, smallest_set
from workbench.errors import CannotRunError
from workbench.evidence.wording import clean, command_line, counted
from workbench.replay import Replay

if TYPE_CHECKING:
    from workbench.diagnose.analysis import Analysis
    from workbench.evidence import Bundle
    from workbench.step.runner import Outcome

SCHEMA = "workbench.minimize/1"
MOST_PROBES = 64


@dataclass(frozen=True)
class Minimized:
    """What was made.

    Attributes:
        samples: Samples that still make the step fail the same way; None where the batch cannot
            be taken apart.
        of: Number of samples in the batch.
        probes: Replays it took.
        op: The op that the script repeats.
        shows: What the script runs, as a noun phrase.
        calls: The torch calls in it, in order.
        inputs: Shapes of its inputs by name.
        whole: Number of elements of all inputs before and after they were cut.
        script: The script, checked.
        printed: What it printed when it was checked.
    """

    samples: tuple[int, ...] | None
    of: int
    probes: int
    op: str
    shows: str
    calls: tuple[str, ...]
    inputs: dict[str, tuple[int, ...]]
    whole: tuple[int, int]
    script: Path
    printed: str

    def to_data(self) -> dict[str, Any]:
        """Return it as ``workbench.minimize/1``."""
        return {
            "schema": SCHEMA,
            "samples": None if self.samples is None else list(self.samples),
            "of": self.of,
            "probes": self.probes,
            "op": self.op,
            "shows": self.shows,
            "calls": list(self.calls),
            "inputs": {name: list(shape) for name, shape in self.inputs.items()},
            "elements": {"recorded": self.whole[0], "kept": self.whole[1]},
            "bytes": (self.script.with_name(TENSORS)).stat().st_size,
            "script": str(self.script),
            "checked": True,
            "printed": self.printed,
        }


def minimize(
    bundle: Bundle,
    directory: Path,
    step: Any = None,
    trust: str | None = None,
    progress: Callable[[str], None] | None = None,
) -> Minimized:
    """Find the smallest failing set of samples, and write a script of the smallest computation.

    Args:
        bundle: The bundle.
        directory: Where ``repro.py`` and ``inputs.safetensors`` go.
        step: The training step, as for ``diagnose``.
        trust: What code named by the bundle may run.
        progress: Called with a sentence as each part begins.

    Raises:
        CannotRunError: The step does not fail here, or no torch computation shows its failure.
    """
    say = progress or (lambda sentence: None)
    replay = Replay(bundle, step=step, trust=trust)
    original = replay.nearest
    say("Tracing every op")
    trace = replay.trace(conditions=original, exponents=False)
    analysis = analyse(trace, lambda keep: replay.kept(keep, conditions=original))
    if not analysis.origins and not analysis.absorbed:
        raise CannotRunError(
            f"The step of '{bundle.path}' has no non-finite origin here, so there is nothing to "
            f"minimise. `{command_line('diagnose', bundle.path)}` says what was found."
        )
    say("Looking for the smallest computation that fails")
    shown = first_that_fails(replay, analysis)
    smaller = shrink(shown.computation, shown.still)
    samples, of, probes = smallest_samples(replay, analysis, say)
    manifest = bundle.manifest
    title = f"{shown.op}: {shown.shows}. Run {clean(manifest.run_id or '')}, step {manifest.step}."
    script = write_repro(smaller, directory, title)
    say("Checking the script in a process of its own")
    fails, printed = check_repro(script)
    if not fails:
        raise CannotRunError(
            f"The script '{script}' gives a finite result in a process of its own ('{printed}'), "
            f"although '{shown.op}' with the same inputs does not here, so it does not repeat the "
            "failure. Replay the bundle instead."
        )
    return Minimized(
        samples,
        of,
        probes,
        shown.op,
        shown.shows,
        tuple(call.path for call in smaller.calls),
        {name: tuple(t.shape) for name, t in smaller.tensors.items()},
        (_elements(shown.computation), _elements(smaller)),
        script,
        printed,
    )


def _elements(computation: Computation) -> int:
    return sum(t.numel() for t in computation.tensors.values())


def smallest_samples(
    replay: Replay, analysis: Analysis, say: Callable[[str], None]
) -> tuple[tuple[int, ...] | None, int, int]:
    """Find the smallest set of samples that still fails by the same op, by delta debugging.

    Args:
        replay: The replay.
        analysis: Its analysis.
        say: Called with a sentence before it begins.

    Returns:
        The samples, or None where the batch cannot be taken apart; how many there are; replays.
    """
    size = _batch_size(replay.source.batches)
    if size < 2:
        return (None if size == 0 else (0,)), size, 0

    def fails(kept: frozenset[str]) -> bool:
        return bool(kept) and _fails_with(replay, analysis, tuple(sorted(map(int, kept))))

    say(f"Looking for the fewest of {counted(size, 'sample')} that still fail")
    probe = Probes(fails, MOST_PROBES)
    names = [str(i) for i in range(size)]
    if not probe(frozenset(names)):
        return None, size, len(probe.known)
    found = smallest_set(names, probe).found or tuple(names)
    return tuple(sorted(int(name) for name in found)), size, len(probe.known)


def _fails_with(replay: Replay, analysis: Analysis, samples: tuple[int, ...]) -> bool:
    """Whether the step fails with these samples alone, by the same op or the same leaf."""
    changed = {"keep_samples": samples}
    reference: Outcome | None = analysis.trace.first_bad
    if reference is not None and analysis.origins:
        ended = run_changed(replay, Intervention("", conditions=changed), reference)
        if ended is None or classify(ended, reference) != "unchanged":
            return False
    conditions = replay.nearest.replace(keep_samples=samples)
    try:
        trace = replay.trace(conditions=conditions, exponents=False)
        if analysis.origins:
            found = slice_trace(trace, starts_of(trace)).origins
            names = {_name(trace.graph, o) for o in found}
            return not found or _name(analysis.trace.graph, analysis.origins[0].origin) in names
        again = analyse(trace, lambda keep: replay.kept(keep, conditions=conditions))
    except (CannotRunError, RuntimeError, ValueError, IndexError):
        return False
    wanted = analysis.absorbed[0][1].case.event
    events = [judged.case.event for _, judged in again.absorbed]
    return any(e is not None and wanted is not None and e.op == wanted.op for e in events)


def _name(graph: Sequence[Any], origin: Any) -> tuple[str, str, str]:
    if origin.leaf is not None:
        return origin.kind, origin.leaf, ""
    if not 0 <= origin.event < len(graph):
        return origin.kind, "", ""
    return graph[origin.event].op, graph[origin.event].module, graph[origin.event].node or ""


def _batch_size(batches: list[Any]) -> int:
    """The common length of the tensors' first dimension; 0 where there is none."""
    from workbench.replay.trace import batch_leaves

    sizes = {
        int(value.shape[0])
        for batch in batches
        for _, value in batch_leaves(batch)
        if isinstance(value, torch.Tensor) and value.dim() > 0
    }
    return sizes.pop() if len(sizes) == 1 else 0
