"""The tracer: every op once, named, with its dataflow, and nothing of the step changed."""

from __future__ import annotations

import copy
import gc
import math
from collections.abc import Iterator

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from tests.unit.replay.traced import kept_of, trace_of
from workbench.numerics.counts import count
from workbench.replay.trace_events import Event
from workbench.step.protocol import Autocast


@pytest.fixture(autouse=True)
def _random_numbers_of_its_own() -> Iterator[None]:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        yield


class Attention(nn.Module):
    """Hand-written attention over a sequence."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.qkv = nn.Linear(width, 3 * width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = self.qkv(x).chunk(3, -1)
        return (q @ k.transpose(1, 2)).softmax(-1) @ v


class Block(nn.Module):
    """Attention, dropout and a head."""

    def __init__(self) -> None:
        super().__init__()
        self.attention = Attention(8)
        self.drop = nn.Dropout(0.3)
        self.norm = nn.BatchNorm1d(5)
        self.head = nn.Linear(8, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.norm(self.drop(self.attention(x))))


def events_of(trace: object, base: str) -> list[Event]:
    return [event for event in trace.graph if event.base == base]  # type: ignore[attr-defined]


class Rewritten(nn.Linear):
    """Reads a tensor, writes all of it again, and reads it once more."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = x * 1
        first = y + 0
        y.copy_(torch.tensor([math.nan, math.nan, 1.0]))
        return super().forward(first + (y + 0))


def test_what_is_read_is_counted_anew_once_all_of_it_was_written_again() -> None:
    trace = trace_of(Rewritten(3, 1), torch.tensor([math.inf, 1.0, 1.0]))
    reads = [event.reads[0].counts for event in events_of(trace, "add")[:2]]
    assert reads == [(0, 1, 0), (2, 0, 0)]


def test_private_names_of_torch_are_there() -> None:
    assert callable(torch._C._current_autograd_node)
    assert callable(torch._C._current_graph_task_id)
    assert isinstance(torch._C._autograd._get_sequence_nr(), int)
    x = torch.ones(1, requires_grad=True).exp()
    assert isinstance(x.grad_fn._sequence_nr(), int)
    assert isinstance(x.untyped_storage()._cdata, int)


@pytest.mark.parametrize("dtype", [None, torch.float16, torch.bfloat16])
def test_tracing_leaves_every_bit_of_the_step_alone(dtype: torch.dtype | None) -> None:
    torch.manual_seed(0)
    model = Block()
    plain = copy.deepcopy(model)
    x = torch.randn(3, 5, 8)
    autocast = Autocast(dtype, "cpu") if dtype is not None else None

    torch.manual_seed(1)
    traced = trace_of(model, x, autocast=autocast)
    after_trace = torch.get_rng_state()
    assert traced.first_bad is None

    torch.manual_seed(1)
    optimizer = torch.optim.SGD(plain.parameters(), 0.1)
    with torch.autocast("cpu", dtype=dtype or torch.bfloat16, enabled=dtype is not None):
        out = plain(x)
    with torch.autocast("cpu", dtype=dtype or torch.bfloat16, enabled=dtype is not None):
        loss = out.pow(2).mean()
    loss.backward()
    optimizer.step()

    assert torch.equal(after_trace, torch.get_rng_state())
    for (name, a), (_, b) in zip(
        model.state_dict().items(), plain.state_dict().items(), strict=True
    ):
        assert torch.equal(a, b), name
    for a, b in zip(model.parameters(), plain.parameters(), strict=True):
        assert torch.equal(a.grad, b.grad)


def test_ops_are_named_with_stage_module_source_and_forward_op() -> None:
    trace = trace_of(Block(), torch.randn(3, 5, 8))
    softmax = events_of(trace, "_softmax")[0]
    assert (softmax.stage, softmax.where, softmax.module) == ("forward", "module", "attention")
    assert softmax.source.startswith("test_trace.py:")
    backward = events_of(trace, "_softmax_backward_data")[0]
    assert (backward.stage, backward.node) == ("backward", "SoftmaxBackward0")
    assert backward.forward_event == softmax.index
    assert (backward.module, backward.source) == ("attention", softmax.source)
    assert {e.where for e in trace.graph if e.stage == "update"} == {"optimizer"}
    unmapped = [e for e in trace.graph if e.node and e.node != "AccumulateGrad"]
    assert all(e.forward_event is not None for e in unmapped)


def test_every_weight_of_a_backward_op_belongs_to_its_module() -> None:
    trace = trace_of(Block(), torch.randn(3, 5, 8))
    for event in trace.graph:
        for read in event.reads:
            if event.node and read.leaf and read.leaf[0] == "poisoned_parameter":
                assert read.leaf[1].rpartition(".")[0] == event.module


