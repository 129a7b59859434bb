"""Names from a bundle are text, wherever they are shown."""

from __future__ import annotations

from html.parser import HTMLParser

import ipywidgets as w
import pytest

from tests.unit.widgets.conftest import make_bundle
from tests.unit.widgets.fakes import FakeWorker, findings, layers
from workbench.evidence import open_bundle
from workbench.widgets import Workbench
from workbench.widgets import actions as a
from workbench.widgets.markup import esc, middle, name
from workbench.widgets.state import TABS

EVIL = '"><img src=x onerror=alert(1)><script>alert(2)</script>'
ALLOWED = frozenset(
    "a b br caption code details div h4 kbd li ol p pre small span strong summary table tbody td "
    "th thead tr ul".split()
)


class Tags(HTMLParser):
    def __init__(self):
        super().__init__()
        self.tags, self.attributes = set(), set()

    def handle_starttag(self, tag, attrs):
        self.tags.add(tag)
        self.attributes |= {key for key, _ in attrs}


def every_html(widget, seen=None):
    seen = set() if seen is None else seen
    if id(widget) in seen:
        return
    seen.add(id(widget))
    if isinstance(widget, w.HTML):
        yield widget.value
    for child in getattr(widget, "children", ()):
        yield from every_html(child, seen)


def evil_layers():
    table = layers()
    for column in ("module", "name", "type", "dtype", "shape", "source"):
        table.columns[column] = [EVIL] * len(table)
    return table


def evil_findings():
    def poison(value):
        if isinstance(value, dict):
            return {key: poison(one) for key, one in value.items()}
        if isinstance(value, list):
            return [poison(one) for one in value]
        return EVIL if isinstance(value, str) else value

    data = poison(findings())
    data["absorbed"] = [{"op": EVIL, "where": EVIL}]
    data["chain"] = [{"sentence": EVIL, "op": EVIL, "source": EVIL}]
    return data


@pytest.fixture
def evil(tmp_path):
    path = make_bundle(
        tmp_path, run_id=EVIL, tensor=EVIL, reference=EVIL, message=EVIL,
        completeness={"forward_loss": "complete", "backward": EVIL, "update": EVIL},
    )  # fmt: skip
    return Workbench(open_bundle(path), worker=FakeWorker)


def test_no_name_of_a_bundle_becomes_markup(evil):
    evil.step()
    evil._commands.act("source")
    evil.allow("own")
    evil.wait()
    evil._store.dispatch(a.LayersCame("Original", evil_layers()))
    evil._store.dispatch(a.FindingsCame(evil_findings(), EVIL))
    evil._commands.act("code")
    evil._commands.act("keys")
    evil._commands.act("all_switches")
    pieces = []
    for tab in TABS:
        evil._store.dispatch(a.TabChosen(tab))
        for section in ("batch", "state", "environment", "checkpoints", "files"):
            evil._store.dispatch(a.Looked((("section", section),)))
            pieces += list(every_html(evil.widget))
    pieces.append(evil._repr_mimebundle_()["text/html"])
    for piece in pieces:
        parser = Tags()
        parser.feed(piece)
        assert parser.tags <= ALLOWED, piece
        assert not {one for one in parser.attributes if one.startswith("on")}, piece


def test_the_page_can_only_send_names_from_the_list(panel, workers):
    for action in (
        "__class__", "close", "allow", "step:loss", "tab:settings", "stage:../..", "run_to:x",
        "set_condition", "state", "copy_summary:1", "unknown", "",
    ):  # fmt: skip
        before = panel.state
        panel._commands.act(action)
        assert panel.state is before, action
    assert workers == []


def test_malformed_messages_from_the_page_are_dropped(panel):
    called = []
    panel.shell.listen(called.append)
    for message in (
        None, [], {}, {"action": 3}, {"action": "step;rm"}, {"action": "a" * 99},
        {"action": "tab:" + "9" * 20}, {"other": "step"}, {"action": ["step"]},
    ):  # fmt: skip
        panel.shell._handle_custom_msg(message, [])
    assert called == []
    panel.shell._handle_custom_msg({"action": "tab:evidence"}, [])
    assert called == ["tab:evidence"]
    assert panel.state.look.tab == "evidence"


def test_long_names_are_cut_in_the_middle_with_the_full_text_on_hover():
    path = ".".join(f"block{i}" for i in range(20))
    short = middle(path, 40)
    assert len(short) <= 40 and short.startswith("block0") and short.endswith("block19")
    assert f'title="{path}"' in name(path, 40)


def test_escaping_covers_attributes():
    assert esc("\"'<&>") == "&quot;&#x27;&lt;&amp;&gt;"
