"""A snapshot made with what the one before has seen is the snapshot of a model never seen."""

import random

import numpy as np
import pytest
import torch
from torch import nn

from workbench.step.held import hold
from workbench.step.model_snapshot import ModelSnapshot, PreparedModel
from workbench.step.names import named_buffers, named_parameters
from workbench.step.object_state import KnownAttributes, simple_attributes


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2), nn.Linear(4, 4))
        self.lstm = nn.LSTM(4, 3)
        self.register_buffer("mask", torch.ones(3), persistent=False)
        self.count, self.names, self.sizes = 0, ["a", "b"], (1, 2)
        self.table, self.nested = {"k": 1}, [[1], [2.0]]
        self.array, self.cache = np.zeros(3), None


def set_data(net):
    net.body[2].weight.data = torch.full((4, 4), 2.0)


def tie(net):
    net.body[2].weight = nn.Parameter(torch.ones(4, 4))
    net.extra = nn.Linear(4, 4)
    net.extra.weight = net.body[2].weight


def replace_dict(net):
    net.body[2].__dict__ = {**net.body[2].__dict__, "new": 5}


def rename(net):
    net.body[2].other = net.body[2].__dict__.pop("in_features")


def rename_a_parameter(net):
    held = net.body[2]._parameters
    net.body[2]._parameters = {"weight": held["weight"], "shift": held["bias"]}


def freeze_a_parameter(net):
    net.body[2].weight.requires_grad_(False)


CHANGES = {
    "counter": lambda net: setattr(net, "count", net.count + 1000),
    "list in place": lambda net: net.names.append("c"),
    "list of equal length": lambda net: net.names.__setitem__(0, "z"),
    "another type, equal": lambda net: net.table.__setitem__("k", True),
    "dict in place": lambda net: net.table.update(x=2),
    "nested in place": lambda net: net.nested[1].append(3),
    "array in place": lambda net: net.array.__setitem__(0, 7.0),
    "tuple": lambda net: setattr(net, "sizes", (3, 4)),
    "cached tensor": lambda net: setattr(net, "cache", torch.arange(3.0)),
    "tensor in place": lambda net: net.mask.mul_(2),
    "another buffer": lambda net: setattr(net, "mask", torch.zeros(2)),
    "mode": lambda net: net.body.eval(),
    "another parameter": lambda net: setattr(net.body[0], "bias", nn.Parameter(torch.ones(2))),
    "no parameter": lambda net: setattr(net.body[0], "bias", None),
    "other data": set_data,
    "tied": tie,
    "another module": lambda net: net.body.__setitem__(2, nn.Linear(4, 4)),
    "one module more": lambda net: net.body.append(nn.Tanh()),
    "one module less": lambda net: net.body.__delitem__(2),
    "another dictionary": replace_dict,
    "renamed": rename,
    "renamed parameter": rename_a_parameter,
    "frozen": freeze_a_parameter,
    "converted": lambda net: net.double(),
}


def content(snapshot):
    state = snapshot.freeze()
    return repr((state.info, state.ties, state.missing)), state.modules, state.tensors


def assert_same(one, other):
    assert one[0] == other[0]
    assert repr(one[1]) == repr(other[1])
    assert list(one[2]) == list(other[2])
    for name, t in one[2].items():
        assert t.dtype == other[2][name].dtype
        assert torch.equal(t, other[2][name])


@pytest.mark.parametrize("name", CHANGES)
def test_every_change_between_two_steps_is_seen(name):
    torch.manual_seed(0)
    net, prepared = Net(), PreparedModel()
    ModelSnapshot(net, prepared)
    before = ModelSnapshot(net, prepared)
    was = content(before)
    CHANGES[name](net)
    assert_same(content(ModelSnapshot(net, prepared)), content(ModelSnapshot(net)))
    assert_same(content(before), was)  # one made earlier keeps what it saw
    expected = [n for n, _ in net.named_parameters()]
    assert [n for n, _ in named_parameters(net)] == expected
    assert [id(p) for p in prepared.parameters] == [id(p) for p in net.parameters()]
    assert [n for n, _ in named_buffers(net)] == [n for n, _ in net.named_buffers()]


def test_random_changes_one_after_the_other_are_seen():
    random.seed(3)
    net, prepared = Net(), PreparedModel()
    safe = [n for n in CHANGES if n not in ("one module less", "renamed", "renamed parameter")]
    for name in random.choices(safe, k=60):
        CHANGES[name](net)
        for _ in range(random.randrange(1, 3)):
            assert_same(content(ModelSnapshot(net, prepared)), content(ModelSnapshot(net)))


def test_a_wrapper_whose_module_is_exchanged_is_seen():
    compiled, prepared = torch.compile(nn.Linear(2, 2), backend="eager"), PreparedModel()
    ModelSnapshot(compiled, prepared)
    compiled._modules["_orig_mod"] = nn.Linear(3, 3)
    assert_same(content(ModelSnapshot(compiled, prepared)), content(ModelSnapshot(compiled)))


def test_what_is_relied_on_of_torch():
    base = torch.arange(6.0)
    for t in (base, base[2:], nn.Parameter(base.clone()), torch.ones(2, 3).t()):
        assert torch._C._storage_address(t) == t.untyped_storage()._cdata
        with torch.no_grad():
            held = hold([t])
        kept = held.kept()[id(t)]
        assert kept.how == "cow" and kept.storage == t.untyped_storage()._cdata
    shared = torch.from_numpy(np.ones(3, np.float32))
    with torch.no_grad():
        held = hold([base, shared])
    assert [held.kept()[id(t)].how for t in (base, shared)] == ["cow", "copy"]
    shared.add_(1)
    assert held.kept()[id(shared)].tensor.tolist() == [1, 1, 1]


def test_attributes_are_those_of_an_object_never_seen():
    class Step:
        pass

    step, known = Step(), KnownAttributes(skip=("step_index",))
    step.step_index, step.rate, step.sizes, step.model = 0, 0.5, [1], object()
    for change in (
        lambda: None,
        lambda: setattr(step, "step_index", 1),
        lambda: step.sizes.append(2),
        lambda: setattr(step, "rate", 0.25),
        lambda: delattr(step, "sizes"),
        lambda: setattr(step, "model", 3),
        lambda: setattr(step, "noise", torch.ones(2)),
        lambda: step.noise.add_(1),
    ):
        change()
        for _ in range(2):
            assert repr(known.of(step)) == repr(simple_attributes(step, ("step_index",))[0])
