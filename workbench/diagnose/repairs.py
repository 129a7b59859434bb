"""Repairs of what was bad before the step: a batch field, a parameter, buffer, optimizer state."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch

from workbench.diagnose.interventions import Intervention

if TYPE_CHECKING:
    from workbench.diagnose.case import Case
    from workbench.step.state import StepState

Fix = Callable[[torch.Tensor], torch.Tensor]


def repaired_batch(case: Case) -> list[Intervention]:
    """The field's non-finite elements as 0, and the samples that hold them left out."""
    from workbench.replay.trace import batch_leaves

    name = case.origin.leaf or ""
    event = case.event
    write = next((w for w in event.writes if w.bad), None) if event is not None else None

    def change(fix: Fix) -> Callable[[Any], Any]:
        def edit(batch: Any) -> Any:
            chosen = [value for leaf, value in batch_leaves(batch) if leaf == name]
            return in_tree(batch, chosen[0] if chosen else None, fix)

        return edit

    placebo = Intervention(f"0 for as many finite elements of {name}", batch=change(_zero_others))
    repaired = Intervention(
        f"0 for the non-finite elements of {name}", batch=change(_finite), placebo=placebo
    )
    size = write.shape[0] if write is not None and write.shape else 0
    bad = set(write.samples) if write is not None else set()
    good = [i for i in range(size) if i not in bad]
    if not bad or len(good) < 2:
        return [repaired]
    others = tuple(i for i in range(size) if i != good[0])
    elsewhere = Intervention(f"sample {good[0]} left out", conditions={"keep_samples": others})
    names = ", ".join(str(i) for i in sorted(bad)[:5])
    left_out = Intervention(
        f"sample {names} left out", conditions={"keep_samples": tuple(good)}, placebo=elsewhere
    )
    return [left_out, repaired]


def _finite(tensor: torch.Tensor) -> torch.Tensor:
    return torch.nan_to_num(tensor, 0.0, 0.0, 0.0)


def _zero_others(tensor: torch.Tensor) -> torch.Tensor:
    """Set as many finite elements to 0 as there are non-finite ones."""
    flat = tensor.detach().clone().reshape(-1)
    finite = torch.isfinite(flat).nonzero().reshape(-1)
    flat[finite[: int((~torch.isfinite(flat)).sum())]] = 0
    return flat.reshape(tensor.shape)


def in_tree(tree: Any, chosen: torch.Tensor | None, fix: Fix) -> Any:
    """The batch with one of its tensors fixed."""
    if isinstance(tree, torch.Tensor):
        return _fixed(tree, fix) if tree is chosen else tree
    if isinstance(tree, dict):
        changed = {key: in_tree(value, chosen, fix) for key, value in tree.items()}
        return changed if type(tree) is dict else _same_mapping(tree, changed)
    if isinstance(tree, list | tuple):
        items = [in_tree(item, chosen, fix) for item in tree]
        return type(tree)(*items) if hasattr(tree, "_fields") else type(tree)(items)
    return tree


def _fixed(tensor: torch.Tensor, fix: Fix) -> torch.Tensor:
    if tensor.layout is not torch.sparse_coo:
        return fix(tensor) if tensor.layout is torch.strided else tensor
    held = tensor.coalesce()
    return torch.sparse_coo_tensor(held.indices(), fix(held.values()), held.shape)


def _same_mapping(tree: Any, changed: dict[Any, Any]) -> Any:
    try:
        return type(tree)(changed)
    except TypeError:  # a mapping class of the user's own that is built otherwise
        return changed


def repaired_leaf(case: Case) -> list[Intervention]:
    """The bad elements of a parameter, buffer or optimizer state as 0 before the step."""
    name = case.origin.leaf or ""
    kind = case.origin.kind
    other = Intervention(
        f"0 for as many elements of another {kind.removeprefix('poisoned_').replace('_', ' ')}",
        state=lambda state: _elsewhere(state, name),
    )
    return [
        Intervention(
            f"0 for the non-finite elements of {name}",
            state=lambda state: _with(state, name, _finite),
            placebo=other,
        )
    ]


def _with(state: StepState, name: str, fix: Fix) -> StepState:
    """The state with one tensor changed, wherever it is held."""
    model = state.model
    if model is not None and name in model.tensors:
        tied = next((group for group in model.ties if name in group), [name])
        fixed = fix(model.tensors[name])
        tensors = {**model.tensors, **dict.fromkeys(tied, fixed)}
        return replace(state, model=replace(model, tensors=tensors))
    parameter, _, key = name.rpartition("/")
    optimizers = [
        replace(o, state={**o.state, parameter: {**o.state[parameter], key: fix(found)}})
        if isinstance(found := o.state.get(parameter, {}).get(key), torch.Tensor)
        else o
        for o in state.optimizers
    ]
    return replace(state, optimizers=optimizers)


def _elsewhere(state: StepState, name: str) -> StepState:
    """As many elements set to 0 in the first other float tensor of the same kind."""
    model = state.model
    if model is not None and name in model.tensors:
        kind = model.info[name].kind
        for other, tensor in model.tensors.items():
            same = model.info[other].kind == kind and tensor.is_floating_point()
            if same and other != name and bool(torch.isfinite(tensor).all()):
                return _with(state, other, _first_zero)
        return _with(state, name, _zero_others)
    return _with(state, name, _zero_others)


def _first_zero(tensor: torch.Tensor) -> torch.Tensor:
    changed = tensor.detach().clone()
    changed.reshape(-1)[:1] = 0
    return changed
