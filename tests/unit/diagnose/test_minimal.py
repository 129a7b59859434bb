"""The smallest changes that make a step finite, and their mirror image, without monotony."""

import itertools
import random

import pytest

from tests.unit.diagnose.half_steps import Half, LogOfNegative, Twice, record
from workbench.diagnose.minimal import minimal_changes, minimal_modules, usual_changes
from workbench.diagnose.probe import InProcess
from workbench.diagnose.subsets import Probes, ddmin, smallest_set
from workbench.errors import CannotRunError, UsageError
from workbench.replay import Replay


def probing(kind, directory):
    replay = Replay(record(kind, directory), step=kind)
    return replay, InProcess(replay)


def modules_of(replay):
    return list(replay.source.state.model.modules)


def test_conditions(tmp_path):
    _, prober = probing(Half, tmp_path)
    changes = {"autocast": "off", "dtype": "float64", "mode": "eval", "threads": 2}
    found = minimal_changes(prober, changes)
    assert found.fixing.found == ("autocast",)
    assert found.fixing.alternatives == (("dtype",),)  # autocast leaves float64 alone
    assert found.fixing.smallest and found.fixing.one_minimal
    # with either of the two changed the step is finite, so both as recorded are needed to fail
    assert found.failing.found == ("autocast", "dtype")
    assert found.sentences[0].startswith(
        "Finite with autocast off. The failure depends on autocast; this does not show that"
    )
    assert found.original_after["stage"] == "loss"
    assert found.probes <= 2 ** len(changes)


def test_usual_changes_are_those_that_differ(tmp_path):
    replay, _ = probing(Half, tmp_path)
    usual = usual_changes(replay.nearest)
    assert usual["autocast"] == "off" and usual["dtype"] == "float64"
    assert "scale" not in usual and "compile" not in usual


def test_changes_that_cannot_act_are_set_apart(tmp_path):
    _, prober = probing(Half, tmp_path)
    found = minimal_changes(prober, {"autocast": "off", "max_grad_norm": 1.0})
    assert found.candidates == ("autocast",)
    assert "clipping happens after backward" in found.idle["max_grad_norm"]


def test_nothing_helps(tmp_path):
    _, prober = probing(LogOfNegative, tmp_path)
    found = minimal_changes(prober, {"dtype": "float64", "mode": "eval"})
    assert found.fixing.found is None and found.failing is None
    assert "still fails" in found.sentences[0]
    with pytest.raises(UsageError):
        minimal_changes(prober, {})


def test_the_modules_that_must_leave_low_precision(tmp_path):
    replay, prober = probing(Half, tmp_path)
    found = minimal_modules(prober, modules_of(replay))
    # the weight of `up` overflows, and what `up` then hands on has to be read in float32 as well
    assert found.fixing.found == ("1.up", "1.down")
    assert found.fixing.one_minimal
    assert found.sentences[0] == (
        "Finite with 1.up, 1.down in float32. The failure depends on the precision of these "
        "modules; this does not show that the precision of these modules is its cause. With any "
        "one of them left out it fails again."
    )
    assert found.failing.found == ("1.up",) and found.failing.alternatives == (("1.down",),)
    assert found.sentences[1] == "Low precision in 1.up alone is enough to fail."


def test_two_blocks_that_each_overflow(tmp_path):
    replay, prober = probing(Twice, tmp_path)
    found = minimal_modules(prober, modules_of(replay))
    blocks = {name.partition(".")[0] for name in found.fixing.found}
    assert blocks == {"0", "2"}
    assert found.fixing.one_minimal
    # one of them alone is enough to fail
    assert len({name.partition(".")[0] for name in found.failing.found}) == 1


def test_a_step_that_does_not_fail_has_nothing_to_fix(tmp_path):
    replay, _ = probing(Half, tmp_path)
    off = Replay.from_source(replay.source)
    off.nearest = off.nearest.replace(autocast="off")
    with pytest.raises(CannotRunError, match="did not fail"):
        minimal_changes(InProcess(off), {"mode": "eval"})


def subsets(elements):
    for size in range(len(elements) + 1):
        yield from (frozenset(c) for c in itertools.combinations(elements, size))


@pytest.mark.parametrize("seed", range(40))
def test_any_property_at_all_gives_a_one_minimal_set(seed):
    draw = random.Random(seed)
    elements = list("abcde")
    having = {s for s in subsets(elements) if s and draw.random() < 0.3}
    found = smallest_set(elements, Probes(lambda s: s in having, 64))
    if not having:
        assert found.found is None
        return
    if found.found is None:  # only where no start was found: everything, all but one, pairs
        assert frozenset(elements) not in having and not any(len(s) in (1, 2, 4) for s in having)
        return
    answer = frozenset(found.found)
    assert answer in having
    assert not any(answer - {e} in having for e in answer) or not found.one_minimal
    if found.smallest:
        assert len(answer) == min(len(s) for s in having)


def test_not_monotone_is_said():
    probe = Probes(lambda s: s in ({"a"}, {"a", "b"}), 64)
    assert smallest_set(list("abc"), probe).found == ("a",)
    probe(frozenset("abc"))
    assert probe.monotone is False


def test_ddmin_on_many_elements_takes_few_probes():
    elements = [f"m{i}" for i in range(200)]
    wanted = frozenset(["m3", "m150"])
    probe = Probes(lambda s: wanted <= s, 96)
    assert ddmin(elements, frozenset(elements), probe) == wanted
    assert len(probe.known) <= 96


def test_a_spent_budget_is_said():
    elements = [f"m{i}" for i in range(30)]
    wanted = frozenset(elements[::3])
    found = smallest_set(elements, Probes(lambda s: wanted <= s, 12))
    assert found.complete is False and found.smallest is False
    assert wanted <= frozenset(found.found)
