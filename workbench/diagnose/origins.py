"""What a slice of a trace finds: origins, what contributed, and the way between them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from workbench.diagnose.held import Held

OriginKind = Literal[
    "birth",
    "conversion",
    "saved_value",
    "poisoned_batch",
    "poisoned_parameter",
    "poisoned_buffer",
    "poisoned_optimizer_state",
    "captured_tensor",
    "nonfinite_scalar",
    "uninitialised",
    "unseen_write",
    "collective",
    "growth",
    "exception",
]


@dataclass(frozen=True, slots=True)
class Origin:
    """Where a bad value came from.

    Attributes:
        kind: Which kind of origin.
        event: The event it is at: where it was born, or for a leaf the first event that read it.
        leaf: Name of the tensor that was bad before the step, or None.
        argument: The argument that carried it in (leaves, scalars, unseen writes), or None.
        order: Sorting key: leaves before events, then by event.
    """

    kind: OriginKind
    event: int
    leaf: str | None = None
    argument: str | None = None

    @property
    def order(self) -> tuple[int, int]:
        """Leaves were bad before anything ran."""
        return (0 if self.leaf is not None else 1, self.event)


@dataclass
class Slice:
    """What reaches the sinks.

    Attributes:
        origins: Independent origins, first in time first.
        contributors: Events that made an origin possible, with the part they played.
        chain: Bad events from the first origin to the sink, in order.
        visited: All bad events that reach a sink.
        held: Sinks that only hold constants; there are no origins then.
    """

    origins: list[Origin] = field(default_factory=list)
    contributors: list[tuple[int, str]] = field(default_factory=list)
    chain: list[int] = field(default_factory=list)
    visited: set[int] = field(default_factory=set)
    held: list[Held] = field(default_factory=list)
