"""A trace of one part: numbers and dataflow of the full trace, statistics of the part alone."""

from __future__ import annotations

import pytest
import torch

from tests.unit.replay.steps import LogOfSoftmax, SqrtAtZero, record
from workbench.replay import Replay
from workbench.replay.trace_focus import Part, tensors_in, trace_part


@pytest.mark.parametrize("step", [LogOfSoftmax(), SqrtAtZero()])
@pytest.mark.parametrize("part", [Part(stages=("loss",)), Part(("2",)), Part(skip=("0", "1", "2"))])
def test_it_agrees_with_the_full_trace_inside_and_looks_at_nothing_outside(step, part):
    replay = Replay.from_source(record(step))
    full = replay.trace()
    traced = trace_part(replay, [part])
    assert [e.op for e in traced.trace.graph] == [e.op for e in full.graph]
    looked = 0
    for ours, theirs in zip(traced.trace.graph, full.graph, strict=True):
        assert [r.producers for r in ours.reads] == [r.producers for r in theirs.reads]
        if traced.inside(ours):
            looked += 1
            assert [w.stats for w in ours.writes] == [w.stats for w in theirs.writes]
            assert [r.counts for r in ours.reads] == [r.counts for r in theirs.reads]
        else:
            assert all(w.stats is None for w in ours.writes)
    assert 0 < looked == traced.looked_at() < len(full.graph)


def test_backward_ops_belong_to_the_part_of_their_forward_op():
    replay = Replay.from_source(record(SqrtAtZero()))
    traced = trace_part(replay, [Part(("2",))])
    backward = [e for e in traced.trace.graph if e.stage == "backward" and traced.inside(e)]
    assert backward
    assert {e.module for e in backward} == {"2"}


def test_bad_tensors_at_module_borders_are_listed():
    replay = Replay.from_source(record(SqrtAtZero()))
    borders = trace_part(replay, [Part(("2",))]).borders
    kinds = [(b.kind, b.module, b.nth) for b in borders]
    assert ("gradient", "2", 0) in kinds
    assert not any(kind == "output" for kind, _, _ in kinds)
    nan, pos_inf, neg_inf = borders[0].counts
    assert nan + pos_inf + neg_inf


def test_further_hooks_run_in_the_traced_step():
    seen = []

    def install(session, stack):
        handle = session.runner.model[0].register_forward_hook(lambda *_: seen.append(1))
        stack.callback(handle.remove)

    trace_part(Replay.from_source(record(LogOfSoftmax())), [Part()], install)
    assert seen == [1]


def test_part_leaves_out_what_is_skipped():
    part = Part(("a",), skip=("a.b",))
    assert part.holds("a", "forward")
    assert part.holds("a.c.d", "forward")
    assert not part.holds("a.b.x", "forward")
    assert not part.holds("ab", "forward")
    assert not Part(stages=("loss",)).holds("a", "forward")


def test_floating_tensors_of_any_nesting():
    a, b = torch.ones(2), torch.ones(3, dtype=torch.float16)
    found = tensors_in({"x": [a, torch.arange(3)], "y": (b, "text", None)})
    assert [t.shape for t in found] == [a.shape, b.shape]
