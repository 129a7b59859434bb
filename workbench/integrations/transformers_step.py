"""The training step of a Hugging Face model, built again from what a bundle says of it.

A replay needs no code of the user's: the architecture is one that the transformers library brings,
the configuration and the optimizer's settings are plain data. Code that a model repository carries
is never run.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from workbench.errors import CannotRunError
from workbench.numerics import jsonio
from workbench.step import Autocast, Domain, TrainingStep
from workbench.step.names import inner_model, named_parameters


class TransformersStep(TrainingStep):
    """One step of a Hugging Face model as the library's Trainer makes it.

    A batch is ``{"inputs": {...}, "num_items_in_batch": number, tensor or None}``.

    Attributes:
        described: Everything the step is built from, as JSON text: ``architecture``, ``config``,
            ``attention``, ``optimizer``, ``autocast``, ``scale``, ``max_grad_norm``, ``divides``,
            ``label_smoothing``, ``checkpointing``, ``adapter``, ``domains``. ``divides`` is true
            where a micro-batch's loss is divided by their number, or the number it is divided by.
    """

    def __init__(self, described: str = "") -> None:
        self.described = described
        self._take()

    def take_recorded(self, attributes: Mapping[str, Any]) -> None:
        """Take what the recorded step was built from.

        Args:
            attributes: The recorded attributes.

        Raises:
            CannotRunError: They are not those of such a step.
        """
        self.described = str(attributes.get("described", ""))
        if not self.described:
            raise CannotRunError(
                "The bundle does not say which Hugging Face model its step is of, so it cannot be "
                "built again. Give the step yourself: --step file.py:Name."
            )
        self._take()

    def _take(self) -> None:
        facts = jsonio.loads(self.described) if self.described else {}
        dtype = facts.get("autocast")
        self.autocast = Autocast(dtype) if dtype else None
        self.max_grad_norm = facts.get("max_grad_norm")
        self.domains = {
            name: Domain.labels(size) if kind == "labels" else Domain.tokens(size)
            for name, (kind, size) in facts.get("domains", {}).items()
        }

    @property
    def _facts(self) -> dict[str, Any]:
        facts: dict[str, Any] = jsonio.loads(self.described)
        return facts

    def build_model(self) -> nn.Module:
        """Build the model from its configuration.

        Raises:
            CannotRunError: transformers is not installed, or does not know the architecture.
        """
        transformers = _library("transformers")
        facts = self._facts
        kind: Any = getattr(transformers, str(facts["architecture"]), None)
        known = isinstance(kind, type) and issubclass(kind, transformers.PreTrainedModel)
        if not known:
            raise CannotRunError(
                f"The installed transformers ({transformers.__version__}) has no model "
                f"{facts['architecture']!r}, so the step cannot be built. Install the version "
                "the bundle's environment names, or give the step yourself with --step."
            )
        config = kind.config_class.from_dict(dict(facts["config"]))
        if facts.get("attention"):
            config._attn_implementation = facts["attention"]
        model: nn.Module = kind(config)
        if facts.get("adapter"):
            peft = _library("peft")
            adapter = dict(facts["adapter"])
            made = peft.get_peft_config(adapter)
            model = peft.get_peft_model(model, made)
        if facts.get("checkpointing"):
            model.gradient_checkpointing_enable()  # type: ignore[operator]
        return model.train()

    def build_optimizer(self, model: nn.Module) -> torch.optim.Optimizer:
        """Build the optimizer over the same parameter groups."""
        return build_optimizer(self._facts["optimizer"], model)

    def build_scaler(self) -> Any:
        """Build the loss scaler, if the run had one."""
        scale = self._facts.get("scale")
        device = "cuda" if torch.cuda.is_available() else "cpu"
        return None if scale is None else torch.amp.GradScaler(device, init_scale=scale)

    def forward(self, model: nn.Module, batch: Any) -> Any:
        """Run the model, which computes its own loss."""
        inputs = dict(batch["inputs"])
        smoothing = self._facts.get("label_smoothing")
        if smoothing:
            inputs.pop("labels", None)
        if batch.get("num_items_in_batch") is not None:
            inputs["num_items_in_batch"] = batch["num_items_in_batch"]
        return model(**inputs)

    def loss(self, outputs: Any, batch: Any) -> Tensor:
        """The model's own loss, or the Trainer's smoothed one."""
        smoothing = self._facts.get("label_smoothing")
        if smoothing:
            smoother = _library("transformers").trainer_pt_utils.LabelSmoother(epsilon=smoothing)
            shift = bool(self._facts.get("shift_labels"))
            smoothed: Tensor = smoother(outputs, batch["inputs"]["labels"], shift_labels=shift)
            return smoothed
        loss: Tensor = outputs["loss"] if isinstance(outputs, Mapping) else outputs[0]
        divides = self._facts.get("divides")
        return loss if isinstance(divides, bool) or not divides else loss / divides

    def loss_divisor(self, micro_batches: int) -> float:
        """What the Trainer divides a micro-batch's loss by."""
        return float(micro_batches) if self._facts.get("divides") is True else 1.0


