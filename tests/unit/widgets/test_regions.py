"""What each region writes into the page, without a page."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.unit.widgets.conftest import make_bundle
from tests.unit.widgets.fakes import layers
from workbench.evidence import open_bundle
from workbench.widgets import Workbench
from workbench.widgets import actions as a
from workbench.widgets.conditions import without_effect_line
from workbench.widgets.origin import _origin
from workbench.widgets.origin_graph import graph
from workbench.widgets.ranges import Ranges, chart_width
from workbench.widgets.state import TABS


def ranges(panel) -> Ranges:
    panel._store.dispatch(a.TabChosen("ranges"))
    return panel.main._made["ranges"]


def test_the_rail_says_a_stage_with_glyph_and_reason(panel):
    made = panel.rail._buttons["loss"]
    assert made.description == "✕ loss"
    assert made.tooltip == "loss: 1 NaN of 1."
    assert "What this shows" in panel.rail._line.value
    assert panel.rail._controls["stop"].disabled
    assert panel.rail._controls["back"].disabled


def test_what_a_stage_can_establish_is_one_click_away(panel):
    assert "loss or one of its components" not in panel.rail._line.value
    panel._commands.act("establishes")
    assert "loss or one of its components" in panel.rail._line.value
    panel._commands.act("stage:clip")
    assert "gradient norm is finite" in panel.rail._line.value


def test_recorded_and_replayed_are_never_shown_alike(panel):
    assert "Recorded" in panel.rail._whose.value
    panel.run_to_first_bad()
    panel.wait()
    assert "Original" in panel.rail._whose.value and ">replayed<" in panel.rail._whose.value
    panel._commands.act("reset")
    panel.wait()
    assert ">not replayed<" in panel.rail._whose.value, "no stage has run"


def test_a_changed_switch_shows_its_recorded_value_and_offers_a_replay(panel):
    panel.set_condition("autocast", "off")
    assert "recorded float16" in panel.conditions._notes["autocast"].value
    assert "autocast off (recorded float16). Not run yet." in panel.conditions._pending.value
    assert panel.conditions._replay.description.startswith("Replay, about")
    panel.undo_conditions()
    assert panel.conditions._notes["autocast"].value == ""


def test_a_drop_down_sets_the_condition(panel):
    panel.conditions._fields["autocast"].value = "bfloat16"
    assert dict(panel.state.wanted) == {"autocast": "bfloat16"}


def test_switches_without_effect_are_disabled_and_say_why(panel):
    assert panel.conditions._fields["cudnn"].disabled
    line = without_effect_line(panel.state.facts.switches, "")
    assert "cuDNN, TF32: needs a CUDA GPU" in line


def test_all_switches_are_made_when_they_are_opened(panel):
    assert "dtype" not in panel.conditions._fields
    panel._commands.act("all_switches")
    assert panel.conditions._fields["dtype"].value == "recorded"
    assert panel.conditions._fields["max_grad_norm"].disabled
    panel.conditions._fields["dtype"].value = "float64"
    assert dict(panel.state.wanted) == {"dtype": "float64"}


def test_every_kept_run_is_a_toggle_with_its_result(panel):
    panel.set_condition("autocast", "off")
    panel.replay()
    panel.wait()
    labels = [label for label, _ in panel.runs._toggles.options]
    assert labels == ["▤ Recorded", "● Original: NaN at loss", "◇ A  autocast off: finite"]
    panel.runs._toggles.value = "Original"
    assert panel.state.look.shown == "Original"
    assert panel.state.wanted == ()


def test_without_ranges_there_is_a_sentence_and_one_action(panel):
    region = ranges(panel)
    assert "Ranges come from a replay." in region._empty.value
    assert "run_to_first_bad" in region._empty.value
    assert region._figure.widget is None


def test_the_ranges_are_one_live_figure_that_is_kept(panel):
    panel.run_to_first_bad()
    panel.wait()
    region = ranges(panel)
    figure = region._figure.widget
    uids = [trace.uid for trace in figure.data]
    assert figure.layout.width == chart_width(1220)
    panel._store.dispatch(a.Looked((("width", 968),)))
    assert region._figure.widget is figure
    assert figure.layout.width == chart_width(968)
    assert [trace.uid for trace in figure.data] == uids
    panel._store.dispatch(a.Looked((("dark", True),)))
    assert [trace.uid for trace in figure.data] == uids


def test_the_riskiest_layer_stands_first_and_its_card_counts(panel):
    panel.run_to_first_bad()
    panel.wait()
    region = ranges(panel)
    labels = [label for label, _ in region._list.options]
    assert labels[0].startswith("✕") and labels[1].startswith("✕")
    assert labels[2].startswith("!")
    region._list.value = region._list.options[1][1]
    assert "3 −Inf" in region._card.value or "1 NaN" in region._card.value


def test_the_card_is_that_of_the_row_the_list_marks(panel):
    """Nothing is risky in a finite run: the riskiest layer lies in a group, closed in the list."""
    table = layers(bad=False, blocks=30)
    table.columns["absmax"][:] = table.columns["absmax"] / 1e6
    panel._store.dispatch(a.SavedLayersCame(table, "saved"))
    region = ranges(panel)
    label = {value: text for text, value in region._list.options}[region._list.value]
    assert f">{label.strip()}<" in region._card.value


def test_searching_layers_filters_and_says_how_many(panel):
    panel.run_to_first_bad()
    panel.wait()
    region = ranges(panel)
    region._search.value = "mlp.down"
    assert len(region._list.options) == 12
    assert "12 of 39" in region._shown_of.value
    region._search.value = "no such layer"
    assert region._card.value == "No layer has this name."


def test_keys_move_through_suspicious_layers(panel):
    panel.run_to_first_bad()
    panel.wait()
    region = ranges(panel)
    panel._commands.act("next_suspicious")
    first = panel.state.look.layer
    panel._commands.act("next_suspicious")
    assert panel.state.look.layer != first
    assert region._list.value == panel.state.look.layer


@pytest.mark.parametrize("tab", TABS)
def test_every_tab_draws_and_only_its_content_is_in_the_page(panel, tab):
    panel._store.dispatch(a.TabChosen(tab))
    assert len(panel.main._slot.children) == 1
    assert panel.last_error is None


@pytest.mark.parametrize("section", ["batch", "state", "environment", "checkpoints", "files"])
def test_every_section_of_the_evidence_opens(panel, section):
    panel._store.dispatch(a.TabChosen("evidence"))
    panel._store.dispatch(a.Looked((("section", section),)))
    body = panel.main._made["evidence"]._body.value
    assert body
    if section == "batch":
        assert "int64" in body and "[8, 128]" in body


def test_digests_are_checked_on_request_only(panel, bundle):
    (bundle.path / "source" / "train.py").write_text("something else entirely")
    panel._store.dispatch(a.TabChosen("evidence"))
    panel._store.dispatch(a.Looked((("section", "files"),)))
    body = panel.main._made["evidence"]._body
    assert "differs" not in body.value
    panel._commands.act("verify")
    assert "✕ size differs" in body.value


def test_a_damaged_file_shows_its_reason_and_the_others_open(panel, bundle):
    (bundle.path / "environment.json").write_text('{"torch": "0.0.0"}')
    panel._store.dispatch(a.TabChosen("evidence"))
    panel._store.dispatch(a.Looked((("section", "environment"),)))
    body = panel.main._made["evidence"]._body
    assert "does not match its digest" in body.value
    panel._store.dispatch(a.Looked((("section", "batch"),)))
    assert "int64" in body.value


def test_origin_offers_a_diagnosis_and_then_shows_it(panel):
    panel._store.dispatch(a.TabChosen("origin"))
    region = panel.main._made["origin"]
    assert 'data-wb="diagnose"' in region.widget.value
    panel._commands.act("diagnose")
    panel.wait()
    assert "aten.log.default" in region.widget.value
    assert "Placebo" in region.widget.value
    assert "What this does not show" in region.widget.value


def test_origin_of_an_alert_says_what_left_its_usual_range(tmp_path):
    left = [{"what": "sample", "name": "3", "sentence": "the loss of sample 3 alone is <b>9e6</b>"}]
    message = "The loss 9.1 is 4 times its usual 2.3."
    path = make_bundle(tmp_path, kind="alert", stage="logging", tensor="loss", message=message)
    panel = Workbench(open_bundle(path), step="train:Step")
    assert "Alert at" in (said := panel.header._lines.value) and "Caught at" not in said
    assert "Born at" not in said and 'data-wb="diagnose"' in said
    found = {"envelope": {"left": left}, "reproduction": {"verdict": "bitwise"}}
    panel._store.dispatch(a.FindingsCame(found, "Diagnosed here, just now."))
    assert 'data-wb="diagnose"' not in panel.header._lines.value
    panel._store.dispatch(a.TabChosen("origin"))
    body = panel.main._made["origin"].widget.value
    assert "The loss of sample 3 alone is &lt;b&gt;9e6&lt;/b&gt;." in body
    assert "No origin" not in body
    panel._store.dispatch(a.TabChosen("evidence"))
    batch = panel.main._made["evidence"]._batch
    assert batch._list.options[0] == ("sample 3   ! its loss alone left the usual range", 3)
    assert batch._least.disabled and "nothing to minimise" in batch._said.value
    panel.close()


def test_a_value_from_before_the_step_was_not_born_in_it():
    kept = {"kind": "poisoned_buffer", "tensor": {"name": "norm.running_var"}, "where": "loss"}
    said = _origin(kept)
    assert "<b>It was</b> in the buffer norm.running_var before the step began" in said
    assert "Born at" not in said


def test_the_way_is_drawn_on_request_with_escaped_names(panel):
    evil = "<img src=x>"
    chain = [
        {"event": 3, "op": "aten.log.default", "counts": {"neg_inf": 2}, "where": "loss"},
        {"event": 4, "op": evil, "counts": {"nan": 1}, "source": evil, "skipped": 12},
    ]
    origins = [{"event": 3, "op": "aten.log.default"}, {"event": 9, "op": evil}]
    findings = {"chain": chain, "origins": origins}
    state = replace(panel.state, findings=findings)
    assert "wb-graph-box" not in graph(state)
    drawn = graph(state.looking(open=frozenset({"graph"})))
    assert drawn.count('class="wb-graph-box"') == 2, "the second op and the gate"
    assert drawn.index("▼ 2 −Inf") < drawn.index("12 ops") < drawn.index("Caught at")
    assert drawn.count("wb-graph-born") == 1 and "also born in this step" in drawn
    assert "<img" not in drawn


def test_code_and_keys_open_and_close(panel):
    panel._commands.act("code")
    assert "workbench.open_bundle(" in panel.drawers.widget.value
    panel._commands.act("code")
    assert panel.drawers.widget.layout.display == "none"
    panel._commands.act("keys")
    assert "<kbd>f</kbd>" in panel.drawers.widget.value


def test_a_figure_that_is_not_in_the_page_is_left_alone_until_it_is(panel):
    panel.run_to_first_bad()
    panel.wait()
    figure = ranges(panel)._figure.widget
    panel._store.dispatch(a.TabChosen("timeline"))
    panel._store.dispatch(a.Looked((("width", 968),)))
    assert figure.layout.width == chart_width(1220)
    panel._store.dispatch(a.TabChosen("ranges"))
    assert figure.layout.width == chart_width(968)
