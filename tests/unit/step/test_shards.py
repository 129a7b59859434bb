"""A tensor from the parts of several ranks: whole only when every element is there exactly once."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from workbench.step.shards import Shard, Whole


def part(shape: list[int], *runs: list[list[int]]) -> Shard:
    return Shard.from_tree({"shape": shape, "runs": list(runs)})


def test_parts_in_any_order_make_the_whole() -> None:
    whole = torch.arange(12.0).reshape(6, 2)
    built = Whole(part([6, 2], [[4, 6]], [[0, 2]]), whole[4:])
    assert not built.complete
    built.add(part([6, 2], [[0, 2], [3, 4]], [[0, 2]]), torch.cat([whole[:2], whole[3:4]]))
    built.add(part([6, 2], [[2, 3]], [[0, 2]]), whole[2:3])
    assert built.complete
    assert torch.equal(built.tensor, whole)


def test_a_replicated_part_counts_once() -> None:
    shard = part([4], [[0, 2]])
    built = Whole(shard, torch.ones(2))
    built.add(shard, torch.ones(2))
    assert not built.complete


def test_parts_that_overlap_are_refused_although_their_elements_add_up() -> None:
    built = Whole(part([6], [[0, 4]]), torch.ones(4))
    built.add(part([6], [[1, 3]]), torch.ones(2))
    with pytest.raises(ValueError, match="overlap"):
        _ = built.tensor


def test_nothing_is_allocated_for_a_whole_whose_parts_are_not_there() -> None:
    built = Whole(part([2**44], [[0, 4]]), torch.ones(4))
    assert not built.complete
    with pytest.raises(ValueError, match="missing"):
        _ = built.tensor


@pytest.mark.parametrize("size", [-5, math.inf, 6.9, True, 2**70, "4", None, [1]], ids=repr)
def test_sizes_that_are_no_natural_numbers_are_refused(size: Any) -> None:
    with pytest.raises(ValueError, match="natural number"):
        Shard.from_tree({"shape": [size], "runs": [[[0, 1]]]})
    with pytest.raises(ValueError, match="natural number"):
        Shard.from_tree({"shape": [4], "runs": [[[0, size]]]})
