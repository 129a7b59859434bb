"""Write the bundle of one incident, light files first, within the bytes the policy allows."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch import Tensor

from workbench.evidence.machine import environment
from workbench.evidence.pytree import missing_objects
from workbench.evidence.schema import StepReference
from workbench.evidence.wording import byte_size
from workbench.evidence.writer import BundleWriter, NoRoomError
from workbench.record.budget import Allowance
from workbench.record.calm import write_calm
from workbench.record.evidence import evidence_of, statistics_of
from workbench.record.incident_ranks import (
    Part,
    keeps_gradients,
    lend,
    part_of,
    ranks_content,
    write_incident_file,
)
from workbench.record.recovery import write_trajectory
from workbench.record.session import Session
from workbench.record.settings import original_conditions
from workbench.record.trip import Trip
from workbench.step.runner import StepRunner
from workbench.step.snapshots import copy_tree, storage_key
from workbench.step.state import StepState
from workbench.step.storage import heavy_trees, light_trees

if TYPE_CHECKING:
    from workbench.record.recorder import Recorder

COMPLETE = "complete"
_UNSAFE = re.compile(r"[^A-Za-z0-9_.+-]+")
_DROP_ORDER = ("trajectory", "calm", "gradients", "state/optimizer", "state/model", "batch")
"""What is left out first when a bundle would grow beyond ``max_bytes``."""
_STEPS = ("trajectory", "calm")
_LIGHT_BATCH = 32 << 20
"""Bytes up to which a batch is written before the bundle has its name."""


@dataclass
class Written:
    """A sealed bundle.

    Attributes:
        path: Where it is.
        size: Its bytes.
    """

    path: Path
    size: int


@dataclass
class Incident:
    """Everything that goes into one bundle.

    Attributes:
        recorder: The recorder.
        session: The recorded step.
        trip: What tripped.
        runner: The runner, with what the step computed.
        alerts: The alerts of this step.
        missing: Per part that is not in the bundle, why.
        completeness: Per recovery goal, once it is written.
        partly: What was published when writing failed: a true bundle, unsealed.
        state: The step's state, frozen.
        heavy: Parts that are not written yet, by name.
        dropped: Parts that are left out for their size, and why.
        writer: The bundle's writer, once begun.
        part: This rank's part of an incident of several.
        needs: What must lie beside the bundle for a replay, or None.
    """

    recorder: Recorder
    session: Session
    trip: Trip
    runner: StepRunner
    alerts: Sequence[dict[str, Any]] = ()
    missing: dict[str, str] = field(default_factory=dict)
    completeness: dict[str, str] = field(default_factory=dict)
    partly: Written | None = None
    state: StepState | None = None
    heavy: dict[str, Any] = field(default_factory=dict)
    dropped: dict[str, str] = field(default_factory=dict)
    writer: BundleWriter = field(init=False)
    part: Part = field(default_factory=Part)
    needs: str | None = None

    def begin(self, allowance: Allowance) -> Written | None:
        """Write what is light and give the bundle its name; ``complete`` writes the rest.

        Nothing of what is left is read from the model or the optimizers any more: training may go
        on meanwhile.

        Args:
            allowance: What it may take; what is heaviest is left out first.

        Returns:
            The bundle, with the bytes it will have; None, and nothing stays, where what is light
            does not fit.

        Raises:
            OSError: The disk does not take it; nothing stays.
        """
        name = bundle_name(self.recorder.run_id, self.session.step_index, self.recorder.rank,
                           self.recorder.world)  # fmt: skip
        self.writer = writer = BundleWriter(self.recorder.directory, name, allowance.covers)
        self.part = part_of(self.recorder, self.session, self.trip)
        try:
            with self._abort_on_failure():
                return self._begin(writer, allowance)
        except NoRoomError:
            return None

    def _begin(self, writer: BundleWriter, allowance: Allowance) -> Written:
        snapshot = self.session.snapshot
        self.state = None if snapshot is None else snapshot.freeze()
        with writer.together():
            self._write_light(writer, self.state)
            self.heavy = self._heavy(self.state)
            sizes = self._sizes()
            self.dropped = self._choose(sizes, allowance.most - writer.bytes_written)
            self.missing |= self.dropped
            if sizes.get("batch", 0) <= _LIGHT_BATCH:  # it is what replays first
                self._write_part(writer, "batch")
        self._publish(writer)
        self._name_ranks()
        self.completeness = self._completeness(self.state)
        left = sum(sizes[stem] for stem in self.heavy if stem not in self.dropped)
        allowance.covers(writer.total_bytes + left)  # the next bundle must not take it meanwhile
        return Written(writer.path, writer.bytes_written + left)

    def complete(self) -> Written:
        """Write what is heavy, and seal.

        Raises:
            OSError: The disk does not take it; what was published before stays, unsealed, and is
                named by ``partly``.
        """
        writer = self.writer
        with self._abort_on_failure():
            for stem in reversed(_DROP_ORDER):
                self._write_part(writer, stem)
            for stem, why in self.dropped.items():
                writer.drop(f"{stem}.safetensors", why)
            self.completeness = self._completeness(self.state)
            writer.update(completeness=self.completeness, notes=list(self.session.notes))
            if not writer.fits():
                writer.update(notes=["notes: left out for the bytes that the bundle may take"])
            path = writer.seal()
        self.heavy = {}
        return Written(path, writer.bytes_written)

    @contextmanager
    def _abort_on_failure(self) -> Iterator[None]:
        writer = self.writer
        try:
            yield
        except BaseException:
            if writer.published:
                self.partly = Written(writer.path, writer.bytes_written)
                self.completeness = dict(writer.manifest.completeness)
            writer.abort()
            raise

    # -- parts ------------------------------------------------------------------------------------

    def _write_light(self, writer: BundleWriter, state: StepState | None) -> None:
        recorder, session = self.recorder, self.session
        writer.add_lines("ledger.jsonl", list(recorder.ledger.recent))
        writer.add_json("evidence.json", evidence_of(session, self.trip, self.runner, self.alerts))
        writer.add_json("environment.json", environment())
        if self.part.incident:
            said = ranks_content(recorder, session, self.trip, self.part, state)
            writer.add_json("ranks.json", said)
        if self._statistics_only():
            batches = [] if state is None else state.micro_batches
            writer.add_json("statistics.json", statistics_of(session, batches))
        reference = recorder.reference
        if reference["text"] and reference["source"]:
            writer.add_text(reference["source"], reference["text"])
        if state is None:
            self.missing["state"] = "the recorder could not take a snapshot before the step"
            return
        for stem, tree in light_trees(state).items():
            if stem != "batch":
                spec = writer.add_pytree(stem, tree)
                if lost := missing_objects(spec):
                    session.notes.append(f"{stem}: not recorded: {', '.join(lost[:5])}")

    def _heavy(self, state: StepState | None) -> dict[str, Any]:
        parts: dict[str, Any] = {}
        if state is None:
            return parts
        if state.micro_batches:
            parts["batch"] = light_trees(state)["batch"]
        if self.part.incident:
            size = tree_bytes(heavy_trees(state))
            state, self.needs = lend(self.part, state, size)
            assert state is not None  # noqa: S101 - what is lent was there
        parts |= heavy_trees(state)
        if self.session.gradients and keeps_gradients(self.part, self.recorder.rank):
            parts["gradients"] = {n: kept.tensor for n, kept in self.session.gradients.items()}
        if self.part.level == "light":
            return parts
        if steps := self.recorder.ring.steps_before(self.session.step_index):
            parts["trajectory"] = steps
        if self.trip.kind == "alert" and self.recorder.calm.kept is not None:
            parts["calm"] = [self.recorder.calm.kept]
        return parts

    def _sizes(self) -> dict[str, int]:
        return {
            stem: sum(kept.size for kept in tree) if stem in _STEPS else tree_bytes(tree)
            for stem, tree in self.heavy.items()
        }

    def _choose(self, sizes: dict[str, int], budget: int) -> dict[str, str]:
        """Say what is left out, and why."""
        if self._statistics_only():
            return dict.fromkeys(sizes, "the policy keeps statistics only")
        dropped: dict[str, str] = {}
        for stem in _DROP_ORDER:
            total = sum(size for name, size in sizes.items() if name not in dropped)
            if total <= budget:
                break
            if stem in sizes:
                more = byte_size(sizes[stem])
                dropped[stem] = _too_much(
                    f"{more} more would exceed the {byte_size(max(0, budget))}"
                )
        return dropped

    def _write_part(self, writer: BundleWriter, stem: str) -> None:
        """Write a part in whole, or leave it out where it turns out not to fit."""
        if stem in self.dropped or stem not in self.heavy:
            return
        tree = self.heavy.pop(stem)
        try:
            with writer.together():
                self._write_tree(writer, stem, tree)
        except NoRoomError:
            why = _too_much("it turned out larger than estimated, and than the bytes")
            self.dropped[stem] = self.missing[stem] = why

    def _write_tree(self, writer: BundleWriter, stem: str, tree: Any) -> None:
        if stem == "gradients":
            writer.add_tensors("gradients.safetensors", tree)
        elif stem == "trajectory":
            write_trajectory(writer, tree)
        elif stem == "calm":
            write_calm(writer, tree[0])
        else:
            spec = writer.add_pytree(stem, tree)
            if lost := missing_objects(spec):
                self.missing[f"{stem} objects"] = f"not recordable: {', '.join(lost[:5])}"

    def _publish(self, writer: BundleWriter) -> None:
        """Give the bundle its name now; parameters and what else is heavy follow."""
        recorder, session = self.recorder, self.session
        reference = recorder.reference
        goals = ("forward_loss", "backward", "update", "trajectory")
        writer.publish(
            run_id=recorder.run_id,
            kind=self.trip.kind,
            step=session.step_index,
            rank=recorder.rank,
            world=recorder.world,
            incident=self.part.incident,
            level=self.part.level,
            first_bad=self.trip.first_bad,
            conditions=original_conditions(
                recorder.step_object,
                recorder.model,
                self.runner.values.scale_before,
                session.max_grad_norm,
                session.autocast,
            ),
            completeness=dict.fromkeys(goals, "missing parameters: they were not written yet"),
            notes=list(session.notes),
            step_reference=StepReference(
                reference=reference["reference"],
                kind=reference["kind"],
                digest=reference["digest"],
                source=reference["source"] if reference["text"] else "",
                low_level=session.low_level,
            ),
            provenance=recorder.provenance,
        )

    def _name_ranks(self) -> None:
        recorder, session = self.recorder, self.session
        recorder.guard(
            "incident file",
            lambda: write_incident_file(recorder, session, self.part, recorder.directory),
        )

    def _statistics_only(self) -> bool:
        return self.recorder.policy.save == "statistics"

    # -- completeness -----------------------------------------------------------------------------

    def _completeness(self, state: StepState | None) -> dict[str, str]:
        """Say per recovery goal whether the bundle has what it needs."""
        forward = self._missing_for_forward(state)
        update = forward or self._missing_for_update(state)
        steps = self.recorder.ring.steps_before(self.session.step_index)
        trajectory = None if self._led_to(state, steps) else forward
        if self.part.level == "light":
            trajectory = forward or "missing earlier steps: a light bundle has none"
        elif not trajectory and not steps:
            trajectory = "missing earlier steps: the policy keeps none (recovery_every=0)"
            if self.recorder.policy.recovery_every:
                trajectory = "missing earlier steps: there was none yet, or memory was too small"
        if not trajectory and "trajectory" in self.missing:
            trajectory = f"missing earlier steps: {self.missing['trajectory']}"
        return {
            "forward_loss": forward or COMPLETE,
            "backward": forward or COMPLETE,
            "update": update or COMPLETE,
            "trajectory": trajectory or COMPLETE,
        }

    def _led_to(self, state: StepState | None, steps: Sequence[Any]) -> bool:
        """Whether earlier steps give the parameters that the step itself has no longer."""
        if state is None or "batch" in self.missing or "batch objects" in self.missing:
            return False
        return bool(steps) and state.model is None and bool(state.micro_batches)

    def _missing_for_forward(self, state: StepState | None) -> str | None:
        if self.part.stages is not None:
            return self.part.stages
        if state is None:
            return f"missing state: {self.missing['state']}"
        if "state/model" in self.missing:
            return f"missing parameters: {self.missing['state/model']}"
        if state.model is None:
            return (
                "missing pre-step parameters: the update had run when it tripped, and the policy "
                "keeps no state through an update (recovery_every=1 does)"
            )
        if state.model.missing:
            name, why = next(iter(state.model.missing.items()))
            return f"missing {name}: {why}"
        if "batch" in self.missing or not state.micro_batches:
            return f"missing batch: {self.missing.get('batch', 'none was given to the recorder')}"
        if "batch objects" in self.missing:
            return f"missing parts of the batch: {self.missing['batch objects']}"
        return self.needs

    def _missing_for_update(self, state: StepState | None) -> str | None:
        if "state/optimizer" in self.missing:
            return f"missing optimizer state: {self.missing['state/optimizer']}"
        if state is not None and self.recorder.optimizers and not state.optimizers:
            return "missing optimizer state from before the update"
        return None


def _too_much(what: str) -> str:
    return f"{what} that max_bytes and max_total_bytes leave"


def bundle_name(run_id: str, step: int, rank: int, world: int) -> str:
    """Name a bundle: ``<run>-step<8 digits>[-rank<5>]``."""
    ending = f"-rank{rank:05d}" if world > 1 else ""
    return f"{safe_name(run_id)}-step{max(0, step):08d}{ending}"


def safe_name(text: str) -> str:
    """Replace what file names of a bundle may not hold."""
    return _UNSAFE.sub("_", text)[:120].lstrip(".-+") or "run"


def tree_bytes(tree: Any) -> int:
    """Bytes of all tensors in a tree, shared storage counted once."""
    seen: dict[int, int] = {}

    def note(t: Tensor) -> None:
        strided = str(t.layout) == "torch.strided"
        size = t.numel() * t.element_size()
        key = storage_key(t) if strided else id(t)
        seen[key] = max(seen.get(key, 0), size)

    copy_tree(tree, note)
    return sum(seen.values())
