from __future__ import annotations

import pytest

from tests.unit.widgets.conftest import SOURCE
from tests.unit.widgets.fakes import FakeWorker
from workbench.widgets import Workbench
from workbench.widgets.code_text import compare, file_of
from workbench.widgets.state import Trust
from workbench.widgets.trust import may_run


@pytest.fixture
def asked(bundle, workers, tmp_path, monkeypatch):
    """A panel without a step, in a directory that has the step's code with one line changed."""
    (tmp_path / "train.py").write_text(SOURCE.replace("return model", "return 2 * model"))
    monkeypatch.syspath_prepend(str(tmp_path))

    def start():
        workers.append(FakeWorker())
        return workers[-1]

    return Workbench(bundle, worker=start)


def test_nothing_runs_before_the_question_is_answered(asked, workers):
    assert asked.state.trust.asked is False
    asked.run_to_first_bad()
    assert asked.state.trust.asked is True
    assert workers == []
    assert asked.rail.slot.children == (asked.trust.widget,)


def test_own_code_goes_on_with_what_was_asked_for(asked, workers):
    asked.run_to_first_bad()
    asked.trust._go.click()
    asked.wait()
    assert asked.state.trust.given == "own"
    assert [command for command, _ in workers[0].sent] == ["run", "verdict", "trace"]
    assert asked.rail.slot.children == (asked.rail.row,)


def test_what_differs_since_the_incident_is_shown(asked):
    asked.step()
    assert "1 line differs" in asked.trust._found.value
    asked._commands.act("diff")
    assert "+        return 2 * model(batch)" in asked.trust._text.value


def test_the_copy_in_the_bundle_needs_to_be_read_first(asked, workers):
    asked.step()
    asked.trust._choice.value = "source"
    assert asked.trust._go.disabled
    asked.allow_as_chosen()
    assert asked.state.trust.given == "" and workers == []
    asked._commands.act("source")
    assert "def forward" in asked.trust._text.value
    assert not asked.trust._go.disabled
    asked.trust._go.click()
    asked.wait()
    assert asked.state.trust.given == "source"


def test_typing_the_digest_stands_for_reading(asked):
    asked.step()
    asked.trust._choice.value = "source"
    digest = asked.state.facts.digest.removeprefix("sha256:")
    asked.trust._typed.value = digest[:7]
    assert asked.trust._go.disabled
    asked.trust._typed.value = digest[:8]
    assert not asked.trust._go.disabled


def test_staying_with_the_record_closes_the_card_and_remembers_nothing(asked, workers):
    asked.step()
    asked.trust._stay.click()
    assert asked.state.trust == Trust()
    assert workers == []
    asked.step()
    assert asked.state.trust.asked


def test_another_reference_is_what_runs(asked, workers):
    asked.step()
    asked.trust._reference.value = "other.py:Step"
    asked.trust._go.click()
    assert asked.state.trust.reference == "other.py:Step"
    assert "step='other.py:Step'" in asked.to_code()


def test_a_copy_that_is_not_there_never_runs():
    trust = Trust(choice="source", source_read=True)
    assert may_run(trust, "", "sha256:0123456789", has_copy=True)
    assert not may_run(trust, "", "sha256:0123456789", has_copy=False)


def test_own_code_needs_a_name():
    assert may_run(Trust(), "train:Step", "sha256:0", has_copy=False)
    assert not may_run(Trust(), "", "sha256:0", has_copy=True)


def test_a_changed_line_counts_once_and_an_added_one_too():
    assert compare("a\nb\nc", "a\nB\nc").differing == 1
    assert compare("a\nb\nc", "a\nb\nc\nd\ne").differing == 2
    assert compare("a\nb", "a\nb").differing == 0


def test_a_module_is_looked_up_by_its_path_and_never_imported(tmp_path, monkeypatch):
    (tmp_path / "boom.py").write_text("raise SystemExit('imported')")
    monkeypatch.syspath_prepend(str(tmp_path))
    assert file_of("boom:Step") == tmp_path / "boom.py"
    assert file_of(f"{tmp_path}/boom.py:Step") == tmp_path / "boom.py"
    assert file_of("../../etc/passwd:Step") is None
    assert file_of("nothing") is None
