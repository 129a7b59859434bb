"""NaN in the gradient of one rank of several, before gradients are reduced."""

from __future__ import annotations

import math
from contextlib import AbstractContextManager, nullcontext
from typing import Any, ClassVar

from torch import distributed as dist

from workbench.record.drill.fault import Fault, Put, largest_parameter
from workbench.record.drill.hooks import while_hooked


class _SingleRankNan(Fault):
    name: ClassVar = "single_rank_nan"
    what: ClassVar = "NaN in the gradient of the last rank alone, before it is reduced"
    boundaries: ClassVar = ("backward", "unscale", "scaler_skip")
    several_ranks: ClassVar = True

    def not_applicable(self, put: Put, batch: Any) -> str | None:
        del put, batch
        if dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1:
            return None
        return "one process; 'workbench drill STEP --ranks 2' runs it on two"

    def during(self, put: Put, step: int) -> AbstractContextManager[Any]:
        if step != put.at or dist.get_rank() != dist.get_world_size() - 1:
            return nullcontext()
        parameter = largest_parameter(put)
        return while_hooked(parameter.register_hook(lambda gradient: gradient * math.nan))


fault = _SingleRankNan()
