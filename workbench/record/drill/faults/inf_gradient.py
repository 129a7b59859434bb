"""An infinity in the gradient of one parameter."""

from __future__ import annotations

import math
from contextlib import AbstractContextManager, nullcontext
from typing import Any, ClassVar

from workbench.record.drill.fault import Fault, Put, largest_parameter, spoil
from workbench.record.drill.hooks import while_hooked


class _InfGradient(Fault):
    name: ClassVar = "inf_gradient"
    what: ClassVar = "+Inf in the gradient of the largest parameter"
    boundaries: ClassVar = ("backward", "reduce", "unscale", "scaler_skip")

    def during(self, put: Put, step: int) -> AbstractContextManager[Any]:
        if step != put.at:
            return nullcontext()
        parameter = largest_parameter(put)

        def after(target: Any) -> None:
            if target.grad is not None:
                spoil(target.grad, math.inf)

        return while_hooked(parameter.register_post_accumulate_grad_hook(after))


fault = _InfGradient()
