"""A step without a bundle: it is recorded once, then opened like any other."""

import pytest
import torch
from safetensors.torch import save_file

from tests.browser.train_step import Step
from workbench.errors import CannotRunError, UsageError
from workbench.widgets import Workbench
from workbench.widgets.live_step import record_step


def a_batch(scale=1.0):
    generator = torch.Generator().manual_seed(2)
    x = torch.randn(16, 8, generator=generator) * scale
    return {"x": x, "y": torch.arange(16) % 5}


@pytest.fixture
def opened():
    made = []

    def opening(*args, **kwargs):
        made.append(Workbench.from_step(*args, **kwargs))
        return made[-1]

    yield opening
    for panel in made:
        panel.close()


def test_a_step_that_fails_is_opened_with_what_was_caught(opened):
    panel = opened(Step(), a_batch(1e4))
    assert panel.state.facts.headline.startswith("The loss became")
    assert panel.state.facts.kind == "nonfinite"
    assert panel.state.trust.given == "own"
    assert "from-step" in panel.state.facts.title


def test_a_step_that_stays_finite_says_so(opened):
    panel = opened(Step, a_batch())
    assert panel.state.facts.kind == "captured"
    assert "captured on request" in panel.state.facts.headline


def test_a_panel_from_a_step_replays(opened):
    panel = opened(Step(), a_batch(1e4))
    panel.run_to_first_bad()
    panel.wait()
    original = panel.state.run("Original")
    assert (original.bad.name, original.verdict) == ("loss", "bitwise")


def parameters_of(panel):
    return panel.bundle.tensors("state/model.safetensors")


@pytest.mark.parametrize("kind", ["safetensors", "torch", "nested", "mapping"])
def test_the_checkpoint_is_what_the_step_starts_from(opened, tmp_path, kind):
    model = Step().build_model()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.fill_(0.25)
    state = model.state_dict()
    optimizer = Step().build_optimizer(model).state_dict()
    whole = {"model_state_dict": state, "optimizer_state_dict": optimizer, "step": 7}
    path = tmp_path / ("weights.safetensors" if kind == "safetensors" else "weights.pt")
    if kind == "safetensors":
        save_file(state, path)
    else:
        torch.save(whole if kind == "nested" else state, path)
    panel = opened(Step(), a_batch(), checkpoint=whole if kind == "mapping" else path)
    assert all((one == 0.25).all() for one in parameters_of(panel).values())
    assert panel.bundle.manifest.step == (7 if kind in ("nested", "mapping") else 0)


class Evil:
    def __reduce__(self):
        return (print, ("run",))


def test_a_checkpoint_that_would_run_code_is_refused(tmp_path, capsys):
    path = tmp_path / "evil.pt"
    torch.save({"model": Evil()}, path)
    with pytest.raises(CannotRunError, match="cannot be read without running code"):
        record_step(Step(), a_batch(), path, tmp_path)
    assert "run" not in capsys.readouterr().out


def test_a_checkpoint_of_another_model_is_refused(tmp_path):
    state = torch.nn.Linear(2, 2).state_dict()
    with pytest.raises(CannotRunError, match="does not fit what the step builds"):
        record_step(Step(), a_batch(), {"model": state}, tmp_path)


def test_what_is_no_training_step_is_refused(tmp_path):
    with pytest.raises(UsageError, match="no TrainingStep"):
        record_step(torch.nn.Linear(2, 2), a_batch(), None, tmp_path)
    with pytest.raises(UsageError, match="no checkpoint file"):
        record_step(Step(), a_batch(), tmp_path / "none.pt", tmp_path)


def test_the_temporary_bundle_goes_with_the_panel(opened, tmp_path):
    panel = opened(Step(), a_batch())
    path = panel.bundle.path
    assert path.is_dir()
    panel.close()
    assert not path.exists()
    kept = opened(Step(), a_batch(), directory=tmp_path)
    kept.close()
    assert kept.bundle.path.is_dir()