def test_statistics_are_those_of_the_real_outputs() -> None:
    model = nn.Linear(4, 3)
    x = torch.randn(5, 4)
    trace = trace_of(model, x, loss=lambda out, batch: out.exp().log().mean())
    expected = x @ model.weight.T.detach()  # the update has not changed it: read before
    write = events_of(trace, "addmm")[0].writes[0]
    assert write.shape == (5, 3)
    assert write.stats is not None
    assert write.stats.finite == expected.numel()
    row = trace.events.row(events_of(trace, "exp")[0].index)
    assert row["min"] > 0 and row["nan"] == 0 and row["finite"] == 15


def test_scaler_clip_and_optimizer_mark_their_own_stages() -> None:
    scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
    model = nn.Linear(4, 3)
    trace = trace_of(model, torch.randn(5, 4), scaler=scaler, max_grad_norm=1.0)
    scaled = [e.base for e in trace.graph if e.stage == "backward" and e.where == "scaler"]
    assert "mul" in scaled
    stages = [e.stage for e in trace.graph]
    order = [s for i, s in enumerate(stages) if i == 0 or stages[i - 1] != s]
    assert order == ["forward", "loss", "backward", "unscale", "clip", "unscale", "update"] + (
        ["after_update"] if "after_update" in stages else []
    )
    assert scaler.__dict__.keys() == torch.amp.GradScaler("cpu").__dict__.keys()


def test_list_ops_are_one_event_per_element() -> None:
    model = nn.Sequential(nn.Linear(4, 3), nn.Linear(3, 2))
    optimizer = torch.optim.SGD(model.parameters(), 0.1, foreach=True)
    trace = trace_of(model, torch.randn(5, 4), optimizer=optimizer, max_grad_norm=1.0)
    norms = events_of(trace, "_foreach_norm")
    assert len(norms) == 4
    assert len({event.call for event in norms}) == 1
    updates = [e for e in trace.graph if e.stage == "update" and e.base == "_foreach_add_"]
    assert len(updates) == 4
    assert [w.slot for e in updates for w in e.writes] == ["self"] * 4


def test_views_and_in_place_writes_are_followed_by_storage() -> None:
    def loss(out: torch.Tensor, batch: torch.Tensor) -> torch.Tensor:
        buffer = torch.zeros(4, 3)
        rows = buffer[1:3]
        rows.copy_(out[1:3])
        buffer[0].mul_(2.0)
        return buffer.t().sum()

    trace = trace_of(nn.Linear(4, 3), torch.randn(5, 4), loss=loss)
    total = events_of(trace, "sum")[0]
    writers = {trace.graph[i].base for i in total.reads[0].producers}
    assert writers == {"zeros", "copy_", "mul_"} or writers == {"zero_", "copy_", "mul_", "empty"}


@pytest.mark.parametrize("reentrant", [True, False])
def test_checkpointed_recomputation_is_told_from_backward(reentrant: bool) -> None:
    layer = nn.Sequential(nn.Linear(4, 4), nn.Tanh())

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = layer

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return checkpoint(self.layer, x, use_reentrant=reentrant)

    trace = trace_of(Net(), torch.randn(2, 4, requires_grad=True))
    again = [e for e in trace.graph if e.recomputed]
    assert {e.base for e in again} >= {"tanh", "addmm"}
    assert all(e.node is None for e in again)
    derivative = events_of(trace, "tanh_backward")[0]
    assert derivative.node == "TanhBackward0"
    assert trace.graph[derivative.forward_event].base == "tanh"


def test_memory_written_outside_is_no_uninitialised_memory() -> None:
    def loss(out: torch.Tensor, batch: torch.Tensor) -> torch.Tensor:
        buffer = torch.empty(4)
        buffer.numpy()[:] = math.nan
        return (out.sum() * buffer).sum()

    trace = trace_of(nn.Linear(4, 3), torch.randn(5, 4), loss=loss)
    product = next(e for e in trace.graph if e.base == "mul" and e.bad)
    assert product.unseen


def test_exceptions_name_their_op_and_module() -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = nn.Identity()

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.inner(x).half().masked_fill(x > 0, -1e9)

    net = Net()
    net.weight = nn.Parameter(torch.ones(1))
    trace = trace_of(net, torch.ones(2))
    assert trace.raised is not None
    assert (trace.raised.stage, trace.raised.type) == ("forward", "RuntimeError")
    assert trace.raised.module == ""
    assert trace.graph[trace.raised.event].base == "masked_fill"


def test_a_second_pass_keeps_the_real_inputs() -> None:
    model, x = nn.Linear(4, 3), torch.randn(5, 4)
    first = trace_of(copy.deepcopy(model), x, loss=lambda out, batch: out.log().mean())
    index = events_of(first, "log")[0].index
    again = kept_of([index], model, x, loss=lambda out, batch: out.log().mean())
    assert again.same_events(first)
    kept = again.events[index]
    expected = nn.functional.linear(x, model.weight, model.bias)
    assert torch.equal(kept.args[0], expected.detach())


