"""One bundle of a store as one row: its manifest, its ledger, and findings where they are.

`read_row` and `read_ledger` are what runs elsewhere when reading is spread over processes or
machines: plain arguments in, plain data out, and nothing raised.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from workbench.diagnose.triage.ledgers import Part, read_part
from workbench.errors import BundleError, WorkbenchError
from workbench.evidence.reader import Bundle
from workbench.evidence.remote import Spot, open_spot, read_findings, read_stored
from workbench.evidence.schema import FirstBad
from workbench.evidence.wording import clean, command_line
from workbench.numerics import jsonio
from workbench.step.stages import STAGES

LEDGER_BYTES: Final = 64 << 20
_FINDINGS_BYTES: Final = 64 << 20
_ORIGIN: Final = ("kind", "stage", "op", "where", "module", "cause", "source", "rank")
_SCHEMA: Final = "workbench.findings/1"

Row = dict[str, Any]


def read_row(url: str, findings: bool) -> Row:
    """Read what triage needs of one bundle.

    Args:
        url: Where it lies.
        findings: Whether a folder of results lies beside it.

    Returns:
        The row; a bundle that cannot be read has ``error`` and nothing else.
    """
    spot = Spot(url, findings)
    try:
        bundle = open_spot(spot)
        return _row(spot, bundle)
    except WorkbenchError as error:
        return failed(spot, str(error))
    except Exception as error:  # noqa: BLE001 - each store's library has its own errors
        return failed(spot, f"{type(error).__name__}: {error}")


def failed(spot: Spot, error: str) -> Row:
    """The row of a bundle that could not be read."""
    return {"url": spot.url, "name": spot.name, "folder": spot.folder, "error": clean(error, 600)}


def read_ledger(url: str) -> Part | str:
    """Read the ledger of a run, or the end of one that is very large.

    Returns:
        Its columns, or why it could not be read.
    """
    try:
        data = read_stored(url, LEDGER_BYTES, tail=True)
    except WorkbenchError as error:
        return clean(error, 600)
    except Exception as error:  # noqa: BLE001 - each store's library has its own errors
        return clean(f"{type(error).__name__}: {error}", 600)
    return read_part(data or b"")


def _row(spot: Spot, bundle: Bundle) -> Row:
    manifest = bundle.manifest
    row: Row = failed(spot, "") | {
        "error": None,
        "id": clean(manifest.id, 80),
        "digest": bundle.digest,
        "incident": clean(manifest.incident, 120),
        "run_id": clean(manifest.run_id, 120),
        "step": manifest.step,
        "rank": manifest.rank,
        "world": manifest.world,
        "kind": clean(manifest.kind, 20),
        "created": clean(manifest.created, 40),
        "fingerprint": clean(manifest.fingerprint, 20),
        "caught": _caught(bundle.first_bad),
        "sealed": manifest.sealed,
        "bytes": sum(entry.size for entry in manifest.files.values()),
        "notes": [],
    }
    row["ledger"] = _ledger(bundle, row["notes"])
    row |= _findings(spot, bundle, row["notes"])
    return row


def _caught(bad: FirstBad | None) -> Row | None:
    if bad is None:
        return None
    return {
        "stage": clean(bad.stage, 40),
        "tensor": clean(bad.tensor, 200),
        "kind": clean(bad.kind, 20),
        "micro_step": bad.micro_step,
    }


def _ledger(bundle: Bundle, notes: list[str]) -> Row | None:
    """What the records in the bundle say: how many, and what went bad first in them."""
    listed = bundle.manifest.files.get("ledger.jsonl")
    if listed is None:
        return None
    try:
        if listed.size > LEDGER_BYTES:
            raise BundleError(
                f"The ledger inside {str(bundle.path)!r} has {listed.size:,} bytes, more than the "
                f"{LEDGER_BYTES:,} that are read of one bundle here, so its records are not "
                f"counted. To see it: {command_line('inspect', bundle.path)}"
            )
        part = read_part(bundle.read_bytes("ledger.jsonl"))
    except WorkbenchError as error:
        notes.append(clean(f"The ledger was not used. {error}", 400))
        return None
    return {"records": int(part.ranks[:, 1].sum()), "bad": part.bad.tolist()}


def _findings(spot: Spot, bundle: Bundle, notes: list[str]) -> Row:
    """The first origin that a diagnosis found, if one was made and is about these bytes."""
    empty: Row = {"findings": "none", "origin": None, "origins": 0}
    try:
        data = read_findings(spot, bundle, _FINDINGS_BYTES)
        if data is None:
            return empty
        document = jsonio.loads(data)
        if not isinstance(document, Mapping) or document.get("schema") != _SCHEMA:
            raise BundleError(
                f"The findings beside {spot.url!r} are no {_SCHEMA!r} document, so no origin is "
                f"shown. Make them again with: {command_line('diagnose', spot.url)}"
            )
        about, origins = document.get("bundle"), document.get("origins")
        if not isinstance(about, Mapping) or not isinstance(origins, list):
            raise BundleError(
                f"The findings beside {spot.url!r} lack their bundle or their origins, so no "
                f"origin is shown. Make them again with: {command_line('diagnose', spot.url)}"
            )
    except WorkbenchError as error:
        notes.append(clean(f"The findings were not used. {error}", 400))
        return empty | {"findings": "damaged"}
    if about.get("digest") != bundle.digest:
        notes.append("The findings beside it are about other bytes than this bundle's.")
        return empty | {"findings": "of another bundle"}
    found = [one for one in origins if isinstance(one, Mapping)]
    if not found:
        return empty | {"findings": "no origin"}
    return {"findings": "origin", "origin": _origin(found[0]), "origins": len(found)}


def _origin(found: Mapping[str, Any]) -> Row:
    texts = {key: found.get(key) for key in _ORIGIN}
    origin: Row = {k: None if v is None else clean(v, 200) for k, v in texts.items()}
    if origin["stage"] not in STAGES:
        origin["stage"] = None
    return origin
