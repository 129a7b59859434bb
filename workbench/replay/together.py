"""All ranks of an incident replayed together: each its own bundle, the reduction computed again.

Started by ``torchrun``. Every rank reads its own bundle, wraps the model as the run did and goes
through the same stages as the others, whatever is bad on the way: a rank that stopped at its loss
would leave the others waiting. Where to stop is agreed on; a rank that cannot begin is told to all
before any collective of the step, so none waits.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import torch
from torch import distributed as dist

from workbench.errors import BundleError, CannotRunError, UsageError, WorkbenchError
from workbench.evidence.incidents import siblings
from workbench.evidence.reader import open_bundle
from workbench.evidence.wording import joined, number
from workbench.numerics import jsonio
from workbench.replay.devices import nearest, require_device
from workbench.replay.plan import check_stage
from workbench.replay.source import Source
from workbench.replay.together_run import Run
from workbench.replay.wrapping import wrapper_of

if TYPE_CHECKING:
    from workbench.evidence import Conditions
    from workbench.evidence.reader import Bundle

SCHEMA: Final = "workbench.replay-ranks/1"
_BYTES: Final = 1 << 16
_ERRORS: Final = {2: UsageError, 3: BundleError}


def under_torchrun() -> bool:
    """Whether this process is one of several that ``torchrun`` started."""
    return "TORCHELASTIC_RUN_ID" in os.environ and int(os.environ.get("WORLD_SIZE", "1")) > 1


def replay_ranks(
    path: str | Path,
    step: Any = None,
    trust: str | None = None,
    until: str | None = None,
    changes: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """Replay this rank's part of an incident together with the other ranks.

    Without ``until`` all ranks run to where the record stopped, and at least to the gate that looks
    at the reduced gradients; where nothing is bad there on any rank, to the end of the step.

    Args:
        path: The bundle of any rank; this rank's own is found beside it.
        step: The training step, or a reference to it.
        trust: What code named by the bundle may run.
        until: Last stage to run.
        changes: Conditions to change, by name; the same on all ranks.

    Returns:
        ``workbench.replay-ranks/1``: a row per rank with its verdict, the same on all ranks.

    Raises:
        CannotRunError: A rank has no bundle, or cannot begin; raised on all ranks alike. Or this
            rank's step raised: the others wait for it, and ``torchrun`` ends them.
        BundleError: A bundle is damaged; raised on all ranks alike.
        UsageError: No such stage or condition; raised on all ranks alike.
    """
    data = run_ranks(path, step, trust, until, changes)
    if data["refused"] is not None:
        raise _ERRORS.get(data["exit_code"], CannotRunError)(data["refused"])
    return data


def run_ranks(
    path: str | Path,
    step: Any = None,
    trust: str | None = None,
    until: str | None = None,
    changes: Mapping[str, Any] | None = None,
    tell: Callable[[dict[str, Any]], None] | None = None,
) -> dict[str, Any]:
    """As ``replay_ranks``, with what keeps the ranks from running in ``refused``.

    Args:
        path: See ``replay_ranks``.
        step: See ``replay_ranks``.
        trust: See ``replay_ranks``.
        until: See ``replay_ranks``.
        changes: See ``replay_ranks``.
        tell: Called by rank 0 with the result, before any rank returns: ``torchrun`` ends all of
            them once one has ended.
    """
    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    backend = "nccl" if torch.cuda.is_available() and torch.cuda.device_count() >= world else "gloo"
    dist.init_process_group(backend)
    try:
        data = _Together(rank, world).replay(Path(path), step, trust, until, changes or {})
        if tell is not None and rank == 0:
            tell(data)
        dist.barrier()
        return data
    finally:
        dist.destroy_process_group()


class _Together:
    """One replay of all ranks.

    Args:
        rank: This rank.
        world: How many there are.
    """

    def __init__(self, rank: int, world: int) -> None:
        self._rank, self._world = rank, world

    def replay(
        self,
        path: Path,
        step: Any,
        trust: str | None,
        until: str | None,
        changes: Mapping[str, Any],
    ) -> dict[str, Any]:
        """Open, build and run, each once every rank could do what is before it."""
        last, source, why = None, None, {"why": "", "code": 0}
        try:
            last = check_stage(until)
            source = self._source(path, step, trust, last)
        except WorkbenchError as error:
            why = _why(error)
        said = self._gather(why | {"raises": None if source is None else _raises(source)})
        refused = _refused(said) or _raising(said, until)
        if refused is not None or source is None:
            return self._data(refused=refused)
        runs: list[Run] = []
        try:
            conditions = nearest(source.recorded)
            wanted = conditions.replace(**changes) if changes else conditions
            source.wrap = wrapper_of(source.parallel, source.path, wanted.device)
            require_device(wanted.device)
            runs.append(Run(source, wanted, conditions))
        except WorkbenchError as error:
            why = _why(error)
        refused = _refused(self._gather(why))
        if refused is not None or not runs:
            return self._data(refused=refused)
        return self._run(source, runs[0], last, conditions)

    def _run(self, source: Source, run: Run, last: Any, original: Conditions) -> dict[str, Any]:
        self._to(run, last)
        row = run.row(self._rank, graded=last is None)
        rows = self._gather(row)
        if run.changed and not any(one["first_bad"] for one in rows):
            # a finite diagnostic run says little unless the original still fails after it
            again = Run(source, original, original)
            self._to(again, last)
            after = self._gather(again.brief())
            rows = [one | {"original_after": two} for one, two in zip(rows, after, strict=True)]
        return self._data(run=run, rows=rows)

    def _to(self, run: Run, last: Any) -> None:
        """Run to where all agree to stop; where nothing was bad there on any rank, to the end."""
        stops = self._gather({"stop": run.stop(last), "limit": run.limit})
        limit = min(int(one["limit"]) for one in stops)
        run.to(min(limit, max(int(one["stop"]) for one in stops)))
        if last is not None:
            return
        if not any(one["tripped"] for one in self._gather({"tripped": run.session.tripped})):
            run.to(limit)

    def _source(self, path: Path, step: Any, trust: str | None, last: str | None) -> Source:
        bundle = _own_bundle(open_bundle(path), self._rank, self._world)
        source = Source.from_bundle(bundle, step, trust)
        source.require("forward" if last in ("input", "forward") else "backward")
        if last is not None:
            source.require(last)
        return source

    def _data(
        self,
        run: Run | None = None,
        rows: Sequence[Mapping[str, Any]] = (),
        refused: tuple[str, int] | None = None,
    ) -> dict[str, Any]:
        said = [] if run is None else run.said()
        return {
            "schema": SCHEMA,
            "world": self._world,
            "backend": dist.get_backend(),
            "diagnostic": run is not None and bool(run.changed),
            "changed": {} if run is None else run.changed,
            "until": None if run is None else run.until,
            "ranks": [dict(row) for row in rows],
            "verdicts": {str(row["rank"]): row["verdict"] for row in rows},
            "said": said,
            "refused": None if refused is None else refused[0],
            "exit_code": 0 if refused is None else refused[1],
        }

    def _gather(self, row: Mapping[str, Any]) -> list[dict[str, Any]]:
        """What every rank says, by rank: strict JSON in tensors, no pickle."""
        text = jsonio.dumps({"rank": self._rank, **row}).encode()
        if len(text) > _BYTES:
            short = {key: value for key, value in row.items() if key not in ("stages", "unequal")}
            text = jsonio.dumps({"rank": self._rank, "stages": [], "unequal": [], **short}).encode()
        device = torch.device("cuda", torch.cuda.current_device()) if (
            dist.get_backend() == "nccl"
        ) else torch.device("cpu")  # fmt: skip
        mine = torch.tensor(list(text.ljust(_BYTES)[:_BYTES]), dtype=torch.uint8, device=device)
        rows = [torch.empty_like(mine) for _ in range(self._world)]
        dist.all_gather(rows, mine)
        return [dict(jsonio.loads(bytes(one.tolist()).decode().rstrip())) for one in rows]


# -- what keeps them from running -----------------------------------------------------------------


def _why(error: WorkbenchError) -> dict[str, Any]:
    return {"why": str(error)[:4000], "code": error.exit_code}


def _refused(said: Sequence[Mapping[str, Any]]) -> tuple[str, int] | None:
    failed = [row for row in said if row["why"]]
    if not failed:
        return None
    code = max(int(row["code"]) for row in failed)
    if len(failed) == len(said) and len({row["why"] for row in failed}) == 1:
        return str(failed[0]["why"]), code
    names = joined([number(int(row["rank"])) for row in failed], 8)
    text = (
        f"Rank {names} cannot replay its part of the incident, so no rank was run, since they "
        f"would wait for it. Rank {failed[0]['rank']}: {failed[0]['why']}"
    )
    return text, code


def _raises(source: Source) -> str | None:
    """The stage in which this rank's step raised, by the record."""
    bad = source.first_bad
    own = bad is not None and bad.sink == "exception" and source.bad_elsewhere is None
    return bad.stage if own and bad is not None else None


