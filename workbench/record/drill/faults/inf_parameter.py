"""An infinity in a parameter, written by the update."""

from __future__ import annotations

import math
from contextlib import AbstractContextManager, nullcontext
from typing import Any, ClassVar

from workbench.record.drill.fault import Fault, Put, largest_parameter, spoil
from workbench.record.drill.hooks import while_hooked


class _InfParameter(Fault):
    name: ClassVar = "inf_parameter"
    what: ClassVar = "+Inf in the largest parameter after the update"
    boundaries: ClassVar = ("after_update", "forward", "loss")

    def during(self, put: Put, step: int) -> AbstractContextManager[Any]:
        if step != put.at:
            return nullcontext()
        parameter = largest_parameter(put)

        def after(optimizer: Any, args: Any, kwargs: Any) -> None:
            del optimizer, args, kwargs
            spoil(parameter, math.inf)

        return while_hooked(put.optimizers[0].register_step_post_hook(after))


fault = _InfParameter()
