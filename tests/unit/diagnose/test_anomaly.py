"""Anomaly mode beside the origin: what it names, and where it is blind."""

import torch

from workbench.cli.findings_text import findings_lines
from workbench.diagnose.run import diagnose
from workbench.diagnose.zoo_run import record
from workbench.diagnose.zoo_step import incident_step

TEMPLATE = """
import torch, torch.nn as nn
def build():
    torch.manual_seed(0)
    model = nn.Linear(3, 1)
    return model, torch.optim.SGD(model.parameters(), {rate}), None, [{{"x": {batch}}}]
def forward(model, b):
    return model(b["x"])
def loss(out, b):
    return {loss}
"""
ONES = "torch.ones(2, 3)"


def said(tmp_path, loss="out.mean()", batch=ONES, rate="0.1"):
    path = tmp_path / "incident.py"
    path.write_text(TEMPLATE.format(loss=loss, batch=batch, rate=rate))
    bundle = record(path, tmp_path / "out", None).bundle
    step = incident_step(path)
    found = diagnose(bundle, step=step, counterfactuals=False, anomaly=True)
    return found.data["anomaly"], found.data["origins"], "\n".join(findings_lines(found.data))


def test_a_nan_born_in_backward_is_seen_by_both(tmp_path):
    anomaly, origins, text = said(tmp_path, "(out * 0).square().sum().sqrt().pow(0.5).mul(0).sum()")
    assert origins[0]["stage"] == "backward"
    assert anomaly["node"].startswith(("Pow", "Sqrt")) and "nan values" in anomaly["message"]
    assert anomaly["source"] == "incident.py:10"
    assert f"Anomaly mode: {anomaly['node']} (incident.py:10)" in text


def test_hypot_at_the_origin_agrees(tmp_path):
    anomaly, origins, text = said(tmp_path, "torch.hypot(out * 0, out * 0).sum()")
    assert anomaly["node"] == origins[0]["autograd_node"] == "HypotBackward0"
    assert anomaly["agrees"] is True and anomaly["note"] is None
    assert "as found here" in text


def test_an_inf_in_backward_is_not_seen(tmp_path):
    anomaly, origins, text = said(tmp_path, "(out - out.detach()).sqrt().sum()")
    assert (origins[0]["stage"], origins[0]["autograd_node"]) == ("backward", "SqrtBackward0")
    assert anomaly["node"] is None and anomaly["agrees"] is False
    assert "an Inf that backward makes does not stop it" in anomaly["note"]
    assert "Anomaly mode: says nothing." in text


def test_a_nan_made_of_an_earlier_inf_is_blamed_on_the_node_that_made_it_one(tmp_path):
    anomaly, origins, text = said(tmp_path, "(out - out.detach()).abs().sqrt().sum()")
    assert origins[0]["autograd_node"] == "SqrtBackward0"
    assert anomaly["node"] == "AbsBackward0" and anomaly["agrees"] is False
    assert "an earlier node that gives an Inf is not seen" in anomaly["note"]
    assert "AbsBackward0 (incident.py:10), not the origin found here" in text


def test_a_value_born_in_forward_is_not_seen(tmp_path):
    anomaly, origins, _ = said(tmp_path, "torch.log(-out.abs()).mean()")
    assert origins[0]["op"] == "aten.log.default"
    assert anomaly["agrees"] is False or anomaly["source"] == "incident.py:10"
    assert "born in forward" in anomaly["note"]


def test_a_poisoned_batch_blames_what_passes_it_on(tmp_path):
    anomaly, origins, _ = said(tmp_path, batch="torch.full((2, 3), float('nan'))",
                               loss="out.pow(2).mean()")  # fmt: skip
    assert origins[0]["kind"] == "poisoned_batch"
    assert anomaly["node"] is not None and anomaly["agrees"] is False
    assert "the batch was bad before" in anomaly["note"]
    assert "only passes the value on" in anomaly["note"]


def test_what_is_born_after_backward_is_not_seen(tmp_path):
    anomaly, _, text = said(tmp_path, rate="float('inf')")
    assert anomaly["node"] is None and anomaly["agrees"] is False
    assert "born after it" in anomaly["note"]
    assert "Anomaly mode: says nothing." in text


def test_it_is_not_run_unless_asked(tmp_path):
    path = tmp_path / "incident.py"
    path.write_text(TEMPLATE.format(loss="torch.log(-out.abs()).mean()", batch=ONES, rate="0.1"))
    bundle = record(path, tmp_path / "out", None).bundle
    found = diagnose(bundle, step=incident_step(path), counterfactuals=False)
    assert "anomaly" not in found.data
    assert not torch.is_anomaly_enabled()


def test_the_callers_warnings_and_settings_stay(tmp_path, recwarn):
    said(tmp_path, "torch.hypot(out * 0, out * 0).sum()")
    assert not [w for w in recwarn if "Traceback of forward call" in str(w.message)]
    assert not torch.is_anomaly_enabled()
