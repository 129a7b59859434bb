"""Minimise: the smallest set of samples that still fails, then the smallest computation."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from workbench.diagnose.analysis import analyse
from workbench.diagnose.counterfactuals import classify, run_changed
from workbench.diagnose.interventions import Intervention
from workbench.diagnose.repro import check_repro, write_repro
from workbench.diagnose.subsets import Probes, smallest_set
from workbench.errors import CannotRunError
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
        script: The script, checked.
        printed: What it printed when it was checked.
    """

    samples: tuple[int, ...] | None
    of: int
    probes: int
    op: str
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
    """Find the smallest failing set of samples and write a script that repeats the origin's op.

    Args:
        bundle: The bundle.
        directory: Where ``repro.py`` and ``inputs.safetensors`` go.
        step: The training step, as for ``diagnose``.
        trust: What code named by the bundle may run.
        progress: Called with a sentence as each part begins.

    Raises:
        CannotRunError: The step does not fail here, has no op as its origin, or the op alone does
            not give a non-finite result.
    """
    say = progress or (lambda sentence: None)
    replay = Replay(bundle, step=step, trust=trust)
    original = replay.nearest
    say("Tracing every op")
    trace = replay.trace(conditions=original)
    analysis = analyse(trace, lambda keep: replay.trace(keep=keep, conditions=original))
    reference = trace.first_bad
    if reference is None or not analysis.origins:
        raise CannotRunError(
            f"The step of '{bundle.path}' has no non-finite origin here, so there is nothing to "
            "minimise. `workbench diagnose` says what it found."
        )
    samples, of, probes = _samples(replay, reference, say)
    event, script = _script(bundle, analysis, directory)
    say("Checking the script in a process of its own")
    fails, printed = check_repro(script)
    if not fails:
        raise CannotRunError(
            f"The op '{event}' with its real inputs alone gives a finite result ('{printed}'), so "
            f"the script '{script}' does not repeat the failure. It needs more of the step than "
            "one op; replay the bundle instead."
        )
    return Minimized(samples, of, probes, event, script, printed)


def _script(bundle: Bundle, analysis: Analysis, directory: Path) -> tuple[str, Path]:
    for judged in analysis.origins:
        case = judged.case
        kept = case.kept.get(case.origin.event)
        if kept is None or case.origin.leaf is not None or case.event is None:
            continue
        title = f"{case.event.op} of {bundle.manifest.run_id}, step {bundle.manifest.step}."
        return case.event.op, write_repro(kept, directory, title)
    first = analysis.origins[0]
    raise CannotRunError(
        f"The origin is '{first.origin.kind}' ({first.origin.leaf or 'no single op'}): the value "
        "was bad before any op ran, so there is no computation to minimise. "
        "`workbench diagnose` names it."
    )


def _samples(
    replay: Replay, reference: Outcome, say: Callable[[str], None]
) -> tuple[tuple[int, ...] | None, int, int]:
    """Delta debugging over the samples of the batch."""
    size = _batch_size(replay.source.batches)
    if size < 2:
        return (None if size == 0 else (0,)), size, 0

    def fails(kept: frozenset[str]) -> bool:
        chosen = tuple(sorted(int(name) for name in kept))
        if not chosen:
            return False
        ended = run_changed(replay, Intervention("", conditions={"keep_samples": chosen}))
        return ended is not None and classify(ended, reference) == "unchanged"

    say(f"Looking for the smallest of {size} samples that still fail")
    probe = Probes(fails, MOST_PROBES)
    names = [str(i) for i in range(size)]
    if not probe(frozenset(names)):
        return None, size, len(probe.known)
    found = smallest_set(names, probe).found or tuple(names)
    return tuple(sorted(int(name) for name in found)), size, len(probe.known)


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
