"""Conditions: every setting of a step that a replay can change."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

import msgspec

from workbench.errors import UsageError

_DEVICE: Final = re.compile(r"[a-z]{2,20}(:[0-9]{1,4})?")
_MODULE: Final = re.compile(r"[A-Za-z0-9_.]*")
_RANGE: Final = re.compile(r"([0-9]{1,9})-([0-9]{1,9})")
_MAX_SAMPLES: Final = 1_000_000


class Conditions(msgspec.Struct, frozen=True, kw_only=True):
    """The settings one run of a step has.

    Those of a bundle are the *original* ones; every other set is *diagnostic*.

    Attributes:
        device: ``"cpu"``, ``"cuda:0"``, …
        autocast: ``"off"``, ``"float16"``, ``"bfloat16"``, or ``"cuda-policy"``: CUDA's autocast
            rules carried out on another device.
        autocast_cache: Whether autocast keeps casts of parameters within a forward.
        dtype: ``"recorded"``, or the dtype that parameters and float inputs are cast to.
        matmul_precision: ``"highest"``, ``"high"`` or ``"medium"``.
        matmul_tf32: TF32 in CUDA matrix products.
        cudnn: cuDNN on or off.
        cudnn_tf32: TF32 in cuDNN.
        cudnn_benchmark: cuDNN picks kernels by timing.
        cudnn_deterministic: cuDNN picks deterministic kernels.
        deterministic: Deterministic algorithms: ``"off"``, ``"warn"`` or ``"on"``.
        fill_uninitialized_memory: ``empty`` and its like are filled (with deterministic ``"on"``).
        sdpa: Kernel of scaled dot product attention.
        compile: ``"off"`` or the backend of ``torch.compile``; ``"other"`` is recorded for a
            backend of the user's own.
        compile_dynamic: ``"auto"``, ``"on"`` or ``"off"``.
        anomaly: Autograd's anomaly mode.
        scale: Loss scale, or None without a scaler.
        max_grad_norm: Clip threshold, or None without clipping.
        clip_before_unscale: The order of the two exchanged: a loop that clips scaled gradients
            unscales them first.
        mode: ``"recorded"``, ``"train"`` or ``"eval"``; ``"eval:encoder+head.norm"`` sets those
            modules alone, with what is inside them.
        rng: ``"recorded"``, or a seed set before the step.
        threads: Intra-op threads on the CPU, or None where not recorded.
        optimizer: ``"recorded"`` or the implementation.
        keep_samples: Indices of the samples of each micro-batch that are kept; None for all.
        float32_modules: Module paths that run in float32, outside autocast.
    """

    device: str = "cpu"
    autocast: str = "off"
    autocast_cache: bool = True
    dtype: str = "recorded"
    matmul_precision: str = "highest"
    matmul_tf32: bool = False
    cudnn: bool = True
    cudnn_tf32: bool = True
    cudnn_benchmark: bool = False
    cudnn_deterministic: bool = False
    deterministic: str = "off"
    fill_uninitialized_memory: bool = True
    sdpa: str = "auto"
    compile: str = "off"
    compile_dynamic: str = "auto"
    anomaly: bool = False
    scale: float | None = None
    max_grad_norm: float | None = None
    clip_before_unscale: bool = False
    mode: str = "recorded"
    rng: str | int = "recorded"
    threads: int | None = None
    optimizer: str = "recorded"
    keep_samples: tuple[int, ...] | None = None
    float32_modules: tuple[str, ...] = ()

    def replace(self, **changes: Any) -> Conditions:
        """The same conditions with some changed.

        Args:
            **changes: Values by name; texts as on the command line are understood too.

        Raises:
            UsageError: Unknown name, or a value that is not legal; the message lists what is.
        """
        checked = {key: _setting(key).check(key, value) for key, value in changes.items()}
        return msgspec.structs.replace(self, **checked)

    def changes(self, other: Conditions) -> dict[str, Any]:
        """What differs in ``other``, as ``{name: value in other}``, in the order of the fields."""
        return {
            name: getattr(other, name)
            for name in self.__struct_fields__
            if not _same(getattr(self, name), getattr(other, name))
        }

    def as_dict(self) -> dict[str, Any]:
        """All settings by name, tuples as lists."""
        plain: dict[str, Any] = msgspec.to_builtins(self)
        return plain


def conditions_from(values: Mapping[str, Any]) -> Conditions:
    """Conditions from plain values, for example those of a manifest; unknown names are dropped.

    Raises:
        UsageError: A value that is not legal for its name.
    """
    known = {key: value for key, value in values.items() if key in SETTINGS}
    return Conditions().replace(**known)


def parse_setting(text: str) -> tuple[str, Any]:
    """``key=value`` as on the command line.

    Raises:
        UsageError: No ``=``, an unknown key, or a value that is not legal for it.
    """
    key, sign, value = text.partition("=")
    key = key.strip().replace("-", "_")
    if not sign:
        raise UsageError(
            f"{text[:80]!r} is not a setting. Settings are written key=value, for example "
            f"autocast=off. The keys are: {', '.join(SETTINGS)}."
        )
    return key, _setting(key).check(key, value.strip())


@dataclass(frozen=True, slots=True)
class Setting:
    """How one condition is checked.

    Attributes:
        legal: The legal values in words.
        parse: Turns a value or its text into the stored value; raises ValueError if it is illegal.
        choices: The legal values, where there are few.
    """

    legal: str
    parse: Callable[[Any], Any]
    choices: tuple[str, ...] = ()

    def check(self, key: str, value: Any) -> Any:
        """The stored value.

        Raises:
            UsageError: The value is not legal.
        """
        try:
            return self.parse(value)
        except (ValueError, TypeError, OverflowError) as error:
            raise UsageError(
                f"The condition {key!r} cannot be {str(value)[:80]!r}. Legal values: {self.legal}."
            ) from error


def _same(a: Any, b: Any) -> bool:
    both_nan = isinstance(a, float) and isinstance(b, float) and math.isnan(a) and math.isnan(b)
    return both_nan or (a == b and isinstance(a, bool) == isinstance(b, bool))


def _setting(key: str) -> Setting:
    if key not in SETTINGS:
        raise UsageError(
            f"There is no condition {key[:80]!r}, and a replay under a setting that does not exist "
            f"would be a replay of something else. The conditions are: {', '.join(SETTINGS)}."
        )
    return SETTINGS[key]


_TRUE: Final = frozenset({"on", "true", "yes", "1"})
_FALSE: Final = frozenset({"off", "false", "no", "0"})
_NONE: Final = frozenset({"none", "off"})


def _parse_switch(value: Any) -> bool:
    if isinstance(value, bool):
        return value
    text = str(value).lower()
    if isinstance(value, str) and text in _TRUE | _FALSE:
        return text in _TRUE
    raise ValueError(value)


def _switch() -> Setting:
    return Setting("on, off", _parse_switch, ("on", "off"))


def _choice(*choices: str) -> Setting:
    def parse(value: Any) -> str:
        if isinstance(value, bool):
            value = "on" if value else "off"
        if value is None and "off" in choices:
            value = "off"
        if not isinstance(value, str) or value not in choices:
            raise ValueError(value)
        return value

    return Setting(", ".join(choices), parse, choices)


def _compile_setting() -> Setting:
    known = _choice("off", "eager", "aot_eager", "aot_eager_decomp_partition", "inductor")

    def parse(value: Any) -> str:
        # a record may hold it; no replay can be changed to it
        return "other" if value == "other" else str(known.parse(value))

    return Setting(known.legal, parse, known.choices)


def _mode_setting() -> Setting:
    known = _choice("recorded", "train", "eval")

    def parse(value: Any) -> str:
        word, colon, paths = str(value).partition(":")
        if not colon:
            return str(known.parse(value))
        if word not in ("train", "eval") or not paths or not all(paths.split("+")):
            raise ValueError(value)
        if not all(_MODULE.fullmatch(path) for path in paths.split("+")):
            raise ValueError(value)
        return f"{word}:{paths}"

    return Setting(f"{known.legal}, or eval:MODULE+MODULE for some", parse, known.choices)


def _parse_device(value: Any) -> str:
    text = str(value)
    if not _DEVICE.fullmatch(text):
        raise ValueError(value)
    return text


def _parse_number(value: Any) -> float | None:
    if value is None or (isinstance(value, str) and value.lower() in _NONE):
        return None
    if isinstance(value, bool):
        raise TypeError(value)
    return float(value)


def _parse_threads(value: Any) -> int | None:
    if value is None or (isinstance(value, str) and value.lower() == "none"):
        return None
    number = _integer(value)
    if not 1 <= number <= 4096:
        raise ValueError(value)
    return number


def _integer(value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int | str):
        raise TypeError(value)
    return int(value)


def _parse_rng(value: Any) -> str | int:
    if value == "recorded":
        return "recorded"
    seed = _integer(value)
    if not 0 <= seed < 2**63:
        raise ValueError(value)
    return seed


def _parse_samples(value: Any) -> tuple[int, ...] | None:
    if value is None or value == "all":
        return None
    if not isinstance(value, str):
        kept = [_integer(item) for item in value]
    else:
        kept = []
        for part in filter(None, (piece.strip() for piece in value.split(","))):
            bounds = _RANGE.fullmatch(part)
            if bounds is None:
                kept.append(_integer(part))
                continue
            low, high = int(bounds[1]), int(bounds[2])
            if high - low >= _MAX_SAMPLES:
                raise ValueError(part)
            kept += range(low, high + 1)
    if not kept or min(kept) < 0 or len(kept) > _MAX_SAMPLES:
        raise ValueError(value)
    return tuple(sorted(set(kept)))


def _parse_modules(value: Any) -> tuple[str, ...]:
    if value is None:
        return ()
    names = value.split(",") if isinstance(value, str) else list(value)
    if not all(isinstance(name, str) for name in names):
        raise ValueError(value)
    paths = tuple(name.strip() for name in names if name.strip() != "" or name == "")
    if not all(_MODULE.fullmatch(name) for name in paths):
        raise ValueError(value)
    return () if isinstance(value, str) and value in {"", "none"} else paths


SETTINGS: Final[dict[str, Setting]] = {
    "device": Setting('"cpu", "cuda", "cuda:0", …', _parse_device),
    "autocast": _choice("off", "float16", "bfloat16", "cuda-policy"),
    "autocast_cache": _switch(),
    "dtype": _choice("recorded", "float64", "float32", "bfloat16", "float16"),
    "matmul_precision": _choice("highest", "high", "medium"),
    "matmul_tf32": _switch(),
    "cudnn": _switch(),
    "cudnn_tf32": _switch(),
    "cudnn_benchmark": _switch(),
    "cudnn_deterministic": _switch(),
    "deterministic": _choice("off", "warn", "on"),
    "fill_uninitialized_memory": _switch(),
    "sdpa": _choice("auto", "math", "flash", "efficient", "cudnn"),
    "compile": _compile_setting(),
    "compile_dynamic": _choice("auto", "on", "off"),
    "anomaly": _switch(),
    "scale": Setting('a number, or "none" for no loss scale', _parse_number),
    "max_grad_norm": Setting('a number, or "none" for no clipping', _parse_number),
    "clip_before_unscale": _switch(),
    "mode": _mode_setting(),
    "rng": Setting('"recorded", or a seed from 0 to 2**63 - 1', _parse_rng),
    "threads": Setting("a whole number from 1 to 4096", _parse_threads),
    "optimizer": _choice("recorded", "for_loop", "foreach", "fused"),
    "keep_samples": Setting('"all", or sample indices such as 0,2,5-7', _parse_samples),
    "float32_modules": Setting("module paths, separated by commas", _parse_modules),
}
