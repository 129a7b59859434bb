"""How fast the panel opens and draws: ``python benchmarks/panel.py``.

* A bundle of 2 GB: seconds until the panel stands, memory it adds, and bytes read from disk; then
  with its charts and switches there. The bundle is a real one whose model state is followed by
  zeros that take no room on disk.
* The first chart in JupyterLab and Chromium, all imports included: from running all cells of a
  fresh kernel, and from restarting the kernel to run them, until the timeline's first view is in
  the page, and until plotly has drawn it.
* 10,000 layers in JupyterLab and Chromium: from the click on the tab until the bars are in the
  page, with plotly's script loaded before; and the processor time of kernel and page in it.
"""

from __future__ import annotations

import argparse
import asyncio
import hashlib
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from scripts import lab  # noqa: E402 - the checkout need not be installed

GB = 1 << 30
LONG = 120_000
DRAWN = """async (wanted) => {
  const before = performance.now();
  const tabs = [...document.querySelectorAll('.wb-tabs button')];
  tabs.find(tab => tab.innerText.includes('Ranges')).click();
  while (!document.querySelector(wanted)) {
    await new Promise(done => requestAnimationFrame(done));
    if (performance.now() - before > 60000) return -1;
  }
  return performance.now() - before;
}"""

FIRST_CHART = """async (restart) => {
  const wanted = {
    facts: '.wb-root .wb-stage',
    'first view': '.wb-timeline .wb-still .trace',
    plotly: '.wb-timeline .js-plotly-plot .scatterlayer .trace',
  };
  const commands = window.jupyterapp.commands;
  await commands.execute('notebook:clear-all-cell-outputs');
  const before = performance.now(), seen = {};
  const context = window.jupyterapp.shell.currentWidget.sessionContext;
  if (restart) await context.session.kernel.restart();
  commands.execute('notebook:run-all-cells');
  while (Object.keys(seen).length < 3 && performance.now() - before < 120000) {
    for (const [name, selector] of Object.entries(wanted)) {
      if (name in seen || !document.querySelector(selector)) continue;
      seen[name] = performance.now() - before;
    }
    await new Promise((done) => setTimeout(done, 10));
  }
  return seen;
}"""


