"""The backend ladder: alignment, masks first, where runs part, torch's compiler bisector."""

from __future__ import annotations

import msgspec
import pytest
import torch
from torch import nn

from tests.unit.diagnose.compiled_steps import (
    Accumulates,
    Dropped,
    HalfCached,
    HalfNorm,
    TwoPhases,
)
from tests.unit.diagnose.deep_steps import DeepStep, recorded
from workbench.diagnose.bisect import bisect
from workbench.diagnose.compiler_search import search
from workbench.diagnose.ladder import ladder
from workbench.diagnose.ladder_align import aligned_state, differences, stale_caches
from workbench.diagnose.ladder_runs import first_module, partings, same_masks
from workbench.errors import NonFiniteError, UsageError
from workbench.evidence import find_bundles, open_bundle
from workbench.record import Recorder
from workbench.replay import Replay
from workbench.replay.session import Session

QUICK = ("eager", "aot_eager")


def bundle_of(step, directory, x, micro_batches=None):
    torch.manual_seed(0)
    model = step.build_model()
    recorder = Recorder(step, model, step.build_optimizer(model), directory=directory, run_id="c")
    with pytest.raises(NonFiniteError):
        if micro_batches is None:
            recorder.train_step({"x": x})
        else:
            recorder.train_step(micro_batches=micro_batches)
    return find_bundles(directory)[0]


@pytest.fixture
def half(tmp_path):
    return bundle_of(HalfNorm(), tmp_path, torch.full((3, 6), 0.5, dtype=torch.float16))


# -- comparing --------------------------------------------------------------------------------


def test_masks_decide_before_errors():
    nan = float("nan")
    a = {"output": torch.tensor([nan, 1.0]), "loss": torch.tensor(1.0)}
    moved = {"output": torch.tensor([1.0, nan]), "loss": torch.tensor(1.0)}
    assert [(p.name, p.how) for p in partings(moved, a)] == [("output", "mask")]
    assert not same_masks(moved, a)
    assert partings(a, {k: v.clone() for k, v in a.items()}) == []
    far = {"output": torch.tensor([nan, 2.0]), "loss": torch.tensor(1.0)}
    assert [(p.name, p.how) for p in partings(far, a)] == [("output", "values")]
    assert same_masks(far, a)
    near = {"output": torch.tensor([nan, 1.0000001]), "loss": torch.tensor(1.0)}
    assert partings(near, a) == []
    assert partings({"loss": torch.tensor(1.0)}, a)[0].how == "missing"
    shaped = {"output": torch.tensor([[nan, 1.0]]), "loss": torch.tensor(1.0)}
    assert partings(shaped, a)[0].how == "shape"


def test_opposite_infinities_part():
    inf = float("inf")
    a, b = {"y": torch.tensor([inf])}, {"y": torch.tensor([-inf])}
    assert partings(a, b)[0].how == "mask"


# -- alignment --------------------------------------------------------------------------------


def test_sessions_of_one_bundle_are_aligned_and_a_change_is_named(tmp_path):
    step = DeepStep(2, b1="forward")
    replay = Replay(open_bundle(recorded(step, tmp_path)), step=step)
    a, b = (Session(replay.source, replay.nearest) for _ in range(2))
    assert differences(aligned_state(a), aligned_state(b)) == []
    with torch.no_grad():
        b.runner.model.stem.bias.add_(1.0)
    b.runner.model.head.eval()
    assert differences(aligned_state(b), aligned_state(a)) == [
        {"kind": "mode", "name": "head"},
        {"kind": "parameters", "name": "stem.bias"},
    ]


def test_cache_that_did_not_follow_the_precision():
    model = HalfCached().build_model()
    assert stale_caches(model) == [
        {
            "name": "angles",
            "kind": "plain attribute",
            "dtype": "float32",
            "parameters": "bfloat16",
        }
    ]
    model.angles = model.angles.bfloat16()
    model.table = model.table.float()
    assert [c["name"] for c in stale_caches(model)] == ["table"]
    assert stale_caches(nn.Linear(2, 2)) == []


# -- the ladder -------------------------------------------------------------------------------


def test_rungs_that_agree(tmp_path):
    step = HalfCached()
    bundle = bundle_of(step, tmp_path, torch.randn(2, 8).bfloat16())
    found = ladder(bundle, step=step, backends=QUICK)
    assert [rung.backend for rung in found.rungs] == ["off", *QUICK]
    assert all(rung.first_bad == ("loss", "loss") for rung in found.rungs)
    assert found.aligned
    assert (found.first, found.module, found.compiler) == (None, None, None)
    assert [cache["name"] for cache in found.caches] == ["angles"]
    data = found.to_data()
    assert data["schema"] == "workbench.ladder/1"
    assert [run["original"] for run in data["reproductions"]] == [True, False, False]


def test_changed_input_shape_is_a_changed_trigger(tmp_path):
    step = DeepStep(2, b1="forward")
    bundle = recorded(step, tmp_path)
    wanted = msgspec.structs.replace(open_bundle(bundle).conditions, keep_samples=(0, 1))
    found = ladder(bundle, step=step, backends=("eager",), conditions=wanted)
    assert {"name": "batch['x']", "recorded": [4, 8], "here": [2, 8]} in found.trigger
    assert any("changed trigger" in note for note in found.notes)


