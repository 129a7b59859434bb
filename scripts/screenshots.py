"""Screenshots of the panel in JupyterLab: ``python scripts/screenshots.py [--out DIR] [...]``.

Uses the newest bundle below ``demo`` (``make demo``), or the one given. Widths are those of the
panel itself; each is taken in the light and in the dark theme.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from scripts import lab  # noqa: E402 - the checkout need not be installed

WIDTHS = (968, 1220, 1800)
FRAME = 180  # what JupyterLab takes beside the panel with its file list closed
LONG = 120_000


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
    for theme in options.themes:
        for path in _take(bundle, options.step, theme == "dark", options.widths, options.out):
            print(path)
    return 0


def _options() -> Any:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--bundle", type=Path, help="a bundle; the newest below demo by default")
    parser.add_argument("--step", default="", help="the step's code; as the bundle names it")
    parser.add_argument("--out", type=Path, default=ROOT / "build" / "screenshots")
    parser.add_argument("--widths", type=int, nargs="+", default=list(WIDTHS))
    parser.add_argument("--themes", nargs="+", choices=("light", "dark"), default=["light", "dark"])
    return parser.parse_args()


def _newest(directory: Path) -> Path | None:
    from workbench.evidence import find_bundles

    found = find_bundles(directory)
    return found[0] if found else None


def _take(bundle: Path, step: str, dark: bool, widths: list[int], out: Path) -> list[Path]:
    with tempfile.TemporaryDirectory() as name:
        work, home = Path(name) / "work", Path(name) / "home"
        home.mkdir()
        copy = work / bundle.name
        shutil.copytree(bundle, copy) if bundle.is_dir() else shutil.copy(bundle, copy)
        _notebook(work, copy, step)
        with (
            lab.jupyterlab(work, home, dark) as address,
            lab.browser_page(home / "profile", widths[0] + FRAME) as (page, seen),
        ):
            lab.open_notebook(page, address, "investigate.ipynb")
            lab.run_all(page)
            page.wait_for_selector(".wb-root .wb-stage", timeout=LONG)
            page.wait_for_selector(".js-plotly-plot .main-svg", timeout=LONG)
            taken: list[Path] = []
            for scene in SCENES:
                scene(page)
                for width in widths:
                    page.set_viewport_size({"width": width + FRAME, "height": 1000})
                    time.sleep(0.8)
                    if scene is not running:
                        page.wait_for_function(lab.KERNEL_IDLE, timeout=LONG)
                    time.sleep(0.7)
                    theme = "dark" if dark else "light"
                    path = out / f"{scene.__name__}-{width}-{theme}.png"
                    page.locator(".wb-root").screenshot(path=path)
                    taken.append(path)
            for error in seen.errors:
                print("console error:", error, file=sys.stderr)
            return taken


def _notebook(work: Path, bundle: Path, step: str) -> None:
    notebook = json.loads((ROOT / "notebooks" / "investigate.ipynb").read_text())
    for cell in notebook["cells"]:
        if "parameters" in cell["metadata"]["tags"]:
            cell["source"] = f"bundle = {str(bundle)!r}\nstep = {step!r}"
    (work / "investigate.ipynb").write_text(json.dumps(notebook))


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
    _button(page, "?").click()
    time.sleep(1.0)


SCENES = (opened, trust, running, ranges, pending, replayed, origin, evidence, keys)


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