def _raising(said: Sequence[Mapping[str, Any]], until: str | None) -> tuple[str, int] | None:
    from workbench.replay.plan import order

    rows = [row for row in said if row["raises"]]
    if not rows or (until is not None and order(until) < min(order(r["raises"]) for r in rows)):
        return None
    rank, stage = number(int(rows[0]["rank"])), rows[0]["raises"]
    text = (
        f"Rank {rank} raised at '{stage}' in the recorded step, so the others would wait in a "
        "collective for a rank that has ended, and nothing was run. Replay that rank's bundle "
        "without torchrun, or all of them up to the stage before with --until."
    )
    return text, CannotRunError.exit_code


def _own_bundle(named: Bundle, rank: int, world: int) -> Bundle:
    there, recorded = siblings(named), named.manifest.world
    if recorded != world:
        raise CannotRunError(
            f"The bundle {str(named.path)!r} is of a run of {number(recorded)} ranks, and torchrun "
            f"started {number(world)}: its reductions would be others. Start it with "
            f"--nproc-per-node {recorded}, or replay one rank without torchrun."
        )
    if rank not in there:
        raise CannotRunError(
            f"No bundle of rank {number(rank)} lies beside {str(named.path)!r}, so its part of the "
            "step cannot be computed. Put the bundles of all ranks into one folder, or replay one "
            "rank without torchrun."
        )
    return there[rank]
