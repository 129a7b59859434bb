"""The manifest of a bundle, format 1."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from typing import Any, Final

import msgspec

from workbench.errors import BundleError, StrictJsonError, UsageError
from workbench.evidence.conditions import Conditions, conditions_from
from workbench.numerics import jsonio

FORMAT: Final = "1.0"
MANIFEST: Final = "manifest.json"
MAX_MANIFEST_BYTES: Final = 64 << 20
GOALS: Final = ("forward_loss", "backward", "update", "trajectory")
KINDS: Final = ("nonfinite", "alert", "captured")
MOST_RANKS: Final = 65_536
"""Most ranks of a run; a manifest that tells of more is refused."""

_NAME: Final = re.compile(
    r"[A-Za-z0-9_][A-Za-z0-9_.+-]{0,199}(/[A-Za-z0-9_][A-Za-z0-9_.+-]{0,199}){0,7}"
)
_VERSION: Final = re.compile(r"([0-9]{1,4})\.([0-9]{1,4})")
_DIGEST: Final = re.compile(r"[0-9a-f]{64}")


class FileEntry(msgspec.Struct, frozen=True):
    """One file of a bundle: its size in bytes and its sha256 as 64 hex digits."""

    size: int
    sha256: str


class FirstBad(msgspec.Struct, frozen=True, kw_only=True):
    """The earliest record whose sink tripped. On screen: *caught at*.

    Attributes:
        run_id: The run.
        step: Training step.
        micro_step: Accumulation step within it.
        rank: Rank it was seen on.
        stage: One of the ten stages.
        tensor: What tripped: ``"loss"``, ``"gradient of head.weight"``, ``"grad_norm"``, …
        sink: Class of the sink: ``loss``, ``gradient``, ``grad_norm``, ``parameter``,
            ``optimizer_state``, ``loss_scale``, ``buffer``, ``exception``, ``input``, ``alert``.
        kind: ``"nan"``, ``"+inf"``, ``"-inf"``, ``"exception"`` or ``"alert"``.
        shape: Shape of the tensor, or None.
        dtype: Its dtype's name, or None.
        counts: ``nan``, ``pos_inf``, ``neg_inf``, ``finite``.
        first: Index of its first non-finite element, or None.
        value: The value of a scalar sink, or None.
        message: An exception's text, or an alert's sentence.
    """

    run_id: str
    step: int
    micro_step: int = 0
    rank: int = 0
    stage: str
    tensor: str
    sink: str = ""
    kind: str = "nan"
    shape: list[int] | None = None
    dtype: str | None = None
    counts: dict[str, int] = {}
    first: list[int] | None = None
    value: float | None = None
    message: str = ""

    def as_dict(self) -> dict[str, Any]:
        """All fields by name."""
        plain: dict[str, Any] = msgspec.to_builtins(self)
        return plain


class StepReference(msgspec.Struct, frozen=True, kw_only=True):
    """Where the code of the training step was: a name to show, never imported unasked.

    Attributes:
        reference: ``"package.module:Name"`` or ``"file.py:Name"``, or empty.
        kind: ``"module"``, ``"file"``, ``"integration"`` or ``"none"``.
        digest: ``"sha256:…"`` of the source text, or empty.
        source: The file under ``source/`` that holds its text, or empty.
        low_level: Whether the user kept the loop, so that a replay is only as faithful as the
            step's methods are.
    """

    reference: str = ""
    kind: str = "none"
    digest: str = ""
    source: str = ""
    low_level: bool = False


class Manifest(msgspec.Struct, kw_only=True):
    """What a bundle is and exactly which files it has.

    Attributes:
        format: ``"1.0"``.
        created_by: Name and version of the writer.
        created: UTC time, ISO 8601.
        id: Random identifier of the bundle.
        run_id: The run.
        kind: ``nonfinite``, ``alert`` or ``captured``.
        step: Training step of the incident.
        rank: Rank that wrote the bundle.
        world: Number of ranks.
        fingerprint: ``"NF-xxxxxx"``: equal for incidents of the same class.
        first_bad: What was caught, or None.
        conditions: The original conditions.
        completeness: Per recovery goal, ``"complete"`` or what is missing and why.
        step_reference: Where the step's code was.
        files: Every file but the manifest.
        dropped: Files left out, with the reason.
        provenance: What the user told about the run.
        notes: Sentences about limits of this record.
        sealed: Whether writing came to its end.
        incident: What the bundles of all ranks of one incident share, or empty: one process.
        level: ``full`` (what this rank found went bad first, or it alone knows of it) or ``light``.
    """

    format: str = FORMAT
    created_by: str
    created: str
    id: str
    run_id: str
    kind: str = "nonfinite"
    step: int = 0
    rank: int = 0
    world: int = 1
    fingerprint: str = ""
    first_bad: FirstBad | None = None
    conditions: Conditions = Conditions()
    completeness: dict[str, str] = {}
    step_reference: StepReference = StepReference()
    files: dict[str, FileEntry] = {}
    dropped: dict[str, str] = {}
    provenance: dict[str, Any] = {}
    notes: list[str] = []
    sealed: bool = False
    incident: str = ""
    level: str = "full"


def fingerprint(kind: str, first_bad: FirstBad | None) -> str:
    """``"NF-"`` and 6 hex digits of the incident's class: stage, tensor and kind.

    Step, rank, values and positions have no part in it, so that the same failure of two runs has
    the same fingerprint.
    """
    bad = first_bad
    parts = [kind] if bad is None else [kind, bad.stage, bad.tensor, bad.kind]
    return "NF-" + hashlib.sha256("\0".join(parts).encode("utf-8", "replace")).hexdigest()[:6]


def encode_manifest(manifest: Manifest) -> bytes:
    """The manifest's bytes: strict JSON, indented, sorted."""
    return (jsonio.dumps(msgspec.to_builtins(manifest), indent=1) + "\n").encode("ascii")


