"""Triage: incidents grouped by fault, ranks put together, hostile neighbours kept out."""

import csv
import datetime
import io
import shutil
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor

import pytest

from tests.unit.diagnose.triage_store import LOG_OF_ZERO, bundle, fleet, records, save_findings
from workbench.diagnose.triage.ledgers import clusters, episodes, ingest
from workbench.diagnose.triage.run import run_triage
from workbench.diagnose.triage.selecting import parse_known, parse_since
from workbench.errors import UsageError
from workbench.evidence import open_bundle, pack
from workbench.numerics import jsonio


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    return fleet(tmp_path_factory.mktemp("fleet"))


@pytest.fixture(scope="module")
def found(store):
    return run_triage(str(store), jobs=4)


def test_the_same_fault_of_several_runs_is_one_group_and_says_why(found):
    by_what = {group["what"]: group for group in found.groups}
    log = by_what["log of zero: log.default in loss"]
    assert (log["by"], log["count"], log["runs"]) == ("origin", 3, ["alpha", "beta", "gamma"])
    assert log["steps"] == [10, 20, 30]
    assert log["why"] == (
        "All 3 have the same origin by diagnosis: op aten.log.default, place loss and cause "
        "log_of_zero."
    )
    mlp = by_what["low precision overflow: addmm.default in blocks.3.mlp"]
    assert (mlp["count"], mlp["stage"], mlp["module"]) == (2, "forward", "blocks.3.mlp")
    assert "module blocks.3.mlp" in mlp["why"]
    alone = by_what["loss"]
    assert (alone["by"], alone["count"]) == ("caught", 1)
    assert alone["why"] == "The only one with this stage and tensor: loss. Not diagnosed."
    assert alone["perhaps"] == [log["id"]]  # caught at the same place, and not put together
    assert [group["last_seen"] for group in found.groups] == sorted(
        (group["last_seen"] for group in found.groups), reverse=True
    )


def test_ranks_of_one_incident_count_once_and_the_first_is_named(found):
    (many,) = [one for one in found.incidents if one["run_id"] == "many"]
    assert (many["ranks"], many["first_ranks"], many["stage"]) == ([2, 0], [2], "forward")
    assert many["why_one"] == "ranks 2 and 0 of one run at the same step"
    assert many["spread"]["own"] == [2] and many["spread"]["later"] == [0, 1, 3]
    assert many["spread"]["sentence"] == (
        "At step 5 rank 2 of 4 went bad before the reduction, first at forward; 3 others had it "
        "at the reduction or later."
    )
    assert found.totals == {
        "bundles": 8, "incidents": 7, "groups": 4, "known": 0, "diagnosed": 5, "older": 0,
        "unreadable": 3,
    }  # fmt: skip


def test_a_ledger_that_began_anew_is_read_whole(store, tmp_path):
    """The bad step of rank 2 is in the part from before its file began anew."""
    folder = shutil.copytree(store / "many", tmp_path / "many")
    ledger = folder / "many.rank00002.ledger.jsonl"
    lines = ledger.read_text().splitlines(keepends=True)
    (folder / "many.rank00002.ledger.1.jsonl").write_text("".join(lines[:6]))
    ledger.write_text("".join(lines[6:]))
    (many,) = run_triage(str(tmp_path)).incidents
    assert many["spread"]["own"] == [2]


def test_damaged_and_hostile_bundles_are_rows_with_their_error(found):
    errors = {row["name"].partition("-")[0]: row["error"] for row in found.unreadable}
    assert set(errors) == {"broken", "cut", "newer"}
    assert "not valid" in errors["broken"] and "no manifest.json" in errors["cut"]
    assert "format 9.0" in errors["newer"]


def test_since_known_csv_and_json(store, found):
    now = datetime.datetime(2026, 11, 8, 6, tzinfo=datetime.UTC)
    log = next(one["fingerprint"] for one in found.incidents if one["run_id"] == "alpha")
    late = run_triage(str(store), since=parse_since("3d", now), known=parse_known(log))
    assert {one["run_id"] for one in late.incidents} == {"epsilon", "zeta", "many"}
    assert late.totals["older"] == 4 and late.totals["unreadable"] == 3
    assert {one["run_id"]: one["known"] for one in late.incidents} == {
        "epsilon": False, "zeta": True, "many": False,
    }  # fmt: skip
    rows = list(csv.DictReader(io.StringIO(found.to_csv())))
    assert len(rows) == 7 + 3
    alpha = next(row for row in rows if row["run_id"] == "alpha")
    assert (alpha["op"], alpha["caught"], alpha["known"]) == ("aten.log.default", "loss", "no")
    assert sum(bool(row["error"]) for row in rows) == 3
    data = jsonio.loads(jsonio.dumps(found.to_data()))
    assert data["schema"] == "workbench.triage/1"
    assert {one["group"] for one in data["incidents"]} == {group["id"] for group in data["groups"]}


