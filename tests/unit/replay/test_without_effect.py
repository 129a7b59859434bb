import pytest
import torch

from workbench.evidence.conditions import Conditions
from workbench.replay.without_effect import Facts, without_effect

CPU, GPU = torch.device("cpu"), torch.device("cuda", 0)
BEFORE = "No effect on the stage that failed: "


def asked(device=CPU, stage="loss", has_scaler=True, own_clip=False, failed=None, **changes):
    conditions = Conditions().replace(**changes)
    changed = Conditions().changes(conditions)
    facts = Facts(device=device, stage=stage, has_scaler=has_scaler, own_clip=own_clip)
    return without_effect(conditions, changed, facts, failed or {})


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"matmul_tf32": True}, "No effect on this device: TF32 needs a CUDA GPU."),
        ({"cudnn": False}, "No effect on this device: cuDNN needs a CUDA GPU."),
        ({"cudnn_tf32": False}, "No effect on this device: TF32 needs a CUDA GPU."),
        ({"cudnn_benchmark": True}, "No effect on this device: cuDNN needs a CUDA GPU."),
        (
            {"sdpa": "efficient"},
            "No effect on this device: the efficient attention kernel needs a CUDA GPU.",
        ),
        ({"autocast_cache": False}, "No effect: autocast is off."),
        (
            {"max_grad_norm": 1.0},
            BEFORE + "clipping happens after backward, and the failure is in loss.",
        ),
        (
            {"optimizer": "foreach"},
            BEFORE
            + "the optimizer runs after the gradients are known, and the failure is in loss.",
        ),
        ({"compile_dynamic": "on"}, "No effect: the model is not compiled."),
        (
            {"fill_uninitialized_memory": False},
            "No effect: uninitialised memory is filled only while deterministic is on or warn.",
        ),
        (
            {"float32_modules": ("a",), "dtype": "float32"},
            "No effect: the whole model already runs in float32.",
        ),
    ],
)
def test_the_reason_is_one_sentence(changes, why):
    key = next(iter(changes))
    assert {"key": key, "why": why} in asked(**changes)


@pytest.mark.parametrize(
    "changes",
    [{"threads": 1}, {"sdpa": "math"}, {"dtype": "float64"}, {"autocast": "off"}, {"mode": "eval"}],
)
def test_what_acts_on_a_cpu_is_not_listed(changes):
    assert asked(**changes) == []


def test_a_gpu_has_what_a_cpu_has_not():
    changes = {"matmul_tf32": True, "cudnn": False, "sdpa": "cudnn", "matmul_precision": "high"}
    assert asked(device=GPU, **changes) == []


@pytest.mark.parametrize("stage", ["clip", "update", None])
def test_a_threshold_can_act_from_clip_on(stage):
    assert asked(stage=stage, max_grad_norm=1.0) == []


def test_scaler_and_own_clip():
    assert asked(has_scaler=False, stage="backward", scale=4.0)[0]["why"].endswith(
        "no loss scaler."
    )
    assert asked(own_clip=True, stage="clip", max_grad_norm=1.0)[0]["why"].endswith("own way.")


def test_what_could_not_be_applied_says_why():
    found = asked(stage="update", optimizer="fused", failed={"optimizer": "SGD has none."})
    assert found == [{"key": "optimizer", "why": "SGD has none."}]
