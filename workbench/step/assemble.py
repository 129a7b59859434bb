"""The whole state of a rank's step: its own parts, and what the bundles of other ranks hold.

A bundle of sharded training holds one part of each tensor; a light one of data parallelism names
the rank whose parameters are the same. Where those bundles lie beside it, the state is whole.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

from torch import Tensor

from workbench.errors import BundleError, CannotRunError
from workbench.evidence.incidents import ranks_file, siblings
from workbench.evidence.wording import joined, number
from workbench.step.digests import sums_of
from workbench.step.shards import Shard, Whole
from workbench.step.storage import read_state

if TYPE_CHECKING:
    from collections.abc import Iterator

    from workbench.evidence.reader import Bundle
    from workbench.step.state import StepState

NEEDS = "needs the bundle"
"""How a recovery goal begins that is complete together with the bundles of other ranks."""


class Completed(NamedTuple):
    """What became of a state.

    Attributes:
        state: The state, whole where it could be made so.
        why_not: What is missing, or None.
        said: Sentences about where its parts came from.
    """

    state: StepState
    why_not: str | None = None
    said: tuple[str, ...] = ()


def complete_state(state: StepState, bundle: Bundle) -> Completed:
    """Make the state of one rank whole.

    Args:
        state: The state as the rank's own bundle has it.
        bundle: That bundle.

    Raises:
        BundleError: Parts do not fit each other, or are damaged.
    """
    said = ranks_file(bundle)
    if state.model is None or not said:
        return Completed(state)
    try:
        if state.model.shards or any(one.shards for one in state.optimizers):
            return _assembled(state, bundle)
        if isinstance(said.get("lender"), int) and not _has_parameters(state):
            return _lent(state, bundle, said)
    except ValueError as error:
        raise BundleError(
            f"The parts of the state that the ranks of {str(bundle.path)!r} wrote do not belong "
            f"together ({error}), so no step can be restored from them. Check each with: workbench "
            "verify"
        ) from error
    return Completed(state)


def _has_parameters(state: StepState) -> bool:
    model = state.model
    return model is not None and any(info.kind == "parameter" for info in model.info.values())


# -- parts of split tensors -----------------------------------------------------------------------


def _assembled(state: StepState, bundle: Bundle) -> Completed:
    world = bundle.manifest.world
    wholes: dict[tuple[int, str], Whole] = {}
    there = siblings(bundle)
    _add(wholes, state)
    for rank, other in there.items():
        if _all_complete(wholes):
            break
        if rank != bundle.manifest.rank:
            try:
                _add(wholes, read_state(other))
            except CannotRunError:
                continue
    model = state.model
    assert model is not None  # noqa: S101 - looked at by the caller
    lacking = [key for key in wholes if not wholes[key].complete]
    absent = [number(r) for r in range(world) if r not in there]
    if any(at < 0 for at, _ in lacking):
        who = f"rank {joined(absent, 8)}" if absent else "another rank"
        why = (
            f"this bundle holds the part of rank {number(bundle.manifest.rank)} of each tensor; "
            f"the bundle of {who} has to lie beside it"
        )
        return Completed(replace(state, model=None), why)
    tensors = {n: wholes[-1, n].tensor if n in model.shards else t
               for n, t in model.tensors.items()}  # fmt: skip
    optimizers = [] if lacking else [_whole_optimizer(state, i, wholes)
                                     for i in range(len(state.optimizers))]  # fmt: skip
    sentence = (
        f"Parameters were put together from the parts of {number(len(there))} of {number(world)} "
        "ranks; this is the unsharded model"
    )
    whole = replace(model, tensors=tensors, shards={})
    return Completed(replace(state, model=whole, optimizers=optimizers), None, (sentence,))


def _parts(state: StepState) -> Iterator[tuple[tuple[int, str], Shard, Tensor]]:
    if state.model is not None:
        for name, shard in state.model.shards.items():
            if name in state.model.tensors:
                yield (-1, name), shard, state.model.tensors[name]
    for index, one in enumerate(state.optimizers):
        for full, shard in one.shards.items():
            name, _, key = full.rpartition("/")
            value = one.state.get(name, {}).get(key)
            if isinstance(value, Tensor):
                yield (index, full), shard, value


def _add(wholes: dict[tuple[int, str], Whole], state: StepState) -> None:
    for key, shard, local in _parts(state):
        if key in wholes:
            wholes[key].add(shard, local)
        else:
            wholes[key] = Whole(shard, local)


def _all_complete(wholes: Mapping[tuple[int, str], Whole]) -> bool:
    return all(one.complete for one in wholes.values())


def _whole_optimizer(state: StepState, index: int, wholes: Mapping[tuple[int, str], Whole]) -> Any:
    one = state.optimizers[index]
    entries = {
        name: {
            key: wholes[index, f"{name}/{key}"].tensor if f"{name}/{key}" in one.shards else value
            for key, value in of_parameter.items()
        }
        for name, of_parameter in one.state.items()
    }
    return replace(one, state=entries, shards={})


# -- parameters of another rank -------------------------------------------------------------------


def _lent(state: StepState, bundle: Bundle, said: Mapping[str, Any]) -> Completed:
    rank, there = int(said["lender"]), siblings(bundle)
    without = replace(state, model=None)
    if rank not in there:
        return Completed(
            without,
            f"its parameters are those of rank {number(rank)}, whose bundle has to lie beside it",
        )
    lender = read_state(there[rank])
    if lender.model is None or not _has_parameters(lender):
        return Completed(without, f"the bundle of rank {number(rank)} has no parameters, either")
    assert state.model is not None  # noqa: S101 - looked at by the caller
    taken = {n for n, info in lender.model.info.items() if info.kind == "parameter"}
    tensors = {n: lender.model.tensors[n] for n in taken}
    sums = said.get("sums")
    recorded = sums.get("parameters") if isinstance(sums, Mapping) else None
    recorded = recorded if isinstance(recorded, Mapping) else {}
    here = sums_of(tensors.items())
    apart = sorted(n for n, value in recorded.items() if here.get(n) != value)
    if apart:
        return Completed(
            without,
            f"its own parameters were not kept, and those of rank {number(rank)} are others "
            f"(rank_desync: {joined([repr(n) for n in apart], 4)})",
        )
    model = replace(
        state.model,
        tensors={**tensors, **state.model.tensors},
        info={**{n: lender.model.info[n] for n in taken}, **state.model.info},
    )
    sentence = (
        f"Parameters and optimizer state are those in the bundle of rank {number(rank)}: this "
        "rank's had the same bits"
    )
    whole = replace(state, model=model, optimizers=lender.optimizers)
    return Completed(whole, None, (sentence,))
