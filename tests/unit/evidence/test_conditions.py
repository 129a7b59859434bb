import math

import msgspec
import pytest

from workbench.errors import UsageError
from workbench.evidence import Conditions, conditions_from, parse_setting
from workbench.evidence.conditions import SETTINGS

KEYS = (
    "device autocast autocast_cache dtype matmul_precision matmul_tf32 cudnn cudnn_tf32 "
    "cudnn_benchmark cudnn_deterministic deterministic fill_uninitialized_memory sdpa compile "
    "compile_dynamic anomaly scale max_grad_norm clip_before_unscale mode rng threads optimizer "
    "keep_samples float32_modules"
).split()


def test_the_keys_are_those_of_the_command_line():
    assert list(Conditions.__struct_fields__) == list(SETTINGS) == KEYS


def test_they_cannot_be_changed_in_place():
    with pytest.raises(AttributeError):
        Conditions().device = "cuda:0"


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("device=cuda:1", "cuda:1"),
        ("autocast=cuda-policy", "cuda-policy"),
        ("anomaly=on", True),
        ("cudnn=false", False),
        ("deterministic=warn", "warn"),
        ("deterministic=on", "on"),
        ("scale=1", 1.0),
        ("scale=none", None),
        ("max_grad_norm=inf", math.inf),
        ("max-grad-norm=0.5", 0.5),
        ("rng=7", 7),
        ("rng=recorded", "recorded"),
        ("threads=1", 1),
        ("keep_samples=all", None),
        ("keep_samples=3,0-2", (0, 1, 2, 3)),
        ("float32_modules=blocks.0.attn,head", ("blocks.0.attn", "head")),
        ("compile_dynamic=auto", "auto"),
    ],
)
def test_a_setting_is_read(text, value):
    key, parsed = parse_setting(text)
    assert parsed == value
    assert type(parsed) is type(value)
    assert getattr(Conditions().replace(**{key: text.split("=")[1]}), key) == value


@pytest.mark.parametrize(
    "text",
    [
        "autocast=fp16",
        "device=/dev/null",
        "device=cuda:0; rm",
        "anomaly=maybe",
        "scale=large",
        "threads=0",
        "threads=1.5",
        "rng=-1",
        "keep_samples=",
        "keep_samples=-1",
        "keep_samples=0-99999999",
        "float32_modules=a b",
        "optimizer=adam",
    ],
)
def test_an_illegal_value_is_refused_with_the_legal_ones(text):
    with pytest.raises(UsageError, match=r"Legal values: \S+"):
        parse_setting(text)


@pytest.mark.parametrize("text", ["autocst=off", "=off", "__class__=x"])
def test_an_unknown_key_is_refused_with_the_known_ones(text):
    with pytest.raises(UsageError, match=r"no condition.*autocast"):
        parse_setting(text)


def test_a_setting_needs_a_value():
    with pytest.raises(UsageError, match="key=value"):
        parse_setting("autocast")


def test_replace_takes_python_values_too():
    changed = Conditions().replace(anomaly=True, keep_samples=[2, 0], rng=3, deterministic=True)
    assert (changed.anomaly, changed.keep_samples, changed.rng) == (True, (0, 2), 3)
    assert changed.deterministic == "on"
    with pytest.raises(UsageError):
        Conditions().replace(threads=True)


def test_changes_are_what_differs_in_the_other():
    original = Conditions(scale=65536.0, threads=8)
    other = original.replace(autocast="float16", scale=1)
    assert original.changes(other) == {"autocast": "float16", "scale": 1.0}
    assert original.changes(original.replace()) == {}
    strange = Conditions(scale=math.nan)
    assert strange.changes(Conditions(scale=math.nan)) == {}


def test_they_survive_a_manifest():
    original = Conditions(
        device="cuda:3", scale=math.inf, keep_samples=(1, 5), float32_modules=("a.b",), rng=4
    )
    assert conditions_from(msgspec.to_builtins(original)) == original
    assert conditions_from({"a_later_setting": 1}) == Conditions()
