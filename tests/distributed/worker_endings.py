"""Scenarios in which one rank ends its step otherwise than all others: raise, kill, leave."""

from __future__ import annotations

import os
import signal
import sys
import time
from typing import Any

import torch
from torch import distributed as dist

from tests.distributed import training as t
from workbench.errors import RankError
from workbench.record import Policy, Recorder

MODE = sys.argv[2]
TIMEOUT_S = 8.0 if MODE == "desync" else 60.0
RANK, WORLD, FOLDER = t.begin(TIMEOUT_S)
BAD_RANK = WORLD - 1
AT = 3


class Raising(t.Step):
    """Raises inside forward, on one rank, in one step."""

    def forward(self, model: Any, batch: Any) -> torch.Tensor:
        if MODE == "raise" and RANK == BAD_RANK and self.step_index == AT:
            raise ValueError("a sample of this rank cannot be read")
        if MODE == "kill" and RANK == BAD_RANK and self.step_index == AT:
            os.kill(os.getpid(), signal.SIGKILL)
        return super().forward(model, batch)


def whole_steps(recorder: Recorder) -> None:
    for k in range(AT + 2):
        recorder.train_step(t.batch(k, RANK))


def own_loop(recorder: Recorder, model: Any, optimizer: Any) -> None:
    """The loop of dd02: a rank that sees a bad loss goes on to its next batch by itself."""
    for k in range(AT + 2):
        batch = t.batch(k, RANK, t.BAD if k == AT and RANK == BAD_RANK else 1.0)
        optimizer.zero_grad()
        with recorder.step(batch) as s:
            loss = (model(batch["x"]) * batch["w"]).mean()
            s.loss(loss)
            if not torch.isfinite(loss):
                continue
            loss.backward()
            if s.gradients():
                s.update()


def main() -> None:
    # torchrun ends all ranks of a machine once one has ended; those of other machines live on
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    model = t.ddp()
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    policy = Policy(on_nonfinite="skip")
    recorder = Recorder(Raising(), model, optimizer, directory=FOLDER / "run", policy=policy)
    started = time.monotonic()
    found: dict[str, Any] = {"error": None}
    try:
        if MODE == "desync":
            own_loop(recorder, model, optimizer)
        else:
            whole_steps(recorder)
    except (RankError, ValueError) as error:
        found = {
            "error": type(error).__name__,
            "text": str(error),
            "rank": getattr(error, "rank", None),
            "step": getattr(error, "step", None),
            "exception": getattr(error, "exception", None),
            "notes": list(getattr(error, "__notes__", [])),
        }
    found["seconds"] = time.monotonic() - started
    found["step_index"] = recorder.step_index
    found["bundles"] = [path.name for path in recorder.bundles]
    found["stages"] = [r["first_bad_stage"] for r in t.records(recorder)]
    found["failures"] = recorder.failures
    t.say(FOLDER, RANK, found)


if __name__ == "__main__":
    main()
    if dist.get_rank() == 0:
        time.sleep(1.0)  # it may hold the store
    os._exit(0)
