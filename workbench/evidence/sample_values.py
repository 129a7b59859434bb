"""Finding sample values in texts, so that a copy for others can leave them out.

Sentences of findings are made from what was seen, and a sentence may quote a number or a text of
the batch. What the batch holds is known here, so it can be looked for.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import takewhile
from typing import Any, Final

import numpy as np
import torch
from torch import Tensor

from workbench.evidence.scrub import scrub

REMOVED: Final = "[removed]"
SIGNIFICANT: Final = 3
"""Digits kept of a statistic: its size, and no element of the batch."""

_NUMBER: Final = re.compile(
    r"(?<![\w.])[−-]?(?:\d{1,3}(?:,\d{3})+|\d+)(?:\.(\d+))?(?:[eE]([−+-]?\d+))?(?![\w])"
)
# Numbers that say where, not what: step 3, [0, 3], train.py:31
_PLACE: Final = re.compile(r"(?:step|rank|line|event|micro-batch|of)\s$|[:\[#]$|\[[\d,\s]*$")
_SHORTEST_TEXT: Final = 3
_SHORTEST_QUOTE: Final = 10
_DIGITS: Final = 4


class SampleValues:
    """The numbers and texts of batches.

    Args:
        trees: The batches, with the tensors in them.
        messages: Texts of exceptions: of them nothing is kept, also where one is quoted in part.
    """

    def __init__(self, trees: list[Any], messages: Sequence[str] = ()) -> None:
        self._messages = [" ".join(m.split()) for m in messages if len(m) >= _SHORTEST_QUOTE]
        numbers: list[np.ndarray[Any, Any]] = []
        texts: set[str] = set()
        for value in leaves(trees):
            if isinstance(value, str) and len(value) >= _SHORTEST_TEXT:
                texts.add(value)
            elif isinstance(value, bytes) and len(value) >= _SHORTEST_TEXT:
                texts.add(value.decode("utf-8", "replace"))
            elif isinstance(value, Tensor | np.ndarray):
                numbers.append(_flat(value))
            elif isinstance(value, int | float) and not isinstance(value, bool):
                numbers.append(np.array([float(value)]))
        joined = np.concatenate(numbers) if numbers else np.zeros(0)
        self._numbers = np.unique(joined[np.isfinite(joined)])
        longest_first = sorted(texts, key=len, reverse=True)
        self._texts = re.compile("|".join(map(re.escape, longest_first))) if longest_first else None

    def without(self, text: str, *, whole: bool = False) -> str:
        """The text without paths, host name, texts of the batch and numbers of it.

        Args:
            text: A sentence.
            whole: Whether whole numbers count as values too; elsewhere they are mostly steps,
                counts and places.
        """
        for message in self._messages:
            text = _without_quote(text, message)
        if self._texts is not None:
            text = self._texts.sub(REMOVED, text)
        text = scrub(text)
        return _NUMBER.sub(lambda match: self._number(match, whole), text)

    def without_tree(self, tree: Any, *, whole: bool = False) -> Any:
        """The same for every text of plain JSON values; numbers in it are left."""
        if isinstance(tree, str):
            return self.without(tree, whole=whole)
        if isinstance(tree, Mapping):
            return {
                self.without(str(key)): self.without_tree(value, whole=whole)
                for key, value in tree.items()
            }
        if isinstance(tree, list | tuple):
            return [self.without_tree(item, whole=whole) for item in tree]
        return tree

    def _number(self, match: re.Match[str], whole: bool) -> str:
        token = match[0].replace(",", "").replace("−", "-")
        digits = re.sub(r"[eE].*", "", token).lstrip("-0.").replace(".", "")
        fraction, exponent = match[1], match[2]
        if fraction is None and exponent is None:
            place = _PLACE.search(match.string[: match.start()]) is not None
            known = whole and not place and self._holds(float(token), 0.0)
        else:
            last = -len(fraction or "") + int((exponent or "0").replace("−", "-"))
            known = len(digits) >= _DIGITS and self._holds(float(token), 0.51 * 10.0**last)
        return REMOVED if known else match[0]

    def _holds(self, value: float, within: float) -> bool:
        if not self._numbers.size or not math.isfinite(value):
            return False
        place = int(np.searchsorted(self._numbers, value))
        near = self._numbers[max(0, place - 1) : place + 1]
        return bool((np.abs(near - value) <= within).any())


def _without_quote(text: str, message: str) -> str:
    """The text without a message, or the beginning of it."""
    while (start := text.find(message[:_SHORTEST_QUOTE])) >= 0:
        pairs = zip(text[start:], message, strict=False)
        length = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))
        text = text[:start] + REMOVED + text[start + length :]
    return text


def leaves(tree: Any) -> Iterator[Any]:
    """Every value of a nest of dicts, lists, tuples and records; keys that are no names too."""
    if isinstance(tree, Mapping):
        for key, value in tree.items():
            if not (isinstance(key, str) and key.isidentifier()):
                yield key
            yield from leaves(value)
    elif isinstance(tree, list | tuple | set | frozenset):
        for item in tree:
            yield from leaves(item)
    elif isinstance(tree, np.ndarray) and tree.dtype.kind in "OSU":
        yield from leaves(tree.ravel().tolist())
    elif hasattr(tree, "__dict__") and not isinstance(tree, Tensor | type):
        yield from leaves(vars(tree))
    else:
        yield tree


def _flat(value: Any) -> np.ndarray[Any, Any]:
    t = torch.as_tensor(value) if isinstance(value, np.ndarray) else value.detach()
    if t.layout is not torch.strided:
        t = t.to_dense()
    if t.is_complex():
        t = torch.view_as_real(t.resolve_conj())
    if t.is_quantized:
        t = t.dequantize()
    flat: np.ndarray[Any, Any] = t.resolve_neg().reshape(-1).to(torch.float64).numpy()
    return flat


def rounded(value: Any) -> Any:
    """A number with three digits; nests of them too; all else as it is."""
    if isinstance(value, float) and math.isfinite(value) and value:
        return float(f"{value:.{SIGNIFICANT - 1}e}")
    if isinstance(value, Mapping):
        return {key: rounded(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [rounded(item) for item in value]
    return value


def rounded_array(values: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """The same for a column of floats."""
    plain = values.astype(np.float64)
    sizes = np.abs(plain)
    ok = np.isfinite(plain) & (sizes > 0)
    scale = np.ones_like(plain)
    scale[ok] = 10.0 ** (np.floor(np.log10(sizes[ok])) - (SIGNIFICANT - 1))
    ok &= scale > 0  # the smallest subnormals have no smaller unit
    plain[ok] = np.round(plain[ok] / scale[ok]) * scale[ok]
    return plain.astype(values.dtype)
