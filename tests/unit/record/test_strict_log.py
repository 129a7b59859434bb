"""The strict JSON logger: NaN stays visible, and a failure of logging replaces nothing."""

from __future__ import annotations

import io
import json
import logging
import math

import pytest
import torch

import workbench
from workbench.numerics import jsonio
from workbench.record import StrictJsonHandler


class _Refusing(io.StringIO):
    def write(self, text):
        raise OSError(28, "No space left on device")


class _NoText:
    def __str__(self):
        raise RuntimeError("no text")


def _strict(text):
    """Decode with the standard decoder, refusing what JSON does not have."""

    def refuse(name):
        raise AssertionError(f"{name} is no JSON")

    return [json.loads(line, parse_constant=refuse) for line in text.splitlines()]


def test_nonfinite_numbers_are_tagged_and_named(tmp_path):
    path = tmp_path / "logs" / "metrics.jsonl"
    with workbench.StrictJsonLogger(path) as log:
        assert log.log({"loss": math.nan, "parts": {"ce": -math.inf, "l2": 1.5}}, step=7)
        assert log.log(step=8, lr=0.1)
    first, second = _strict(path.read_text())
    assert first["values"]["loss"] == {"finite": False, "value": "nan"}
    assert [entry["field"] for entry in first["nonfinite"]] == ["loss", "parts.ce"]
    assert {entry["step"] for entry in first["nonfinite"]} == {7}
    assert first["exception"] is None
    assert second["nonfinite"] == []
    assert second["values"] == {"lr": 0.1}
    assert math.isnan(jsonio.load_lines(path.read_text())[0]["values"]["loss"])


def test_tensor_summaries_take_finite_elements_only_and_say_so_when_there_are_none():
    stream = io.StringIO()
    log = workbench.StrictJsonLogger(stream)
    log.log(
        some=torch.tensor([1.0, -3.0, math.inf, math.nan]),
        none=torch.tensor([math.nan, math.inf]),
        one=torch.tensor(-math.inf),
        whole=torch.tensor([1, 2]),
    )
    (line,) = _strict(stream.getvalue())
    some = line["values"]["some"]
    assert (some["min"], some["max"], some["counts"]["finite"]) == (-3.0, 1.0, 2)
    assert some["rms"] == pytest.approx(math.sqrt(5.0), rel=1e-3)
    assert not some["no_finite_elements"]
    none = line["values"]["none"]
    assert none["no_finite_elements"]
    assert (none["min"], none["max"], none["rms"]) == (None, None, None)
    assert line["values"]["one"] == {"finite": False, "value": "-inf"}
    assert [entry["field"] for entry in line["nonfinite"]] == ["some", "none", "one"]


def test_the_exception_being_handled_is_written():
    stream = io.StringIO()
    log = workbench.StrictJsonLogger(stream)
    try:
        raise FloatingPointError("first failure")
    except FloatingPointError:
        log.log(loss=math.nan, step=3)
    (line,) = _strict(stream.getvalue())
    assert line["exception"] == {"type": "FloatingPointError", "message": "first failure"}


def test_a_failure_of_logging_is_counted_and_noted_and_never_replaces_the_exception():
    log = workbench.StrictJsonLogger(_Refusing())
    with pytest.raises(FloatingPointError, match="first failure") as caught:
        try:
            raise FloatingPointError("first failure")
        finally:
            assert not log.log(loss=math.nan, step=3)
    assert len(log.failures) == 1
    assert "step 3" in log.failures[0]
    assert any("No space left on device" in note for note in caught.value.__notes__)
    assert caught.value.__context__ is None


def test_objects_json_cannot_hold_become_texts():
    stream = io.StringIO()
    log = workbench.StrictJsonLogger(stream)
    assert log.log(odd=_NoText(), kind=torch.float16, parts=[1.0, math.inf])
    (line,) = _strict(stream.getvalue())
    assert "_NoText" in line["values"]["odd"]
    assert line["values"]["kind"] == "torch.float16"
    assert [entry["field"] for entry in line["nonfinite"]] == ["parts.1"]


def test_after_a_full_disk_the_next_line_is_whole(tmp_path, monkeypatch):
    path = tmp_path / "metrics.jsonl"
    log = workbench.StrictJsonLogger(path)
    log.log(loss=1.0)
    monkeypatch.setattr(log, "_stream", _Refusing())
    assert not log.log(loss=2.0)
    assert log.log(loss=3.0)
    log.close()
    assert [line["values"]["loss"] for line in _strict(path.read_text())] == [1.0, 3.0]


def test_the_handler_writes_extras_step_and_traceback_cause():
    stream = io.StringIO()
    handler = StrictJsonHandler(stream)
    log = logging.getLogger("test.strict")
    log.propagate = False
    log.addHandler(handler)
    try:
        try:
            raise ValueError("bad batch")
        except ValueError:
            log.exception("step %d failed", 4, extra={"loss": math.inf, "step": 4})
        log.warning("%d is no number", "x")
    finally:
        log.removeHandler(handler)
    first, second = _strict(stream.getvalue())
    assert first["step"] == 4
    assert first["values"]["message"] == "step 4 failed"
    assert first["nonfinite"][0]["field"] == "loss"
    assert first["exception"] == {"type": "ValueError", "message": "bad batch"}
    assert second["values"]["message"] == "%d is no number"


def test_a_handler_that_cannot_write_does_not_call_itself_for_ever():
    handler = StrictJsonHandler(_Refusing())
    log = logging.getLogger("workbench")
    log.addHandler(handler)
    try:
        log.warning("something")
        log.warning("something else")
    finally:
        log.removeHandler(handler)
    assert len(handler.failures) == 2
