import copy
import random

import numpy as np
import pytest
import torch
from torch import nn

from workbench.errors import CannotRunError
from workbench.step import capture_rng, capture_state, inner_model, restore_state
from workbench.step.digests import gradient_digests, loss_bits, state_fingerprint
from workbench.step.snapshots import exact_copy, keep


class Cnn(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 3, padding=1)
        self.norm = nn.BatchNorm2d(4)
        self.drop = nn.Dropout(0.4)
        self.head = nn.Linear(4 * 36, 3)
        self.register_buffer("shift", torch.zeros(3), persistent=False)
        self.memory = torch.zeros(3)
        self.table = {"seen": torch.zeros(2), "order": [1, 2]}
        self.calls = 0
        self.label = None

    def forward(self, x):
        self.calls += 1
        self.memory = self.memory * 0.5 + x.mean((0, 2, 3)).detach()
        self.table["seen"] += 1
        y = self.drop(torch.relu(self.norm(self.conv(x)))).flatten(1)
        return self.head(y) + self.memory + self.shift * self.calls + self.table["seen"][0]


def step(model, optimizer, x, scaler=None):
    optimizer.zero_grad()
    loss = model(x).pow(2).mean() * (1 + random.random()) * (1 + float(np.random.rand()))
    (loss if scaler is None else scaler.scale(loss)).backward()
    digests = gradient_digests(model)
    if scaler is None:
        optimizer.step()
    else:
        scaler.step(optimizer)
        scaler.update()
    return loss_bits(loss), digests, state_fingerprint(model, [optimizer]), capture_rng().digest()


def build_cnn():
    return Cnn().to(memory_format=torch.channels_last)


OPTIMIZERS = {
    "adamw": lambda p: torch.optim.AdamW(p, 1e-2, amsgrad=True),
    "fused": lambda p: torch.optim.Adam(p, 1e-2, fused=True),
    "sgd": lambda p: torch.optim.SGD(p, 1e-2, momentum=0.9, nesterov=True),
    "tensor_lr": lambda p: torch.optim.Adam(p, torch.tensor(1e-2), capturable=False, foreach=False),
}


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_a_restored_step_computes_the_same_bits(name):
    torch.manual_seed(3)
    x = torch.randn(5, 3, 6, 6)
    model = build_cnn()
    optimizer = OPTIMIZERS[name](model.parameters())
    scaler = torch.amp.GradScaler("cpu", init_scale=64.0)
    for _ in range(2):
        step(model, optimizer, x, scaler)
    state = capture_state(model, [optimizer], scaler, (), [x], 2)
    first = step(model, optimizer, x, scaler)
    for _ in range(2):  # a state can be restored again
        other = build_cnn()
        other_optimizer = OPTIMIZERS[name](other.parameters())
        other_scaler = torch.amp.GradScaler("cpu", init_scale=2.0)
        restore_state(state, other, [other_optimizer], other_scaler)
        assert step(other, other_optimizer, state.micro_batches[0], other_scaler) == first
        assert other.calls == model.calls
        assert torch.equal(other.table["seen"], model.table["seen"])
        assert other.conv.weight.stride() == model.conv.weight.stride()


def test_snapshots_stay_as_they_were_when_everything_changes():
    model = build_cnn()
    x = torch.randn(2, 3, 6, 6)
    before = copy.deepcopy(model)
    state = capture_state(model, (), None, (), [x], 0)
    kept_x = x.clone()
    with torch.no_grad():
        for p in model.parameters():
            p.data.add_(1)
    model(x)
    x.zero_()
    assert torch.equal(state.micro_batches[0], kept_x)
    for name, p in before.named_parameters():
        assert torch.equal(state.model.tensors[name], p)
    assert torch.equal(state.model.tensors["norm.running_mean"], torch.zeros(4))
    assert torch.equal(state.model.tensors["memory"], torch.zeros(3))
    assert torch.equal(state.model.modules[""]["attributes"]["table"]["seen"], torch.zeros(2))
    assert state.model.modules[""]["attributes"]["calls"] == 0


def test_copy_on_write_is_used_and_falls_back_to_copies():
    # pins torch._lazy_clone and torch._C._is_cow_tensor
    plain = torch.arange(4.0)
    kept = keep(plain)
    assert kept.how == "cow"
    assert torch._C._is_cow_tensor(kept.tensor)
    plain.add_(1)
    assert kept.tensor.tolist() == [0, 1, 2, 3]
    for awkward in (
        torch.from_numpy(np.arange(4.0)),
        torch.arange(4.0).share_memory_(),
        torch.arange(4.0).to_sparse(),
    ):
        kept = keep(awkward)
        assert kept.how == "copy"
        before = awkward.to_dense().clone()
        awkward.mul_(3)
        assert torch.equal(kept.tensor.to_dense(), before)


