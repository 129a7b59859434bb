import random

import numpy as np
import pytest
import torch

from workbench.replay.settings import read_back


@pytest.fixture(autouse=True)
def settings_stay():
    """No test may leave a global setting behind."""
    before = read_back(torch.device("cpu"))
    yield
    assert read_back(torch.device("cpu")) == before


@pytest.fixture
def random_numbers_stay():
    """A replay in a notebook may not move the notebook's random numbers."""

    def now():
        numpy = np.random.get_state()[1].tolist()
        return random.getstate(), numpy, torch.get_rng_state().tolist()

    before = now()
    yield
    assert now() == before
