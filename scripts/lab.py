"""A JupyterLab and a Chromium for screenshots and browser tests. Nothing leaves this machine."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

CHROMIUM = "/usr/bin/chromium"
FLAGS = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]
ROOT = Path(__file__).resolve().parent.parent
START_SECONDS = 60.0
# Cells that are run before the kernel is there make JupyterLab ask which kernel is meant.
KERNEL_IDLE = (
    "() => window.jupyterapp.shell.currentWidget?.sessionContext?.session?.kernel?.status"
    " === 'idle'"
)


def missing() -> str:
    """Why a browser cannot be driven here; empty when it can."""
    if not Path(CHROMIUM).exists():
        return f"there is no {CHROMIUM}; install Debian's chromium package"
    try:
        import playwright.sync_api  # noqa: F401
    except ModuleNotFoundError:
        return "the package playwright is not installed"
    return ""


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _settings(home: Path, dark: bool) -> None:
    """Theme, and no news from the internet."""
    base = home / "settings" / "@jupyterlab" / "apputils-extension"
    base.mkdir(parents=True, exist_ok=True)
    theme = "JupyterLab Dark" if dark else "JupyterLab Light"
    files = {
        "themes": {"theme": theme},
        "notification": {"fetchNews": "false", "checkForUpdates": False, "doNotDisturbMode": True},
    }
    for name, values in files.items():
        (base / f"{name}.jupyterlab-settings").write_text(json.dumps(values))


@contextlib.contextmanager
def jupyterlab(directory: Path, home: Path, dark: bool = False) -> Iterator[str]:
    """A JupyterLab over a directory.

    Args:
        directory: What the file browser shows; notebooks are opened from here.
        home: A fresh directory for everything Jupyter writes about itself.
        dark: Whether the dark theme is set.

    Yields:
        The server's address.
    """
    _settings(home, dark)
    port = _free_port()
    env = {
        **os.environ,
        "JUPYTERLAB_SETTINGS_DIR": str(home / "settings"),
        "JUPYTERLAB_WORKSPACES_DIR": str(home / "workspaces"),
        "JUPYTER_CONFIG_DIR": str(home / "config"),
        "JUPYTER_DATA_DIR": str(home / "data"),
        "JUPYTER_RUNTIME_DIR": str(home / "runtime"),
        "IPYTHONDIR": str(home / "ipython"),
        "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]),
    }
    command = [
        sys.executable, "-m", "jupyterlab", "--no-browser", "--allow-root",
        f"--port={port}", "--ip=127.0.0.1", "--IdentityProvider.token=", "--ServerApp.password=",
        "--expose-app-in-browser", f"--ServerApp.root_dir={directory}",
    ]  # fmt: skip
    log = (home / "server.log").open("w")
    server = subprocess.Popen(command, env=env, stdout=log, stderr=subprocess.STDOUT)
    address = f"http://127.0.0.1:{port}"
    try:
        _wait_for(f"{address}/api/status", server)
        yield address
    finally:
        server.terminate()
        try:
            server.wait(20)
        except subprocess.TimeoutExpired:
            server.kill()
        log.close()


def _wait_for(address: str, server: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + START_SECONDS
    while time.monotonic() < deadline and server.poll() is None:
        try:
            with urllib.request.urlopen(address, timeout=2):  # noqa: S310 - our own server
                return
        except (urllib.error.URLError, OSError):
            time.sleep(0.2)
    message = f"JupyterLab did not answer at {address}"
    raise RuntimeError(message)


@dataclass
class Seen:
    """What a page did: errors in its console, and every address it asked for."""

    errors: list[str] = field(default_factory=list)
    addresses: list[str] = field(default_factory=list)

    def outside(self) -> list[str]:
        """Requests that would leave this machine."""
        local = ("http://127.0.0.1", "ws://127.0.0.1", "data:", "blob:", "about:")
        return [one for one in self.addresses if not one.startswith(local)]


@contextlib.contextmanager
def browser_page(profile: Path, width: int, height: int = 1250) -> Iterator[tuple[Any, Seen]]:
    """A page of a fresh Chromium, with what it does written down."""
    from playwright.sync_api import sync_playwright

    shutil.rmtree(profile, ignore_errors=True)
    with sync_playwright() as play:
        context = play.chromium.launch_persistent_context(
            str(profile), executable_path=CHROMIUM, args=FLAGS,
            viewport={"width": width, "height": height},
        )  # fmt: skip
        page, seen = context.pages[0], Seen()
        page.on("console", lambda m: seen.errors.append(m.text) if m.type == "error" else None)
        page.on("pageerror", lambda error: seen.errors.append(str(error)))
        page.on("request", lambda request: seen.addresses.append(request.url))
        page.on("websocket", lambda socket: seen.addresses.append(socket.url))
        try:
            yield page, seen
        finally:
            context.close()


def open_notebook(page: Any, address: str, name: str, *, files: bool = False) -> None:
    """Open a notebook in JupyterLab; the file list is closed unless ``files``."""
    page.goto(f"{address}/lab/tree/{name}?reset")
    page.wait_for_selector(".jp-Notebook", timeout=60_000)
    page.wait_for_function("() => window.jupyterapp !== undefined")
    if not files:
        page.evaluate(
            "async () => { const shell = window.jupyterapp.shell;"
            " if (!shell.leftCollapsed) shell.collapseLeft(); }"
        )
    page.wait_for_function(KERNEL_IDLE, timeout=60_000)


def run_all(page: Any) -> None:
    """Start all cells; what they show is waited for by the caller."""
    command(page, "notebook:run-all-cells")


def command(page: Any, name: str) -> None:
    """Carry out a command of JupyterLab."""
    page.evaluate("name => { window.jupyterapp.commands.execute(name); }", name)


def kill_replays() -> int:
    """Kill the replay processes below this one, as the system does when memory runs out."""
    import psutil

    killed = 0
    for child in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.Error):
            if "workbench.replay" in " ".join(child.cmdline()):
                child.kill()
                killed += 1
    return killed
