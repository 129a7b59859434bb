"""The recorder's own process group: the same ranks and backend as training's, no shared order.

A decision must never meet a collective of the user's: gloo and NCCL pair collectives by their
order, so a rank that is out of step would pair a decision with gradients.
"""

from __future__ import annotations

import itertools
import time
from contextlib import suppress
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final

import torch
from torch import distributed as dist

from workbench.errors import UsageError
from workbench.record.ranks.codes import WIDTH
from workbench.record.ranks.details import BYTES, pack_details, unpack_details
from workbench.record.ranks.watch import SLICE_S, Watch, make_store

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from workbench.record.ranks.place import Place

_made: Final = itertools.count()


class Channel:
    """Small collectives among the ranks that train together.

    Args:
        place: Where this rank stands.
        group: The process group that trains together; None for all ranks.

    Attributes:
        watch: News of other ranks.
        collectives: How many were run.
        name: Which recorder of the process this is, counted alike on all ranks.
    """

    def __init__(self, place: Place, group: Any = None) -> None:
        self._place, self._of = place, group
        self.name = f"recorder{next(_made)}"
        self._store = make_store(self.name)
        self._store.set(f"here/{place.rank}", "1")
        self.watch = Watch(self._store, place.rank, place.world)
        self._group: Any = None
        self._device = torch.device("cpu")
        self.collectives = 0
        self.timeout = _timeout(group)

    def share(self, value: str, key: str = "run") -> str:
        """Take over rank 0's value of something that all must have alike.

        Args:
            value: This rank's own; used by rank 0, and where rank 0 says nothing in time.
            key: What it is.
        """
        if self._place.rank == 0:
            self._store.set(key, value)
            return value
        with suppress(dist.DistStoreError, RuntimeError):
            self._store.wait([key], self.timeout)
            return str(self._store.get(key).decode())
        return value

    def largest(self, row: Sequence[int]) -> list[int]:
        """The element-wise maximum of a row of numbers over all ranks.

        Raises:
            RankError: Another rank raised, was lost, or is out of step.
            RuntimeError: The collective failed.
            UsageError: Not every rank has a recorder.
        """
        group = self._ready()
        tensor = torch.tensor(row, dtype=torch.int64, device=self._device)
        self.collectives += 1
        self._wait(dist.all_reduce(tensor, dist.ReduceOp.MAX, group=group, async_op=True))
        return list(tensor.tolist())

    def gather(self, content: Mapping[str, Any]) -> list[dict[str, Any]]:
        """What every rank has to say of this step, by rank.

        Raises:
            RankError: Another rank raised, was lost, or is out of step.
            RuntimeError: The collective failed.
        """
        group = self._ready()
        mine = pack_details(content, self._device)
        rows = [
            torch.empty(BYTES, dtype=torch.uint8, device=self._device)
            for _ in range(self._place.world)
        ]
        self.collectives += 1
        self._wait(dist.all_gather(rows, mine, group=group, async_op=True))
        return unpack_details(rows)

    def _wait(self, work: Any) -> None:
        if self._device.type == "cpu":
            self.watch.wait(work)
            return
        looked = time.monotonic()
        while not work.is_completed():  # a wait with a time-out would abort NCCL's communicator
            time.sleep(2e-5)
            if time.monotonic() - looked > SLICE_S:
                looked = time.monotonic()
                problem = self.watch.problem()
                if problem is not None:
                    raise problem
        work.wait()

    def _ready(self) -> Any:
        if self._group is None:
            self._meet()
            ranks = dist.get_process_group_ranks(self._of or dist.group.WORLD)
            backend = str(dist.get_backend(self._of))
            if "gloo" not in backend and torch.cuda.is_available():
                self._device = torch.device("cuda", torch.cuda.current_device())
            self._group = dist.new_group(
                ranks, timeout=self.timeout, backend=backend, use_local_synchronization=True
            )
            dist.all_reduce(torch.zeros(WIDTH, device=self._device), group=self._group)
        return self._group

    def _meet(self) -> None:
        """Wait until all ranks have a recorder: without one a rank would never answer."""
        keys = [f"here/{rank}" for rank in range(self._place.world)]
        try:
            self._store.wait(keys, self.timeout)
        except (dist.DistStoreError, RuntimeError) as error:
            missing = [key[5:] for key in keys if not self._store.check([key])]
            raise UsageError(
                f"Rank {self._place.rank} decides together with all {self._place.world} ranks, but "
                f"rank {', '.join(missing) or '?'} made no Recorder within "
                f"{self.timeout.total_seconds():g} s, so it would never answer. Make the Recorder "
                "on every rank, pass group= the process group that trains together, or use "
                "Policy(ranks='alone') to record this rank by itself."
            ) from error


def _timeout(group: Any) -> timedelta:
    """The time-out of the user's process group: the recorder waits as long as they would."""
    found: Any = group or dist.group.WORLD
    for device in ("cpu", "cuda"):
        with suppress(RuntimeError, AttributeError):
            timeout = found._get_backend(torch.device(device)).options._timeout
            if isinstance(timeout, timedelta):
                return timeout
    return timedelta(minutes=30)
