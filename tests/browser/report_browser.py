"""Opening a report in Debian's Chromium, from a file, with the network off."""

from __future__ import annotations

import shutil
from contextlib import contextmanager

import pytest

CHROMIUM = "/usr/bin/chromium"
FLAGS = (
    "--headless --no-sandbox --disable-gpu --disable-quic --no-first-run "
    "--disable-background-networking --disable-component-update --disable-sync"
).split()

needs_chromium = pytest.mark.skipif(
    shutil.which(CHROMIUM) is None, reason=f"{CHROMIUM} is not installed"
)


@contextmanager
def opened(path, *, scripts=True, wait=True, **context):
    """A page of the report, what its console said, and which addresses it asked for."""
    from playwright.sync_api import sync_playwright

    said, asked = [], []
    with sync_playwright() as playwright:
        # a fresh profile per launch: playwright makes and removes it
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        settings = {"viewport": {"width": 1200, "height": 900}, "offline": True, **context}
        page = browser.new_context(java_script_enabled=scripts, **settings).new_page()
        page.on("console", lambda message: said.append(f"{message.type}: {message.text}"))
        page.on("pageerror", lambda error: said.append(f"error: {error}"))
        page.on("request", lambda request: asked.append(request.url))
        page.goto(f"file://{path}")
        if scripts and wait:
            page.wait_for_selector("html[data-charts=drawn]", state="attached", timeout=60_000)
        yield page, said, asked
        browser.close()
