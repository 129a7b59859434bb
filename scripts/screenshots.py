"""Screenshots of the panel in JupyterLab: ``python scripts/screenshots.py [--out DIR] [...]``.

Uses the newest bundle below ``demo`` (``make demo``), or the one given. Widths are those of the
panel itself; each is taken in the light and in the dark theme.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from scripts import lab  # noqa: E402 - the checkout need not be installed
from scripts.screen_bundles import Screen, copied, make_all  # noqa: E402

WIDTHS = (968, 1220, 1800)
FRAME = 180  # what JupyterLab takes beside the panel with its file list closed
LONG = 120_000
PARTS = ("panel", "states", "report")


def main() -> int:
    """Take all screenshots; 4 when there is no browser or no bundle."""
    options = _options()
    why = lab.missing()
    if why:
        print(f"No screenshots: {why}.", file=sys.stderr)
        return 4
    bundle = options.bundle or _newest(ROOT / "demo")
    if bundle is None:
        print("No bundle: run `make demo` first, or give --bundle.", file=sys.stderr)
        return 4
    options.out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as name:
        work = Path(name) / "work"
        work.mkdir()
        copy = copied(bundle, work)
        screens = make_all(work, copy) if "states" in options.parts else []
        for theme in options.themes:
            shots = Shots(options.out, options.widths, theme)
            home = Path(name) / f"home-{theme}"
            home.mkdir()
            _take(work, home, copy, options.step, screens, shots, options.parts)
        if "report" in options.parts:
            _report(copy, options.step, options.out)
    return 0


def _options() -> Any:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--bundle", type=Path, help="a bundle; the newest below demo by default")
    parser.add_argument("--step", default="", help="the step's code; as the bundle names it")
    parser.add_argument("--out", type=Path, default=ROOT / "build" / "screenshots")
    parser.add_argument("--widths", type=int, nargs="+", default=list(WIDTHS))
    parser.add_argument("--themes", nargs="+", choices=("light", "dark"), default=["light", "dark"])
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=list(PARTS))
    return parser.parse_args()


def _newest(directory: Path) -> Path | None:
    from workbench.evidence import find_bundles

    found = find_bundles(directory)
    return found[0] if found else None


@dataclass(frozen=True)
class Shots:
    """Where pictures go, and at which widths."""

    out: Path
    widths: list[int]
    theme: str

    def take(self, page: Any, name: str, settles: bool = True) -> None:
        """One picture of the panel a width."""
        for width in self.widths:
            page.set_viewport_size({"width": width + FRAME, "height": 1100})
            time.sleep(0.8)
            if settles:
                page.wait_for_function(lab.KERNEL_IDLE, timeout=LONG)
            time.sleep(0.7)
            path = self.out / f"{name}-{width}-{self.theme}.png"
            page.locator(".wb-root").first.screenshot(path=path)
            print(path)


def _take(
    work: Path,
    home: Path,
    bundle: Path,
    step: str,
    screens: list[Screen],
    shots: Shots,
    parts: list[str],
) -> None:
    with (
        lab.jupyterlab(work, home, shots.theme == "dark") as address,
        lab.browser_page(home / "profile", shots.widths[0] + FRAME) as (page, seen),
    ):
        if "panel" in parts:
            _open(page, address, work, bundle, step)
            page.wait_for_selector(".js-plotly-plot .main-svg", timeout=LONG)
            page.wait_for_selector(".wb-switch-autocast", timeout=LONG)
            for scene in SCENES:
                scene(page)
                shots.take(page, scene.__name__, settles=scene is not running)
        for screen in screens:
            _open(page, address, work, screen.path, "")
            page.wait_for_selector(".wb-switch-autocast", timeout=LONG)
            if screen.decline:
                _button(page, "Step").click()
                page.locator(".wb-trust button", has_text="Stay with").click(timeout=LONG)
            if screen.tab:
                _tab(page, screen.tab)
            if screen.tab == "Ranges":
                page.wait_for_selector(".wb-ranges .js-plotly-plot .main-svg", timeout=LONG)
            time.sleep(2.0)
            shots.take(page, screen.name)
        for error in seen.errors:
            print("console error:", error, file=sys.stderr)


def _open(page: Any, address: str, work: Path, bundle: Path, step: str) -> None:
    """A notebook of its own on a bundle, run."""
    _notebook(page, address, work, bundle, step)
    lab.run_all(page)
    page.wait_for_selector(".wb-root .wb-stage", timeout=LONG)


def _notebook(page: Any, address: str, work: Path, bundle: Path, step: str) -> None:
    """A notebook of its own on a bundle, with its kernel ready."""
    name = f"{bundle.parent.name}-{bundle.name}.ipynb"
    notebook = json.loads((ROOT / "notebooks" / "investigate.ipynb").read_text())
    for cell in notebook["cells"]:
        if "parameters" in cell["metadata"]["tags"]:
            cell["source"] = f"bundle = {str(bundle)!r}\nstep = {step!r}"
    (work / name).write_text(json.dumps(notebook))
    lab.open_notebook(page, address, name)


def _report(bundle: Path, step: str, out: Path) -> None:
    """The report as it opens, with scripts blocked, and as it is printed."""
    from playwright.sync_api import sync_playwright

    path = out / "report.html"
    command = [sys.executable, "-m", "workbench", "report", str(bundle), "-o", str(path)]
    command += ["--step", step] if step else ["--trust", "import"]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    with sync_playwright() as play:
        browser = play.chromium.launch(executable_path=lab.CHROMIUM, args=lab.FLAGS)
        kinds: tuple[tuple[str, bool, Literal["print", "screen"]], ...] = (
            ("report", True, "screen"),
            ("report-without-scripts", False, "screen"),
            ("report-printed", True, "print"),
        )
        for name, scripts, media in kinds:
            context = browser.new_context(
                java_script_enabled=scripts, offline=True, viewport={"width": 1200, "height": 1600}
            )
            page = context.new_page()
            page.goto(f"file://{path}")
            page.emulate_media(media=media)
            time.sleep(2.0)
            page.screenshot(path=out / f"{name}.png")
            print(out / f"{name}.png")
            context.close()
        browser.close()


# -- scenes, in order: each goes on from the one before -----------------------------------------


def opened(page: Any) -> None:
    """Recorded facts only."""


def trust(page: Any) -> None:
    """A replay was asked for."""
    _button(page, "Run to first bad").click()
    page.wait_for_selector(".wb-trust", timeout=LONG)


def running(page: Any) -> None:
    """The replay process works."""
    page.locator(".wb-trust button", has_text="Replay").click()
    page.wait_for_selector(".wb-progress:visible", timeout=LONG)


def ranges(page: Any) -> None:
    """Original was replayed and traced."""
    _idle(page)
    _tab(page, "Ranges")
    page.wait_for_selector(".wb-ranges .js-plotly-plot .main-svg", timeout=LONG)


def pending(page: Any) -> None:
    """A switch was set, nothing was run."""
    page.locator(".wb-switch-autocast select").select_option(index=0)
    time.sleep(0.5)


def replayed(page: Any) -> None:
    """A diagnostic run was kept, with Original after it."""
    page.locator(".wb-offer button", has_text="Replay").click()
    time.sleep(1.0)
    _idle(page)


def origin(page: Any) -> None:
    """A diagnosis."""
    _tab(page, "Origin")
    page.locator(".wb-origin [data-wb=diagnose]").click()
    page.wait_for_selector(".wb-chain", timeout=LONG)
    _idle(page)


def evidence(page: Any) -> None:
    """Files of the bundle, all switches and the code."""
    _tab(page, "Evidence")
    page.locator(".wb-sections button", has_text="Environment").click()
    _button(page, "All switches").click()
    time.sleep(1.0)


def keys(page: Any) -> None:
    """Code and keys."""
    _button(page, "All switches").click()
    _button(page, "Show code").click()
    page.locator(".wb-header button", has_text="?").click()
    time.sleep(1.0)


def notes(page: Any) -> None:
    """A claim pinned with a sentence, and the report drawer."""
    _button(page, "Show code").click()
    page.locator(".wb-header button", has_text="?").click()
    _button(page, "Report…").click()
    page.locator(".wb-notes-button").click()
    page.locator(".wb-note-sentence textarea").fill("Tell the team: use log_softmax here.")
    page.locator(".wb-note-row button", has_text="Pin").click()
    page.wait_for_selector(".wb-note-one", timeout=LONG)


def died(page: Any) -> None:
    """The replay process was killed from outside while it worked."""
    page.locator(".wb-notes-button").click()
    _button(page, "Report…").click()
    page.locator(".wb-run-toggles button", has_text="Original").click()
    for _ in range(4):  # a replay may be over before it is killed
        _button(page, "Run to first bad").click()
        page.wait_for_selector(".wb-progress:visible", timeout=LONG)
        deadline = time.monotonic() + 60
        while not lab.kill_replays() and time.monotonic() < deadline:
            time.sleep(0.05)
        _idle(page)
        time.sleep(1.0)
        if page.locator("[data-wb=again]").count():
            return


SCENES = (
    opened, trust, running, ranges, pending, replayed, origin, evidence, keys, notes, died,
)  # fmt: skip


def _button(page: Any, label: str) -> Any:
    return page.locator(".wb-root button", has_text=label).first


def _tab(page: Any, label: str) -> None:
    page.locator(".wb-tabs button", has_text=label).click()


def _idle(page: Any) -> None:
    page.wait_for_function(
        "() => [...document.querySelectorAll('.wb-controls button')]"
        ".some(b => b.innerText.includes('Stop') && b.disabled)",
        timeout=LONG,
    )


if __name__ == "__main__":
    sys.exit(main())
