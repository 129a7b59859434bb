"""Pieces of news between ranks, and the sentence that each becomes on the rank that hears it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from workbench.errors import StrictJsonError
from workbench.evidence.wording import clean
from workbench.numerics import jsonio

_LONGEST = 1000


class Position(NamedTuple):
    """Where a rank stands.

    Attributes:
        step: Number of its step.
        stage: The stage whose gate it passed last; ``outside`` between steps.
        doing: What it waits for, in words; empty when it computes.
    """

    step: int = -1
    stage: str = "outside"
    doing: str = ""

    def as_dict(self) -> dict[str, Any]:
        """All fields by name."""
        return self._asdict()

    @staticmethod
    def read(text: bytes | str) -> Position:
        """Read a position that another rank wrote."""
        try:
            data = jsonio.loads(text)
        except StrictJsonError:
            return Position()
        if not isinstance(data, Mapping):
            return Position()
        return Position(
            _number(data.get("step")),
            _text(data.get("stage")),
            _text(data.get("doing")),
        )

    def words(self) -> str:
        """Where that is, in words."""
        if self.stage == "outside":
            return f"is between steps, after step {self.step}" if self.step >= 0 else "has no step"
        place = f"in step {self.step}, past its {self.stage} gate"
        if self.stage == "input":
            place = f"at the beginning of step {self.step}"
        return f"{self.doing or 'is'} {place}"


class News(NamedTuple):
    """What one rank told the others.

    Attributes:
        kind: ``raised``, ``lost``, ``out_of_step``, ``left`` or ``call``.
        by: The rank that says it.
        rank: The rank it is about.
        step: Its step.
        stage: The stage it was in.
        reductions: How many gradient reductions it had taken part in.
        exception: Type name of its exception.
        message: That exception's text, or what happened.
    """

    kind: str
    by: int
    rank: int
    step: int
    stage: str
    reductions: int
    exception: str | None
    message: str


def read_news(data: Any) -> News:
    """Read a piece of news; whatever is missing is empty."""
    known = data if isinstance(data, Mapping) else {}
    exception = known.get("exception")
    return News(
        _text(known.get("kind")),
        _number(known.get("by")),
        _number(known.get("rank")),
        _number(known.get("step")),
        _text(known.get("stage")),
        _number(known.get("reductions")),
        None if exception is None else _text(exception),
        _text(known.get("message")),
    )


def sentence(news: News) -> str:
    """What the other rank's news means for this one."""
    if news.kind == "raised":
        return (
            f"Rank {news.rank} raised {news.exception} in step {news.step}, stage {news.stage}: "
            f"{news.message!r}. It takes part in no further collective, so this rank would wait "
            "without end; its step was ended and nothing was updated. The cause is on rank "
            f"{news.rank}: read its exception and its bundle first."
        )
    if news.kind == "left":
        return (
            f"The ranks are out of step: rank {news.rank} left step {news.step} after its "
            f"{news.stage} gate without reducing its gradients, while this rank waits for them in "
            "the gradient reduction, so this rank would wait without end. Let all ranks skip "
            "alike: do not 'continue' on what one rank sees; the recorder withholds the update "
            "on all ranks by itself."
        )
    return news.message


def _number(value: Any) -> int:
    return value if isinstance(value, int) and not isinstance(value, bool) else -1


def _text(value: Any) -> str:
    return clean(value, _LONGEST) if isinstance(value, str) else ""
