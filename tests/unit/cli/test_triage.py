"""`workbench triage` by what it refuses and says before it reads anything."""

import pytest

from tests.unit.diagnose.triage_store import bundle
from workbench.cli.main import main


def triage(capfd, *words):
    with pytest.raises(SystemExit) as stopped:
        main(["triage", *map(str, words)])
    return stopped.value.code, *capfd.readouterr()


@pytest.mark.parametrize("option", ["--csv", "--report"])
def test_a_file_that_cannot_be_written_is_refused_before_the_store_is_read(tmp_path, capfd, option):
    bundle(tmp_path / "store", "alpha", 3)
    code, out, err = triage(capfd, tmp_path / "store", option, tmp_path / "no" / "such" / "file")
    assert (code, out) == (4, "")
    assert "nothing was read" in err and "1 bundles in" not in err
    code, _, err = triage(capfd, tmp_path / "store", "--since", "yesterday", option, "x")
    assert code == 2
    assert "nothing was read" in err and not (tmp_path / "store" / "x").exists()


def test_one_bundle_and_an_empty_folder_say_what_to_do(tmp_path, capfd):
    path = bundle(tmp_path / "store", "alpha", 3)
    for given in (path, f"{path}/", f"{path}.zip"):
        code, out, err = triage(capfd, given)
        assert (code, out) == (2, "")
        assert str(tmp_path / "store") in " ".join(err.split())
        assert f"workbench diagnose {path.name}" in " ".join(err.split())
    empty = tmp_path / "empty"
    empty.mkdir()
    code, out, _ = triage(capfd, empty)
    assert code == 0
    assert out.startswith("0 bundles, 0 incidents, 0 groups.\nNothing to triage: ")
    assert "Recorder(directory=...)" in out
