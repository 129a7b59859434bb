"""bisect and ladder on the command line: probes are counted and printed, JSON is strict."""

from __future__ import annotations

import pytest

STEP = ("--step", "tiny.py:LogOfZero")


def test_bisect_prints_place_and_probes(cli, here):
    _, bundle = here
    done = cli("bisect", bundle, *STEP)
    assert done.code == 0, done.err
    lines = done.out.splitlines()
    assert lines[0].startswith("Born at aten.log.default in loss · loss · tiny.py:")
    assert "2 probes" in lines
    assert "Probe 1:" in done.err


@pytest.mark.parametrize("options", [(), ("--halve",)])
def test_bisect_json(cli, here, options):
    _, bundle = here
    data = cli("bisect", bundle, *STEP, *options, "--json").json
    assert data["schema"] == "workbench.bisect/1"
    assert data["origin"]["op"] == "aten.log.default"
    assert data["origin"]["where"] == "loss"
    assert data["block"] is None
    assert data["probe_count"] == len(data["probes"])
    assert data["used_full_trace"] is False


def test_bisect_of_changes(cli, here):
    _, bundle = here
    data = cli("bisect", bundle, *STEP, "--which", "precision", "--json").json
    assert data["which"] == "precision"
    assert data["needed"] == []
    assert "low precision" in data["notes"][0]
    text = cli("bisect", bundle, *STEP, "--which", "remove").out
    assert "No block was found." in text


def test_bisect_takes_one_search_at_a_time(cli, here):
    _, bundle = here
    refused = cli("bisect", bundle, *STEP, "--which", "remove", "--halve")
    assert refused.code == 2
    assert "--halve" in refused.err


@pytest.mark.parametrize("command", ["bisect", "ladder"])
def test_untrusted_code_is_refused(cli, here, command):
    _, bundle = here
    refused = cli(command, bundle)
    assert refused.code == 4
    assert f"workbench {command} {bundle} --trust import" in refused.err


def test_ladder_lists_every_reproduction(cli, here):
    _, bundle = here
    words = ("ladder", bundle, *STEP, "--backends", "eager,aot_eager")
    data = cli(*words, "--json").json
    assert data["schema"] == "workbench.ladder/1"
    assert [run["backend"] for run in data["reproductions"]] == ["off", "eager", "aot_eager"]
    assert [run["first_bad"]["stage"] for run in data["reproductions"]] == ["loss"] * 3
    assert data["first_different"] is None
    text = cli(*words).out
    assert "uncompiled" in text
    assert "Not different from uncompiled code: eager" in text


def test_ladder_refuses_other_backends(cli, here):
    _, bundle = here
    refused = cli("ladder", bundle, *STEP, "--backends", "tvm")
    assert refused.code == 2
    assert "tvm" in refused.err
