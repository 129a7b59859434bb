"""Whether modules changed is told from the versions of their dictionaries."""

import sys

import pytest
import torch
from torch import nn

from workbench.step.dict_versions import Versions, tell_writes
from workbench.step.model_snapshot import PreparedModel


def test_this_interpreter_is_known():
    assert tell_writes() == (sys.version_info < (3, 13))


@pytest.mark.skipif(not tell_writes(), reason="this interpreter keeps no versions")
def test_a_write_is_told_and_a_read_is_not():
    module = nn.BatchNorm1d(3)
    versions = Versions([module.__dict__, module._buffers, module._parameters])
    module(torch.randn(4, 3))
    assert versions.same()  # running statistics are written in place
    module.eval()
    assert not versions.same()


@pytest.mark.parametrize("without", [False, True])
def test_a_module_that_changed_is_looked_at_again(without, monkeypatch):
    if without:
        monkeypatch.setattr("workbench.step.looks.tell_writes", lambda: False)
    model = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2))
    model[0].scale, model[1].history = 1.0, [1]
    prepared = PreparedModel()

    def seen():
        prepared.look(model)
        return prepared.seen

    first = seen()
    model(torch.randn(3, 2))
    assert seen() is first
    changes = [
        lambda: setattr(model[0], "scale", 2.0),
        lambda: model[1].history.append(2),
        lambda: model.train(False),
        lambda: model[1].register_buffer("more", torch.ones(1)),
        lambda: setattr(model[0], "weight", nn.Parameter(torch.zeros(2, 2))),
    ]
    for change in changes:
        change()
        again = seen()
        assert again is not first
        assert seen() is again
        first = again
    model[0].scale = 3.0
    model[0].scale = 2.0  # written, and as it was again
    assert seen()[1].attributes["scale"] == 2.0
    assert prepared.parameters[0] is model[0].weight
