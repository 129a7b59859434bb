"""The table of a store whose names and numbers nobody meant well."""

import csv
import io
import os

import pytest
from click.testing import CliRunner

from tests.unit.diagnose.triage_store import bundle
from workbench.cli.commands.triage import command
from workbench.diagnose.triage.ledgers import read_part
from workbench.diagnose.triage.run import run_triage
from workbench.errors import BundleError
from workbench.evidence import open_bundle
from workbench.evidence.schema import MANIFEST, decode_manifest


def test_the_table_takes_any_file_name_and_no_formula(tmp_path):
    store = tmp_path / "store"
    bundle(store, "run", 1, tensor="\uff1dHYPERLINK(1)\x1b\x07\nx")
    with open(os.fsencode(store) + b"/\xff\n\x1b.bundle.zip", "wb"):  # noqa: PTH123 - bytes
        pass
    target = tmp_path / "s.csv"
    done = CliRunner().invoke(command, [str(store), "--csv", str(target)])
    assert target.exists(), done.output
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith(".")] == []
    text = target.read_text("utf-8")
    assert "\x1b" not in text and "\x07" not in text
    rows = list(csv.DictReader(io.StringIO(text)))
    assert len(rows) == 2 == text.count("\n") - 1
    assert rows[0]["tensor"].startswith("'\uff1d")
    assert "\\udcff" in rows[1]["url"]


@pytest.mark.parametrize("sign", "=+-@\uff1d\uff0b\uff0d\uff20")
def test_no_cell_begins_a_formula(tmp_path, sign):
    bundle(tmp_path, "run", 1, tensor=f"\t{sign}1")
    assert f"'{sign}1" in run_triage(str(tmp_path)).to_csv()


def test_a_rank_that_no_run_has_is_refused_or_unknown(tmp_path):
    path = bundle(tmp_path, "run", 1)
    whole = (path / MANIFEST).read_bytes()
    for old, new in (
        (b'"rank": 0', b'"rank": 9007199254740992'),
        (b'"rank": 0', b'"rank": -1'),
        (b'"world": 1', b'"world": 65537'),
        (b'"world": 1', b'"world": 0'),
    ):
        assert old in whole
        with pytest.raises(BundleError, match="which no run has"):
            decode_manifest(whole.replace(old, new), "x")
    lines = b'{"step": 1, "rank": 9007199254740992, "first_bad_stage": "loss"}\n{"step": 1}\n'
    part = read_part(lines)
    assert (part.unread, part.ranks[:, 0].tolist(), len(part.bad)) == (1, [0], 0)
    opened = open_bundle(path)
    opened.lines = lambda rel: [{"rank": 2**53, "step": 1}, {"rank": 1, "world": 2}, {"rank": 3}]
    assert [record["rank"] for record in opened.ledger()] == [None, 1, 3]
