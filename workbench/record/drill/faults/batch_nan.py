"""A NaN in a field of the batch."""

from __future__ import annotations

import math
from typing import Any, ClassVar

from workbench.record.drill.fault import Fault, Put, float_field, spoiled


class _BatchNan(Fault):
    name: ClassVar = "batch_nan"
    what: ClassVar = "NaN in the first float field of the batch"
    boundaries: ClassVar = ("input", "forward", "loss", "backward", "unscale", "reduce")

    def not_applicable(self, put: Put, batch: Any) -> str | None:
        del put
        return None if float_field(batch) else "the batch has no field of floats"

    def batch(self, put: Put, step: int, batch: Any) -> Any:
        name = float_field(batch)
        return spoiled(batch, name, math.nan) if step == put.at and name else batch


fault = _BatchNan()
