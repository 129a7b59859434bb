"""News between ranks through the store, so that nobody waits for a rank that has ended its step.

A rank that raises says so. Every other rank has a thread that waits for news in the store (it does
not poll, and needs no lock of the interpreter while it waits); what the rank itself waits for in
the recorder's hands, its gradient reduction or the decision, is then ended with an error at once.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from datetime import timedelta
from typing import Any, Final

from torch import distributed as dist
from torch.distributed import distributed_c10d

from workbench.errors import RankError, StrictJsonError
from workbench.numerics import jsonio
from workbench.record.ranks.news import News, Position, read_news, sentence

logger = logging.getLogger("workbench")

LEAVE_S: Final = 5.0
"""A rank that raises holds its exception back this long at most, until all others know of it."""
WRITE_S: Final = 300.0
"""Ranks that raise alike wait this long at most for each other's evidence."""
REPLY_S: Final = 3.0
"""A rank that does not answer within this time, after a collective failed, counts as lost."""
SLICE_S: Final = 0.2
"""A wait for the decision looks for news this often."""
_LISTEN: Final = timedelta(hours=12)


class Watch:
    """What ranks tell each other beside their collectives.

    Args:
        store: A store that only recorders use.
        rank: This rank.
        world: How many ranks there are.
    """

    def __init__(self, store: Any, rank: int, world: int) -> None:
        self._store = store
        self.rank, self.world = rank, world
        self.position = Position()
        self.told: list[News] = []
        self.ended: set[int] = set()
        self.lost: set[int] = set()
        self.interrupted: RankError | None = None
        self.interrupts: list[Callable[[RankError], None]] = []
        self.in_gradients: Callable[[], bool] = lambda: False
        self.reductions: Callable[[], int] = lambda: 0
        self._lock = threading.Lock()
        self._listener = threading.Thread(target=self._listen, name="workbench-ranks", daemon=True)
        self._listener.start()

    # -- saying -----------------------------------------------------------------------------------

    def say(self, kind: str, about: int | None = None, **facts: Any) -> int:
        """Tell all other ranks something; the number of the piece of news.

        Args:
            kind: What kind of news it is.
            about: The rank it is about; None for this one.
            **facts: More of it; by default the step and stage that this rank stands at.
        """
        position = self.position
        content = {
            "kind": kind,
            "by": self.rank,
            "rank": self.rank if about is None else about,
            "step": position.step,
            "stage": position.stage,
            "reductions": self.reductions(),
            **facts,
        }
        number = int(self._store.add("news", 1))
        self._store.set(f"news/{number}", jsonio.dumps(content))
        return number

    def here(self) -> Position:
        """Where this rank stands, as another rank is told."""
        doing = "waits in its gradient reduction" if self.in_gradients() else self.position.doing
        return self.position._replace(doing=doing)

    def leave(self, step: int, seconds: float) -> None:
        """End a step with an exception: hold it back until all ranks have ended it, too.

        A launcher ends the other ranks as soon as one process ends: they would not get to writing.

        Args:
            step: The step.
            seconds: Longest wait.
        """
        self.ended.add(step)
        self._store.set(f"ended/{step}/{self.rank}", "1")
        others = set(range(self.world)) - self.lost - {self.rank}
        wanted = [f"ended/{step}/{r}" for r in sorted(others)]
        if not wanted:
            return
        with suppress(dist.DistStoreError, RuntimeError):  # a rank that never comes: go on
            self._store.wait(wanted, timedelta(seconds=seconds))

    def roll_call(self) -> tuple[dict[int, Position], list[int]]:
        """Ask every rank where it stands.

        Returns:
            The positions of those that answer, and the ranks that do not.
        """
        number = self.say("call")
        wanted = [f"reply/{number}/{r}" for r in range(self.world) if r != self.rank]
        with suppress(dist.DistStoreError, RuntimeError):
            self._store.wait(wanted, timedelta(seconds=REPLY_S))
        found: dict[int, Position] = {}
        for key in wanted:
            if self._store.check([key]):
                found[int(key.rpartition("/")[2])] = Position.read(self._store.get(key))
        missing = [r for r in range(self.world) if r != self.rank and r not in found]
        self.lost.update(missing)
        return found, missing

    # -- hearing ----------------------------------------------------------------------------------

    def problem(self) -> RankError | None:
        """The first piece of news because of which this rank cannot go on, or None."""
        if not self.told:
            return None
        with self._lock:
            told = list(self.told)
        for news in told:
            if self._concerns(news):
                lost = news.kind == "lost"
                return RankError(sentence(news), news.rank, news.step, news.exception, lost)
        return None

    def wait(self, work: Any) -> None:
        """Wait for a collective, but no longer than until there is news.

        Raises:
            RankError: Another rank raised, was lost, or left this step without its gradients.
            RuntimeError: The collective failed.
        """
        while True:
            try:
                work.wait(timedelta(seconds=SLICE_S))
                return
            except RuntimeError:
                if work.is_completed():
                    raise
            problem = self.problem()
            if problem is not None:
                raise problem

    def _concerns(self, news: News) -> bool:
        if news.kind == "left":  # proof of a wait without end, where this rank reduces gradients
            same = self.position.step == news.step
            return same and self.reductions() > news.reductions and self.in_gradients()
        return news.kind in ("raised", "lost", "out_of_step") and news.step not in self.ended

    def _listen(self) -> None:
        try:
            store = self._store.clone()  # a store answers one question at a time
        except (RuntimeError, AttributeError):
            store = self._store
        number = 1
        while True:
            key = f"news/{number}"
            try:
                store.wait([key], _LISTEN)
                content = store.get(key)
            except (dist.DistStoreError, RuntimeError) as error:
                if "timeout" in str(error).lower():
                    continue
                return  # the store is gone: the job is ending
            number += 1
            with suppress(StrictJsonError, RuntimeError):
                self._take(read_news(jsonio.loads(content)), number - 1, store)

    def _take(self, news: News, number: int, store: Any) -> None:
        if news.by == self.rank:
            return
        if news.kind == "call":
            store.set(f"reply/{number}/{self.rank}", jsonio.dumps(self.here().as_dict()))
            return
        with self._lock:
            self.told.append(news)
            if news.kind == "lost":
                self.lost.add(news.rank)
        self.poke()

    def poke(self) -> None:
        """End what this rank waits for, where there is a reason to."""
        problem = self.problem()
        if problem is not None:
            for interrupt in list(self.interrupts):
                interrupt(problem)


def make_store(name: str) -> Any:
    """The part of the job's store that recorders use.

    Args:
        name: Which recorder of the process, counted alike on all ranks.
    """
    default = distributed_c10d._get_default_store()
    return distributed_c10d.PrefixStore(f"workbench/{name}", default)


def facts_of(error: BaseException, text: str) -> Mapping[str, Any]:
    """What other ranks are told of an exception."""
    return {"exception": type(error).__name__, "message": text[:500]}