def decode_manifest(data: bytes, where: str) -> Manifest:
    """Read a manifest.

    Args:
        data: The bytes of ``manifest.json``.
        where: The bundle's path, for messages.

    Raises:
        BundleError: Not strict JSON, not a manifest, of a rank that no run has, or of a newer
            major format.
    """
    plain = strict_json(data, MANIFEST, where)
    if not isinstance(plain, Mapping):
        raise BundleError(f"The manifest of {where!r} is not a JSON object. {_NOTHING}")
    _refuse_newer(plain.get("format"), where)
    recorded = plain.get("conditions", {})
    try:
        conditions = conditions_from(recorded) if isinstance(recorded, Mapping) else Conditions()
        rest = {key: value for key, value in plain.items() if key != "conditions"}
        manifest = msgspec.convert(rest, Manifest)
    except (msgspec.ValidationError, UnicodeError, UsageError) as error:  # a key of half a pair
        raise BundleError(f"The manifest of {where!r} is not valid: {error}. {_NOTHING}") from error
    manifest.conditions = conditions
    _check_ranks(manifest, where)
    for rel, entry in manifest.files.items():
        check_name(rel)
        if entry.size < 0 or not _DIGEST.fullmatch(entry.sha256):
            raise BundleError(f"The manifest of {where!r} lists {rel!r} wrongly. {_NOTHING}")
    return manifest


def strict_json(data: bytes, rel: str, where: str) -> Any:
    """Read a JSON file of a bundle.

    Args:
        data: Its bytes.
        rel: Its name, for messages.
        where: The bundle's path, for messages.

    Raises:
        StrictJsonError: Not strict JSON; the message names file and bundle.
    """
    try:
        return jsonio.loads(data)
    except StrictJsonError as error:
        what = str(error).removesuffix(jsonio.ADVICE).rstrip()
        raise StrictJsonError(
            f"The file {rel!r} of {where!r} is damaged. {what} {_NOTHING}"
        ) from error


def check_name(rel: str) -> str:
    """A file name inside a bundle, returned if it is one.

    Raises:
        BundleError: Absolute, with ``..``, hidden, or with characters outside the fixed alphabet.
    """
    if rel == MANIFEST or not _NAME.fullmatch(rel) or ".." in rel:
        raise BundleError(
            f"{rel[:80]!r} is not a file name a bundle may have. Names are made of letters, digits "
            'and "_ . + -", in at most 8 folders, so that no name can point outside the bundle. '
            "Nothing of it was used."
        )
    return rel


_NOTHING: Final = "Nothing in this bundle can be relied on; get a fresh copy, or run verify on it."


def is_rank(rank: Any, world: Any = None) -> bool:
    """Whether a number can be a rank: from 0 to below the number of ranks.

    Args:
        rank: What was read.
        world: The number of ranks that was read with it; None where none was.
    """
    most = MOST_RANKS if world is None else world
    whole = all(isinstance(n, int) and not isinstance(n, bool) for n in (rank, most))
    return whole and 0 <= rank < most <= MOST_RANKS


def known_rank(record: dict[str, Any]) -> dict[str, Any]:
    """A record of a ledger whose rank and number of ranks are unknown where no run has them."""
    rank, world = record.get("rank"), record.get("world")
    if world is not None and not is_rank(0, world):
        record = record | {"world": None}
        world = None
    if rank is not None and not is_rank(rank, world):
        record = record | {"rank": None}
    return record


def _check_ranks(manifest: Manifest, where: str) -> None:
    first = manifest.rank if manifest.first_bad is None else manifest.first_bad.rank
    for rank in (manifest.rank, first):
        if not is_rank(rank, manifest.world):
            raise BundleError(
                f"The manifest of {where!r} is of rank {rank} of {manifest.world}, which no run "
                f"has: there are at most {MOST_RANKS:,} ranks, from 0. {_NOTHING}"
            )


def _refuse_newer(version: Any, where: str) -> None:
    match = _VERSION.fullmatch(version) if isinstance(version, str) else None
    if match is None:
        raise BundleError(
            f"The manifest of {where!r} has no format version (found {str(version)[:40]!r}). "
            f"{_NOTHING}"
        )
    if int(match[1]) > 1:
        raise BundleError(
            f"Written by format {version}; this version reads 1.x. {where!r} was not read further, "
            "since its parts may mean something else now. Install a newer nonfinite-workbench."
        )
    if int(match[1]) < 1:
        raise BundleError(f"{where!r} has format {version}, which was never released. {_NOTHING}")
