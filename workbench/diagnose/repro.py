"""A self-contained script for a computation: torch only, and one safetensors file beside it.

The script reads that file by itself, so that it can be attached to an issue and run anywhere.
"""

from __future__ import annotations

import math
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from workbench.diagnose.computation import Call, Computation, Ref
from workbench.errors import CannotRunError

SCRIPT, TENSORS = "repro.py", "inputs.safetensors"
_RNG = "rng"
_CHECK_TIMEOUT_S = 600.0

_READ = '''import json
import pathlib
import struct

import torch

DTYPES = {
    "F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16,
    "I64": torch.int64, "I32": torch.int32, "I16": torch.int16, "I8": torch.int8,
    "U8": torch.uint8, "BOOL": torch.bool,
    "F8_E4M3": torch.float8_e4m3fn, "F8_E5M2": torch.float8_e5m2,
}


def read(path):
    """Read a safetensors file."""
    data = bytearray(path.read_bytes())
    (size,) = struct.unpack("<Q", data[:8])
    tensors = {}
    for name, entry in json.loads(data[8 : 8 + size]).items():
        if name == "__metadata__":
            continue
        start, stop = entry["data_offsets"]
        raw = data[8 + size + start : 8 + size + stop]
        dtype = DTYPES[entry["dtype"]]
        flat = torch.frombuffer(raw, dtype=dtype) if raw else torch.empty(0, dtype=dtype)
        tensors[name] = flat.reshape(entry["shape"]).clone()
    return tensors


def show(name, value):
    """Print how many elements are NaN, +Inf and -Inf; return whether any is."""
    if isinstance(value, (list, tuple)):
        return any([show(f"{name}[{i}]", item) for i, item in enumerate(value)])
    if not isinstance(value, torch.Tensor):
        return False
    value = value.detach()
    if value.is_complex():
        value = torch.view_as_real(value.resolve_conj())
    if not value.is_floating_point():
        return False
    value = value.double()
    counts = [int(value.isnan().sum()), int((value == float("inf")).sum())]
    counts.append(int((value == float("-inf")).sum()))
    words = [f"{count} {kind}" for count, kind in zip(counts, ("NaN", "+Inf", "-Inf")) if count]
    few = f": {value.flatten().tolist()}" if value.numel() <= 4 else ""
    elements = "1 element" if value.numel() == 1 else f"{value.numel()} elements"
    print(f"{name}: {elements}, {', '.join(words) or 'all finite'}{few}")
    return any(counts)


t = read(pathlib.Path(__file__).with_name("inputs.safetensors"))
'''


