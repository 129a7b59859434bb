"""Batch fields with values outside the domain that the step declares: repaired, and left alone.

A label need not be NaN to be wrong: −1 under a logarithm is a number like any other. What is legal
is for the step to say (``TrainingStep.domains``); nothing is guessed here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from workbench.diagnose.interventions import Intervention
from workbench.diagnose.repairs import in_tree
from workbench.step.domains import batch_fields, check_domains, illegal

if TYPE_CHECKING:
    from torch import Tensor

    from workbench.replay import Replay
    from workbench.step.protocol import Domain

MAX_FIELDS = 2


def repaired_to_domain(replay: Replay) -> list[Intervention]:
    """For each field with values outside its declared domain: legal values in their place.

    The placebo gives as many legal elements of the same field another legal value.

    Args:
        replay: The replay, for its batch and the domains its step declares.
    """
    domains: Mapping[str, Domain] = getattr(replay.source.step, "domains", None) or {}
    wrong = [v for v in check_domains(replay.source.batches, domains) if v.of == "value"]
    fields = list(dict.fromkeys(violation.field for violation in wrong))[:MAX_FIELDS]
    return [
        Intervention(
            f"the illegal elements of {name} as legal ones",
            batch=_changed(name, domains[name], _legal),
            placebo=Intervention(
                f"another legal value for as many legal elements of {name}",
                batch=_changed(name, domains[name], _others),
            ),
        )
        for name in fields
    ]


def _changed(
    name: str, domain: Domain, fix: Callable[[Tensor, Domain], Tensor]
) -> Callable[[Any], Any]:
    def edit(batch: Any) -> Any:
        chosen = dict(batch_fields(batch)).get(name)
        return in_tree(batch, chosen, lambda tensor: fix(tensor, domain))

    return edit


def _legal(values: Tensor, domain: Domain) -> Tensor:
    bad = illegal(values, domain)
    legal = values[~bad]
    fixed = values.detach().clone()
    fixed[bad] = legal.flatten()[0] if legal.numel() else _within(domain)
    return fixed


def _within(domain: Domain) -> float:
    """A legal number, where the field itself holds none."""
    if domain.minimum is None:
        return 0.0 if domain.maximum is None else min(0.0, domain.maximum)
    if domain.maximum is not None and domain.above_minimum:
        return (domain.minimum + domain.maximum) / 2
    return domain.minimum + 1.0 if domain.above_minimum else domain.minimum


def _others(values: Tensor, domain: Domain) -> Tensor:
    bad = illegal(values, domain)
    legal = (~bad).flatten().nonzero().flatten()
    changed = values.detach().clone()
    chosen = legal[: int(bad.sum())]
    if legal.numel():
        changed.view(-1)[chosen] = values.flatten()[legal[-1]]
    return changed
