"""What was compared is said with what differs: a share of the tensors is not all of them."""

from types import SimpleNamespace

import pytest

from workbench.replay.compared import Compared

HERE = {"a": 1, "b": 2, "c": 3}


def kept(step, sums, full=False):
    return SimpleNamespace(step=step, sums=sums, is_recovery_point=full)


def test_a_tensor_of_a_share_that_differs_is_said_with_when_it_was_last_the_same():
    compared = Compared(10)
    assert compared.differing(kept(11, {"a": 1, "b": 2}), HERE) == ()
    assert compared.differing(kept(12, {"c": 3}), HERE) == ()
    later = kept(13, {"a": 7, "b": 2})
    assert compared.differing(later, HERE) == ("a",)
    assert compared.departed(later, "parameters", ("a",), 12) == (
        "'a' is not what step 12 left (2 of 3 tensors compared at this step; it was last "
        "seen as recorded at step 11)"
    )


def test_where_all_were_compared_nothing_is_left_to_say():
    compared = Compared(0)
    first = kept(1, {"a": 1, "b": 2, "c": 4})
    assert compared.differing(first, HERE) == ("c",)
    assert compared.departed(first, "parameters", ("c",), 0) == "'c' is not what step 0 left"


@pytest.mark.parametrize(
    ("sums", "full", "said"),
    [
        (HERE, False, "It starts from the recorded values."),
        ({}, True, "It starts from the recorded values."),
        ({}, False, "were not compared"),
        ({"b": 2}, False, "Of the 3 tensors it starts from, 1 was compared"),
    ],
)
def test_a_loss_that_differs_is_said_with_what_its_step_starts_from(sums, full, said):
    compared = Compared(0)
    compared.differing(kept(1, sums), HERE)
    assert said in compared.share(kept(1, sums, full))
