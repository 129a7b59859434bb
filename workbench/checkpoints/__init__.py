"""Checkpoints that can be trusted: finiteness scans, states, and what may be resumed from.

Names are loaded on first use: finding the newest committed checkpoint loads no torch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from workbench.lazy import names_on_first_use

if TYPE_CHECKING:
    from workbench.checkpoints.layout import Checkpoint, checkpoint_at, find_checkpoints
    from workbench.checkpoints.registry import Known, Registry
    from workbench.checkpoints.scanning import ScanResult, scan

__all__ = [
    "Checkpoint",
    "Known",
    "Registry",
    "ScanResult",
    "checkpoint_at",
    "find_checkpoints",
    "scan",
]

__getattr__ = names_on_first_use(
    __name__,
    {
        "layout": ("Checkpoint", "checkpoint_at", "find_checkpoints"),
        "registry": ("Known", "Registry"),
        "scanning": ("ScanResult", "scan"),
    },
)
