"""Recorded facts come first: nothing that takes seconds is loaded before they are on screen."""

import subprocess
import sys

import pytest

from tests.unit.widgets.conftest import make_bundle
from workbench.errors import CannotRunError
from workbench.evidence import open_bundle
from workbench.widgets import Workbench

OPENING = """
import asyncio, sys
messages = []
async def main():
    import comm
    from comm.base_comm import BaseComm
    class Spied(BaseComm):
        def publish_msg(self, msg_type, **_):
            messages.append(msg_type)
    comm.create_comm = Spied
    import workbench
    from workbench.widgets import loading
    loading.Loading.start = lambda self, loop: None  # what would be loaded beside the event loop
    panel = workbench.Workbench(sys.argv[1])
    sent = [one for one in messages if one != "comm_close"]
    assert len(sent) <= 150, len(sent)  # each costs kernel and page a millisecond or two
    card = panel._repr_mimebundle_()["text/html"]
    assert "The loss became NaN" in card, card
    assert panel.state.facts.stages[2].status == "bad"
    found = [name for name in ("torch", "plotly", "xarray", "pandas") if name in sys.modules]
    assert not found, found
asyncio.run(main())
"""
LATER = """
import asyncio, sys
async def until(true):
    while not true():
        await asyncio.sleep(0.01)
async def main():
    import workbench
    from workbench.widgets.actions import Looked
    from workbench.widgets.switches_process import SwitchesProcess
    panel = workbench.Workbench(sys.argv[1])
    assert not panel.state.facts.switches and not panel.state.charts
    assert "is being read" in panel.conditions._why.value
    early = []
    panel._store.watch(lambda state: early.append((state.charts, "plotly" in sys.modules)))
    await until(lambda: panel.state.charts)
    chart = panel.main._slot.children[0].children[1]
    assert early[0] == ("still", False)
    place, first = chart.children
    assert first.value.startswith("<svg") and ">gradient norm<" in first.value
    await until(lambda: panel.state.charts == "live")
    [figure] = place.children
    before = first.value
    panel._store.dispatch(Looked((("width", 1000),)))
    assert first.value != before, "it follows the width until plotly has drawn"
    figure._handle_custom_msg({"drawn": True}, [])
    assert chart.children == (place,), "the figure is not made anew"
    await until(lambda: panel.state.facts.switches)
    assert "is being read" not in panel.conditions._why.value
    panel.set_condition("autocast", "off")
    for section in ("batch", "state", "environment", "files"):
        panel.show("evidence", section=section)
    import workbench.widgets.ranges  # what a click on its tab imports
    assert panel.last_error is None
    assert "torch" not in sys.modules, "numeric work is the child's, and so is torch's memory"
    facts = panel.state.facts
    told = facts.switches, facts.device_note, facts.differing
    assert told[2] and len(told[2][0]) == 3, "this machine is not the made-up one of the bundle"
    python, sys.executable = sys.executable, "/bin/false"
    assert SwitchesProcess(panel.bundle).ask() is None
    sys.executable = python
    here = SwitchesProcess(panel.bundle)
    import torch
    assert here.ask() is None, "a kernel that has torch is asked itself"
    answer = here.answer()
    assert (answer.switches, answer.device_note, answer.differing) == told
asyncio.run(main())
"""


@pytest.mark.parametrize("script", [OPENING, LATER], ids=["facts first", "the rest later"])
def test_facts_need_neither_torch_nor_charts(tmp_path, script):
    path = make_bundle(tmp_path)
    ran = subprocess.run(
        [sys.executable, "-c", script, str(path)], capture_output=True, text=True, check=False
    )
    assert ran.returncode == 0, ran.stderr


def test_without_an_event_loop_everything_is_there_at_once(bundle):
    panel = Workbench(bundle)
    assert panel.state.facts.switch("autocast") is not None
    assert panel.state.charts
    panel.close()


def test_a_damaged_ledger_and_a_missing_file_are_said_and_the_rest_opens(tmp_path):
    path = make_bundle(tmp_path)
    with (path / "ledger.jsonl").open("r+b") as file:
        file.write(b'{"run_id": "other"')
    (path / "state" / "model.safetensors").unlink()
    panel = Workbench(open_bundle(path))
    said = " ".join(panel.state.facts.damaged)
    assert "ledger.jsonl does not match its digest. Nothing from it is shown." in said
    assert "state/model.safetensors is missing. Nothing from it is shown." in said
    assert "ledger.jsonl" in panel.header._lines.value
    assert "The loss became NaN" in panel.header._lines.value
    panel.close()


def test_opening_reads_no_tensor_file(tmp_path, monkeypatch):
    bundle = open_bundle(make_bundle(tmp_path))
    opened = []
    first = bundle._store.open

    def spied(rel, size):
        opened.append(rel)
        return first(rel, size)

    monkeypatch.setattr(bundle._store, "open", spied)
    panel = Workbench(bundle)
    assert opened and not [rel for rel in opened if rel.endswith(".safetensors")]
    panel.close()


def test_it_is_displayed_as_a_static_card_and_a_live_panel(bundle, monkeypatch):
    import IPython.display

    shown = []
    monkeypatch.setattr(IPython.display, "display", lambda data, raw: shown.append(data))
    panel = Workbench(bundle)
    panel._ipython_display_()
    card, live = shown
    assert "The loss became NaN" in card["text/html"] and 'class="wb-static"' in card["text/html"]
    assert "Caught at" in card["text/html"]
    assert "application/vnd.jupyter.widget-view+json" not in card
    assert "application/vnd.jupyter.widget-view+json" in live and "text/html" not in live
    assert live["text/plain"] == "Run this cell again for the live panel."
    panel.close()


def test_a_bundle_whose_batch_was_taken_out_says_so_and_offers_no_replay(tmp_path):
    missing = "missing batch: reduced to statistics by redact"
    goals = dict.fromkeys(("forward_loss", "backward", "update"), missing)
    panel = Workbench(open_bundle(make_bundle(tmp_path, completeness=goals)), step="train:Step")
    assert panel.state.no_replay == "The bundle has no batch (reduced to statistics by redact)."
    assert "Replay is off: the bundle has no batch" in panel.rail._line.value
    assert panel.rail._controls["step"].disabled
    assert panel.rail._controls["run_to_first_bad"].disabled
    assert 'data-wb="diagnose"' not in panel.header._lines.value
    assert panel.conditions._fields["autocast"].disabled and panel.conditions._preset.disabled
    assert "Cannot be checked here: the bundle has no batch" in panel.header._lines.value
    with pytest.raises(CannotRunError, match="not even the input"):
        panel.run_to_first_bad()
    panel.close()
