"""The panel in a real JupyterLab, driven in a real Chromium."""

from __future__ import annotations

import json
import shutil
import time
from pathlib import Path

import pytest

from scripts import lab

HERE = Path(__file__).parent
ROOT = HERE.parent.parent
MAX_NOTEBOOK = 1_500_000
LONG = 300_000  # a ceiling for a machine that is busy with other tests, not a target

pytestmark = [
    pytest.mark.browser,
    pytest.mark.skipif(bool(lab.missing()), reason=lab.missing() or "a browser is here"),
]


@pytest.fixture(scope="module")
def workplace(tmp_path_factory):
    """A directory with a bundle of a real failure, its code, and a copy of the notebook."""
    import importlib.util
    import sys

    home = tmp_path_factory.mktemp("lab")
    shutil.copy(HERE / "train_step.py", home / "train_step.py")
    spec = importlib.util.spec_from_file_location("train_step", home / "train_step.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules["train_step"] = module
    try:
        spec.loader.exec_module(module)
        bundle = module.record(home / "incidents")
    finally:
        sys.modules.pop("train_step", None)
    notebook = json.loads((ROOT / "notebooks" / "investigate.ipynb").read_text())
    cell = next(c for c in notebook["cells"] if "parameters" in c["metadata"]["tags"])
    cell["source"] = f"bundle = {str(bundle)!r}\nstep = ''"
    (home / "investigate.ipynb").write_text(json.dumps(notebook))
    return home


@pytest.fixture(scope="module")
def page_and_seen(workplace, tmp_path_factory):
    home = tmp_path_factory.mktemp("home")
    with (
        lab.jupyterlab(workplace, home) as address,
        lab.browser_page(home / "profile", 1400) as (page, seen),
    ):
        lab.open_notebook(page, address, "investigate.ipynb")
        page.evaluate(WATCH)
        lab.run_all(page)
        page.wait_for_selector(".wb-root .wb-stage", timeout=LONG)
        page.wait_for_selector(".wb-timeline .js-plotly-plot .main-svg", timeout=LONG)
        yield page, seen


# In which order the first view and plotly's drawing come, and that one of them is always there.
WATCH = """() => {
  window.wbCharts = [];
  new MutationObserver(() => {
    const still = document.querySelector('.wb-still .trace') ? 'still' : '';
    const drawn = document.querySelector('.js-plotly-plot .trace') ? 'plotly' : '';
    const now = `${still} ${drawn}`.trim();
    if (now !== (window.wbCharts.at(-1) ?? '')) window.wbCharts.push(now);
  }).observe(document.body, { subtree: true, childList: true });
}"""


def stage(page, name):
    return page.locator(".wb-stage", has_text=name).first


def button(page, label):
    return page.locator(".wb-root button", has_text=label).first


def wait_idle(page):
    page.wait_for_function(
        "() => [...document.querySelectorAll('.wb-controls button')]"
        ".some(b => b.innerText.includes('Stop') && b.disabled)",
        timeout=LONG,
    )


def test_the_panel_opens_with_recorded_facts_and_runs_nothing(page_and_seen):
    page, _ = page_and_seen
    header = page.locator(".wb-header").inner_text()
    assert "The loss became" in header
    assert "Caught at" in header and "Born at" in header
    assert "wb-bad" in stage(page, "loss").get_attribute("class")
    assert "Recorded" in page.locator(".wb-stages").inner_text()


def test_the_first_chart_needs_no_plotly_and_gives_way_to_its_drawing(page_and_seen):
    page, _ = page_and_seen
    page.wait_for_selector(".wb-still", state="detached", timeout=LONG)
    assert page.evaluate("() => window.wbCharts") == ["still", "still plotly", "plotly"]


def test_the_first_replay_asks_for_trust_and_stepping_reaches_the_bad_stage(page_and_seen):
    page, _ = page_and_seen
    button(page, "Step").click()
    page.wait_for_selector(".wb-trust", timeout=LONG)
    assert "Opening it has run nothing" in page.locator(".wb-trust").inner_text()
    page.locator(".wb-trust input[type=text]").first.fill("train_step.py:Step")
    page.locator(".wb-trust input[type=text]").first.press("Tab")
    page.locator(".wb-trust button", has_text="Replay").click()
    page.wait_for_selector(".wb-stage.wb-clean", timeout=LONG)
    wait_idle(page)
    for name in ("forward", "loss"):
        button(page, "Step").click()
        page.wait_for_function(
            "name => [...document.querySelectorAll('.wb-stage')].some(b =>"
            " b.innerText.includes(name) && (b.classList.contains('wb-clean')"
            " || b.classList.contains('wb-bad')))",
            arg=name,
            timeout=LONG,
        )
        wait_idle(page)
    assert "Original" in page.locator(".wb-stages").inner_text()
    assert "wb-bad" in stage(page, "loss").get_attribute("class")
    assert "wb-clean" in stage(page, "forward").get_attribute("class")


def test_run_to_first_bad_draws_the_ranges(page_and_seen):
    page, _ = page_and_seen
    button(page, "Run to first bad").click()
    page.locator(".wb-tabs button", has_text="Ranges").click()
    page.wait_for_selector(".wb-ranges .js-plotly-plot .main-svg", timeout=LONG)
    page.wait_for_function(
        "() => document.querySelector('.wb-header').innerText.includes('Replayed exactly')",
        timeout=LONG,
    )
    wait_idle(page)
    assert page.locator(".wb-layer-list option").count() >= 3
    chart = page.locator(".wb-ranges .js-plotly-plot .main-svg").first.bounding_box()
    assert chart["width"] > 700


def test_the_chart_follows_the_width_and_keeps_its_traces(page_and_seen):
    page, _ = page_and_seen
    svg = page.locator(".wb-ranges .js-plotly-plot .main-svg").first
    before = svg.bounding_box()["width"]
    page.set_viewport_size({"width": 1148, "height": 1250})
    page.wait_for_function(
        "before => { const svg = document.querySelector('.wb-ranges .js-plotly-plot .main-svg');"
        " return svg.getBoundingClientRect().width !== before; }",
        arg=before,
        timeout=LONG,
    )
    page.wait_for_selector(".wb-root.wb-narrow", timeout=LONG)
    panel = page.locator(".wb-root").bounding_box()
    box = svg.bounding_box()
    assert box["x"] + box["width"] <= panel["x"] + panel["width"]
    assert page.locator(".wb-ranges .js-plotly-plot .scatterlayer .trace").count() >= 1
    page.set_viewport_size({"width": 1400, "height": 1250})


def run_toggles(page):
    return page.locator(".wb-run-toggles").inner_text()


def test_a_switch_makes_a_run_that_is_kept_with_original_beside_it(page_and_seen):
    page, _ = page_and_seen
    page.locator(".wb-switch-optimizer select, .wb-switch-autocast select").first.select_option(
        label="bfloat16"
    )
    page.wait_for_selector(".wb-offer:visible", timeout=LONG)
    offer = page.locator(".wb-offer").inner_text()
    assert "Diagnostic: autocast bfloat16 (recorded off). Not run yet." in offer
    assert "A" not in run_toggles(page).split(), "nothing runs by itself"
    page.locator(".wb-offer button", has_text="Replay").click()
    page.wait_for_function(
        "() => document.querySelector('.wb-run-toggles').innerText.includes('autocast bfloat16:')",
        timeout=LONG,
    )
    wait_idle(page)
    assert "A" in run_toggles(page).split()
    whose = page.locator(".wb-stages .wb-whose").inner_text()
    assert whose.startswith("A") and "replayed" in whose
    said = page.locator(".wb-offer").inner_text()
    assert "Original, run again after it" in said or "fails" in said


def test_stop_ends_a_replay_that_is_running(page_and_seen):
    page, _ = page_and_seen
    page.locator(".wb-run-toggles button", has_text="Original").click()
    lab.kill_replays()  # a new process takes seconds to start: long enough to be stopped
    button(page, "Run to first bad").click()
    page.locator(".wb-controls button:enabled", has_text="Stop").click(timeout=LONG)
    page.wait_for_function(
        "() => document.querySelector('.wb-stage-line').innerText.includes('Stopped by you')",
        timeout=LONG,
    )
    wait_idle(page)


def test_a_killed_worker_is_shown_with_a_way_on(page_and_seen):
    page, _ = page_and_seen
    button(page, "Run to first bad").click()
    deadline = time.monotonic() + LONG / 1000
    while not lab.kill_replays():
        assert time.monotonic() < deadline, "no replay process was started"
        time.sleep(0.05)
    page.wait_for_selector("[data-wb=again]", timeout=LONG)
    assert "The replay process died" in page.locator(".wb-stage-line").inner_text()
    page.locator("[data-wb=again]").click()
    # Progress is shown a message before Stop can be pressed: idle does not mean ended yet.
    page.wait_for_function(
        "() => [...document.querySelectorAll('.wb-stage.wb-bad')]"
        ".some(b => b.innerText.includes('loss'))",
        timeout=LONG,
    )
    wait_idle(page)


def test_keys_step_inside_the_panel_and_leave_the_notebook_alone(page_and_seen):
    page, _ = page_and_seen
    cells = page.locator(".jp-Cell").count()
    page.locator(".wb-title").first.click()
    page.keyboard.press("b")
    page.keyboard.press("x")
    page.keyboard.press("3")
    page.wait_for_selector(".wb-timeline .js-plotly-plot .main-svg", timeout=LONG)
    page.keyboard.press("c")
    page.wait_for_selector(".wb-all-switches:visible", timeout=LONG)
    page.keyboard.press("c")
    page.keyboard.press("?")
    page.wait_for_selector(".wb-keys", timeout=LONG)
    page.keyboard.press("?")
    assert page.locator(".jp-Cell").count() == cells
    traces = page.locator(".wb-timeline .js-plotly-plot .scatterlayer .trace").count()
    assert traces >= 2, "a chart that is made after the panel is in the page shows its lines"


def test_a_view_is_pinned_with_the_key_m_and_a_sentence(page_and_seen, workplace):
    page, _ = page_and_seen
    page.locator(".wb-title").first.click()
    page.keyboard.press("m")
    page.wait_for_selector(".wb-note-sentence textarea:focus", timeout=LONG)
    page.keyboard.type("b is no key here")
    page.locator(".wb-note-row button", has_text="Pin").click()
    page.wait_for_selector(".wb-note-one", timeout=LONG)
    saved = json.loads(next(workplace.glob("incidents/*.findings/notes.json")).read_text())
    assert [note["sentence"] for note in saved["notes"]] == ["b is no key here"]
    assert saved["notes"][0]["view"].startswith("Timeline")


COLOUR = "() => getComputedStyle(document.querySelector('.wb-stage.wb-bad')).color"


def test_the_theme_is_followed_without_a_run(page_and_seen):
    page, _ = page_and_seen
    assert page.evaluate(COLOUR) == "rgb(168, 32, 13)"
    change = "theme => window.jupyterapp.commands.execute('apputils:change-theme', {theme})"
    page.evaluate(change, "JupyterLab Dark")
    page.wait_for_function(f"() => ({COLOUR})() === 'rgb(255, 122, 89)'", timeout=LONG)
    page.evaluate(change, "JupyterLab Light")
    page.wait_for_function(f"() => ({COLOUR})() === 'rgb(168, 32, 13)'", timeout=LONG)


def test_no_console_error_nothing_outside_and_a_small_notebook(page_and_seen, workplace):
    page, seen = page_and_seen
    lab.command(page, "docmanager:save")
    page.wait_for_function(
        "() => !window.jupyterapp.shell.currentWidget.context.model.dirty", timeout=LONG
    )
    saved = workplace / "investigate.ipynb"
    assert saved.stat().st_size < MAX_NOTEBOOK
    assert "The loss became" in saved.read_text(), "the static card is saved with the notebook"
    assert seen.errors == []
    assert seen.outside() == []


def test_a_reloaded_page_has_the_panel_of_the_live_kernel(page_and_seen):
    page, seen = page_and_seen
    page.reload()
    page.wait_for_selector(".wb-root .wb-stage.wb-bad", timeout=LONG)
    assert "Original" in run_toggles(page)
    assert page.locator(".wb-static:visible").count() == 0, "the card gives way to the panel"
    button(page, "Reset").click()
    page.wait_for_function(
        "() => document.querySelectorAll('.wb-stage.wb-bad').length === 0", timeout=LONG
    )
    assert seen.outside() == []


def test_without_its_kernel_a_saved_notebook_shows_the_static_card(page_and_seen):
    page, seen = page_and_seen
    page.evaluate("() => window.jupyterapp.serviceManager.sessions.shutdownAll()")
    page.reload()
    page.wait_for_selector(".wb-static:visible", timeout=LONG)
    assert "The loss became" in page.locator(".wb-static").inner_text()
    assert "Caught at" in page.locator(".wb-static").inner_text()
    time.sleep(2.0)  # by now JupyterLab has looked for the panel's model
    assert page.get_by_text("model not found").count() == 0 or not (
        page.get_by_text("model not found").first.is_visible()
    )
    assert seen.outside() == []
