"""Ask torch's own compiler bisector, in a process of its own, with masks as its test.

``torch._inductor.compiler_bisector`` switches parts of the compiler off by process-wide state and
prints as it goes, and what it compiles may end the process: so it runs as
``python -m workbench.diagnose.compiler_search``.
"""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from workbench.errors import CannotRunError
from workbench.numerics import jsonio
from workbench.replay.child import Child, python

if TYPE_CHECKING:
    from workbench.evidence import Bundle, Conditions


def search(
    bundle: Bundle,
    step: Any,
    trust: str | None,
    conditions: Conditions,
    timeout_s: float,
    *,
    eager_random: bool = False,
) -> dict[str, Any]:
    """Find the part of the compiler that makes the difference.

    Args:
        bundle: The bundle.
        step: The step, or a reference to it.
        trust: What code named by the bundle may run.
        conditions: What to run under; the backend is the bisector's choice.
        timeout_s: Seconds it may take.
        eager_random: Have compiled code draw its random numbers as eager code does, so that they
            are not found to be the difference.

    Returns:
        ``{"status": "found" | "not found" | "not asked" | "failed", …}``, with ``backend``,
        ``subsystem``, ``bisect_number`` and ``debug_info`` as torch names them where it was found.
    """
    from workbench.replay.worker import reference_of

    try:
        reference = reference_of(step)
    except CannotRunError as error:
        return {"status": "not asked", "why": str(error)}
    request = {
        "bundle": str(bundle.path),
        "step": reference,
        "trust": trust,
        "conditions": conditions.as_dict(),
        "eager_random": eager_random,
        "path": [entry for entry in sys.path if entry],
    }
    heard: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as cache:
        # the compiler's own worker processes end with the child
        child = Child(python("workbench.diagnose.compiler_search"), heard.append)
        child.write({**request, "cache": cache})
        if not child.finished.wait(timeout_s):
            child.out_of_time(timeout_s)
            child.finished.wait()
    answer = next((event for event in heard if "status" in event), None)
    if answer is not None:
        return answer
    reason = next((event["reason"] for event in heard if event.get("event") == "died"), "it ended")
    return {"status": "failed", "why": str(reason)}


def main() -> None:
    """Read a request from stdin, run the bisector, write its answer as one line on stdout."""
    request = jsonio.loads(sys.stdin.buffer.readline())
    # the bisector keeps its state in the cache folder
    os.environ["TORCHINDUCTOR_CACHE_DIR"] = request["cache"]
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # the bisector and the user's code print as they like
    sys.path.extend(entry for entry in request["path"] if entry not in sys.path)
    answers.write(jsonio.dumps(_bisect(request)) + "\n")
    answers.close()


def _bisect(request: Mapping[str, Any]) -> dict[str, Any]:
    from torch._inductor.compiler_bisector import CompilerBisector

    from workbench.diagnose.ladder_runs import UNCOMPILED, run_rung, same_masks
    from workbench.evidence.conditions import conditions_from
    from workbench.replay import Replay

    replay = Replay(request["bundle"], step=request["step"], trust=request["trust"])
    conditions = conditions_from(request["conditions"])
    eager_random = bool(request.get("eager_random"))
    base = run_rung(replay, conditions, UNCOMPILED)

    def alike() -> bool:
        # torch.compile takes the backend that the bisector wants instead of this one
        rung = run_rung(replay, conditions, "inductor", eager_random=eager_random)
        return same_masks(rung.values, base.values)

    found = CompilerBisector.do_bisect(alike)
    if found is None:
        return {"status": "not found", "why": "no backend changes which elements are non-finite"}
    return {
        "status": "found",
        "backend": found.backend,
        "subsystem": found.subsystem,
        "bisect_number": found.bisect_number,
        "debug_info": None if found.debug_info is None else str(found.debug_info)[:2000],
    }


if __name__ == "__main__":
    main()
