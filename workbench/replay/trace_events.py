"""What a trace is made of: events, what each read and wrote, and the module calls between."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from workbench.numerics.collected import Late

if TYPE_CHECKING:
    from torch import Tensor

    from workbench.numerics.stats import TensorStats
    from workbench.replay.trace_storage import Triple

_FINITE: Triple = (0, 0, 0)
MOST_UPSTREAM: Final = 6
_MOST_STEPS: Final = 200


@dataclass(slots=True)
class Read:
    """One tensor an event looked at.

    Attributes:
        argument: Name of the op's argument (``self``, ``other``, ``tensors[3]``).
        storage: Number of its storage.
        producers: Events that wrote what it held, newest first.
        leaf: ``(kind, name)`` when (part of) its content is from before the step, else None.
        counts: Its NaN, +Inf and -Inf elements at that time.
        dtype: Its dtype's name.
        shape: Its shape.
        used: False for content that the op writes over without looking.
    """

    argument: str
    storage: int
    producers: tuple[int, ...]
    leaf: tuple[str, str] | None
    counts: Triple
    dtype: str
    shape: tuple[int, ...]
    used: bool = True

    @property
    def bad(self) -> bool:
        """Whether it was looked at and held anything non-finite."""
        return self.used and any(self.counts)


class Write:
    """One tensor an event produced or changed.

    Args:
        slot: ``out0`` for a fresh output, else the name of the argument written in place.
        storage: Number of its storage.
        stats: Counts and range of what was written, perhaps still to be worked out; None where
            they cannot be taken.
        dtype: The tensor's dtype's name.
        shape: Its shape.

    Attributes:
        counts: NaN, +Inf and -Inf written.
        bad: Whether there are any.
        first: Index of its first non-finite element, or None.
        samples: Indices along the first dimension that hold non-finite elements, at most 64.
    """

    __slots__ = (
        "_stats", "bad", "counts", "dtype", "first", "samples", "shape", "slot", "storage",
    )  # fmt: skip

    def __init__(
        self,
        slot: str,
        storage: int,
        stats: TensorStats | Late | None,
        dtype: str,
        shape: tuple[int, ...],
    ) -> None:
        self.slot = slot
        self.storage = storage
        self._stats = stats
        self.dtype = dtype
        self.shape = shape
        self.first: tuple[int, ...] | None = None
        self.samples: tuple[int, ...] = ()
        self.counts = _FINITE
        self.bad = False
        if stats is not None and not isinstance(stats, Late) and stats.nonfinite:
            self.counts = (stats.nan, stats.pos_inf, stats.neg_inf)
            self.bad = True

    @property
    def stats(self) -> TensorStats | None:
        """Counts and range of what was written; None where they cannot be taken."""
        found = self._stats
        if isinstance(found, Late):
            found = self._stats = found.now()
        return found

    @property
    def taken(self) -> TensorStats | Late | None:
        """The same, not worked out yet where nobody asked."""
        return self._stats


@dataclass(slots=True)
class Event:
    """One executed aten op, or one list element of a fused or ``_foreach_`` op.

    Attributes:
        index: Number of the event.
        call: Number of the call it belongs to (several events share one in list ops).
        op: ``aten.log.default``.
        base: ``log``.
        stage: The stage it ran in, by what is done.
        phase: The step's phase.
        micro_step: Number of the micro-batch.
        where: Kind of code it comes from (of its forward op, in backward).
        module: Path of the module it comes from (of its forward op, in backward).
        in_loss: Whether it belongs to the loss, also when the model computes it.
        source: User's line it comes from (of its forward op, in backward).
        node: Name of the running autograd node, or None in forward.
        sequence: Sequence number of that node.
        forward_event: The forward event that made the node, or None.
        recomputed: Whether it is a checkpoint's recomputation.
        user_code: Whether a user's hook or custom backward ran it within backward.
        function_call: Number of the torch function call it was executed by, or -1.
        function: Name of that function.
        reads: What it looked at.
        writes: What it produced.
        scalars: Python numbers among its arguments.
        view: Whether it only makes a view.
        uninitialised: Whether it creates undefined content.
        fills_constant: Whether it places a scalar as it is.
        unseen: Arguments that were changed outside of the trace since their last write.
        error: Text of the exception the op raised, or None.
        absorbs_some: Whether some Inf it read became finite although it also made NaN of others.
    """

    index: int
    call: int
    op: str
    base: str
    stage: str
    phase: str
    micro_step: int
    where: str
    module: str
    in_loss: bool
    source: str
    node: str | None = None
    sequence: int = -1
    forward_event: int | None = None
    recomputed: bool = False
    user_code: bool = False
    function_call: int = -1
    function: str = ""
    reads: list[Read] = field(default_factory=list)
    writes: list[Write] = field(default_factory=list)
    scalars: tuple[tuple[str, float], ...] = ()
    view: bool = False
    uninitialised: bool = False
    fills_constant: bool = False
    unseen: tuple[str, ...] = ()
    error: str | None = None
    absorbs_some: bool = False

    @property
    def bad(self) -> bool:
        """Whether anything it wrote is non-finite."""
        return any(write.bad for write in self.writes)

    @property
    def bad_reads(self) -> list[Read]:
        """What it looked at that was non-finite."""
        return [read for read in self.reads if read.bad]


@dataclass(slots=True)
class KeptEvent:
    """The real arguments of one call, kept in a second pass.

    Attributes:
        event: Number of the first event of the call.
        func: The op.
        args: Its positional arguments, tensors cloned before it ran.
        kwargs: Its keyword arguments, likewise.
        names: Argument names by position.
        outputs: Its outputs, cloned after it ran.
        written: Of an op that returns something else: what it wrote in place, by argument.
    """

    event: int
    func: Any
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    names: tuple[str, ...]
    outputs: list[Tensor] = field(default_factory=list)
    written: dict[str, Tensor] = field(default_factory=dict)


@dataclass(slots=True)
class LayerRow:
    """Range of one tensor at a module's border.

    Attributes:
        taken: Its statistics, perhaps still to be worked out.
        op: The op that wrote it last; empty where none of the step did.
        graph: The trace's events, among them the one that wrote it.
        absmin: Smallest magnitude that is finite and not zero.
        exponents: The smallest binary exponent of such elements, then how many have it, the next
            one, and so on; empty where there are none.
        first: Index of the first non-finite element, or None.
    """

    order: int
    module: str
    type: str
    tensor: str
    name: str
    stage: str
    micro_step: int
    dtype: str
    shape: tuple[int, ...]
    taken: TensorStats | Late
    event: int
    source: str
    op: str = ""
    graph: Sequence[Event] = ()
    absmin: float | None = None
    exponents: tuple[int, ...] = ()
    first: tuple[int, ...] | None = None

    @property
    def stats(self) -> TensorStats:
        """Counts and range of the tensor."""
        if isinstance(self.taken, Late):
            self.taken = self.taken.now()
        return self.taken

    @property
    def upstream(self) -> tuple[str, ...]:
        """Modules whose results went into it, nearest first, worked out when asked for."""
        return upstream(self.graph, self.event)


def upstream(graph: Sequence[Event], number: int) -> tuple[str, ...]:
    """The modules whose results an event's own module was given, nearest first.

    What happens within the event's own module is followed through; the model's own forward is
    named ``""``.
    """
    if not 0 <= number < len(graph):
        return ()
    event = graph[number]
    found: dict[str, None] = {}
    waiting, seen = deque([event]), {event.index}
    for _ in range(_MOST_STEPS):
        if not waiting or len(found) >= MOST_UPSTREAM:
            break
        for read in waiting.popleft().reads:
            for producer_number in read.producers if read.used else ():
                if producer_number in seen or not 0 <= producer_number < len(graph):
                    continue
                seen.add(producer_number)
                producer = graph[producer_number]
                if producer.module == event.module:
                    waiting.append(producer)
                else:
                    found[producer.module] = None
    return tuple(found)[:MOST_UPSTREAM]