def test_a_snapshot_of_a_parameter_needs_no_gradient():
    parameter = nn.Parameter(torch.ones(2))
    assert not keep(parameter).tensor.requires_grad
    assert parameter.requires_grad


@pytest.mark.parametrize(
    "tensor",
    [
        torch.arange(24.0).reshape(2, 3, 4).permute(2, 0, 1),
        torch.arange(6.0).reshape(2, 3)[:, ::2],
        torch.ones(3, 1).expand(3, 5),
        torch.zeros(0, 4),
        torch.tensor(3.0),
        torch.ones(4, dtype=torch.complex64).conj(),
        torch.arange(6.0).unfold(0, 3, 1),
    ],
)
def test_copies_keep_values_and_strides(tensor):
    copied = exact_copy(tensor)
    assert torch.equal(copied, tensor)
    if not (tensor.dim() == 2 and tensor.stride() == (1, 1)):  # overlapping windows become dense
        assert copied.stride() == tensor.stride()
    assert copied.data_ptr() != tensor.data_ptr() or tensor.numel() == 0


class Tied(nn.Module):
    def __init__(self, tie=True):
        super().__init__()
        self.embed = nn.Embedding(6, 4)
        self.head = nn.Linear(4, 6, bias=False)
        if tie:
            self.head.weight = self.embed.weight
        store = torch.randn(8)
        self.register_buffer("low", store[:4])
        self.register_buffer("all", store)

    def forward(self, ids):
        self.low.mul_(0.5)
        return self.head(self.embed(ids) + self.low) * self.all.sum()


def test_ties_and_views_are_restored():
    model = Tied()
    state = capture_state(model, (), None, (), [], 0)
    assert ["embed.weight", "head.weight"] in state.model.ties
    other = Tied()
    restore_state(state, other)
    assert other.head.weight is other.embed.weight
    ids = torch.tensor([0, 3])
    assert torch.equal(other(ids), model(ids))
    assert torch.equal(other.all, model.all)  # low is a view of all, and was halved
    assert torch.equal(other.low, other.all[:4])


def test_one_tensor_in_the_record_and_two_in_the_model_is_refused():
    state = capture_state(Tied(), (), None, (), [], 0)
    with pytest.raises(CannotRunError, match="one tensor in the record"):
        restore_state(state, Tied(tie=False))


def test_differences_are_listed_and_nothing_is_loaded():
    state = capture_state(nn.Sequential(nn.Linear(2, 3), nn.Linear(3, 1)), (), None, (), [], 0)
    other = nn.Sequential(nn.Linear(2, 3), nn.Linear(4, 1))
    before = copy.deepcopy(other.state_dict())
    with pytest.raises(CannotRunError) as raised:
        restore_state(state, other)
    message = str(raised.value)
    assert "'1.weight' has shape (1, 3) in the record and (1, 4)" in message
    for name, value in other.state_dict().items():
        assert torch.equal(value, before[name])


def test_optimizers_must_fit():
    model = nn.Linear(2, 2)
    state = capture_state(model, [torch.optim.SGD(model.parameters(), 0.1)], None, (), [], 0)
    with pytest.raises(CannotRunError, match=r"optimizer 0 is 'torch\.optim\.sgd\.SGD'"):
        restore_state(state, model, [torch.optim.Adam(model.parameters(), 0.1)])
    with pytest.raises(CannotRunError, match=r"only in the record: \['bias'\]"):
        restore_state(state, model, [torch.optim.SGD([model.weight], 0.1)])
    with pytest.raises(CannotRunError, match="loss scaler"):
        sgd = torch.optim.SGD(model.parameters(), 0.1)
        restore_state(state, model, [sgd], torch.amp.GradScaler("cpu"))


def test_optimizer_state_keeps_its_dtype_and_hyperparameters():
    model = nn.Linear(2, 2)
    optimizer = torch.optim.Adam(model.parameters(), 0.1)
    model(torch.ones(1, 2)).sum().backward()
    optimizer.step()
    entry = optimizer.state[model.weight]
    entry["exp_avg"] = entry["exp_avg"].half()
    optimizer.param_groups[0]["lr"] = float("nan")
    state = capture_state(model, [optimizer], None, (), [], 0)
    other = nn.Linear(2, 2)
    fresh = torch.optim.Adam(other.parameters(), 0.1)
    restore_state(state, other, [fresh])
    assert fresh.state[other.weight]["exp_avg"].dtype is torch.float16
    assert fresh.param_groups[0]["lr"] != fresh.param_groups[0]["lr"]
    assert fresh.param_groups[0]["betas"] == (0.9, 0.999)


