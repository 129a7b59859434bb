"""From a bundle to findings: replay twice without probes, trace, slice, judge, write down."""

from __future__ import annotations

from collections.abc import Callable, Collection
from pathlib import Path
from typing import TYPE_CHECKING, Any

from workbench.diagnose.across import made_elsewhere
from workbench.diagnose.alerts import recorded_envelope, replayed_envelope
from workbench.diagnose.analysis import Analysis, analyse
from workbench.diagnose.anomaly import anomaly_finding
from workbench.diagnose.counterfactuals import run_counterfactuals
from workbench.diagnose.document import build
from workbench.diagnose.findings import Findings
from workbench.diagnose.growth import first_left, look_back
from workbench.diagnose.skips import skipped, without_scale
from workbench.errors import CannotRunError, UsageError
from workbench.evidence import Bundle, open_bundle
from workbench.replay import Replay

if TYPE_CHECKING:
    from workbench.replay.trace import Trace
    from workbench.replay.trace_kept import KeptPass

Progress = Callable[[str], None]
"""Called with a sentence as each part begins."""


_ELSEWHERE = (
    "This rank's own part of the step was finite, so no op in it was looked at: what ended the "
    "step was on another rank."
)


def diagnose(
    bundle: Bundle | str | Path,
    step: Any = None,
    trust: str | None = None,
    require: str | None = None,
    progress: Progress | None = None,
    counterfactuals: bool = True,
    anomaly: bool = False,
) -> Findings:
    """Name the op where the bad value was born on its way to what broke, and why.

    Args:
        bundle: A bundle or its path.
        step: The training step to replay: an object, a class, or ``module:Name``/``file.py:Name``.
        trust: ``"import"`` or ``"source"``: what code named by the bundle may run.
        require: ``"replay"`` makes a missing replay an error instead of a limit.
        progress: Called with a sentence as each part begins.
        counterfactuals: Whether to test the cause by changed replays.
        anomaly: Whether to ask autograd's anomaly mode too, in one more replay.

    Returns:
        Findings. Without code they hold what the record supports and say what needs a replay.

    Raises:
        BundleError: The bundle is damaged or hostile.
        CannotRunError: A replay is required and cannot be run here.
    """
    if require not in (None, "replay"):
        raise UsageError(
            f"The requirement '{require}' is not known, so nothing was run. Use 'replay', or leave "
            "it out to get what the record supports."
        )
    opened = bundle if isinstance(bundle, Bundle) else open_bundle(bundle)
    say = progress or (lambda sentence: None)
    try:
        replay = Replay(opened, step=step, trust=trust)
        say("Replaying twice without probes")
        replay.verdict()
    except CannotRunError as error:
        if require == "replay":
            raise
        envelope = recorded_envelope(opened) if opened.kind == "alert" else None
        return build(opened, None, None, [f"Needs replay: {error}"], envelope)
    return diagnose_replay(opened, replay, say, counterfactuals=counterfactuals, anomaly=anomaly)


def diagnose_replay(
    bundle: Bundle,
    replay: Replay,
    progress: Progress,
    *,
    counterfactuals: bool = True,
    anomaly: bool = False,
) -> Findings:
    """Diagnose with a replay that is already open; its live session is left alone.

    Args:
        bundle: The bundle the replay is of.
        replay: The replay.
        progress: Called with a sentence as each part begins.
        counterfactuals: Whether to test the cause by changed replays.
        anomaly: Whether to ask autograd's anomaly mode too, in one more replay.
    """
    original = replay.nearest
    missing = replay.source.unavailable()
    if bundle.manifest.world > 1 and "input" in missing:
        return build(bundle, replay.verdict(), None, [f"Not replayed: {missing['input']}."])
    if made_elsewhere(bundle):
        return build(bundle, replay.verdict(), None, [_ELSEWHERE], None, replay)
    progress("Tracing every op")
    trace = replay.trace(conditions=original)
    reproduction = replay.verdict(trace)

    def again(keep: Collection[int]) -> KeptPass:
        progress("Looking at the operands of what matters")
        return replay.kept(keep, conditions=original)

    raises = bundle.first_bad is not None and bundle.first_bad.sink == "exception"
    analysis: Analysis = analyse(trace, again, raises=raises)
    progress("Looking back over the kept steps")
    analysis.growth = look_back(bundle, replay, analysis)
    analysis.left = first_left(bundle, replay, analysis)
    if counterfactuals:
        analysis.counterfactuals = run_counterfactuals(replay, analysis, progress)
    if skipped(trace) and not analysis.origins and not analysis.counterfactuals:
        progress("Replaying without the loss scale")
        analysis = _without_scale(replay, analysis, progress)
    envelope = None
    if bundle.kind == "alert" and not analysis.origins:
        envelope = replayed_envelope(bundle, replay, trace, progress)
    progress("Writing the findings")
    limits = _limits(replay, trace, raises)
    findings = build(bundle, reproduction, analysis, limits, envelope, replay)
    if anomaly:
        progress("Asking anomaly mode")
        findings.data["anomaly"] = anomaly_finding(replay, findings.origins)
    return findings


def _without_scale(replay: Replay, analysis: Analysis, progress: Progress) -> Analysis:
    """A skipped step: benign when it is finite without the scale, else that is what to explain."""
    row, bad = without_scale(replay)
    if row is None:
        return analysis
    if bad is not None:
        conditions = replay.nearest.replace(scale=1.0)
        progress("Tracing the step without the loss scale")
        trace = replay.trace(conditions=conditions, exponents=False)
        trace.sinks = trace.sinks or trace.skips
        analysis = analyse(trace, lambda keep: replay.kept(keep, conditions=conditions))
    analysis.counterfactuals = [row]
    return analysis


def _limits(replay: Replay, trace: Trace, raises: bool) -> list[str]:
    limits = ["Steps after this one and other seeds were not run."]
    if trace.raised is not None and not raises:
        limits.append(
            f"The traced replay raised {trace.raised.type} ({trace.raised.message}), which the "
            "step does not do without probes: the trace ends there, and so does what follows."
        )
    missing = replay.source.unavailable()
    limits += [f"Stage {stage}: not available. {why}" for stage, why in missing.items()]
    return limits
