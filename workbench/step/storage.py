"""The state of a step in a bundle: written as trees of tensors and plain values, read with checks.

Files: ``state/model``, ``state/optimizer``, ``state/scaler``, ``state/schedulers``, ``state/rng``
and ``batch``, each ``.json`` with a ``.safetensors`` beside it. The same files under
``trajectory/step<8 digits>/`` are of an earlier step.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from workbench.errors import BundleError, CannotRunError
from workbench.evidence.pytree import Resolve
from workbench.evidence.records import Missing
from workbench.evidence.wording import command_line
from workbench.step.model_state import ModelState, TensorInfo
from workbench.step.object_state import ObjectState
from workbench.step.optimizer_state import OptimizerState
from workbench.step.rng import RngState
from workbench.step.shards import Shard
from workbench.step.state import StepState

if TYPE_CHECKING:
    from workbench.evidence import Bundle, BundleWriter


def write_state(writer: BundleWriter, state: StepState, prefix: str = "") -> None:
    """Write a state into a bundle, light files first.

    Args:
        writer: The open bundle.
        state: The state.
        prefix: Folder inside the bundle, ending in ``/``, for a step of the trajectory.
    """
    for stem, tree in light_trees(state).items():
        writer.add_pytree(prefix + stem, tree)
    for stem, tree in heavy_trees(state).items():
        writer.add_pytree(prefix + stem, tree)


def light_trees(state: StepState) -> dict[str, Any]:
    """Trees of batch, random state, scaler and schedulers, by file stem."""
    trees: dict[str, Any] = {
        "batch": {"micro_batches": list(state.micro_batches)},
        "state/rng": _rng_tree(state),
        "state/step": {
            "step_index": state.step_index,
            "low_level": state.low_level,
            "hyperparameters": state.hyperparameters,
            "attributes": state.step_attributes,
        },
    }
    if state.scaler is not None:
        trees["state/scaler"] = _object_tree(state.scaler)
    if state.schedulers:
        trees["state/schedulers"] = {"schedulers": [_object_tree(s) for s in state.schedulers]}
    return trees


def heavy_trees(state: StepState) -> dict[str, Any]:
    """Trees of model and optimizers, by file stem."""
    trees: dict[str, Any] = {}
    if state.model is not None:
        trees["state/model"] = _model_tree(state.model)
    if state.optimizers:
        trees["state/optimizer"] = {"optimizers": [_optimizer_tree(o) for o in state.optimizers]}
    return trees


def _model_tree(model: ModelState) -> dict[str, Any]:
    info = {
        name: {
            "kind": i.kind,
            "how": i.how,
            "requires_grad": i.requires_grad,
            "device": i.device,
        }
        for name, i in model.info.items()
    }
    return {
        "tensors": model.tensors,
        "info": info,
        "ties": model.ties,
        "modules": model.modules,
        "missing": model.missing,
        **_shard_trees(model.shards),
    }


def _optimizer_tree(state: OptimizerState) -> dict[str, Any]:
    return {
        "type": state.type,
        "groups": state.groups,
        "state": state.state,
        "attributes": state.attributes,
        "how": state.how,
        "on_host": state.on_host,
        "left_out": state.left_out,
        **_shard_trees(state.shards),
    }


def _shard_trees(shards: Mapping[str, Shard]) -> dict[str, Any]:
    return {"shards": {name: one.as_tree() for name, one in shards.items()}} if shards else {}


def _read_shards(tree: Any) -> dict[str, Shard]:
    return {str(name): Shard.from_tree(one) for name, one in tree.get("shards", {}).items()}


def _object_tree(state: ObjectState) -> dict[str, Any]:
    return {
        "type": state.type,
        "attributes": state.attributes,
        "state_dict": state.state_dict,
        "left_out": state.left_out,
    }


def _rng_tree(state: StepState) -> dict[str, Any]:
    units = [
        {"phase": phase, "micro_step": micro, "state": None if rng is state.rng else _one_rng(rng)}
        for (phase, micro), rng in state.unit_rng.items()
    ]
    return {"before_step": _one_rng(state.rng), "before_units": units}


def _one_rng(rng: RngState) -> dict[str, Any]:
    version, words, gauss = rng.python
    return {
        "python": {
            "version": version,
            "words": torch.tensor(words, dtype=torch.int64),
            "gauss": gauss,
        },
        "numpy": None if rng.numpy is None else _arrays_as_tensors(rng.numpy),
        "cpu": rng.cpu,
        "cuda": {str(index): value for index, value in rng.cuda.items()},
        "generators": dict(rng.generators),
        **({"loaders": rng.loaders} if rng.loaders else {}),
    }


def _arrays_as_tensors(tree: Any) -> Any:
    if isinstance(tree, Mapping):
        return {str(key): _arrays_as_tensors(value) for key, value in tree.items()}
    if isinstance(tree, np.ndarray):
        return torch.from_numpy(tree.astype(np.int64))
    if isinstance(tree, np.generic):
        return tree.item()
    return tree


# -- reading ----------------------------------------------------------------------------------


def read_state(bundle: Bundle, prefix: str = "", resolve: Resolve | None = None) -> StepState:
    """Read the state of a step from a bundle; parts that are not there stay empty.

    Args:
        bundle: The opened bundle.
        prefix: Folder inside the bundle, ending in ``/``, for a step of the trajectory.
        resolve: Gives the classes of the batch's records, once the user's code is trusted and
            loaded (``classes_of``); without it they come back as dicts and tuples with names.

    Raises:
        BundleError: A part is damaged or of an unknown form.
        CannotRunError: There is no random state.
    """
    read = _Reader(bundle, prefix)
    step = read("state/step", _read_step) or _read_step({})
    rng, units = read("state/rng", _read_rng) or _no_rng(bundle)
    scheduled = read("state/schedulers", lambda tree: [_read_object(s) for s in tree["schedulers"]])
    optimizers = read("state/optimizer", lambda t: [_read_optimizer(o) for o in t["optimizers"]])
    return StepState(
        step_index=step["step_index"],
        micro_batches=read("batch", lambda t: list(t["micro_batches"]), resolve) or [],
        model=read("state/model", _read_model),
        optimizers=optimizers or [],
        scaler=read("state/scaler", _read_object),
        schedulers=scheduled or [],
        rng=rng,
        unit_rng=units,
        hyperparameters=step["hyperparameters"],
        step_attributes=step["attributes"],
        low_level=step["low_level"],
    )


def _read_step(tree: Any) -> dict[str, Any]:
    return {
        "step_index": int(tree.get("step_index", 0)),
        "hyperparameters": list(tree.get("hyperparameters", [])),
        "attributes": dict(tree.get("attributes", {})),
        "low_level": bool(tree.get("low_level", False)),
    }


def _no_rng(bundle: Bundle) -> Any:
    reason = bundle.manifest.dropped.get("state/rng.json")
    why = f" ({reason[:200]})" if reason else ""
    raise CannotRunError(
        f"The bundle {str(bundle.path)!r} has no file 'state/rng.json'{why}, so the random numbers "
        "of its step are not known and a replay would draw others. The rest of the bundle can "
        f"still be looked at with: {command_line('inspect', bundle.path)}"
    )


class _Reader:
    def __init__(self, bundle: Bundle, prefix: str) -> None:
        self._bundle = bundle
        self._prefix = prefix

    def __call__(
        self, stem: str, convert: Callable[[Any], Any], resolve: Resolve | None = None
    ) -> Any:
        full = self._prefix + stem
        if not self._bundle.has(f"{full}.json"):
            return None
        try:
            return convert(self._bundle.pytree(full, resolve))
        except (
            KeyError,
            TypeError,
            ValueError,
            AttributeError,
            IndexError,
            OverflowError,
        ) as error:
            raise BundleError(
                f"The file '{full}.json' of the bundle {str(self._bundle.path)!r} has a form that "
                f"is not understood ({type(error).__name__}: {error}), so the step cannot be "
                "restored from it. Check the bundle with: "
                f"{command_line('verify', self._bundle.path)}"
            ) from error


def _read_model(tree: Any) -> ModelState:
    tensors = {
        str(name): _tensor(value)
        for name, value in tree["tensors"].items()
        if not isinstance(value, Missing)
    }
    info = {
        str(name): TensorInfo(i["kind"], str(i["how"]), bool(i["requires_grad"]), str(i["device"]))
        for name, i in tree["info"].items()
    }
    missing = {str(k): str(v) for k, v in tree["missing"].items()}
    for name in list(info):  # what could not be stored (quantised) is left out on reading
        if name not in tensors:
            missing[name] = "its values were not stored"
            del info[name]
    if unknown := [name for name in tensors if name not in info]:
        raise ValueError(f"no description of {unknown[0]!r}")
    modules = {str(path): dict(value) for path, value in tree["modules"].items()}
    ties = [[str(name) for name in group] for group in tree["ties"]]
    return ModelState(tensors, info, ties, modules, missing, _read_shards(tree))


def _tensor(value: Any) -> Tensor:
    if not isinstance(value, Tensor):
        raise TypeError("not a tensor")
    return value


def _read_optimizer(tree: Any) -> OptimizerState:
    return OptimizerState(
        type=str(tree["type"]),
        groups=[
            {
                "parameters": [str(name) for name in group["parameters"]],
                "hyperparameters": dict(group["hyperparameters"]),
            }
            for group in tree["groups"]
        ],
        state={str(name): dict(entries) for name, entries in tree["state"].items()},
        attributes=dict(tree["attributes"]),
        how=tree["how"],
        on_host=[str(name) for name in tree["on_host"]],
        left_out=[str(name) for name in tree["left_out"]],
        shards=_read_shards(tree),
    )


def _read_object(tree: Any) -> ObjectState:
    given = tree["state_dict"]
    return ObjectState(
        type=str(tree["type"]),
        attributes=dict(tree["attributes"]),
        state_dict=None if given is None else dict(given),
        left_out=[str(name) for name in tree["left_out"]],
    )


def _read_rng(tree: Any) -> tuple[RngState, dict[tuple[str, int], RngState]]:
    before = _read_one_rng(tree["before_step"])
    units = {
        (str(unit["phase"]), int(unit["micro_step"])): (
            before if unit["state"] is None else _read_one_rng(unit["state"])
        )
        for unit in tree["before_units"]
    }
    return before, units


def _read_one_rng(tree: Any) -> RngState:
    python = tree["python"]
    words = tuple(int(word) for word in python["words"].tolist())
    given = tree["numpy"]
    return RngState(
        python=(int(python["version"]), words, python["gauss"]),
        numpy=None if given is None else _tensors_as_arrays(given),
        cpu=_tensor(tree["cpu"]),
        cuda={int(index): _tensor(value) for index, value in tree["cuda"].items()},
        generators={str(name): _tensor(value) for name, value in tree["generators"].items()},
        loaders={str(name): dict(value) for name, value in tree.get("loaders", {}).items()},
    )


def _tensors_as_arrays(tree: Any) -> Any:
    if isinstance(tree, Mapping):
        return {key: _tensors_as_arrays(value) for key, value in tree.items()}
    if isinstance(tree, Tensor):
        return tree.numpy().astype(np.uint64 if tree.numel() == 4 else np.uint32)
    return tree
