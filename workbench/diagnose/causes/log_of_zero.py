"""The logarithm of an exact zero."""

from __future__ import annotations

from workbench.diagnose.case import Case, ancestors
from workbench.diagnose.causes import Cause
from workbench.diagnose.interventions import Intervention, rewritten
from workbench.diagnose.log_space import LogSpace
from workbench.diagnose.rewrites import (
    clamped_argument,
    distinct_eigenvalues,
    nonzero_arguments,
)
from workbench.evidence.wording import counted

_LOGS = frozenset("log log2 log10 log1p".split())
_DETERMINANTS = frozenset("_linalg_slogdet linalg_slogdet".split())


def _rule(case: Case) -> bool:
    if case.range == "overflow":
        return False
    if case.base in _DETERMINANTS:
        return case.event is not None and any(write.counts[2] for write in case.event.writes)
    value = case.logarithm()
    return value is not None and bool((value == 0).any())


def _explain(case: Case) -> str:
    makers = case.zero_makers()
    if makers:
        index, lost = makers[0]
        event = case.trace.graph[index]
        values = counted(lost, "value")
        return f"{event.op} rounded {values} to 0 in {event.writes[0].dtype}, and log(0) is −Inf."
    if case.base == "logit":
        return "A probability is exactly 0 or 1: its logit, log(p / (1 − p)), is infinite."
    if case.base in _DETERMINANTS:
        return "The matrix is singular: the logarithm of its determinant, log(0), is −Inf."
    return "The argument of the logarithm is exactly 0, and log(0) is −Inf."


_STABLE = {
    "_softmax": "log_softmax instead of log(softmax)",
    "sigmoid": "logsigmoid instead of log(sigmoid)",
    "exp": "logsumexp instead of log(sum(exp))",
}


def _counterfactuals(case: Case) -> list[Intervention]:
    if case.base in _DETERMINANTS:
        return rewritten(case, "a small growing diagonal added", distinct_eigenvalues())
    call = case.event.function_call if case.event is not None else -1
    above = [case.trace.graph[i].base for i in ancestors(case.trace, case.origin.event)]
    name = next((_STABLE[base] for base in above if base in _STABLE), None)
    if case.base == "logit":
        inside = clamped_argument(1e-6, 1 - 1e-6)
        return rewritten(case, "an argument inside of 1e-6 and 1 − 1e-6", inside)
    if case.base not in _LOGS:  # a factor comes before the argument
        return rewritten(case, "arguments of 1e-7 where they are 0", nonzero_arguments())
    clamped = rewritten(case, "an argument of at least 1e-7", clamped_argument(1e-7, None))
    if name is None:
        return clamped
    return [Intervention(name, LogSpace(), call), *clamped]


CAUSE = Cause(
    label="log_of_zero",
    order=52,
    rule=_rule,
    explain=_explain,
    fix=(
        "Clamp the argument away from 0; where it comes of a softmax or sigmoid, use log_softmax, "
        "logsigmoid or a loss of the logits."
    ),
    limits="It does not show that a clamp keeps the gradient useful.",
    counterfactuals=_counterfactuals,
)
