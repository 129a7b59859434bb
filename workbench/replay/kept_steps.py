"""The kept steps of a bundle, and how a recorded state is met by a replayed one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import torch

from workbench.errors import BundleError, CannotRunError
from workbench.evidence.pytree import Resolve
from workbench.evidence.wording import command_line
from workbench.numerics.comparison import bits_equal
from workbench.step.classes import classes_of
from workbench.step.state import StepState
from workbench.step.storage import read_state

if TYPE_CHECKING:
    from torch import Tensor

    from workbench.evidence import Bundle
    from workbench.replay.source import Source
    from workbench.step.model_state import ModelState

INDEX = "trajectory/index.json"


@dataclass(frozen=True)
class Kept:
    """One recorded step of the way.

    Attributes:
        step: Its number in the run.
        state: What was recorded from before it ran.
        loss_bits: Bits of its loss, or None where they are not known.
        sums: Bit sums of parameters and buffers, where the parameters themselves were not kept.
        record: Its ledger record, or an empty mapping.
    """

    step: int
    state: StepState
    loss_bits: str | None
    sums: Mapping[str, int]
    record: Mapping[str, Any]

    @property
    def is_recovery_point(self) -> bool:
        """Whether a replay can start here."""
        return self.state.model is not None

    @property
    def withheld(self) -> bool:
        """Whether the recorder's gate withheld the update of this step."""
        records = self.record.get("optimizers") or ()
        return any(one.get("skipped_by") == "gate" for one in records)


def kept_steps(bundle: Bundle, source: Source) -> list[Kept]:
    """Read every kept step and the incident's own, oldest first, from a recovery point on.

    Raises:
        CannotRunError: There is none to start from.
        BundleError: The index is damaged.
    """
    ledger = {record.get("step"): record for record in bundle.ledger()}
    listed = bundle.json(INDEX).get("steps", []) if bundle.has(INDEX) else []
    try:
        resolve = classes_of(source.step, bundle)
        kept = [_kept(bundle, entry, ledger, resolve) for entry in listed]
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise BundleError(
            f"The file '{INDEX}' of the bundle '{bundle.path}' has a form that is not understood "
            f"({type(error).__name__}: {error}), so its earlier steps cannot be replayed. The "
            f"incident's own step can. Check the bundle with: {command_line('verify', bundle.path)}"
        ) from error
    while kept and not kept[0].is_recovery_point:
        kept.pop(0)
    if not kept:
        raise _no_trajectory(bundle, source, ledger)
    own = source.digests.get("loss_bits")
    last = Kept(source.step_index, source.state, own, {}, ledger.get(source.step_index, {}))
    return [*kept, last]


def _no_trajectory(
    bundle: Bundle, source: Source, ledger: Mapping[Any, Mapping[str, Any]]
) -> CannotRunError:
    why = source.completeness.get("trajectory", "missing earlier steps")
    if not any(step is not None and step < source.step_index for step in ledger):
        rest = "No step of this run came before it, so there is none to replay from."
    elif "recovery_every=0" in why:
        rest = (
            "Record with: Recorder(step, model, optimizer, policy=Policy(recovery_every=10)). It "
            "keeps a full state every 10 steps, and batch and random numbers of each step between."
        )
    else:
        rest = (
            "Keep a state more often, or give the kept states more memory, with: Recorder(step, "
            "model, optimizer, policy=Policy(recovery_every=10, recovery_bytes=8 * 2**30))."
        )
    return CannotRunError(f"The bundle '{bundle.path}' has no trajectory to replay: {why}. {rest}")


def _kept(
    bundle: Bundle, entry: Mapping[str, Any], ledger: Mapping[Any, Any], resolve: Resolve
) -> Kept:
    return Kept(
        int(entry["step"]),
        read_state(bundle, str(entry["prefix"]), resolve),
        entry.get("loss_bits"),
        dict(entry.get("sums") or {}),
        ledger.get(entry["step"], {}),
    )


def merge(recorded: StepState, left: StepState) -> StepState:
    """Put the light part of a recorded step over the parameters that the step before it left.

    Args:
        recorded: Batch, random numbers, scaler, schedulers and hyperparameters as recorded.
        left: Model and optimizers as they are.
    """
    optimizers = []
    for number, optimizer in enumerate(left.optimizers):
        known = recorded.hyperparameters
        groups = known[number] if number < len(known) else []
        merged = [
            {**group, "hyperparameters": {**group["hyperparameters"], **values}}
            for group, values in zip(optimizer.groups, groups, strict=False)
        ]
        optimizers.append(replace(optimizer, groups=merged or optimizer.groups))
    return replace(recorded, model=left.model, optimizers=optimizers)


def differing_parameters(recorded: ModelState, here: ModelState) -> tuple[str, ...]:
    """Names of parameters and buffers whose bits differ."""
    return tuple(
        name
        for name, tensor in recorded.tensors.items()
        if recorded.info[name].kind != "attribute"
        and name in here.tensors
        and not _equal(tensor, here.tensors[name])
    )


def differing_optimizer_state(recorded: StepState, here: StepState) -> tuple[str, ...]:
    """Names of optimizer state, as ``parameter/key``, whose bits differ."""
    found = []
    for old, new in zip(recorded.optimizers, here.optimizers, strict=False):
        for name, entries in old.state.items():
            own = new.state.get(name, {})
            found += [
                f"{name}/{key}"
                for key, value in entries.items()
                if isinstance(value, torch.Tensor)
                and not (isinstance(own.get(key), torch.Tensor) and _equal(value, own[key]))
            ]
    return tuple(found)


def _equal(a: Tensor, b: Tensor) -> bool:
    return bits_equal(a.detach().cpu(), b.detach().cpu())


def loss_scale(state: StepState) -> float | None:
    """The loss scale a step starts with, or None without a scaler."""
    saved = None if state.scaler is None else state.scaler.state_dict
    value = None if saved is None else saved.get("scale")
    return float(value) if isinstance(value, int | float | torch.Tensor) else None
