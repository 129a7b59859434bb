"""The conditions as switches: their choices here, and which of them can act.

This asks torch what the machine has, so it is read after the recorded facts are on screen, in a
process of its own where the kernel has no torch: ``python -m workbench.widgets.switches BUNDLE``.
"""

from __future__ import annotations

import sys
from dataclasses import asdict
from typing import Any

import torch

from workbench.errors import UsageError, WorkbenchError
from workbench.evidence import clean, environment, environment_differences, open_bundle
from workbench.evidence.conditions import SETTINGS
from workbench.numerics import jsonio
from workbench.replay.devices import devices_here, is_here, nearest
from workbench.replay.without_effect import Facts as EffectFacts
from workbench.replay.without_effect import without_effect
from workbench.widgets.state import Switch
from workbench.widgets.words import value_text

QUICK = {
    "autocast": "Autocast",
    "cudnn": "cuDNN",
    "deterministic": "Deterministic",
    "matmul_tf32": "TF32",
    "device": "Device",
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


def read_switches(bundle: Any) -> tuple[Switch, ...]:
    """Every condition of a bundle as a switch, the quick ones first."""
    return switches(bundle, _has_scaler(bundle))


def device_note(recorded: Any) -> str:
    """What a replay here differs in, when the recorded device is not here; else empty."""
    if is_here(recorded.device):
        return ""
    here = nearest(recorded)
    if here.autocast == "cuda-policy":
        return "Recorded on CUDA; replaying on CPU under CUDA's autocast rules. Kernels differ."
    return f"Recorded on {recorded.device}; replaying on {here.device}. Kernels differ."


def differing(bundle: Any) -> tuple[tuple[str, str, str], ...]:
    """Field, recorded value and value here of everything in which this machine differs."""
    try:
        recorded = bundle.environment()
    except WorkbenchError:
        return ()  # damaged; its section says so
    rows = environment_differences(recorded, environment()) if recorded else []
    return tuple((row["field"], _text(row["recorded"]), _text(row["here"])) for row in rows)


def _text(value: Any) -> str:
    """A field's value in short; the page may show it, so nothing long is sent."""
    return "not recorded" if value is None else clean(value, 200)


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


def _has_scaler(bundle: Any) -> bool:
    if bundle.has("state/scaler.json"):
        return True
    try:
        ledger = bundle.ledger()
    except WorkbenchError:
        return False  # damaged; the header says so
    return bool(ledger) and ledger[-1].get("loss_scale") is not None


def main() -> int:
    """Write the switches of the bundle that the command line names as one line of JSON."""
    bundle = open_bundle(sys.argv[1])
    found = [asdict(one) for one in read_switches(bundle)]
    note = device_note(bundle.conditions)
    said = {"switches": found, "note": note, "differing": differing(bundle)}
    sys.stdout.write(jsonio.dumps(said) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
