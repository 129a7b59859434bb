"""When and on what findings were made: the label for whoever cannot make them again.

It lies beside ``findings.json`` and not in it, so that two runs give the same findings.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from workbench.errors import BundleError
from workbench.evidence.machine import environment
from workbench.evidence.wording import clean
from workbench.numerics import jsonio

if TYPE_CHECKING:
    from workbench.evidence.reader import Bundle

SCHEMA: Final = "workbench.made/1"
NAME: Final = "made.json"
_PACKED: Final = f"findings/{NAME}"
_MAX_BYTES: Final = 1 << 16


def write_made(directory: Path) -> None:
    """Label the findings in a directory with the time of now and this device.

    Raises:
        OSError: The directory takes no file.
    """
    here = environment()
    data = {
        "schema": SCHEMA,
        "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "device": device_name(here),
        "torch": here["packages"].get("torch"),
    }
    part = directory / f".{NAME}.part"
    part.write_text(jsonio.dumps(data, indent=1) + "\n", encoding="ascii")
    part.replace(directory / NAME)


def made_sentence(bundle: Bundle) -> str:
    """``made 2026-11-30 on NVIDIA H100, torch 2.13.0``; empty where nothing tells."""
    data = read_made(bundle)
    day = clean(data.get("time", ""), 40).partition("T")[0]
    device, torch = clean(data.get("device", ""), 80), clean(data.get("torch", ""), 40)
    if not day or not device:
        return ""
    return f"made {day} on {device}{f', torch {torch}' if torch else ''}"


def read_made(bundle: Bundle) -> dict[str, Any]:
    """The label of the findings beside a bundle or packed with it; empty where there is none."""
    path = bundle.findings_dir / NAME
    try:
        if path.is_file():
            data = path.read_bytes() if path.stat().st_size <= _MAX_BYTES else b"{}"
        elif _PACKED in bundle.packed_findings():
            data = bundle.read_packed_findings(_PACKED)
        else:
            return {}
        found = jsonio.loads(data)
    except (OSError, BundleError):
        return {}
    return found if isinstance(found, dict) and found.get("schema") == SCHEMA else {}


def device_name(environment: dict[str, Any]) -> str:
    """The names of the devices of an environment, or of its CPU."""
    names = [str(device.get("name")) for device in environment.get("devices") or []]
    return ", ".join(names) or str(environment.get("cpu", {}).get("model") or "cpu")
