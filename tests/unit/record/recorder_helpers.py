"""A recorder over one of the recorded steps, and its ledger read back."""

import json

import recorded_steps as steps

from workbench import Recorder
from workbench.record.group import write_all


def make(kind, directory, policy=None, **kwargs):
    step = kind()
    model, optimizers, scaler = steps.build(step)
    return step, Recorder(step, model, optimizers, scaler, directory, "r", policy, **kwargs)


def ledger(directory):
    write_all()
    return [json.loads(line) for line in (directory / "r.ledger.jsonl").read_text().splitlines()]
