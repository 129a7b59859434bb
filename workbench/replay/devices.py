"""Which devices are here, and which one a replay uses when the recorded one is not."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from workbench.errors import CannotRunError
from workbench.replay.redirect import Redirection

if TYPE_CHECKING:
    from workbench.evidence import Conditions


def devices_here() -> list[str]:
    """Names of the devices a replay can use here, the CPU first."""
    found = ["cpu"]
    if torch.cuda.is_available():
        found += [f"cuda:{index}" for index in range(torch.cuda.device_count())]
    if torch.backends.mps.is_available():
        found.append("mps")
    return found


def is_here(device: str) -> bool:
    """Whether a device exists on this machine; ``cuda`` without an index means the first."""
    return device in devices_here() or f"{device}:0" in devices_here()


def require_device(device: str) -> None:
    """Refuse a device that is not here.

    Raises:
        CannotRunError: It is not; the message offers those that are.
    """
    if is_here(device):
        return
    raise CannotRunError(
        f"The replay was asked to run on '{device}', and this machine has no such device, so "
        f"nothing was run. Devices here: {', '.join(devices_here())}. Set one of them, for example "
        "--set device=cpu."
    )


def nearest(recorded: Conditions) -> Conditions:
    """The recorded conditions, or the nearest ones this machine can run.

    A CUDA step on a machine without a GPU runs on the CPU under CUDA's own autocast rules; a GPU
    of another index stands in for the recorded one.
    """
    if is_here(recorded.device):
        return recorded
    kind = torch.device(recorded.device).type
    if is_here(kind):
        return recorded.replace(device=f"{kind}:0")
    if kind == "cuda" and recorded.autocast in ("float16", "bfloat16"):
        return recorded.replace(device="cpu", autocast="cuda-policy")
    return recorded.replace(device="cpu")


def redirection(conditions: Conditions, recorded: Conditions) -> Redirection | None:
    """How the user's autocast regions and scalers are redirected under these conditions."""
    kind, recorded_kind = (torch.device(c.device).type for c in (conditions, recorded))
    moved = kind if kind != recorded_kind else None
    same_cache = conditions.autocast_cache == recorded.autocast_cache
    cache = None if same_cache else conditions.autocast_cache
    if conditions.autocast == recorded.autocast and moved is None and same_cache:
        return None
    recorded_dtype = _DTYPES.get(recorded.autocast)
    if conditions.autocast == "off" and recorded.autocast != "off":
        return Redirection(moved, enabled=False, cache=cache)
    dtype = None if conditions.autocast == recorded.autocast else _DTYPES.get(conditions.autocast)
    # torch's default differs by device: float16 on CUDA, bfloat16 on the CPU
    default = recorded_dtype or (torch.float16 if recorded_kind == "cuda" else None)
    return Redirection(moved, True, dtype, default, cache)


_DTYPES = {"float16": torch.float16, "bfloat16": torch.bfloat16}
