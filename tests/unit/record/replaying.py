"""Replay a bundle as anyone would, and print what a verdict compares (also run as a script)."""

import json
import sys
from pathlib import Path

from workbench.evidence import open_bundle
from workbench.step import StepRunner, load_step, read_state, restore_rng, restore_state
from workbench.step.digests import gradient_digests, loss_bits, rng_digest


def replay(bundle_path, step=None, trust=None):
    bundle = open_bundle(bundle_path)
    step = load_step(bundle, step, trust)
    model = step.build_model()
    built = step.build_optimizer(model)
    optimizers = list(built) if isinstance(built, list | tuple) else [built]
    scaler = step.build_scaler()
    schedulers = list(step.build_schedulers(optimizers))
    state = read_state(bundle)
    restore_state(state, model, optimizers, scaler, schedulers, step)
    runner = StepRunner(step, model, optimizers, scaler)
    runner.begin(state.micro_batches, state.step_index)
    restore_rng(state.rng)
    gradients, outcome = {}, None
    while runner.next_unit is not None:
        outcome = runner.advance()
        if runner.at_gradient_gate:
            gradients = gradient_digests(model)
        if outcome.status == "bad":
            break
    return {
        "stage": outcome.unit.stage,
        "digests": {
            "loss_bits": None if runner.loss_value is None else loss_bits(runner.loss_value),
            "gradients": gradients,
            "masks": {bad.name: bad.mask for bad in outcome.bad},
            "rng": rng_digest(),
            "contribution": None,  # of one rank there is none
        },
    }


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parent))
    print(json.dumps([replay(path, trust="import") for path in sys.argv[1:]]))
