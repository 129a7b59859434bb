"""The compile backend a step ran under, as the recorder notes it."""

import pytest
import torch
from torch import nn

from workbench.errors import UsageError
from workbench.evidence.conditions import Conditions
from workbench.record.settings import original_conditions
from workbench.replay.compiled import compile_model


def noted(model):
    return original_conditions(None, model, None).compile


def own_backend(graph, inputs):
    del inputs
    return graph


@pytest.mark.parametrize("backend", ["eager", "aot_eager", "inductor"])
@pytest.mark.parametrize("in_place", [True, False])
def test_the_backend_is_noted_however_the_model_was_compiled(backend, in_place):
    model = nn.Sequential(nn.Linear(2, 2))
    if in_place:
        model.compile(backend=backend)
    else:
        model = torch.compile(model, backend=backend)
    assert noted(model) == backend


def test_a_block_that_is_compiled_alone_counts():
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    assert noted(model) == "off"
    model[1].compile(backend="eager")
    assert noted(model) == "eager"


def test_a_backend_of_the_users_own_is_not_called_inductor():
    model = nn.Linear(2, 2)
    model.compile(backend=own_backend)
    assert noted(model) == "other"
    recorded = Conditions().replace(compile="other")
    assert compile_model(model, recorded, recorded) is model
    with pytest.raises(UsageError, match="only the step can name"):
        compile_model(model, recorded, Conditions())