def main() -> int:
    """Measure both and say what was seen."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--open", help="only open this bundle and print what it took, as JSON")
    options = parser.parse_args()
    if options.open:
        _say(json.dumps(asyncio.run(_opened(options.open))))
        return 0
    with tempfile.TemporaryDirectory() as name:
        big = _big(Path(name))
        command = [sys.executable, __file__, "--open", str(big)]
        _say(
            "2 GB bundle: "
            + subprocess.run(command, check=True, capture_output=True).stdout.decode()
        )
        if not lab.missing():
            _say(f"first chart, ms: {_first_chart(Path(name))}")
            _say(f"10,000 layers, ms: {_layers(Path(name))}")
    return 0


def _say(text: str) -> None:
    sys.stdout.write(text.rstrip() + "\n")


def _big(work: Path) -> Path:
    from tests.unit.widgets.conftest import make_bundle

    make_bundle(work / "small")
    path = make_bundle(work / "big")
    rel = "state/model.safetensors"
    file = path / rel
    raw = file.read_bytes()
    length = int.from_bytes(raw[:8], "little")
    header = json.loads(raw[8 : 8 + length])
    body = raw[8 + length :]
    end = len(body) + 2 * GB
    header["padding"] = {"dtype": "U8", "shape": [2 * GB], "data_offsets": [len(body), end]}
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    whole = len(text).to_bytes(8, "little") + text + body
    file.write_bytes(whole)
    os.truncate(file, len(whole) + 2 * GB)
    manifest = json.loads((path / "manifest.json").read_text())
    with file.open("rb") as stream:
        digest = hashlib.file_digest(stream, "sha256").hexdigest()
    manifest["files"][rel] = {"sha256": digest, "size": file.stat().st_size}
    (path / "manifest.json").write_text(json.dumps(manifest))
    return path


async def _opened(bundle: str) -> dict[str, Any]:
    """Open a bundle in a panel and look at all of its evidence; times without the imports."""
    import psutil

    import workbench
    from workbench.widgets.actions import TabChosen

    small = str(Path(bundle).parent.parent / "small")
    for one in Path(small).glob("*.bundle"):
        await _loaded(workbench.Workbench(one))  # its imports are not what is measured
    process = psutil.Process()
    memory, read = process.memory_info().rss, _read()
    before, busy = time.perf_counter(), time.process_time()
    panel = workbench.Workbench(bundle)
    took, busy = time.perf_counter() - before, time.process_time() - busy
    panel._store.dispatch(TabChosen("evidence"))
    for section in ("batch", "state", "files"):
        panel.show("evidence", section=section)
    looked = time.perf_counter() - before
    added, read = process.memory_info().rss - memory, _read() - read
    await _loaded(panel)
    panel.show("timeline")
    child = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1e3
    return {
        "seconds": round(took, 3),
        "of the processor": round(busy, 3),
        "seconds with its evidence looked at": round(looked, 3),
        "MB of memory added": round(added / 1e6, 1),
        "MB read": round(read / 1e6, 2),
        "MB of memory in all, charts and switches there": round(process.memory_info().rss / 1e6),
        "torch is loaded": "torch" in sys.modules,
        "MB of the process that was asked what can be changed, for seconds": round(child),
    }


async def _loaded(panel: Any) -> None:
    while not panel.state.facts.switches:
        await asyncio.sleep(0.01)


def _read() -> int:
    lines = Path("/proc/self/io").read_text().splitlines()
    return int(next(line.split()[1] for line in lines if line.startswith("rchar")))


def _first_chart(work: Path) -> dict[str, list[int]]:
    """Three fresh kernels, and the same three restarted, on a bundle with 200 recorded steps."""
    from scripts.screen_bundles import _alert
    from scripts.screenshots import _notebook

    (work / "first-home").mkdir()
    found: dict[str, list[int]] = {}
    with (
        lab.jupyterlab(work, work / "first-home") as address,
        lab.browser_page(work / "first-home" / "profile", 1400) as (page, _),
    ):
        for number in range(3):
            _notebook(page, address, work, _alert(work / f"first-{number}", work).path, "")
            for restart in (False, True):
                seen = page.evaluate(FIRST_CHART, restart)
                for name, took in seen.items():
                    of = f"{name}, {'from the restart' if restart else 'from running'}"
                    found.setdefault(of, []).append(round(took))
                page.wait_for_selector(".wb-switch-autocast", timeout=LONG)
    return found


def _layers(work: Path) -> dict[str, int]:
    from scripts.screen_bundles import _many_layers
    from scripts.screenshots import _open, _tab

    screen = _many_layers(work / "many", work)
    (work / "home").mkdir()
    with (
        lab.jupyterlab(work, work / "home") as address,
        lab.browser_page(work / "home" / "profile", 1400) as (page, _),
    ):
        _open(page, address, work, screen.path, "")
        _tab(page, "Timeline")
        page.wait_for_selector(".wb-timeline .js-plotly-plot .main-svg", timeout=LONG)
        page.wait_for_function(lab.KERNEL_IDLE, timeout=LONG)
        bars = ".wb-ranges .js-plotly-plot .barlayer .point path"
        devtools = page.context.new_cdp_session(page)
        devtools.send("Performance.enable", {"timeDomain": "threadTicks"})
        kernel, script = _kernel_seconds(), _page_seconds(devtools)
        seen = {"wall": round(page.evaluate(DRAWN, bars))}
        page.wait_for_function(lab.KERNEL_IDLE, timeout=LONG)
        seen["processor, kernel"] = round(1000 * (_kernel_seconds() - kernel))
        seen["processor, page"] = round(1000 * (_page_seconds(devtools) - script))
    return seen


def _kernel_seconds() -> float:
    import psutil

    kernels = [
        child
        for child in psutil.Process().children(recursive=True)
        if "ipykernel" in " ".join(child.cmdline())
    ]
    return sum(child.cpu_times().user + child.cpu_times().system for child in kernels)


def _page_seconds(devtools: Any) -> float:
    """Processor time of the page's main thread: scripts, styles, layout and painting."""
    metrics = devtools.send("Performance.getMetrics")["metrics"]
    return float(next(one["value"] for one in metrics if one["name"] == "TaskDuration"))


if __name__ == "__main__":
    sys.exit(main())