def test_another_backend_is_refused(tmp_path):
    with pytest.raises(UsageError, match="no rung"):
        ladder(tmp_path, backends=("tensorrt",))


@pytest.mark.slow
def test_inductor_changes_which_elements_are_non_finite(half):
    found = ladder(half, step=HalfNorm(), backends=("aot_eager", "inductor"), search_compiler=False)
    assert found.rungs[0].first_bad == ("loss", "loss")
    assert found.rungs[1].first_bad == ("loss", "loss")
    assert found.rungs[2].first_bad is None
    assert found.aligned
    assert found.first == "inductor"
    first = found.partings["inductor"][0]
    assert (first.name, first.how) == ("output", "mask")
    assert found.module["module"] == "norm"
    assert found.module["how"] == "mask"
    assert found.module["inputs_equal"] is True
    assert found.compiler["status"] == "not asked"
    assert any("two reproductions" in note for note in found.notes)


@pytest.mark.slow
def test_compilers_own_bisector_is_asked_with_masks(half):
    opened = open_bundle(half)
    answer = search(opened, HalfNorm(), None, opened.conditions, 550.0)
    assert answer["status"] == "found", answer
    assert answer["backend"] == "inductor"
    assert answer["subsystem"]


class CompiledDeep(DeepStep):
    """Recorded under a compile backend."""

    def build_model(self):
        return torch.compile(super().build_model(), backend="aot_eager")


def test_a_step_recorded_compiled_is_marked_and_can_be_bisected(tmp_path):
    step = CompiledDeep(3, b1="forward")
    bundle = recorded(step, tmp_path)
    found = ladder(bundle, step=step, backends=("aot_eager",))
    assert found.recorded == "aot_eager"
    runs = found.to_data()["reproductions"]
    assert [(run["backend"], run["original"], run["fails"]) for run in runs] == [
        ("off", False, True),
        ("aot_eager", True, True),
    ]
    assert bisect(bundle, step=step).origin["module"] == "layers.1.mlp"


def wrong_backend(graph, inputs):
    """A compiler that is wrong: it makes every tanh NaN."""
    del inputs

    def run(*values):
        out = graph(*values)
        tanh = any("tanh" in str(node.target) for node in graph.graph.nodes)
        return tuple(t * float("nan") if tanh else t for t in out)

    return run


def test_modules_are_compiled_one_by_one_although_the_record_was_compiled(tmp_path):
    step = CompiledDeep(3, b2="forward")
    bundle = recorded(step, tmp_path)
    replay = Replay(open_bundle(bundle), step=step)
    found = first_module(replay, replay.nearest, wrong_backend)
    assert (found["module"], found["how"]) == ("layers.0.attention", "mask")
    assert found["inputs_equal"] is True
    assert first_module(replay, replay.nearest, "eager")["module"] is None


def test_what_parts_for_other_random_numbers_alone_is_told_apart(tmp_path):
    bundle = bundle_of(Dropped(), tmp_path, torch.ones(3, 4))
    backend = "aot_eager_decomp_partition"
    found = ladder(bundle, step=Dropped(), backends=("aot_eager", backend))
    assert [rung.compiled for rung in found.rungs] == [False, True, True]
    assert found.partings[backend][0].how == "values"
    assert found.first is None
    assert found.random[backend]["agrees"] is True
    assert found.to_data()["random_numbers"][backend]["partings"] == []
    assert any("other random numbers" in note for note in found.notes)


def test_the_phase_that_failed_is_run(tmp_path):
    bundle = bundle_of(TwoPhases(), tmp_path, torch.ones(3, 4))
    found = ladder(bundle, step=TwoPhases(), backends=("eager",))
    assert [rung.first_bad for rung in found.rungs] == [("loss", "loss")] * 2
    assert list(found.rungs[0].values)[:4] == [
        "output of phase first",
        "loss of phase first",
        "output of phase second",
        "loss of phase second",
    ]


def micro_batches():
    x = [torch.ones(2, 4), torch.ones(2, 4), torch.full((2, 4), 50.0)]
    w = [torch.ones(1), torch.ones(1), torch.zeros(1)]
    return [{"x": a, "w": b} for a, b in zip(x, w, strict=True)]


def wrong_when_large(graph, inputs):
    """A compiler whose tanh is wrong for the third micro-batch alone."""
    del inputs

    def run(*values):
        large = any(v.abs().max() > 10 for v in values if not isinstance(v, nn.Parameter))
        tanh = any("tanh" in str(node.target) for node in graph.graph.nodes)
        return tuple(t * float("nan") if tanh and large else t for t in graph(*values))

    return run


def test_every_micro_batch_is_compared(tmp_path):
    step = Accumulates()
    bundle = bundle_of(step, tmp_path, None, micro_batches())
    found = ladder(bundle, step=step, backends=("eager",))
    names = list(found.rungs[0].values)
    assert names[0] == "output of micro-batch 1 of 3"
    assert "loss of micro-batch 3 of 3" in names
    assert found.first is None
    replay = Replay(open_bundle(bundle), step=step)
    parted = first_module(replay, replay.nearest, wrong_when_large)
    assert (parted["module"], parted["how"]) == ("1", "mask")