class Lookahead(torch.optim.SGD):
    def __init__(self, params, lr):
        super().__init__(params, lr)
        self.counter = 0
        self.ema = torch.zeros(2)


def test_a_custom_optimizers_own_attributes_are_restored():
    model = nn.Linear(2, 2)
    optimizer = Lookahead(model.parameters(), 0.1)
    optimizer.counter, optimizer.ema = 7, torch.tensor([1.0, 2.0])
    state = capture_state(model, [optimizer], None, (), [], 0)
    other = Lookahead(model.parameters(), 0.1)
    restore_state(state, model, [other])
    assert other.counter == 7
    assert other.ema.tolist() == [1.0, 2.0]


class HomeScaler:
    def __init__(self):
        self.s = torch.tensor(1.0)
        self.bad = False


def test_a_home_made_scaler_and_a_lazy_one_are_restored():
    model = nn.Linear(2, 2)
    home = HomeScaler()
    home.s, home.bad = torch.tensor(float("inf")), True
    state = capture_state(model, (), home, (), [], 0)
    fresh = HomeScaler()
    restore_state(state, model, (), fresh)
    assert fresh.s.item() == float("inf")
    assert fresh.bad is True
    scaler = torch.amp.GradScaler("cpu", init_scale=3.0)
    scaler.scale(torch.ones(()))
    scaler._scale.fill_(5.0)
    state = capture_state(model, (), scaler, (), [], 0)
    other = torch.amp.GradScaler("cpu", init_scale=3.0)
    restore_state(state, model, (), other)
    assert other.get_scale() == 5.0


def test_schedulers_are_restored():
    model = nn.Linear(2, 2)
    optimizer = torch.optim.SGD(model.parameters(), 1.0)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 2, 0.5)
    for _ in range(3):
        optimizer.step()
        scheduler.step()
    state = capture_state(model, [optimizer], None, [scheduler], [], 0)
    other = torch.optim.SGD(model.parameters(), 1.0)
    fresh = torch.optim.lr_scheduler.StepLR(other, 2, 0.5)
    restore_state(state, model, [other], None, [fresh])
    assert fresh.last_epoch == 3
    other.step()
    fresh.step()
    assert other.param_groups[0]["lr"] == 0.25


def test_modes_requires_grad_and_extra_state():
    class Extra(nn.Linear):
        extra = 1

        def get_extra_state(self):
            return {"extra": self.extra}

        def set_extra_state(self, state):
            self.extra = state["extra"]

    model = nn.Sequential(Extra(2, 2), nn.Dropout())
    model[1].eval()
    model[0].bias.requires_grad_(False)
    model[0].extra = 5
    state = capture_state(model, (), None, (), [], 0)
    other = nn.Sequential(Extra(2, 2), nn.Dropout())
    restore_state(state, other)
    assert other[0].training
    assert not other[1].training
    assert not other[0].bias.requires_grad
    assert other[0].weight.requires_grad
    assert other[0].extra == 5


def test_a_name_from_a_bundle_cannot_replace_a_method():
    model = nn.Linear(2, 2)
    state = capture_state(model, (), None, (), [], 0)
    state.model.modules[""]["attributes"] |= {"forward": "evil", "__class__": "evil", "_hooks": 1}
    other = nn.Linear(2, 2)
    restore_state(state, other)
    assert other(torch.ones(1, 2)).shape == (1, 2)
    assert type(other) is nn.Linear


def test_wrapped_models_have_the_inner_names():
    class Holder(nn.Module):  # a user's own attribute may be called module
        def __init__(self):
            super().__init__()
            self.module = nn.Linear(2, 2)

        def forward(self, x):
            return self.module(x)

    holder = Holder()
    compiled = torch.compile(holder, backend="eager")
    assert inner_model(compiled) is holder
    state = capture_state(compiled, (), None, (), [], 0)
    assert set(state.model.tensors) == {"module.weight", "module.bias"}
    restore_state(state, Holder())
    parallel = nn.DataParallel(nn.Sequential(torch.compile(nn.Linear(2, 2), backend="eager")))
    state = capture_state(parallel, (), None, (), [], 0)
    assert set(state.model.tensors) == {"0.weight", "0.bias"}


def test_batches_keep_their_structure():
    batch = {"x": torch.ones(2), "meta": ("a", [torch.zeros(1)]), "n": np.arange(3)}
    state = capture_state(nn.Linear(1, 1), (), None, (), [batch], 0)
    batch["n"][0] = 9
    batch["meta"][1][0].add_(1)
    kept = state.micro_batches[0]
    assert kept["meta"][0] == "a"
    assert kept["meta"][1][0].item() == 0
    assert kept["n"].tolist() == [0, 1, 2]
