"""The input boundary: fields of a batch by name, and values outside their declared domain."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from workbench.numerics.counts import all_finite, first_nonfinite
from workbench.step.protocol import Domain

MOST_FIELDS = 256
"""Fields of a batch that are looked at."""


@dataclass(frozen=True)
class Violation:
    """One value outside its field's domain.

    Attributes:
        field: Name of the field.
        micro_step: Which micro-batch.
        index: Index of the first such element.
        value: Its value; the size of axis 1, or the number of elements that count, where that is
            what is outside.
        why: The domain in words.
        of: What is outside: a value, a sample's length, or the number of elements that count.
    """

    field: str
    micro_step: int
    index: tuple[int, ...]
    value: float
    why: str
    of: Literal["value", "length", "valid"] = "value"

    @property
    def message(self) -> str:
        """One sentence that names field, index and value."""
        where = f"[{', '.join(map(str, self.index))}]" if self.index else ""
        if self.of == "length":
            return f"{self._named} has samples of {self.value:g} positions, but {self.why}."
        if self.of == "valid":
            place = f" in {self.field}{where}" if where else ""
            return f"{self._named} has {self.value:g} elements that count{place}, but {self.why}."
        return (
            f"The batch field {self.field!r} has the value {self.value:g} at {self.field}{where} "
            f"(micro-batch {self.micro_step}), but {self.why}."
        )

    @property
    def _named(self) -> str:
        return f"The batch field {self.field!r} (micro-batch {self.micro_step})"

    def as_dict(self) -> dict[str, Any]:
        """All fields by name, with the sentence."""
        return {
            "field": self.field,
            "micro_step": self.micro_step,
            "index": list(self.index),
            "value": self.value,
            "why": self.why,
            "of": self.of,
            "message": self.message,
        }


def batch_fields(batch: Any) -> list[tuple[str, Tensor]]:
    """List the tensors and arrays of a batch by path (``x``, ``targets.boxes``, ``0``)."""
    if type(batch) is dict and is_plain_batch(batch):
        return list(batch.items())
    found: list[tuple[str, Tensor]] = []
    for name, value in _walk(batch, "", 0):
        found.append((name or "batch", value))
        if len(found) >= MOST_FIELDS:
            break
    return found


def is_plain_batch(batch: Any) -> bool:
    """Whether a batch is what most are: tensors by name, or one tensor; no leaf of autograd."""
    if type(batch) is not dict:
        return type(batch) is Tensor and not (batch.is_nested or batch.requires_grad)
    for name, value in batch.items():
        if type(value) is not Tensor or type(name) is not str or not name:
            return False
        if value.is_nested or value.requires_grad:
            return False
    return len(batch) <= MOST_FIELDS


def _walk(tree: Any, path: str, depth: int) -> Iterator[tuple[str, Tensor]]:
    if isinstance(tree, Tensor):
        if not tree.is_nested:  # it has no one shape, and many ops refuse it
            yield path, tree
    elif isinstance(tree, np.ndarray) and tree.dtype.kind in "biuf" and tree.flags.writeable:
        yield path, torch.from_numpy(tree)
    elif depth < 8:
        for name, value in _children(tree):
            yield from _walk(value, f"{path}.{name}" if path else name, depth + 1)


def _children(tree: Any) -> list[tuple[str, Any]]:
    if isinstance(tree, Mapping):
        return [(str(key), value) for key, value in tree.items()]
    if isinstance(tree, tuple) and hasattr(tree, "_fields"):
        return list(zip(tree._fields, tree, strict=True))
    if isinstance(tree, list | tuple):
        return [(str(i), value) for i, value in enumerate(tree[:MOST_FIELDS])]
    if is_dataclass(tree) and not isinstance(tree, type):
        return [(f.name, getattr(tree, f.name, None)) for f in fields(tree)]
    return []


def violations(step: Any, micro_batches: Sequence[Any]) -> tuple[Violation, ...]:
    """Fields of micro-batches outside of the domains that a training step declares."""
    domains = getattr(step, "domains", None)
    return tuple(check_domains(micro_batches, domains)) if domains else ()


def check_domains(
    micro_batches: Sequence[Any], domains: Mapping[str, Domain]
) -> tuple[Violation, ...]:
    """List the first value outside its domain for every declared field of every micro-batch.

    Args:
        micro_batches: The batches.
        domains: Legal values by field name; a number as well as a tensor can be a field.
    """
    if not domains:
        return ()
    found = []
    for micro_step, batch in enumerate(micro_batches):
        known = dict(batch_fields(batch))
        if isinstance(batch, Mapping):
            known |= {
                str(k): torch.tensor(v)
                for k, v in batch.items()
                if isinstance(v, int | float) and k in domains
            }
        for name, domain in domains.items():
            if name in known and (violation := _violation(name, micro_step, known[name], domain)):
                found.append(violation)
    return tuple(found)


def _violation(name: str, micro_step: int, t: Tensor, domain: Domain) -> Violation | None:
    t = t.detach()
    if t.is_complex() or t.layout is not torch.strided:
        return None
    if domain.length is not None and (wrong := _wrong_length(name, micro_step, t, domain.length)):
        return wrong
    if domain.minimum_valid and (few := _too_few(name, micro_step, t, domain)):
        return few
    if t.numel() == 0:
        return None
    if domain.finite and not all_finite([t]):
        return _found(name, micro_step, t, first_nonfinite(t), "it must be finite")
    if domain.minimum is None and domain.maximum is None:
        return None
    low, high = (float(value) for value in torch.aminmax(t))
    if not (_below(low, domain) or _above(high, domain)):
        return None
    bad = illegal(t, domain)
    if not bool(bad.any()):
        return None
    index = [int(i) for i in bad.nonzero()[0]]
    return _found(name, micro_step, t, index, _words(domain))


def illegal(values: Tensor, domain: Domain) -> Tensor:
    """Mask of the elements outside a domain."""
    bad = torch.zeros_like(values, dtype=torch.bool)
    if domain.finite and values.is_floating_point():
        bad |= ~torch.isfinite(values)
    if domain.minimum is not None:
        bad |= values <= domain.minimum if domain.above_minimum else values < domain.minimum
    if domain.maximum is not None:
        bad |= values > domain.maximum
    for value in domain.allowed:
        bad &= values != value
    return bad


def _wrong_length(
    name: str, micro_step: int, t: Tensor, length: tuple[int | None, int | None]
) -> Violation | None:
    """A field whose samples are too short or too long; the size of axis 1 is the value."""
    if t.dim() < 2:
        return None
    shortest, longest = length
    size = t.shape[1]
    if (shortest is None or size >= shortest) and (longest is None or size <= longest):
        return None
    low = "0" if shortest is None else str(shortest)
    words = f"at least {low}" if longest is None else f"from {low} to {longest}"
    return Violation(
        name, micro_step, (), float(size), f"its samples must have {words} positions", "length"
    )


def _too_few(name: str, micro_step: int, t: Tensor, domain: Domain) -> Violation | None:
    """A field, or a sample of it, in which too few elements count."""
    counting = t != 0
    if domain.allowed:
        counting = torch.ones_like(t, dtype=torch.bool)
        for value in domain.allowed:
            counting &= t != value
    where: tuple[int, ...] = ()
    count = int(counting.sum())
    whole = domain.valid_in == "field" or t.dim() < 2
    if not whole and t.numel():
        per_sample = counting.sum(dim=-1)
        count = int(per_sample.min())
        if count < domain.minimum_valid:
            where = tuple(int(i) for i in (per_sample < domain.minimum_valid).nonzero()[0])
    if count >= domain.minimum_valid:
        return None
    ignored = (
        f"none of {', '.join(f'{v:g}' for v in domain.allowed)}" if domain.allowed else "not 0"
    )
    least = f"at least {domain.minimum_valid} of its elements must count ({ignored})"
    return Violation(name, micro_step, where, float(count), least, "valid")


def _below(low: float, domain: Domain) -> bool:
    # NaN compares as outside neither bound; a field that may be non-finite is looked at in full
    if domain.minimum is None:
        return False
    at_bound = domain.above_minimum and low == domain.minimum
    return math.isnan(low) or low < domain.minimum or at_bound


def _above(high: float, domain: Domain) -> bool:
    return domain.maximum is not None and (math.isnan(high) or high > domain.maximum)


def _found(
    name: str, micro_step: int, t: Tensor, index: Sequence[int] | None, why: str
) -> Violation:
    place = tuple(index or ())
    return Violation(name, micro_step, place, float(t[place] if place else t.reshape(-1)[0]), why)


def _words(domain: Domain) -> str:
    low = "−Inf" if domain.minimum is None else f"{domain.minimum:g}"
    high = "+Inf" if domain.maximum is None else f"{domain.maximum:g}"
    words = f"it must lie from {low} to {high}"
    if domain.above_minimum:
        words = f"it must lie above {low}" + ("" if domain.maximum is None else f", up to {high}")
    if domain.allowed:
        words += f" or be one of {', '.join(f'{value:g}' for value in domain.allowed)}"
    return words
