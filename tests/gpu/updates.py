"""What a recorder says of updates, beside what the parameters did."""

from dataclasses import dataclass, field

from tests.gpu.training import batch, build, parameters, recorder_for, same_bits


@dataclass
class Story:
    """Per step: what the recorder said, whether weights moved, the optimizer's own counter."""

    updated: list[bool] = field(default_factory=list)
    skipped_by: list[str] = field(default_factory=list)
    moved: list[bool] = field(default_factory=list)
    counters: list[float] = field(default_factory=list)
    found_inf: list[float] = field(default_factory=list)


def skip_between_updates(step, device, directory):
    """Two ordinary steps, one whose scaled gradients overflow, and an ordinary one."""
    built = build(step, device)
    recorder = recorder_for(built, directory)
    story = Story()
    for seed, weight in enumerate((1.0, 1.0, 1e4, 1.0)):
        weights = [p.detach().cpu().clone() for p in built.model.parameters()]
        result = recorder.train_step(batch(device, seed, weight=weight))
        after = parameters(built.model)[: len(weights)]
        story.updated.append(result.updated)
        story.skipped_by.append(result.skipped_by)
        story.moved.append(not same_bits(weights, after))
        story.counters.append(float(next(iter(built.optimizer.state.values()))["step"]))
        record = recorder.ledger.recent[-1]["optimizers"][0]
        story.found_inf.append(min(record["found_inf"], 1.0))
    recorder.close()
    assert recorder.failures == []
    return story
