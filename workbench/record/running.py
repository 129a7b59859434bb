"""The step's runner in training: its gates may fail without training noticing."""

from __future__ import annotations

from typing import TYPE_CHECKING

from workbench.step.protocol import TrainingStep
from workbench.step.runner import Outcome, StepRunner
from workbench.step.stages import Unit

if TYPE_CHECKING:
    from workbench.record.recorder import Recorder
    from workbench.record.session import Session


class RecordingRunner(StepRunner):
    """A runner whose gates are the recorder's own work.

    Args:
        recorder: The recorder.
        session: The recorded step.
    """

    def __init__(self, recorder: Recorder, session: Session) -> None:
        step = recorder.step_object
        super().__init__(
            TrainingStep() if step is None else step,
            recorder.model,
            recorder.optimizers,
            recorder.scaler,
            before_unit=self._before,
        )
        self._recorder = recorder
        self._session = session

    def _before(self, unit: Unit) -> None:
        self._recorder.guard("random state", lambda: self._session.before_unit(unit))

    def _gate(self, unit: Unit) -> Outcome:
        outcome = self._recorder.guard("gate", lambda: StepRunner._gate(self, unit))
        return Outcome(unit) if outcome is None else outcome
