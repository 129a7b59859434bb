"""Describing a Hugging Face model and its optimizer so that they can be built again."""

from __future__ import annotations

from typing import Any

from torch import nn

from workbench.integrations.loop import inner_optimizer
from workbench.integrations.transformers_step import describe_optimizer
from workbench.numerics import jsonio
from workbench.step.names import inner_model

PRECISIONS = {"fp16": "float16", "bf16": "bfloat16"}
"""Autocast dtypes by the name accelerate gives them."""
_LABELS_ARE_TOKENS = ("ForCausalLM", "LMHeadModel", "ForMaskedLM")


def describe_step(
    model: nn.Module, optimizer: Any, accelerator: Any
) -> tuple[dict[str, Any] | None, str]:
    """Describe what both the Trainer and a plain accelerate loop have.

    Args:
        model: The model, possibly wrapped.
        optimizer: Its optimizer, possibly wrapped.
        accelerator: The ``accelerate.Accelerator``.

    Returns:
        The description, or None; and why there is none.
    """
    inner: Any = inner_model(model)
    adapter = None
    base = inner
    if hasattr(inner, "peft_config"):
        adapter = _adapter(inner)
        base = inner.get_base_model()
    kind = type(base)
    if not is_transformers(base):
        return None, f"the model {kind.__name__!r} is not one that transformers brings"
    inner_most = inner_optimizer(optimizer)
    described = describe_optimizer(inner_most, model)
    if described is None:
        return None, f"the optimizer {type(inner_most).__name__!r} is not one that torch brings"
    scaler = accelerator.scaler
    return {
        "architecture": kind.__name__,
        "config": jsonio.loads(jsonio.dumps(base.config.to_dict())),
        "attention": getattr(base.config, "_attn_implementation", None),
        "optimizer": described,
        "autocast": PRECISIONS.get(accelerator.mixed_precision),
        "scale": None if scaler is None else float(scaler.get_scale()),
        "shift_labels": "CausalLM" in kind.__name__ or "LMHead" in kind.__name__,
        "checkpointing": _checkpointing(base),
        "adapter": adapter,
        "domains": _domains(base),
    }, ""


def is_transformers(model: nn.Module) -> bool:
    """Whether a model is of a class that the transformers library brings."""
    try:
        import transformers
    except ImportError:
        return False
    kind = type(model)
    return getattr(transformers, kind.__name__, None) is kind


def _domains(model: Any) -> dict[str, list[Any]]:
    """How many tokens and labels there are, for models of text, where one number says it."""
    name = type(model).__name__
    embeddings = model.get_input_embeddings()
    tokens = getattr(embeddings, "num_embeddings", None)
    found: dict[str, list[Any]] = {}
    if not name.endswith((*_LABELS_ARE_TOKENS, "ForSequenceClassification")) or tokens is None:
        return found
    found["inputs.input_ids"] = ["tokens", int(tokens)]
    if name.endswith(_LABELS_ARE_TOKENS):
        found["inputs.labels"] = ["labels", int(tokens)]
    return found


def _checkpointing(model: Any) -> bool:
    """Whether activations are recomputed in backward; newer versions have another name for it."""
    names = ("is_activation_checkpointing", "is_gradient_checkpointing")
    return next((bool(getattr(model, name)) for name in names if hasattr(model, name)), False)


def _adapter(model: Any) -> dict[str, Any]:
    config = next(iter(model.peft_config.values())).to_dict()
    plain: dict[str, Any] = {}
    for key, value in config.items():
        item = sorted(value) if isinstance(value, set) else value
        plain[key] = getattr(item, "value", item)
    return {key: value for key, value in plain.items() if value is not None}
