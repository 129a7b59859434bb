"""What is said of a number that left a tensor before it was used."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from workbench.diagnose.case import Case


def read_out_before(case: Case) -> str:
    """A further sentence, where a number that is not finite was read out of a tensor before."""
    makers = [index for index, role in case.slice.contributors if role == "produced_scalar"]
    if not makers:
        return ""
    maker = case.trace.graph[makers[0]]
    line = f" at {maker.source}" if maker.source else ""
    return f" The last such number read out of a tensor before it came from {maker.op}{line}."