def test_freed_memory_is_freed_and_not_mistaken() -> None:
    def forward(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
        total = model(x)
        for number in range(50):
            part = torch.full((1000,), float(number))
            total = total + part.sum() * 0
            del part
        return total

    trace = trace_of(nn.Linear(4, 3), torch.randn(5, 4), forward=forward)
    for event in events_of(trace, "sum")[:50]:
        producers = [trace.graph[p].base for p in event.reads[0].producers]
        assert producers == ["full"]


def test_a_finished_trace_holds_no_tensor() -> None:
    width = 67  # no other test's tensors, which may die meanwhile, come in multiples of it
    model = nn.Sequential(*[nn.Linear(width, width) for _ in range(20)])

    def alive() -> int:
        gc.collect()
        tensors = [t for t in gc.get_objects() if type(t) is torch.Tensor]
        return sum(t.numel() for t in tensors if t.numel() and t.numel() % width == 0)

    trace = trace_of(model, torch.randn(131, width))
    held = alive()
    del trace
    assert held == alive()


def test_layers_have_rows_of_activations_gradients_parameters_and_updates() -> None:
    trace = trace_of(Block(), torch.randn(3, 5, 8))
    rows = trace.layers.rows()
    kinds = {row["tensor"] for row in rows}
    assert kinds == {"activation", "gradient", "parameter", "parameter_gradient", "update"}
    activations = [row["module"] for row in rows if row["tensor"] == "activation"]
    assert activations == ["attention.qkv", "attention", "drop", "norm", "head", ""]
    head = next(r for r in rows if r["module"] == "head" and r["tensor"] == "activation")
    assert head["shape"] == "[3, 5, 2]"
    assert head["nan"] == 0 and head["finite"] == 30
    assert head["op"] == "aten.addmm.default" and head["upstream"] == ["norm"]
    assert 0 < head["absmin"] <= head["absmax"]
    assert sum(head["exponents"][1:]) == 30 - head["zeros"]


def test_updates_are_what_the_optimizer_changed_and_moments_what_it_holds() -> None:
    model = nn.Linear(4, 2)
    adam = torch.optim.Adam(model.parameters(), lr=0.25, eps=0.0)
    rows = trace_of(model, torch.ones(3, 4), optimizer=adam).layers.rows()
    updates = {row["name"]: row for row in rows if row["tensor"] == "update"}
    assert set(updates) == {"weight", "bias"}
    assert updates["weight"]["absmax"] == pytest.approx(0.25, rel=1e-5)  # Adam's first step: lr
    moments = {row["name"] for row in rows if row["tensor"] == "moment"}
    assert moments == {f"{p}/{m}" for p in ("weight", "bias") for m in ("exp_avg", "exp_avg_sq")}


def test_counts_of_reads_are_exact() -> None:
    x = torch.tensor([[1.0, math.inf], [math.nan, -math.inf]])
    trace = trace_of(nn.Linear(2, 1), x)
    read = next(r for e in trace.graph for r in e.reads if r.leaf == ("poisoned_batch", "batch"))
    counts = count(x)
    assert read.counts == (counts.nan, counts.pos_inf, counts.neg_inf) == (1, 1, 1)


def test_an_exception_without_a_text_and_a_lazy_parameter_do_not_stop_the_trace() -> None:
    class Mute(Exception):
        def __str__(self) -> str:
            raise RuntimeError("no text")

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.used = nn.Linear(2, 2)
            self.never = nn.LazyLinear(3)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.used(x)
            raise Mute

    net = Net()
    optimizer = torch.optim.SGD(net.used.parameters(), 0.1)
    trace = trace_of(net, torch.ones(1, 2), optimizer=optimizer)
    assert trace.raised is not None and trace.raised.type == "Mute"
    assert "cannot be had" in trace.raised.message


def test_a_submodule_called_module_keeps_its_name() -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.module = nn.Linear(2, 2)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.module(x)

    net = Net()
    with torch.no_grad():
        net.module.weight[0, 0] = math.nan
    trace = trace_of(net, torch.ones(1, 2), loss=lambda out, batch: out[0, 1] + out[0, 0] * 0)
    assert trace.first_bad is not None
    linear = next(e for e in trace.graph if e.base == "addmm")
    assert linear.module == "module"
    leaves = {read.leaf for read in linear.reads if read.leaf}
    assert ("poisoned_parameter", "module.weight") in leaves


def test_batch_normalisation_writes_its_output_and_its_statistics() -> None:
    trace = trace_of(nn.BatchNorm1d(4), torch.randn(5, 4))
    event = next(e for e in trace.graph if "batch_norm" in e.base and e.node is None)
    assert "out0" in [write.slot for write in event.writes]
    assert event.writes[-1].stats is not None
