import random
import warnings

import pytest
import torch

from workbench.evidence.conditions import Conditions
from workbench.replay.devices import redirection
from workbench.replay.redirect import redirected
from workbench.replay.settings import applied, attention_available, read_back, runs_eagerly

CPU = torch.device("cpu")


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("threads", 1),
        ("matmul_precision", "high"),
        ("matmul_precision", "medium"),
        ("cudnn", False),
        ("cudnn_tf32", False),
        ("cudnn_benchmark", True),
        ("cudnn_deterministic", True),
        ("deterministic", "on"),
        ("deterministic", "warn"),
        ("fill_uninitialized_memory", False),
        ("sdpa", "math"),
        ("sdpa", "flash"),
        ("anomaly", True),
        ("autocast_cache", False),
    ],
)
def test_a_setting_is_applied_read_back_and_put_back(key, value):
    before = read_back(CPU)
    with applied(Conditions().replace(**{key: value})) as read:
        assert read()[key] == value
    assert read_back(CPU) == before


def test_settings_are_put_back_after_an_exception():
    before = read_back(CPU)
    conditions = Conditions().replace(threads=1, deterministic="on", anomaly=True, sdpa="math")
    with pytest.raises(ZeroDivisionError), applied(conditions):
        raise ZeroDivisionError
    assert read_back(CPU) == before


def test_random_numbers_inside_do_not_move_those_outside():
    state = random.getstate(), torch.get_rng_state()
    with applied(Conditions()):
        torch.rand(3)
        random.random()
    assert random.getstate() == state[0]
    assert torch.equal(torch.get_rng_state(), state[1])


def test_an_attention_kernel_of_a_gpu_is_not_forced_on_a_cpu():
    assert not attention_available("efficient", CPU)
    q = torch.zeros(1, 1, 2, 4)
    with applied(Conditions().replace(sdpa="efficient")) as read:
        torch.nn.functional.scaled_dot_product_attention(q, q, q)  # would find no kernel
        assert read()["sdpa"] == "auto"


def test_compiled_code_runs_eagerly_where_it_was_switched_off_or_is_traced():
    torch.compiler.set_stance("default")  # loads dynamo
    compiled = Conditions().replace(compile="inductor")
    with applied(Conditions(), compiled):
        assert runs_eagerly()
    with applied(compiled, compiled, traced=True):
        assert runs_eagerly()
    with applied(compiled, compiled):
        assert not runs_eagerly()
    with applied(Conditions(), Conditions()):  # only the model was not compiled
        assert not runs_eagerly()
    assert not runs_eagerly()


@pytest.mark.parametrize(("recorded", "wanted"), [(True, False), (False, True)])
def test_the_cache_of_casts_is_switched(recorded, wanted):
    original = Conditions().replace(autocast="bfloat16", autocast_cache=recorded)
    changed = original.replace(autocast_cache=wanted)
    region = {"cache_enabled": recorded}
    with applied(changed, original), torch.autocast("cpu", **region):
        assert torch.is_autocast_cache_enabled() is wanted


def test_autocast_off_reaches_regions_that_user_code_opens():
    recorded = Conditions().replace(autocast="bfloat16")
    off = applied(recorded.replace(autocast="off"), recorded)
    with off, torch.autocast("cpu", dtype=torch.bfloat16):
        assert not torch.is_autocast_enabled("cpu")
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert torch.is_autocast_enabled("cpu")


def test_the_autocast_dtype_is_exchanged_and_disabled_islands_stay_disabled():
    recorded = Conditions().replace(autocast="bfloat16")
    # autocast is constructed inside: what is redirected is its constructor
    with applied(recorded.replace(autocast="float16"), recorded), torch.autocast("cpu"):
        assert torch.get_autocast_dtype("cpu") == torch.float16
        with torch.autocast("cpu", enabled=False):
            assert not torch.is_autocast_enabled("cpu")


def test_original_conditions_redirect_nothing():
    conditions = Conditions().replace(autocast="bfloat16")
    assert redirection(conditions, conditions) is None


def test_cuda_regions_and_scalers_come_to_the_cpu():
    recorded = Conditions(device="cuda:0", autocast="float16")
    here = Conditions(device="cpu", autocast="cuda-policy")
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # torch warns when it switches CUDA autocast off
        with redirected(redirection(here, recorded)):
            with torch.autocast("cuda"):
                assert torch.is_autocast_enabled("cpu")
                assert torch.get_autocast_dtype("cpu") == torch.float16  # CUDA's own default
            assert torch.amp.GradScaler("cuda").is_enabled()
