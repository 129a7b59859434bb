"""Ranks of one incident: nobody is counted as fine of whom nothing is known."""

import pytest

from workbench.evidence import BundleWriter, FirstBad, open_bundle
from workbench.evidence.incidents import Incident, Member, incident_of, siblings


def bundle(folder, rank, world, step=2, run="run"):
    writer = BundleWriter(folder, f"{run}-step{step:08d}-rank{rank:05d}")
    bad = FirstBad(run_id=run, step=step, stage="loss", tensor="loss", rank=rank)
    fields = {"run_id": run, "step": step, "rank": rank, "world": world, "incident": "IN-0"}
    writer.update(first_bad=bad, kind="nonfinite", **fields)
    return open_bundle(writer.seal())


def test_a_bundle_of_one_rank_alone_knows_nothing_of_the_others(tmp_path):
    found = incident_of(bundle(tmp_path, 1, 65_536))
    assert found.sentence().startswith(
        "rank 1: bad first at loss. Nothing is known of 65,535 ranks. Not beside this bundle: rank "
    )


@pytest.mark.parametrize(
    ("roles", "said"),
    [
        (("first", "agreed", "agreed"), "rank 0: bad first; 2 other ranks not."),
        (
            ("first", "agreed", "unknown"),
            "rank 0: bad first; 1 other rank not. Nothing is known of",
        ),
        (("agreed", "agreed", "agreed"), "No rank was bad."),
        (
            ("agreed", "unknown", "agreed"),
            "No rank that is known of was bad. Nothing is known of 1",
        ),
    ],
)
def test_who_was_bad_and_who_was_not(roles, said):
    members = tuple(Member(rank, role) for rank, role in enumerate(roles))
    assert Incident("IN-0", "run", 2, 3, members).sentence().startswith(said)


@pytest.mark.parametrize(("world", "members"), [(2, [0, 1]), (3, [0])])
def test_a_bundle_of_another_world_is_no_member_whatever_it_says(tmp_path, world, members):
    own = bundle(tmp_path, 0, 2)
    bundle(tmp_path, 1, world)
    assert sorted(siblings(own)) == members
