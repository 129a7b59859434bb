"""Changed conditions that turned out to change nothing, seen once a session has run."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final

import torch
from torch.overrides import TorchFunctionMode

from workbench.replay.plan import recorded_stop
from workbench.replay.settings import attention_available

if TYPE_CHECKING:
    from workbench.replay.session import Session

ATTENTION: Final = frozenset(
    {
        "scaled_dot_product_attention",
        "multi_head_attention_forward",
        "_native_multi_head_attention",
        "_transformer_encoder_layer_fwd",
    }
)
"""Functions that pick a kernel of scaled dot product attention, or may call one that does."""


def idle(session: Session) -> list[dict[str, str]]:
    """List the changed conditions that cannot act, or did not, in the order of the conditions.

    Args:
        session: The session, as far as it was run.

    Returns:
        ``{"key", "why"}``: what was known before it ran, and what its run showed.
    """
    known = {item["key"]: item["why"] for item in session.no_effect}
    for key in session.changed:
        rule = _SEEN.get(key)
        why = None if rule is None or key in known else rule(session)
        if why is not None:
            known[key] = why
    return [{"key": key, "why": known[key]} for key in session.changed if key in known]


def _ran(session: Session, stage: str) -> bool:
    return any(outcome.unit.stage == stage for outcome in session.outcomes)


def _float32_modules(session: Session) -> str | None:
    watch = session.float32
    if not _ran(session, "forward") or watch.acted:
        return None
    if not watch.called:
        return "No effect: none of these modules ran."
    return (
        "No effect: these modules have no low-precision parameters or inputs, and ran outside of "
        "autocast, already."
    )


def _rng(session: Session) -> str | None:
    if session.rng_digest != session.rng_at_start or not _ran(session, "forward"):
        return None
    return "No effect: the step drew no random numbers, as far as it was run."


def _compile(session: Session) -> str | None:
    asked = session.conditions.compile
    if asked == "off" or not _ran(session, "forward"):
        return None
    if session.observed.read_back.get("compile") != "off":
        return None
    return "No effect: torch.compile captured no graph of this model, so it ran as it is written."


def _attention(session: Session) -> str | None:
    kernel = session.conditions.sdpa
    if not _ran(session, "forward") or not attention_available(
        kernel, torch.device(session.conditions.device)
    ):
        return None
    if calls_attention(session) is not False:
        return None
    return "No effect: the step does not call scaled_dot_product_attention."


_SEEN: dict[str, Callable[[Session], str | None]] = {
    "float32_modules": _float32_modules,
    "rng": _rng,
    "compile": _compile,
    "sdpa": _attention,
}


class _Calls(TorchFunctionMode):
    """Notes whether attention was called."""

    def __init__(self) -> None:
        super().__init__()
        self.seen = False

    def __torch_function__(
        self,
        func: Any,
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        """Run the call as it is."""
        del types
        self.seen = self.seen or getattr(func, "__name__", "") in ATTENTION
        return func(*args, **(kwargs or {}))


def calls_attention(session: Session) -> bool | None:
    """Whether a step calls scaled dot product attention: one more run, up to the first call.

    The run in question has no probe in it. None where scripted code hides what it calls.
    """
    source = session.source
    if source.calls_attention is None:
        again = type(session)(source, session.conditions)
        scripted = (torch.jit.ScriptModule, torch.jit.ScriptFunction)
        if any(isinstance(module, scripted) for module in again.runner.model.modules()):
            return None
        calls = _Calls()
        stop = max(recorded_stop(again.runner, source), 2)
        with again.running(traced=True), calls:
            while again.runner.position < stop and not calls.seen and not again.raised:
                again.advance()
        source.calls_attention = calls.seen
    return source.calls_attention
