"""A self-contained script that repeats one op with its real inputs.

The script needs torch only: it reads the safetensors file beside it by itself, so that it can be
attached to an issue and run anywhere.
"""

from __future__ import annotations

import math
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from safetensors.torch import save_file

from workbench.errors import CannotRunError
from workbench.replay.trace_plan import plan_of

if TYPE_CHECKING:
    from workbench.replay.trace_events import KeptEvent

SCRIPT, TENSORS = "repro.py", "inputs.safetensors"
_CHECK_TIMEOUT_S = 120.0

_HEAD = '''"""{title}

Needs torch only. Prints how many elements of the result are NaN, +Inf and -Inf.
"""

import json
import pathlib
import struct

import torch

{extra}
def read(path):
    data = bytearray(path.read_bytes())
    (size,) = struct.unpack("<Q", data[:8])
    header = json.loads(data[8 : 8 + size])
    dtypes = {{
        "F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16,
        "I64": torch.int64, "I32": torch.int32, "I16": torch.int16, "I8": torch.int8,
        "U8": torch.uint8, "BOOL": torch.bool, "C64": torch.complex64,
        "F8_E4M3": torch.float8_e4m3fn, "F8_E5M2": torch.float8_e5m2,
    }}
    tensors = {{}}
    for name, entry in header.items():
        if name == "__metadata__":
            continue
        start, stop = entry["data_offsets"]
        raw = data[8 + size + start : 8 + size + stop]
        dtype = dtypes[entry["dtype"]]
        flat = torch.frombuffer(raw, dtype=dtype) if raw else torch.empty(0, dtype=dtype)
        tensors[name] = flat.reshape(entry["shape"]).clone()
    return tensors


inputs = read(pathlib.Path(__file__).with_name("inputs.safetensors"))
args = {args}
kwargs = {kwargs}
result = torch.ops.{op}(*args, **kwargs)
outputs = {outputs}
found = 0
for number, tensor in enumerate(outputs):
    if not isinstance(tensor, torch.Tensor) or not tensor.dtype.is_floating_point:
        continue
    nan, inf = tensor.isnan(), tensor.isinf()
    found += int(nan.sum()) + int(inf.sum())
    print(
        f"result {{number}}: {{tensor.numel()}} elements, {{int(nan.sum())}} NaN, "
        f"{{int((inf & (tensor > 0)).sum())}} +Inf, {{int((inf & (tensor < 0)).sum())}} -Inf"
    )
raise SystemExit(0 if found else "The result is finite here.")
'''


def write_repro(kept: KeptEvent, directory: Path, title: str) -> Path:
    """Write ``repro.py`` and ``inputs.safetensors`` for one kept event.

    Args:
        kept: The event with its real arguments.
        directory: Where the two files go; made if it is not there.
        title: First line of the script's docstring, plain text.

    Returns:
        The script.
    """
    tensors: dict[str, torch.Tensor] = {}
    args = ", ".join(_literal(value, tensors) for value in kept.args)
    kwargs = ", ".join(f"{name!r}: {_literal(v, tensors)}" for name, v in kept.kwargs.items())
    plan = plan_of(kept.func)
    outputs = "result if isinstance(result, (list, tuple)) else [result]"
    if plan.written:
        places = [i for i, name in enumerate(plan.arguments) if name in plan.written]
        flat = ", ".join(f"args[{i}]" for i in places if i < len(kept.args))
        outputs = f"[t for a in [{flat}] for t in (a if isinstance(a, list) else [a])]"
    safe_title = title.replace("\\", " ").replace('"""', "'''")
    text = _HEAD.format(
        title=safe_title,
        extra="",
        args=f"[{args}]",
        kwargs=f"{{{kwargs}}}",
        op=str(kept.func),
        outputs=outputs,
    )
    directory.mkdir(parents=True, exist_ok=True)
    save_file(tensors, directory / f".{TENSORS}.part")
    (directory / f".{TENSORS}.part").replace(directory / TENSORS)
    part = directory / f".{SCRIPT}.part"
    part.write_text(text, encoding="utf-8")
    return part.replace(directory / SCRIPT)


def check_repro(script: Path) -> tuple[bool, str]:
    """Run a script in a process of its own.

    Returns:
        Whether it printed a non-finite result, and what it printed.

    Raises:
        CannotRunError: It did not end in time.
    """
    try:
        done = subprocess.run(
            [sys.executable, "-I", str(script)],
            capture_output=True,
            text=True,
            timeout=_CHECK_TIMEOUT_S,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise CannotRunError(
            f"The script '{script}' did not end within {_CHECK_TIMEOUT_S:.0f} s, so it was not "
            "checked. Its inputs may be very large; run it by hand."
        ) from error
    return done.returncode == 0, (done.stdout + done.stderr).strip()


def _literal(value: Any, tensors: dict[str, torch.Tensor]) -> str:
    """One argument as Python source; tensors go into the file beside it."""
    if isinstance(value, torch.Tensor):
        name = f"t{len(tensors)}"
        tensors[name] = value.detach().contiguous().cpu().clone()
        return f'inputs["{name}"]'
    if isinstance(value, list | tuple):
        return f"[{', '.join(_literal(item, tensors) for item in value)}]"
    if isinstance(value, bool | int | str) or value is None:
        return repr(value)
    if isinstance(value, float):
        return repr(value) if math.isfinite(value) else f'float("{value}")'
    if isinstance(value, torch.dtype | torch.layout | torch.memory_format):
        return str(value)
    if isinstance(value, torch.device):
        return 'torch.device("cpu")'
    raise CannotRunError(
        f"The op has an argument of type '{type(value).__name__}', which a script cannot hold, so "
        "no repro was written. The bundle itself still replays the step."
    )
