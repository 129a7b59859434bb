"""Analyse a step written in a few lines, as the diagnosis does with a bundle's."""

from __future__ import annotations

import copy
from functools import partial
from typing import Any

import torch
from torch import nn

from tests.unit.replay.traced import kept_of, trace_of
from workbench.diagnose.analysis import Analysis, analyse


def analysis_of(model: nn.Module, batch: Any, **step: Any) -> Analysis:
    """Trace a step, then again with the real inputs of what matters."""
    optimizer = step.pop("optimizer", None)
    scaler = step.pop("scaler", None)

    def run(tool: Any) -> Any:
        # a deep copy keeps optimizer and model tied to each other
        copied, chosen, own = copy.deepcopy((model, optimizer, scaler))
        with torch.random.fork_rng():
            torch.manual_seed(0)
            return tool(copied, copy.deepcopy(batch), optimizer=chosen, scaler=own, **step)

    return analyse(run(trace_of), lambda events: run(partial(kept_of, events)))


def first(analysis: Analysis) -> tuple[str, str, str, str | None]:
    """Kind, op, stage and cause of the first origin."""
    judged = analysis.origins[0]
    event = judged.case.event
    return (
        judged.origin.kind,
        "" if event is None else event.base,
        "input" if judged.origin.leaf is not None else (event.stage if event else ""),
        judged.cause.label if judged.cause else None,
    )


class Through(nn.Module):
    """A module that passes a function's result through one parameter."""

    def __init__(self, function: Any) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(1))
        self.function = function

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.function(x * self.weight.to(x.dtype))
