"""Steps that the loss scaler skips one after the other."""

from __future__ import annotations

import math
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from typing import Any, ClassVar

from workbench.record.drill.fault import Fault, Put, largest_parameter, spoil
from workbench.record.drill.hooks import while_hooked
from workbench.record.policy import Policy
from workbench.step.gates import scaler_enabled


class _ConsecutiveSkips(Fault):
    name: ClassVar = "consecutive_skips"
    what: ClassVar = "+Inf gradients in two steps in a row, alerts set to two"
    boundaries: ClassVar = ("alert",)

    def not_applicable(self, put: Put, batch: Any) -> str | None:
        del batch
        return None if scaler_enabled(put.scaler) else "the training has no loss scaler"

    def policy(self, policy: Policy) -> Policy:
        return replace(policy, alerts=replace(policy.alerts, consecutive_skips=2))

    def during(self, put: Put, step: int) -> AbstractContextManager[Any]:
        if step not in (put.at - 1, put.at):
            return nullcontext()

        def after(target: Any) -> None:
            if target.grad is not None:
                spoil(target.grad, math.inf)

        return while_hooked(largest_parameter(put).register_post_accumulate_grad_hook(after))


fault = _ConsecutiveSkips()
