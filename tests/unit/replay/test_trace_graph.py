"""Events are made when they are asked for, once, and say what was written down in the step."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from tests.unit.replay.traced import trace_of
from workbench.numerics.stats import tensor_stats
from workbench.replay.trace_graph import Graph
from workbench.replay.trace_plan import plan_of


def test_a_finite_step_makes_no_event_until_one_is_asked_for() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.Tanh())
    graph = trace_of(model, torch.randn(3, 4)).graph
    assert isinstance(graph, Graph) and len(graph) > 5
    assert not graph._events
    last = graph[-1]
    assert list(graph._events) == [len(graph) - 1]
    assert graph[len(graph) - 1] is last and last in graph[2:]
    assert [event.index for event in graph] == list(range(len(graph)))
    assert next(reversed(graph)) is last
    for number in (len(graph), -len(graph) - 1):
        with pytest.raises(IndexError):
            graph[number]


def test_what_is_written_after_the_first_look_is_there() -> None:
    graph = Graph()
    plan = plan_of(torch.ops.aten.exp.default)
    setting = ("forward", "main", 0, "module", "", False, "", None, -1, None, False, False)
    read = (
        "self",
        (7, (), ("captured_tensor", "x"), (0, 0, 0)),
        torch.float16,
        torch.Size([2]),
        True,
    )
    graph.add((plan, setting, 0, (-1, ""), [read], [], (("n", 2.0),)))
    event = graph[0]
    stats = tensor_stats(torch.tensor([torch.inf, 1.0]))
    graph.wrote(0, ("out0", 8, stats, torch.float32, torch.Size([2])))
    assert event is graph[0] and event.bad and event.writes[0].counts == (0, 1, 0)
    assert (event.op, event.stage, event.where) == ("aten.exp.default", "forward", "module")
    assert (event.reads[0].dtype, event.reads[0].shape) == ("float16", (2,))
    assert event.scalars == (("n", 2.0),)


def test_a_plan_looks_at_tensors_and_single_numbers_only() -> None:
    names = {name: used for _, name, used in plan_of(torch.ops.aten.index_put_.default).looked_at}
    assert names == {"self": True, "indices": True, "values": True}
    copy = plan_of(torch.ops.aten.copy_.default)
    assert [n for _, n, _ in copy.looked_at] == ["self", "src"] and not copy.by_name["self"]
    assert plan_of(torch.ops.aten.add.Tensor).by_name == {
        "self": True, "other": True, "alpha": True,
    }  # fmt: skip
    assert plan_of(torch.ops.aten.add.Tensor).gives_new
    assert not plan_of(torch.ops.aten.add_.Tensor).gives_new
    assert not plan_of(torch.ops.aten.view.default).gives_new
    assert not plan_of(torch.ops.aten.empty.memory_format).gives_new
