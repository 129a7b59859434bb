"""Recorded ways to an incident: short runs under the recorder, with loops that meddle."""

import torch

from tests.unit.replay import steps
from tests.unit.replay.steps import batch
from workbench.errors import NonFiniteError
from workbench.evidence import find_bundles, open_bundle
from workbench.record import Policy, Recorder
from workbench.replay.source import Source
from workbench.replay.trajectory import replay_trajectory


def train(
    step, directory, bad_at=7, between=None, policy=None, every=1, sharp=1e4, schedulers=None
):
    """Train until the loss fails at ``bad_at``; ``between(k, model, optimizer)`` runs before k."""
    with torch.random.fork_rng():
        torch.manual_seed(1)
        model = step.build_model()
        optimizer = step.build_optimizer(model)
        recorder = Recorder(
            step,
            model,
            optimizer,
            scaler=step.build_scaler(),
            directory=directory,
            run_id="run",
            policy=policy or Policy(recovery_every=every),
            schedulers=schedulers(optimizer) if schedulers else (),
        )
        try:
            for k in range(bad_at + 1):
                if between is not None:
                    between(k, model, optimizer)
                one = batch()
                one["x"] = one["x"] + 0.1 * k
                sharpness = torch.tensor(sharp if k == bad_at else 1.0)
                recorder.train_step(one | {"sharpness": sharpness})
                for scheduler in recorder.schedulers:
                    scheduler.step()
        except NonFiniteError:
            pass
    # the thread that writes an earlier one may still be at it, so times do not tell the last
    return max(find_bundles(directory), key=lambda path: path.name)


def replayed(path, step):
    """Replay the trajectory of a bundle."""
    bundle = open_bundle(path)
    return replay_trajectory(bundle, Source.from_bundle(bundle, step))


__all__ = ["replayed", "steps", "train"]
