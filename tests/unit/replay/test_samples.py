"""Which samples of a batch are kept, and what is said where it cannot be told what a sample is."""

from collections import namedtuple
from dataclasses import dataclass

import numpy as np
import pytest
import torch

from workbench.errors import UsageError
from workbench.replay.samples import keep_samples, layout_of

Pair = namedtuple("Pair", "x y")


@dataclass(frozen=True)
class Item:
    ids: torch.Tensor
    names: list


def test_nested_batches_keep_their_kinds():
    batch = {
        "in": Pair([torch.arange(4.0), {"deep": torch.arange(8).reshape(4, 2)}], np.arange(4)),
        "item": Item(torch.arange(4), ["a", "b", "c", "d"]),
        "weight": torch.ones(3),
        "scale": torch.tensor(2.0),
    }
    kept = keep_samples(batch, (1, 3))
    assert type(kept["in"]) is Pair
    assert kept["in"].x[0].tolist() == [1.0, 3.0]
    assert kept["in"].x[1]["deep"].tolist() == [[2, 3], [6, 7]]
    assert kept["in"].y.tolist() == [1, 3]
    assert kept["item"].names == ["b", "d"]
    assert kept["item"].ids.tolist() == [1, 3]
    assert kept["weight"].shape == (3,)
    assert batch["item"].names == ["a", "b", "c", "d"]


def test_images_of_different_sizes_with_their_boxes():
    images = [torch.zeros(3, 4, 5), torch.ones(3, 6, 2)]
    targets = [
        {"boxes": torch.zeros(1, 4), "labels": torch.tensor([1])},
        {"boxes": torch.ones(5, 4), "labels": torch.arange(5)},
    ]
    kept = keep_samples((images, targets), (1,))
    assert [tuple(image.shape) for image in kept[0]] == [(3, 6, 2)]
    assert [len(target["boxes"]) for target in kept[1]] == [5]
    with pytest.raises(UsageError, match="2 samples in its lists"):
        keep_samples((images, targets), (2,))


def test_two_inputs_of_other_widths_are_not_two_samples():
    kept = keep_samples([torch.zeros(4, 8), torch.zeros(4, 16)], (0,))
    assert [tuple(t.shape) for t in kept] == [(1, 8), (1, 16)]


def test_a_sparse_batch():
    kept = keep_samples({"x": torch.eye(3).to_sparse(), "y": torch.arange(3)}, (2,))
    assert kept["x"].to_dense().tolist() == [[0.0, 0.0, 1.0]]


@pytest.mark.parametrize(
    ("batch", "said"),
    [
        ({"time_first": torch.zeros(7, 2, 3), "y": torch.zeros(2)}, "(7, 2, 3)"),
        ({"scale": torch.tensor(1.0)}, "scale"),
        ({"text": "words"}, "no tensors"),
    ],
)
def test_a_batch_dimension_that_is_not_found_is_said(batch, said):
    with pytest.raises(UsageError, match="it was not found") as refused:
        layout_of(batch)
    assert said in str(refused.value)