def describe_optimizer(optimizer: torch.optim.Optimizer, model: nn.Module) -> dict[str, Any] | None:
    """Describe an optimizer so that it can be built again; None for one that torch does not bring.

    Args:
        optimizer: The optimizer.
        model: The model whose parameters it updates.
    """
    kind = type(optimizer)
    if getattr(torch.optim, kind.__name__, None) is not kind:
        return None
    names = {id(parameter): name for name, parameter in named_parameters(model)}
    groups = []
    for group in optimizer.param_groups:
        held = [names.get(id(parameter)) for parameter in group["params"]]
        if any(name is None for name in held):
            return None
        plain = {key: value for key, value in group.items() if _is_plain(value)}
        groups.append(plain | {"parameters": held})
    defaults = {key: value for key, value in optimizer.defaults.items() if _is_plain(value)}
    return {"name": kind.__name__, "defaults": defaults, "groups": groups}


def build_optimizer(described: Mapping[str, Any], model: nn.Module) -> torch.optim.Optimizer:
    """Build an optimizer that ``describe_optimizer`` described.

    Raises:
        CannotRunError: An optimizer that torch does not bring, or parameters the model lacks.
    """
    kind = getattr(torch.optim, str(described["name"]), None)
    known = dict(named_parameters(inner_model(model)))
    names = [name for group in described["groups"] for name in group["parameters"]]
    missing = [name for name in names if name not in known]
    if not isinstance(kind, type) or not issubclass(kind, torch.optim.Optimizer) or missing:
        raise CannotRunError(
            f"The optimizer {str(described['name'])[:80]!r} cannot be built again: "
            + (f"the model has no parameters {missing[:3]}." if missing else "torch has none such.")
            + " Give the step yourself with --step file.py:Name."
        )
    groups = [
        {key: _tuples(value) for key, value in group.items() if key != "parameters"}
        | {"params": [known[name] for name in group["parameters"]]}
        for group in described["groups"]
    ]
    defaults = {key: _tuples(value) for key, value in described["defaults"].items()}
    return kind(groups, **_accepted(kind, defaults))


def _accepted(kind: type, settings: Mapping[str, Any]) -> dict[str, Any]:
    import inspect

    names = inspect.signature(kind).parameters
    return {key: value for key, value in settings.items() if key in names}


def _is_plain(value: Any) -> bool:
    if isinstance(value, tuple | list):
        return all(isinstance(item, int | float | bool) for item in value)
    return value is None or isinstance(value, int | float | bool | str)


def _tuples(value: Any) -> Any:
    return tuple(value) if isinstance(value, Sequence) and not isinstance(value, str) else value


def _library(name: str) -> Any:
    import importlib

    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise CannotRunError(
            f"The step of this bundle is of a model of the library {name!r}, which is not "
            f"installed here. Install it with: pip install {name}"
        ) from error
