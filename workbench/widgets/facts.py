"""What the panel knows before anything is replayed: recorded facts, read without running code."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from workbench.charts.words import counts as counts_words
from workbench.charts.words import number
from workbench.errors import UsageError
from workbench.evidence import summary_facts, summary_lines
from workbench.evidence.conditions import SETTINGS
from workbench.replay.devices import devices_here, is_here, nearest
from workbench.replay.without_effect import Facts as EffectFacts
from workbench.replay.without_effect import without_effect
from workbench.widgets.findings import split_line
from workbench.widgets.state import STAGE_NAMES, Counts, Facts, Line, StageView, Switch

QUICK = {
    "autocast": "Autocast",
    "cudnn": "cuDNN",
    "deterministic": "Deterministic",
    "matmul_tf32": "TF32",
    "device": "Device",
}
GOALS = {
    "forward_loss": ("input", "forward", "loss"),
    "backward": ("backward", "reduce", "unscale", "clip"),
    "update": ("update", "after_update", "logging"),
}
# Values that stand for "something else" where a condition has no short list of choices.
TRIALS: dict[str, tuple[Any, ...]] = {
    "scale": (1.0, 2.0),
    "max_grad_norm": (1.0, 2.0),
    "threads": (1, 2),
    "rng": (0,),
    "keep_samples": ((0,),),
    "float32_modules": (("",),),
}
# A switch that acts only beside another one is not without effect: the other can be set too.
BESIDE: dict[str, dict[str, Any]] = {
    "fill_uninitialized_memory": {"deterministic": "on"},
    "compile_dynamic": {"compile": "eager"},
    "autocast_cache": {"autocast": "bfloat16"},
}
LABELS = {"rng": "RNG", "sdpa": "SDPA", "cudnn_tf32": "cuDNN TF32"}


def read_facts(bundle: Any) -> Facts:
    """All recorded facts of a bundle.

    Args:
        bundle: An opened bundle; its manifest is read, and its ledger where there is one.
    """
    manifest, bad = bundle.manifest, bundle.first_bad
    reference = manifest.step_reference
    ledger = _ledger(bundle)
    said = summary_lines(summary_facts(bundle))
    return Facts(
        path=str(bundle.path),
        name=Path(bundle.path).name,
        digest=bundle.digest,
        title=_title(manifest, bundle.conditions),
        headline=headline(said[0]),
        caught_at=caught_at(bad),
        lines=tuple(Line(*split_line(text)) for text in said[1:]),
        kind=manifest.kind,
        stage=bad.stage if bad is not None else "",
        tensor=bad.tensor if bad is not None else "",
        step_reference=reference.reference,
        sealed=manifest.sealed,
        seconds=_step_seconds(ledger),
        missing=_missing(bundle.completeness),
        switches=switches(bundle, _has_scaler(ledger, bundle)),
        stages=_recorded_stages(bundle),
        device_note=_device_note(bundle.conditions),
    )


def value_text(value: Any) -> str:
    """A condition's value as it is shown and typed."""
    if value is None:
        return "none"
    if isinstance(value, bool):
        return "on" if value else "off"
    if isinstance(value, tuple):
        return ",".join(str(one) for one in value)
    if isinstance(value, float):
        return f"{value:g}"
    return str(value)


def switches(bundle: Any, has_scaler: bool) -> tuple[Switch, ...]:
    """Every condition as a switch, the quick ones first.

    Args:
        bundle: The opened bundle.
        has_scaler: Whether the step has an enabled loss scaler.
    """
    start = nearest(bundle.conditions)
    facts = EffectFacts(
        device=torch.device(start.device),
        stage=None if bundle.first_bad is None else bundle.first_bad.stage,
        has_scaler=has_scaler,
        own_clip=False,
    )
    rest = [key for key in SETTINGS if key not in QUICK]
    return tuple(_switch(bundle.conditions, start, key, facts) for key in (*QUICK, *rest))


def _switch(recorded: Any, start: Any, key: str, facts: EffectFacts) -> Switch:
    value = value_text(getattr(recorded, key))
    choices = list(SETTINGS[key].choices)
    why = ""
    if key == "device":
        choices = devices_here()
        why = "" if len(choices) > 1 or not is_here(value) else "Only the CPU is here."
    elif key != "autocast":
        why = _why_not(start, key, facts)
    if choices and value not in choices:
        choices.insert(0, value)
    label = QUICK.get(key) or LABELS.get(key) or key.replace("_", " ").capitalize()
    label = label.replace("Cudnn", "cuDNN")
    return Switch(key, label, value, tuple(choices), key in QUICK, why)