def write_repro(computation: Computation, directory: Path, title: str) -> Path:
    """Write ``repro.py`` and ``inputs.safetensors``.

    Args:
        computation: What the script runs.
        directory: Where the two files go; made if it is not there.
        title: First line of the script's docstring, plain text.

    Returns:
        The script.
    """
    tensors, layout = _stored(computation)
    safe = title.replace("\\", " ").replace('"""', "'''")
    text = (
        f'"""{safe}\n\nNeeds torch only; made by `workbench minimize`.\n"""\n\n{_READ}'
        + "\n".join([*layout, *_body(computation)])
        + "\n"
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
        Whether it printed a non-finite result (or the exception), and what it printed.

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
    printed = done.stdout if done.returncode == 0 else done.stdout + done.stderr
    return done.returncode == 0, printed.strip()


def _stored(computation: Computation) -> tuple[dict[str, torch.Tensor], list[str]]:
    """The tensors as they go into the file, and the lines that bring them back as they were.

    The order of strides is kept: what a kernel adds up first can decide whether it overflows.
    """
    tensors: dict[str, torch.Tensor] = {}
    lines = []
    for name, tensor in computation.tensors.items():
        value = tensor.detach().resolve_conj().resolve_neg().cpu()
        if value.is_complex():
            value = torch.view_as_real(value)
            lines.append(f't["{name}"] = torch.view_as_complex(t["{name}"])')
        strides = value.stride()
        order = sorted(range(value.dim()), key=lambda d: (-strides[d], d))
        if not value.is_contiguous() and not tensor.is_complex() and value.numel() > 1:
            inverse = tuple(order.index(d) for d in range(value.dim()))
            lines.append(f't["{name}"] = t["{name}"].permute({inverse})')
            value = value.permute(order)
        tensors[name] = value.contiguous().clone()
    if computation.rng is not None:
        tensors[_RNG] = computation.rng
    return tensors, lines


def _body(computation: Computation) -> list[str]:
    lines = []
    if computation.filled:
        lines += [
            "torch.use_deterministic_algorithms(True, warn_only=True)",
            "torch.utils.deterministic.fill_uninitialized_memory = True  # with NaN",
        ]
    if computation.rng is not None:
        lines.append(f'torch.set_rng_state(t["{_RNG}"])')
    lines += [f't["{name}"].requires_grad_()' for name in computation.leaves]
    indent = ""
    if computation.raises:
        lines.append("try:")
        indent = "    "
    if computation.autocast is not None:
        device, dtype = computation.autocast
        lines.append(f'{indent}with torch.autocast("{device}", dtype={dtype}):')
        indent += "    "
    lines += [indent + _call(call) for call in computation.calls]
    if computation.raises:
        return [
            *lines,
            "except Exception as error:",
            '    print(f"raised {type(error).__name__}: {error}")',
            "    raise SystemExit(0)",
            'raise SystemExit("Nothing is raised here.")',
        ]
    lines += _gradient_lines(computation) if computation.gradients else _shown(computation.calls)
    return [*lines, 'raise SystemExit(0 if any(found) else "The result is finite here.")']


def _gradient_lines(computation: Computation) -> list[str]:
    last = computation.calls[-1].result
    lines = [
        f"outputs = [{last}] if isinstance({last}, torch.Tensor) else list({last})",
        f"outputs = [outputs[i] for i in {list(computation.gradients)}]",
    ]
    incoming = ", ".join(f't["{name}"]' for name in computation.gradients.values())
    leaves = ", ".join(f't["{name}"]' for name in computation.leaves)
    return [
        *lines,
        f'found = [show("{last}", outputs)]',
        f"gradients = torch.autograd.grad(outputs, [{leaves}], [{incoming}], allow_unused=True)",
        *(
            f'found.append(show("gradient of {name}", gradients[{i}]))'
            for i, name in enumerate(computation.leaves)
        ),
    ]


def _shown(calls: Sequence[Call]) -> list[str]:
    lines = ["found = []"]
    for call in calls:
        name = call.path.removeprefix("torch.ops.")
        if call.written:
            lines += [f"found.append(show({f'{name}: {w}'!r}, {_value(w)}))" for w in call.written]
        else:
            lines.append(f"found.append(show({name!r}, {call.result}))")
    return lines


def _value(name: str) -> str:
    return name if name.startswith("r") else f't["{name}"]'


def _call(call: Call) -> str:
    args = [literal(a) for a in call.args]
    args += [f"{name}={literal(value)}" for name, value in call.kwargs.items()]
    return f"{call.result} = {call.path}({', '.join(args)})"


def literal(value: Any) -> str:
    """One argument as Python source."""
    if isinstance(value, Ref):
        return _value(value.name)
    if isinstance(value, list):
        return f"[{', '.join(literal(item) for item in value)}]"
    if isinstance(value, tuple):
        items = ", ".join(literal(item) for item in value)
        return f"({items},)" if len(value) == 1 else f"({items})"
    if isinstance(value, slice):
        return f"slice({literal(value.start)}, {literal(value.stop)}, {literal(value.step)})"
    if isinstance(value, float) and not math.isfinite(value):
        return f'float("{value}")'
    if isinstance(value, torch.device):
        return 'torch.device("cpu")'
    return "..." if value is Ellipsis else repr(value)