def test_moments_and_fingerprints(tmp_path):
    now = datetime.datetime(2026, 11, 30, tzinfo=datetime.UTC)
    assert parse_since("12h", now) == now - datetime.timedelta(hours=12)
    assert parse_since("2026-11-01", now).isoformat() == "2026-11-01T00:00:00+00:00"
    listed = tmp_path / "known.txt"
    listed.write_text("# fixed in #12\nNF-0a1b2c  # log of zero\n\nNF-ffffff\n")
    assert parse_known(str(listed)) == {"NF-0a1b2c", "NF-ffffff"}
    assert parse_known("NF-0a1b2c, NF-ffffff") == {"NF-0a1b2c", "NF-ffffff"}
    for wrong in ("NF-xyz", str(tmp_path / "nowhere")):
        with pytest.raises(UsageError):
            parse_known(wrong)
    with pytest.raises(UsageError, match="yesterday"):
        parse_since("yesterday", now)


def test_two_runs_of_one_name_stay_two_incidents_and_a_copy_is_one(tmp_path):
    one = bundle(tmp_path / "a", "run", 4, world=2, rank=0)
    bundle(tmp_path / "a", "run", 4, world=2, rank=1)
    bundle(tmp_path / "b", "run", 4, world=2, rank=0)
    bundle(tmp_path / "c", "solo", 4)
    bundle(tmp_path / "d", "solo", 4)
    pack(open_bundle(one), tmp_path / "copy.bundle.zip")
    shutil.copytree(one, tmp_path / "again" / one.name)
    found = run_triage(str(tmp_path))
    assert sorted((i["run_id"], i["ranks"], len(i["copies"])) for i in found.incidents) == [
        ("run", [0], 0), ("run", [0, 1], 2), ("solo", [0], 0), ("solo", [0], 0),
    ]  # fmt: skip


def test_findings_of_other_bytes_are_not_believed_and_texts_are_harmless(tmp_path):
    path = bundle(tmp_path, "first", 1, tensor="=HYPERLINK(1)\x1b[31m")
    save_findings(path, [LOG_OF_ZERO | {"module": "a\u202eb", "where": "module"}])
    other = bundle(tmp_path, "other", 1)
    shutil.copytree(f"{path}.findings", f"{other}.findings")
    damaged = bundle(tmp_path, "third", 1)
    (damaged.parent / f"{damaged.name}.findings").mkdir()
    (damaged.parent / f"{damaged.name}.findings" / "findings.json").write_text('{"a": NaN}')
    found = {one["run_id"]: one for one in run_triage(str(tmp_path)).incidents}
    assert found["other"]["findings"] == "of another bundle"
    assert found["third"]["findings"] == "damaged"
    assert "findings were not used" in found["third"]["notes"][0]
    assert found["first"]["origin"]["module"] == "a b"
    text = run_triage(str(tmp_path)).to_csv()
    assert "'=HYPERLINK(1)" in text and "\x1b" not in text


def test_any_executor_gives_the_same(store, found):
    for kind in (ThreadPoolExecutor, ProcessPoolExecutor):
        with kind(2) as pool:
            again = run_triage(str(store), executor=pool)
        assert again.to_data() == found.to_data()


def ledger(rank, last, bad, clock=0.0):
    return jsonio.dump_lines(records(rank, last, bad, clock=clock)).encode()


def test_ledgers_are_ordered_by_step_and_stage_and_not_by_clocks():
    texts = [
        ledger(0, 20, {9: "reduce", 10: "reduce", 15: "unscale"}, clock=-5000.0),
        ledger(1, 20, {9: "forward", 10: "forward", 15: "forward"}, clock=5000.0),
        ledger(2, 9, {}),  # killed before
        ledger(3, 20, {9: "backward", 15: "unscale"}) + b'{"step": 20, "first_bad_st',
    ]
    read = ingest(texts)
    assert read.bad[0].tolist() == [9, 1, 0, 1]
    assert (read.records, read.unread) == (69, 1)
    first, second = episodes(read)
    assert (first.first_step, first.last_step, first.stage) == (9, 10, "forward")
    assert (first.first, first.own, first.later, first.ended) == ((1,), (1, 3), (0,), (2,))
    assert (second.first_step, second.own, second.later) == (15, (1,), (0, 3))
    assert [len(group) for group in clusters([first, second])] == [1, 1]
    both = ingest([b"".join(texts)])  # all ranks in one file say the same
    assert both.bad.tolist() == read.bad.tolist() and both.ranks.tolist() == read.ranks.tolist()
    assert episodes(ingest([])) == [] and episodes(ingest([ledger(0, 5, {})])) == []


def test_an_overflow_that_is_born_in_the_reduction_blames_no_rank():
    (one,) = episodes(ingest([ledger(r, 4, {2: "reduce"}) for r in range(3)]))
    assert (one.own, one.first, one.later) == ((), (0, 1, 2), (0, 1, 2))


@pytest.mark.parametrize(
    "text",
    [
        b'{"step": -1}\n',
        b'{"step": 99999999999999999999}\n',
        b'{"step": "x"}\n',
        b"[" * 100_000 + b"\n",
        b'{"step": 1, "loss": NaN}\n',
        b"\xff\xfe\n",
    ],
)
def test_hostile_ledger_lines_are_counted_and_left_out(text):
    read = ingest([text + ledger(0, 3, {1: "loss"})])
    assert (read.records, read.unread, read.bad.tolist()) == (3, 1, [[1, 2, 0, 0]])
