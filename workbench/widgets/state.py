"""What the panel shows, as one frozen value.

Nothing here knows ipywidgets. Regions draw a state; the reducer makes the next one.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any, Literal

from workbench.evidence.notes import Note

STAGE_NAMES: tuple[str, ...] = (
    "input",
    "forward",
    "loss",
    "backward",
    "reduce",
    "unscale",
    "clip",
    "update",
    "after_update",
    "logging",
)

Status = Literal["not_run", "running", "clean", "bad", "alert", "skip", "unavailable"]
Tab = Literal["origin", "ranges", "timeline", "compare", "evidence"]
TABS: tuple[Tab, ...] = ("origin", "ranges", "timeline", "compare", "evidence")

SECTIONS = ("batch", "state", "environment", "checkpoints", "files")
VIEWS = ("ranges", "heat map")

RECORDED = "Recorded"
ORIGINAL = "Original"
MADE_HERE = "Made here, just now."


@dataclass(frozen=True)
class Counts:
    """How many elements of a tensor are NaN, +Inf, −Inf and finite."""

    nan: int = 0
    pos_inf: int = 0
    neg_inf: int = 0
    finite: int = 0

    @property
    def total(self) -> int:
        """All elements."""
        return self.nan + self.pos_inf + self.neg_inf + self.finite

    @property
    def nonfinite(self) -> int:
        """Elements that are not finite."""
        return self.nan + self.pos_inf + self.neg_inf


@dataclass(frozen=True)
class StageView:
    """One stage on the rail."""

    name: str
    status: Status = "not_run"
    tensor: str = ""
    counts: Counts | None = None
    reason: str = ""
    sentence: str = ""


@dataclass(frozen=True)
class Switch:
    """One condition the user can change: its recorded value, the choices, and what limits it."""

    key: str
    label: str
    recorded: str
    choices: tuple[str, ...] = ()
    quick: bool = False
    why_not: str = ""


@dataclass(frozen=True)
class Line:
    """One labelled sentence of the header."""

    label: str
    text: str


@dataclass(frozen=True)
class Facts:
    """What was recorded: read from the bundle without running anything it names."""

    path: str
    name: str
    digest: str
    title: str
    headline: str
    caught_at: str
    lines: tuple[Line, ...]
    kind: str = "nonfinite"
    stage: str = ""
    tensor: str = ""
    step_reference: str = ""
    source_lines: int = 0
    sealed: bool = True
    seconds: float | None = None
    missing: tuple[tuple[str, str], ...] = ()
    switches: tuple[Switch, ...] = ()
    stages: tuple[StageView, ...] = ()
    device_note: str = ""
    damaged: tuple[str, ...] = ()
    differing: tuple[tuple[str, str, str], ...] | None = None

    def switch(self, key: str) -> Switch | None:
        """The switch of a condition, or None when there is no such switch."""
        return next((switch for switch in self.switches if switch.key == key), None)


@dataclass(frozen=True)
class Run:
    """One replay: its conditions and what came out. Runs are kept until the kernel stops.

    ``layers`` is the table of the traced replay (None before one), compared by identity.
    """

    name: str
    changed: tuple[tuple[str, str], ...] = ()
    stages: tuple[StageView, ...] = ()
    finished: bool = False
    verdict: str = ""
    sentence: str = ""
    probes: bool | None = None
    after: str = ""
    without_effect: tuple[str, ...] = ()
    layers: Any = field(default=None, compare=False)
    layers_version: int = 0

    @property
    def diagnostic(self) -> bool:
        """Whether the run changed any recorded condition."""
        return bool(self.changed)

    @property
    def bad(self) -> StageView | None:
        """The first stage that went bad, or None."""
        return next((stage for stage in self.stages if stage.status == "bad"), None)

    @property
    def next_stage(self) -> str:
        """The stage that a step would run; empty at the end, and where it is not available."""
        if self.reached >= len(self.stages):
            return ""
        stage = self.stages[self.reached]
        return "" if stage.status == "unavailable" else stage.name

    @property
    def reached(self) -> int:
        """How many stages have run."""
        done = [i for i, s in enumerate(self.stages) if s.status in DONE]
        return done[-1] + 1 if done else 0


DONE = ("clean", "bad", "alert", "skip")


@dataclass(frozen=True)
class Activity:
    """What the child process is doing now."""

    verb: str
    run: str
    stage: str = ""
    doing: str = ""
    started: float = 0.0
    expected: float | None = None


@dataclass(frozen=True)
class Problem:
    """Something that could not be done, shown in the region it concerns.

    ``trace`` is set only for a bug of ours; ``action`` names one offered next step.
    """

    text: str
    trace: str = ""
    action: str = ""
    label: str = ""


@dataclass(frozen=True)
class Trust:
    """The question whether the step's code may run. ``pending`` waits for the answer."""

    asked: bool = False
    given: str = ""
    choice: str = "own"
    reference: str = ""
    typed: str = ""
    source_read: bool = False
    source_open: bool = False
    diff_open: bool = False
    pending: str = ""