def _why_not(start: Any, key: str, facts: EffectFacts) -> str:
    """Why no value of a condition can act here; empty when one can."""
    now = getattr(start, key)
    trials = TRIALS.get(key) or SETTINGS[key].choices
    others = [one for one in trials if value_text(one) != value_text(now)]
    why = ""
    for other in others:
        try:
            wanted = start.replace(**{key: other, **BESIDE.get(key, {})})
        except UsageError:
            continue
        found = without_effect(wanted, {key: other}, facts, {})
        if not found:
            return ""
        why = found[0]["why"]
    return why


def headline(line: str) -> str:
    """The first sentence of the summary: no glyph, and *caught at* is shown apart."""
    return line.lstrip("✕!·").strip().partition(" Caught at ")[0]


def caught_at(bad: Any) -> str:
    """The gate that tripped: stage, tensor and counts."""
    if bad is None:
        return "no gate"
    stage = bad.stage.replace("_", " ")
    found = counts_words(bad.counts) if bad.counts else ""
    tensor = "" if bad.tensor == bad.stage else f", {bad.tensor}"
    return f"{stage}{tensor}" + (f" ({found})" if found else "")


def _title(manifest: Any, conditions: Any) -> str:
    bad = manifest.first_bad
    pieces = [
        str(manifest.run_id),
        f"step {number(manifest.step)}",
        f"micro-step {bad.micro_step if bad is not None else 0}",
        f"rank {manifest.rank}" + (f" of {manifest.world}" if manifest.world > 1 else ""),
    ]
    if conditions.autocast != "off":
        pieces.append(f"{conditions.autocast} autocast")
    pieces += [conditions.device, manifest.fingerprint]
    if not manifest.sealed:
        pieces.append("not sealed: writing was cut short")
    return " · ".join(piece for piece in pieces if piece)


def _missing(completeness: Mapping[str, str]) -> tuple[tuple[str, str], ...]:
    """Stages that cannot be replayed, with the reason; what one goal lacks, later ones lack too."""
    found: list[tuple[str, str]] = []
    why = ""
    for goal, stages in GOALS.items():
        said = completeness.get(goal, "complete")
        if not why and said != "complete":
            why = f"The bundle: {said}"
        if why:
            found += [(stage, why if why.endswith(".") else why + ".") for stage in stages]
    return tuple(found)


def _recorded_stages(bundle: Any) -> tuple[StageView, ...]:
    """The rail before any replay: what the gates of the recorded step said."""
    bad = bundle.first_bad
    missing = dict(_missing(bundle.completeness))
    at = STAGE_NAMES.index(bad.stage) if bad is not None and bad.stage in STAGE_NAMES else -1
    views = []
    for place, name in enumerate(STAGE_NAMES):
        if place == at:
            counts = Counts(**{k: int(bad.counts.get(k, 0)) for k in Counts.__dataclass_fields__})
            status = "alert" if bundle.kind == "alert" else "bad"
            known = counts if counts.total else None
            views.append(StageView(name, status, bad.tensor, known, bad.message))  # type: ignore[arg-type]
        elif place < at:
            views.append(
                StageView(name, sentence="Not replayed. In the record no gate tripped here.")
            )
        elif name in missing:
            views.append(StageView(name, "unavailable", reason=missing[name]))
        else:
            views.append(StageView(name))
    return tuple(views)


def _ledger(bundle: Any) -> list[dict[str, Any]]:
    return list(bundle.ledger()) if bundle.has("ledger.jsonl") else []


def _has_scaler(ledger: list[dict[str, Any]], bundle: Any) -> bool:
    if bundle.has("state/scaler.json"):
        return True
    return bool(ledger) and ledger[-1].get("loss_scale") is not None


def _step_seconds(ledger: list[dict[str, Any]]) -> float | None:
    """Time between the last two records: about what one step took."""
    times = [record.get("time") for record in ledger[-2:]]
    if len(times) == 2 and all(isinstance(one, int | float) for one in times):
        spent = float(times[1]) - float(times[0])  # type: ignore[arg-type]
        return spent if 0 <= spent < 3600 else None
    return None


def _device_note(recorded: Any) -> str:
    if is_here(recorded.device):
        return ""
    here = nearest(recorded)
    if here.autocast == "cuda-policy":
        return "Recorded on CUDA; replaying on CPU under CUDA's autocast rules. Kernels differ."
    return f"Recorded on {recorded.device}; replaying on {here.device}. Kernels differ."
