"""Every message a user can meet: what happened, to which object, why it matters, what next.

``snapshots/errors.txt`` is the table of all of them, read from the source. The rules below hold for
each; those that have no object to name are listed.
"""

from __future__ import annotations

import re

import pytest
import torch

import workbench
from tests.contract.messages import TABLE, messages, table
from workbench import errors
from workbench.checkpoints import Registry
from workbench.cli.main import main
from workbench.evidence import open_bundle
from workbench.step.values import split_loss

NO_OBJECT = re.compile(
    r"loop has not called|made no step|has not begun|does not know which module|does not say which"
    r"|No training step|replay is running|report is being made|only one set|No other bundle"
    r"|lacks what such"
)
"""Messages about something that is not there, or of which there is one."""


def sentences(text):
    return len(re.findall(r"[.:;](?:\s|$|\{…\})|, (?:so|and) ", text)) + text.count("{…}{…}")


WHOLE = [m for m in messages() if m.text is not None]


def test_the_table_is_up_to_date():
    assert TABLE.read_text(encoding="utf-8") == table(), "python -m tests.contract.messages"


def test_nearly_every_message_stands_where_it_is_raised():
    elsewhere = [m for m in messages() if m.text is None]
    assert len(elsewhere) <= 12, "a message that is put together elsewhere is not in the table"


def test_every_message_names_its_object():
    found = [m for m in WHOLE if not re.search(r"\{…\}|['\"`]", m.text)]
    assert [m for m in found if not NO_OBJECT.search(m.text)] == []


def test_every_message_says_why_and_what_next():
    assert [m for m in WHOLE if sentences(m.text) < 2 or len(m.text) < 50] == []


def test_every_class_has_its_exit_code():
    codes = {
        errors.UsageError: 2, errors.BundleError: 3, errors.StrictJsonError: 3,
        errors.CheckpointError: 3, errors.CannotRunError: 4, errors.CheckFailedError: 5,
    }  # fmt: skip
    assert {kind: kind.exit_code for kind in codes} == codes


# -- as a user meets them -------------------------------------------------------------------------


def provoked(tmp_path):
    """Errors through the public surface: a call, the class, and words that must be there."""
    (tmp_path / "file.bundle").write_text("x")
    (tmp_path / "workbench-checkpoints.json").write_text("{")
    (tmp_path / "a.pt").write_bytes(b"x")
    bare = torch.nn.Linear(1, 1)
    kinds = errors
    return [
        (lambda: open_bundle(tmp_path / "no"), kinds.UsageError, ("no'", "workbench list")),
        (lambda: open_bundle(tmp_path), kinds.UsageError, ("is a folder", "workbench list")),
        (
            lambda: open_bundle(tmp_path / "file.bundle"),
            kinds.BundleError,
            ("file.bundle'", "copy"),
        ),
        (lambda: workbench.Policy(on_nonfinite="x"), kinds.UsageError, ("'x'", "'raise'")),
        (lambda: workbench.Policy(max_bytes=-1), kinds.UsageError, ("-1", "at least 0")),
        (lambda: workbench.Alerts(window=0), kinds.UsageError, ("window=0", "at least 1")),
        (
            lambda: workbench.Conditions().replace(nothing=1),
            (kinds.UsageError, TypeError),
            ("nothing",),
        ),
        (lambda: workbench.Recorder(None, bare, []), kinds.UsageError, ("optimizer",)),
        (lambda: workbench.Recorder(None, None, []), kinds.UsageError, ("model='None'", "Module")),
        (lambda: workbench.Recorder(3, bare, []), kinds.UsageError, ("step='3'", "forward")),
        (
            lambda: workbench.Recorder(workbench.TrainingStep, bare, []),
            kinds.UsageError,
            ("step=",),
        ),
        (lambda: workbench.Recorder(None, bare, [], "x"), kinds.UsageError, ("scaler='x'",)),
        *(
            (
                lambda given=given: workbench.Recorder(None, bare, [], **given),
                kinds.UsageError,
                (f"Recorder({next(iter(given))}=", "Pass a"),
            )
            for given in (
                {"policy": {}},
                {"run_id": 5},
                {"directory": None},
                {"provenance": [1]},
                {"schedulers": 3},
                {"first_step": "3"},
                {"first_step": -1},
            )
        ),
        (lambda: workbench.Policy(alerts="no"), kinds.UsageError, ("alerts='no'", "Alerts")),
        (lambda: open_bundle(5), kinds.UsageError, ("5", "path")),
        (lambda: workbench.Replay(5), kinds.UsageError, ("5", "path")),
        (lambda: split_loss(None), kinds.UsageError, ("'None'", "'NoneType'", "scalar tensor")),
        (lambda: split_loss({"a": "b"}), kinds.UsageError, ("'a'", "'b'", "'str'")),
        (lambda: Registry(tmp_path).latest(), kinds.CheckpointError, ("states", "scan")),
        (lambda: Registry(tmp_path, clean_steps=-1), kinds.UsageError, ("-1", "at least 0")),
        (lambda: Registry(tmp_path / "none").known(), kinds.UsageError, ("none'",)),
    ]


def test_messages_that_are_met(tmp_path):
    for call, kind, words in provoked(tmp_path):
        with pytest.raises(kind) as met:
            call()
        for word in words:
            assert word in str(met.value), (word, str(met.value))


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (("inspect", "no.bundle"), 2, "no.bundle"),
        (("checkpoints", "latest", "no-such-folder"), 2, "no-such-folder"),
        (("reprt",), 2, "reprt"),
    ],
)
def test_commands_say_it_on_stderr_with_their_code(words, code, said, capfd, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    try:
        ended = main(list(words))
    except SystemExit as end:
        ended = end.code
    captured = capfd.readouterr()
    assert ended == code
    assert captured.out == ""
    assert said in captured.err
    assert "Traceback" not in captured.err