@dataclass(frozen=True)
class Look:
    """How the panel is looked at: nothing here changes what was found."""

    tab: Tab = "timeline"
    shown: str = RECORDED
    stage: str = ""
    section: str = "batch"
    tensor_kind: str = "activations"
    limits: bool = True
    overlay: bool = False
    view: str = "ranges"
    layer: int = -1
    group: str = ""
    search: str = ""
    record: int = -1
    samples: tuple[int, ...] = ()
    against: tuple[str, str] = ("", "")
    other: str = ""
    open: frozenset[str] = frozenset()
    dark: bool = False
    width: int = 1220


@dataclass(frozen=True)
class Result:
    """Plain data that a longer task of the replay process left: ``comparison``, ``sweep``, ….

    ``source`` says in words whether it was made here or read from disk; ``version`` counts, so
    that the data itself need not be compared.
    """

    name: str
    data: Any = field(compare=False)
    source: str = ""
    version: int = 0


@dataclass(frozen=True)
class Report:
    """The report that is being made, or was: one HTML file.

    Attributes:
        status: Empty before one was asked for; else ``running``, ``done``, ``failed``, ``stopped``.
        path: The file.
        text: What went wrong, in words.
        started: When, on the monotonic clock.
        expected: Seconds that it takes here, as it was said beforehand.
        took: Seconds that one took that was made here.
    """

    status: str = ""
    path: str = ""
    text: str = ""
    started: float = 0.0
    expected: float | None = None
    took: float | None = None


Charts = Literal["", "still", "live"]
"""What can be drawn by now: no chart, the timeline's first view without plotly, or everything."""


@dataclass(frozen=True)
class State:
    """Everything the panel shows."""

    facts: Facts
    look: Look = field(default_factory=Look)
    runs: tuple[Run, ...] = ()
    wanted: tuple[tuple[str, str], ...] = ()
    activity: Activity | None = None
    trust: Trust = field(default_factory=Trust)
    problems: tuple[tuple[str, Problem], ...] = ()
    findings: Any = field(default=None, compare=False)
    findings_from: str = ""
    says: str = ""
    offers: tuple[tuple[str, str], ...] = ()
    saved_layers: Any = field(default=None, compare=False)
    saved_from: str = ""
    results: tuple[Result, ...] = ()
    takes: float | None = None
    charts: Charts = ""
    notes: tuple[Note, ...] = ()
    notes_said: str = ""
    report: Report = field(default_factory=Report)

    def result(self, name: str) -> Result | None:
        """What came of a comparison, sweep, ladder or the like, or None."""
        return next((one for one in self.results if one.name == name), None)

    def run(self, name: str) -> Run | None:
        """The run of that name, or None."""
        return next((run for run in self.runs if run.name == name), None)

    @property
    def no_replay(self) -> str:
        """Why nothing can be replayed, not even the input; empty when something can."""
        return dict(self.facts.missing).get(STAGE_NAMES[0], "")

    @property
    def shown(self) -> Run | None:
        """The run whose results are shown, or None while recorded facts are."""
        return self.run(self.look.shown)

    @property
    def stages(self) -> tuple[StageView, ...]:
        """The stages on the rail: of the shown run, else as recorded."""
        run = self.shown
        return run.stages if run is not None else self.facts.stages

    def problem(self, region: str) -> Problem | None:
        """What went wrong in a region, or None."""
        return dict(self.problems).get(region)

    def looking(self, **changes: Any) -> State:
        """The same findings, looked at differently."""
        return replace(self, look=replace(self.look, **changes))


def fresh_stages(missing: tuple[tuple[str, str], ...] = ()) -> tuple[StageView, ...]:
    """All ten stages before anything ran.

    Args:
        missing: Pairs of stage name and the reason why it cannot be replayed.
    """
    why = dict(missing)
    return tuple(
        StageView(name, "unavailable", reason=why[name]) if name in why else StageView(name)
        for name in STAGE_NAMES
    )
