"""Autograd's anomaly mode as one more source, on a replay only, beside the origin found here.

It looks at what backward functions return, for NaN alone, and names the node and the forward line
that made it. It is blind to Inf and to what was born in forward, and blames whatever passes a NaN
on; where it cannot have seen the origin, that is said beside its word.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Mapping
from typing import Any

from workbench.evidence.wording import clean
from workbench.replay import Replay

_RETURNED = re.compile(r"Function '([\w.:<>]+)' returned nan values in its (\d+)\w\w output")
_FRAME = re.compile(r'File "([^"]+)", line (\d+)')
_TRACEBACK = "Traceback of forward call that caused the error"
_LIBRARY = ("/site-packages/", "/dist-packages/", "/lib/python", "<frozen", "/workbench/")


def anomaly_finding(replay: Replay, origins: list[dict[str, Any]]) -> dict[str, Any]:
    """Run the step once in anomaly mode and put what it says beside the origin.

    Args:
        replay: The replay; its session is left alone.
        origins: Origins as `workbench.findings/1` has them, first in time first.

    Returns:
        ``node`` and ``source`` (a forward line) as anomaly mode names them, or None where it said
        nothing; ``message``, its own words; ``agrees`` with the first origin, None where there is
        nothing to compare; ``note``, where it is known to be blind.
    """
    node, message, source = _ask(replay)
    # growth is about an earlier step, which anomaly mode was not asked about
    origin = next((o for o in origins if o["kind"] != "growth"), None)
    return {
        "node": node,
        "message": message,
        "source": source,
        "agrees": _agrees(node, source, origin),
        "note": blindness(node, origin),
    }


def _ask(replay: Replay) -> tuple[str | None, str | None, str | None]:
    """Run through backward, as a user of anomaly mode does, even where the loss is already bad."""
    own = Replay.from_source(replay.source)
    conditions = own.nearest.replace(anomaly=True)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        own.run(until="backward", conditions=conditions)
    outcomes = own.session.outcomes if own.session else []
    raised = next((o.exception for o in outcomes if o.exception is not None), None)
    found = _RETURNED.search(str(raised))
    if found is None:
        return None, None, None
    forward = next((str(w.message) for w in caught if _TRACEBACK in str(w.message)), "")
    return found[1], clean(str(raised), 300), _users_line(forward)


def _users_line(text: str) -> str | None:
    """The innermost line of a traceback that is no library's: ``model.py:88``."""
    frames = [(file, line) for file, line in _FRAME.findall(text)]
    own = [f for f in frames if not any(part in f[0] for part in _LIBRARY)]
    if not own:
        return None
    file, line = own[-1]
    return f"{clean(file.replace(chr(92), '/').rpartition('/')[2], 80)}:{line}"


def _agrees(node: str | None, source: str | None, origin: Mapping[str, Any] | None) -> bool | None:
    if origin is None:
        return None if node is None else False
    if node is None:
        return False
    if origin.get("autograd_node") is not None:
        return bool(_plain(node) == _plain(str(origin["autograd_node"])))
    # both may name one forward line even where the value was born in forward and seen in backward
    return source is not None and _line(source) == _line(str(origin.get("source") or ""))


def _plain(node: str) -> str:
    return node.rpartition("::")[2]


def _line(source: str) -> str:
    return source.replace("\\", "/").rpartition("/")[2]


def blindness(node: str | None, origin: Mapping[str, Any] | None) -> str | None:
    """Say why anomaly mode cannot have seen an origin; None where it can.

    Args:
        node: The node it named, or None when it said nothing.
        origin: The first origin, or None.
    """
    if origin is None:
        return None
    named = "" if node is None else f" The node it names, {node}, only passes the value on."
    stage, kind = origin["stage"], str(origin["kind"])
    if kind in _LEAVES:
        return (
            f"Anomaly mode looks at what backward returns; {_LEAVES[kind]} was bad before.{named}"
        )
    if stage in ("forward", "loss", "input"):
        return (
            "Anomaly mode looks at backward only; this value was born in forward, before any node "
            f"of backward ran.{named}"
        )
    if stage in ("unscale", "clip", "update", "after_update", "logging", "reduce"):
        return f"Anomaly mode looks at backward only; this value was born after it, in {stage}."
    if node is None:
        return (
            "Anomaly mode checks for NaN alone and said nothing: an Inf that backward makes does "
            "not stop it."
        )
    if origin.get("autograd_node") and _plain(node) != _plain(str(origin["autograd_node"])):
        return (
            "Anomaly mode names the first node that returns a NaN and checks for nothing else; an "
            "earlier node that gives an Inf is not seen."
        )
    return None


_LEAVES = {
    "poisoned_batch": "the batch",
    "poisoned_parameter": "a parameter",
    "poisoned_buffer": "a buffer",
    "poisoned_optimizer_state": "optimizer state",
    "captured_tensor": "a tensor held outside the model",
}
