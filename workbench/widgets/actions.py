"""Everything that can happen to the panel, one frozen class each."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from workbench.evidence.notes import Note
from workbench.widgets.state import Charts, Problem, Report, StageView, Switch, Tab


@dataclass(frozen=True)
class Action:
    """Something that happened."""


# -- the user looks at something else ---------------------------------------------------------


@dataclass(frozen=True)
class TabChosen(Action):
    """Another tab was chosen."""

    tab: Tab


@dataclass(frozen=True)
class RunShown(Action):
    """Another run, or what was recorded, is to be shown."""

    name: str


@dataclass(frozen=True)
class StageChosen(Action):
    """A stage on the rail was chosen, to read its line."""

    stage: str


@dataclass(frozen=True)
class Toggled(Action):
    """Something that opens and closes was clicked (code, keys, switches …)."""

    what: str


@dataclass(frozen=True)
class Looked(Action):
    """Fields of the look changed: search text, layer, chart options, theme, width."""

    changes: tuple[tuple[str, Any], ...]


# -- the recorded facts -----------------------------------------------------------------------


@dataclass(frozen=True)
class SwitchesCame(Action):
    """What this machine is beside the recorded one, and what can be changed on it: torch knows."""

    switches: tuple[Switch, ...]
    device_note: str
    differing: tuple[tuple[str, str, str], ...] = ()


@dataclass(frozen=True)
class ChartsLoaded(Action):
    """What draws charts is there: it takes seconds, so the facts do not wait for it."""

    charts: Charts = "live"


# -- conditions -------------------------------------------------------------------------------


@dataclass(frozen=True)
class ConditionSet(Action):
    """A switch was set. Nothing runs."""

    key: str
    value: str


@dataclass(frozen=True)
class PresetChosen(Action):
    """All switches were set as a preset has them; what has no effect here is left as recorded."""

    name: str
    settings: Mapping[str, str]


@dataclass(frozen=True)
class ConditionsUndone(Action):
    """All switches went back to what was recorded."""


# -- trust ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class TrustAsked(Action):
    """A replay was asked for, and the step's code may not run yet."""

    pending: str


@dataclass(frozen=True)
class TrustEdited(Action):
    """A field of the trust card changed."""

    changes: tuple[tuple[str, Any], ...]


@dataclass(frozen=True)
class TrustGiven(Action):
    """The user let code run, for this kernel: her own (``own``) or the bundle's (``source``)."""

    how: str


@dataclass(frozen=True)
class TrustDeclined(Action):
    """The user stays with recorded evidence."""


# -- the child process ------------------------------------------------------------------------


@dataclass(frozen=True)
class Started(Action):
    """A run began or goes on. A new run is made when there is none of that name."""

    verb: str
    run: str
    changed: tuple[tuple[str, str], ...] = ()
    at: float = 0.0
    expected: float | None = None
    restart: bool = False


@dataclass(frozen=True)
class StageStarted(Action):
    """The child process entered a stage."""

    run: str
    stage: str


@dataclass(frozen=True)
class Progressed(Action):
    """The child process says in a few words what it does."""

    text: str


@dataclass(frozen=True)
class StageReported(Action):
    """The child process finished a stage."""

    run: str
    stage: StageView


@dataclass(frozen=True)
class StagesReported(Action):
    """The child process told the state of all stages (after Back or Reset)."""

    run: str
    stages: tuple[StageView, ...]


@dataclass(frozen=True)
class Ended(Action):
    """What was asked for is done; ``more`` when something waits that begins at once."""

    run: str
    finished: bool = False
    without_effect: tuple[str, ...] = ()
    more: bool = False


@dataclass(frozen=True)
class VerdictCame(Action):
    """The replay was compared with the record."""

    run: str
    verdict: str
    sentence: str = ""
    probes: bool | None = None


@dataclass(frozen=True)
class OriginalRepeated(Action):
    """After a finite diagnostic run, Original ran again; ``text`` says what came out."""

    run: str
    text: str


@dataclass(frozen=True)
class LayersCame(Action):
    """A traced replay gave the statistics of every layer."""

    run: str
    layers: Any


@dataclass(frozen=True)
class SavedLayersCame(Action):
    """A diagnosis left the statistics of every layer; ``source`` says where from."""

    layers: Any
    source: str


@dataclass(frozen=True)
class ResultCame(Action):
    """A comparison, sweep, ladder or the like is there; ``source`` says where from."""

    name: str
    data: Any
    source: str


@dataclass(frozen=True)
class NotesChanged(Action):
    """Something was pinned or taken away; ``said`` when the notes are not on disk."""

    notes: tuple[Note, ...]
    said: str = ""


@dataclass(frozen=True)
class ReportChanged(Action):
    """A report is being made, or was."""

    report: Report


@dataclass(frozen=True)
class Estimated(Action):
    """How long a whole replay takes here, in seconds."""

    seconds: float


@dataclass(frozen=True)
class FindingsCame(Action):
    """A diagnosis is there: ``data`` is findings/1, ``source`` says where from."""

    data: Any
    source: str


@dataclass(frozen=True)
class Stopped(Action):
    """The user stopped the child process."""


@dataclass(frozen=True)
class WorkerDied(Action):
    """The child process ended by itself; ``offers`` are action names and labels of ways on."""

    text: str
    offers: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True)
class Failed(Action):
    """Something could not be done; shown in the region it concerns."""

    region: str
    problem: Problem


@dataclass(frozen=True)
class Cleared(Action):
    """A region's problem was dealt with."""

    region: str
