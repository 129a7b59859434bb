import os
import socket

import torch

from workbench.evidence import environment, environment_differences
from workbench.numerics import jsonio


def test_it_holds_what_changes_bits():
    here = environment()
    assert here["packages"]["torch"] == torch.__version__
    assert here["threads"]["intra_op"] == torch.get_num_threads()
    assert here["cpu"]["capability"] == torch.backends.cpu.get_cpu_capability()
    assert here["flags"]["deterministic"] is False
    assert here["flags"]["flush_denormal"] is False


def test_it_is_json_and_holds_no_secret():
    os.environ["WORKBENCH_TEST_VARIABLE"] = "told-to-nobody"
    try:
        text = jsonio.dumps(environment())
    finally:
        del os.environ["WORKBENCH_TEST_VARIABLE"]
    assert jsonio.loads(text) == environment()
    assert "told-to-nobody" not in text
    assert f'"{socket.gethostname()}"' not in text


def test_asking_starts_no_accelerator():
    before = torch.cuda.is_initialized()
    environment()
    assert torch.cuda.is_initialized() == before


def test_the_same_process_does_not_differ():
    assert environment_differences(environment(), environment()) == []


def test_differences_are_named_by_field():
    here = environment()
    recorded = jsonio.loads(jsonio.dumps(here))
    recorded["threads"]["intra_op"] = 99
    recorded["devices"] = [{"name": "H100", "capability": "9.0"}]
    recorded["host"] = "another"
    del recorded["python"]
    found = {
        d["field"]: (d["recorded"], d["here"]) for d in environment_differences(recorded, here)
    }
    assert found == {
        "threads.intra_op": (99, torch.get_num_threads()),
        "devices.0.name": ("H100", None),
        "devices.0.capability": ("9.0", None),
        "python": (None, here["python"]),
    }


def test_a_flag_that_is_set_shows():
    before = environment()
    torch.use_deterministic_algorithms(True, warn_only=True)
    try:
        found = {d["field"] for d in environment_differences(before, environment())}
    finally:
        torch.use_deterministic_algorithms(False)
    assert found == {"flags.deterministic", "flags.deterministic_warn_only"}
