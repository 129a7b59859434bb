"""A logger that throws while the loss is already bad: the first failure must stay the first."""

from __future__ import annotations

import math
from contextlib import AbstractContextManager
from typing import Any, ClassVar

from workbench.record.drill.fault import Fault, Put
from workbench.record.drill.hooks import attribute


class LoggerFault(Exception):
    """What the drill's logger throws."""


class _LoggerThrows(Fault):
    name: ClassVar = "logger_throws"
    what: ClassVar = "what the step logs with throws"
    boundaries: ClassVar = ("logging",)

    def not_applicable(self, put: Put, batch: Any) -> str | None:
        del batch
        if put.logger is not None or hasattr(put.step, "log"):
            return None
        return "the loop logs outside of the training step"

    def during(self, put: Put, step: int) -> AbstractContextManager[Any]:
        def log(*args: Any) -> None:
            if step == put.at:
                raise LoggerFault(f"the drill's logger throws at step {step}: {math.nan}")

        owner, name = put.logger or (put.step, "log")
        return attribute(owner, name, log)


fault = _LoggerThrows()
