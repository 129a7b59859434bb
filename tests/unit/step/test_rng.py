import random

import numpy as np
import pytest
import torch

from workbench.step import rng
from workbench.step.rng import capture_rng, restore_rng


def draw():
    return (
        random.random(),
        random.gauss(0, 1),
        float(np.random.rand()),
        float(np.random.randn()),
        float(torch.rand(())),
    )


def test_restoring_repeats_every_source():
    draw()
    state = capture_rng()
    first = draw()
    restore_rng(state)
    assert draw() == first


def test_reading_advances_nothing():
    state = capture_rng()
    again = capture_rng()
    assert state.digest() == again.digest()


@pytest.mark.parametrize(
    "change",
    [
        random.random,
        lambda: random.gauss(0, 1),
        np.random.rand,
        np.random.randn,
        lambda: torch.rand(1),
    ],
)
def test_every_draw_changes_the_digest(change):
    # twice: a normal deviate is made in pairs, and the second of a pair moves no word of the state
    for _ in range(3):
        before = capture_rng()
        change()
        after = capture_rng()
        assert before.digest() != after.digest()
        assert not before.same(after)


def test_the_fast_reading_agrees_with_the_official_one():
    for _ in range(700):  # over the end of the generator's block of words
        random.random()
        np.random.rand()
        state = capture_rng()
        assert state.python == random.getstate()
        official = np.random.get_state(legacy=False)
        assert state.numpy["state"]["pos"] == official["state"]["pos"]
        assert (state.numpy["state"]["key"] == official["state"]["key"]).all()


def test_the_fast_reading_is_in_use_here():
    capture_rng()
    assert rng._PYTHON._trusted
    assert rng._NUMPY._trusted


def test_without_fast_reading_it_still_works(monkeypatch):
    source = rng._Python()
    monkeypatch.setattr(rng._Python, "_peek", lambda self: None)
    first = source.read()
    random.random()
    assert source.read() != first


def test_named_generators():
    generator = torch.Generator().manual_seed(1)
    state = capture_rng({"mine": generator})
    first = torch.rand(3, generator=generator)
    restore_rng(state, {"mine": generator})
    assert torch.equal(torch.rand(3, generator=generator), first)


def test_the_same_position_after_other_draws_is_another_state():
    random.seed(5)
    np.random.seed(5)
    random.getrandbits(32)
    np.random.random_sample()
    first = capture_rng()
    again = capture_rng()
    assert again.python is first.python and again.numpy is first.numpy
    for _ in range(624):
        random.getrandbits(32)
    second = capture_rng()
    assert second.python == random.getstate() != first.python
    np.random.random_sample(312)  # two words each
    third = capture_rng()
    assert (third.numpy["state"]["key"] == np.random.get_state()[1]).all()
    assert len({one.digest() for one in (first, second, third)}) == 3
    random.gauss(0, 1)
    np.random.seed(5)
    assert capture_rng().python == random.getstate()
