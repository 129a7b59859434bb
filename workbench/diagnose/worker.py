"""Diagnosis inside the replay process: the panel asks for it by name."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from workbench.diagnose.panel_tasks import run_task
from workbench.diagnose.run import diagnose_replay
from workbench.errors import CannotRunError

if TYPE_CHECKING:
    from workbench.replay import Replay


def run_in_worker(
    replay: Replay, arguments: Mapping[str, Any], emit: Callable[[dict[str, Any]], None]
) -> dict[str, Any]:
    """Diagnose the worker's bundle, save the findings beside it and return them.

    With ``task`` among the arguments another of `panel_tasks` is carried out instead.

    Args:
        replay: The worker's replay.
        arguments: ``save`` (default True) writes to the bundle's sibling folder; ``anomaly``
            (default False) asks anomaly mode too.
        emit: Sends an event to the parent process.

    Returns:
        The ``workbench.findings/1`` object.

    Raises:
        CannotRunError: The replay is of a source that is no bundle.
    """

    def say(sentence: str) -> None:
        emit({"event": "progress", "text": sentence})

    if arguments.get("task"):
        return run_task(replay, str(arguments["task"]), arguments, say)
    bundle = replay.source.bundle
    if bundle is None:
        raise CannotRunError(
            f"The replay of '{replay.source.path}' is of no bundle on disk, so there is nothing "
            "that findings could be about. Open a bundle first."
        )
    say("Replaying twice without probes")
    replay.verdict()
    findings = diagnose_replay(bundle, replay, say, anomaly=bool(arguments.get("anomaly")))
    if arguments.get("save", True):
        try:
            findings.save(bundle.findings_dir)
        except OSError as error:
            say(f"The findings were not saved beside the bundle: {error}")
    return findings.data
