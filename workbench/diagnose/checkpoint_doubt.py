"""What a diagnosis says against the checkpoints saved after an incident.

An anomaly that is there in float32 or bfloat16 too is no artefact of float16 and its loss scale: it
is in the parameters, the data or the code, and what was saved after it may carry it. One that
cannot be reproduced is not understood. Either keeps such checkpoints out of training until a
person releases them; an overflow of float16 alone does not.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from workbench.errors import WorkbenchError
from workbench.replay import Replay

if TYPE_CHECKING:
    from workbench.diagnose.findings import Findings
    from workbench.evidence import Bundle

_WIDER = ("off", "bfloat16")


@dataclass(frozen=True)
class Doubt:
    """Whether checkpoints saved after an incident are to be quarantined.

    Attributes:
        reason: Why they are; None when nothing speaks against them, or nothing is known.
        sentence: What was found, for the person who asked.
    """

    reason: str | None
    sentence: str


def doubt_of(
    bundle: Bundle,
    findings: Findings,
    step: Any = None,
    trust: str | None = None,
    progress: Callable[[str], None] | None = None,
) -> Doubt:
    """Judge by a diagnosis, and by replays in float32 and bfloat16 where it ran in float16.

    Args:
        bundle: The bundle.
        findings: Its diagnosis; without a replay nothing is concluded.
        step: Code of the step, as for ``diagnose``.
        trust: ``import``, ``source`` or None.
        progress: Told what is being done.
    """
    if bundle.kind != "nonfinite" or bundle.first_bad is None:
        return Doubt(None, f"The incident is of kind {bundle.kind!r}: nothing was non-finite.")
    if not findings.replayed:
        return Doubt(None, "Nothing was replayed, so nothing is known against any checkpoint.")
    said = findings.data.get("reproduction") or {}
    where = f"step {bundle.first_bad.step}, {bundle.first_bad.stage}"
    verdict = str(said.get("verdict"))
    if verdict == "not_reproduced":
        return Doubt(f"the anomaly of {where} cannot be reproduced", "It was not reproduced.")
    if verdict == "unverifiable":
        return Doubt(None, "The replay could not be compared with the record.")
    if bundle.conditions.autocast != "float16":
        kind = {"off": "float32"}.get(bundle.conditions.autocast, bundle.conditions.autocast)
        return _persists(kind, where)
    replay = Replay(bundle, step, trust)
    for autocast in _WIDER:
        kind = "float32" if autocast == "off" else autocast
        if progress is not None:
            progress(f"Replaying in {kind}")
        try:
            result = replay.run(conditions=replay.nearest.replace(autocast=autocast))
        except WorkbenchError as error:
            return Doubt(None, f"It cannot be replayed in {kind}: {error}")
        if result.first_bad is not None:
            return _persists(kind, where)
    return Doubt(None, "It is finite in float32 and in bfloat16: an overflow of float16 alone.")


def _persists(kind: str, where: str) -> Doubt:
    return Doubt(
        f"the anomaly of {where} persists in a {kind} replay", f"It persists in a {kind} replay."
    )
