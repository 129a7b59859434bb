import pytest
import torch

from workbench.evidence import (
    BundleWriter,
    FirstBad,
    SummaryFacts,
    open_bundle,
    summary_facts,
    summary_lines,
    verdict_sentence,
)

LOSS = FirstBad(run_id="run7", step=18342, stage="loss", tensor="loss", sink="loss", kind="nan")
LOG = {
    "kind": "birth",
    "stage": "loss",
    "op": "aten.log.default",
    "where": "loss",
    "module": "",
    "cause": "log_of_zero",
    "dtype": "float32",
    "source": "train.py:31",
}
CLEAN = {
    "collective": False,
    "parameters": [],
    "optimizer_state": [],
    "buffers": [],
    "checkpoints": [],
}


def findings(**changes):
    return {
        "schema": "workbench.findings/1",
        "reproduction": {
            "verdict": "bitwise",
            "deterministic_here": True,
            "survives_instrumentation": True,
        },
        "origins": [LOG],
        "contamination": CLEAN,
        "absorbed": [],
    } | changes


def lines(**facts):
    return summary_lines(SummaryFacts(**({"first_bad": LOSS} | facts)))


def test_before_a_replay_it_says_where_it_was_caught_and_nothing_more():
    assert lines(update_withheld=True) == [
        "✕ The loss became NaN. Caught at loss, step 18,342.",
        "Why     Not replayed yet.",
        "Sure?   Not replayed yet.",
        (
            "Reach   Stopped before the update. Parameters, optimizer state and checkpoints were "
            "not scanned yet."
        ),
        "Resume  Not known: no checkpoint was recorded.",
    ]


def test_after_a_diagnosis_it_says_where_it_was_born():
    assert lines(
        findings=findings(),
        cause="Log of zero: softmax rounded 3 of 8,192 probabilities to 0, and log(0) is −Inf.",
        fix="log_softmax or cross_entropy",
        checkpoint="checkpoint-18000",
        checkpoint_state="committed",
    ) == [
        "✕ The loss became NaN. Born at aten.log.default in loss, train.py:31.",
        "Why     Log of zero: softmax rounded 3 of 8,192 probabilities to 0, and log(0) is −Inf.",
        (
            "Sure?   Replayed exactly: same loss bits, same non-finite values. Still fails with "
            "probes on."
        ),
        (
            "Reach   Stopped before the update: no parameter, optimizer state or checkpoint holds "
            "a bad value."
        ),
        "Resume  checkpoint-18000 (committed). Before that, try: log_softmax or cross_entropy.",
    ]


@pytest.mark.parametrize(
    ("bad", "headline"),
    [
        (
            {"sink": "gradient", "tensor": "head.weight", "counts": {"pos_inf": 3, "finite": 8189}},
            "✕ The gradient of head.weight became non-finite: 3 +Inf of 8,192.",
        ),
        (
            {"sink": "grad_norm", "tensor": "grad_norm", "kind": "+inf"},
            "✕ The gradient norm became +Inf.",
        ),
        ({"sink": "parameter", "tensor": "w", "kind": "-inf"}, "✕ The parameter w became −Inf."),
        ({"sink": "buffer", "tensor": "bn.running_var"}, "✕ The buffer bn.running_var became NaN."),
        (
            {"sink": "loss_scale", "tensor": "scale", "kind": "+inf"},
            "✕ The loss scale became +Inf.",
        ),
        (
            {"sink": "exception", "kind": "exception", "tensor": "", "message": "RuntimeError: no"},
            "✕ The step raised RuntimeError: no.",
        ),
        ({"sink": "", "tensor": "loss"}, "✕ The loss became NaN."),
    ],
)
def test_every_sink_has_its_sentence(bad, headline):
    record = {"run_id": "r", "step": 2, "stage": "backward", "kind": "nan"} | bad
    assert lines(first_bad=record)[0].startswith(headline + " Caught at backward, step 2.")


def test_ranks_and_micro_steps_are_named_where_there_are_several():
    record = {"step": 2, "stage": "loss", "tensor": "loss", "micro_step": 3, "rank": 1}
    assert lines(first_bad=record)[0].endswith("Caught at loss, step 2, micro-step 3, rank 1.")


@pytest.mark.parametrize(
    ("origin", "words"),
    [
        ({"kind": "poisoned_batch", "tensor": {"name": "x"}}, "It was in the batch field x before"),
        ({"kind": "poisoned_parameter", "tensor": {"name": "w"}}, "the parameter w before"),
        (
            {**LOG, "where": "module", "module": "blocks.3.attn"},
            "aten.log.default in blocks.3.attn,",
        ),
        (
            {**LOG, "where": "module", "module": "head", "stage": "backward"},
            "in head, backward,",
        ),
        ({**LOG, "where": "module", "module": ""}, "in the model,"),
        ({"kind": "exception", "where": "loss", "source": "a.py:2"}, "Raised in loss, a.py:2."),
        ({}, "Born in an unknown place."),
    ],
)
def test_every_kind_of_origin_has_its_sentence(origin, words):
    assert words in lines(findings=findings(origins=[origin]))[0]


@pytest.mark.parametrize(
    "verdict",
    ["bitwise", "same_mask", "same_class", "same_alert", "not_reproduced", "unverifiable", "new"],
)
def test_every_verdict_has_a_sentence(verdict):
    assert verdict_sentence(verdict).endswith(".")


def test_verdicts_say_their_limits():
    assert verdict_sentence("same_mask", max_relative=3e-7) == (
        "Replayed: the same elements are non-finite; finite values differ by at most "
        "3e-7 (relative)."
    )
    differs = [{"field": "device", "recorded": "H100", "here": "CPU"}]
    assert verdict_sentence("not_reproduced", environment=differs) == (
        "Did not fail here. That does not clear the step: device differs (recorded H100, here CPU)."
    )
    assert verdict_sentence("unverifiable", missing="the bundle has no optimizer state") == (
        "Cannot be checked here: the bundle has no optimizer state."
    )


def test_a_failure_that_probes_remove_is_a_hint():
    reproduction = {"verdict": "bitwise", "survives_instrumentation": False}
    sure = lines(findings=findings(reproduction=reproduction))[2]
    assert "a hint, not evidence" in sure
    assert "Still fails" not in sure


def test_a_step_that_is_not_deterministic_is_said_to_be():
    reproduction = {"verdict": "same_mask", "deterministic_here": False}
    assert "not deterministic here" in lines(findings=findings(reproduction=reproduction))[2]


def test_nothing_wrong_is_said_only_after_a_replay():
    quiet = {"first_bad": None, "kind": "captured"}
    assert "No fault was found" in lines(findings=findings(origins=[]), **quiet)[1]
    for verdict in (None, "unverifiable", "not_reproduced"):
        found = findings(origins=[], reproduction={"verdict": verdict})
        assert "No fault was found" not in lines(findings=found, **quiet)[1]


def test_a_failure_without_an_origin_is_not_called_harmless():
    why = lines(findings=findings(origins=[]))[1]
    assert why == "Why     Not known: it fails as recorded, and no origin was found."
    trials = [{"intervention": "loss scale 1", "result": "benign_skip"}]
    assert "Only a scaler skip" in lines(findings=findings(origins=[], counterfactuals=trials))[1]


def test_an_alert_is_finite():
    bad = FirstBad(
        run_id="r",
        step=9,
        stage="loss",
        tensor="loss",
        kind="alert",
        message="loss 9.1 where the last 200 steps had 2.2 to 2.6",
    )
    assert lines(first_bad=bad, kind="alert")[0] == (
        "! Nothing non-finite. Alert: loss 9.1 where the last 200 steps had 2.2 to 2.6."
    )
    assert "✕" not in "".join(lines(first_bad=bad, kind="alert"))


def test_a_captured_step_says_that_nothing_tripped():
    text = summary_lines(SummaryFacts(first_bad=None, kind="captured"))
    assert "captured on request" in text[0]
    assert len(text) == 5


def test_contamination_is_listed_and_unknown_is_said():
    held = CLEAN | {"parameters": ["a", "b", "c"], "checkpoints": ["ckpt-2"], "collective": True}
    reach = lines(findings=findings(contamination=held))[3]
    assert reach == (
        "Reach   Bad values in parameter a, b and 1 more; checkpoint ckpt-2. The bad value went "
        "through a collective to all ranks."
    )
    unknown = lines(findings=findings(contamination=CLEAN | {"optimizer_state": None}))[3]
    assert unknown == ("Reach   Not known, since not scanned or not recorded: optimizer state.")


def test_an_update_that_was_made_is_never_said_to_be_clean_unseen():
    bad = {"step": 1, "stage": "after_update", "tensor": "w", "sink": "parameter"}
    assert "may hold bad values" in lines(first_bad=bad)[3]
    assert "may hold bad values" in lines(update_withheld=False)[3]
    assert "Stopped" not in lines()[3]


def test_text_from_outside_cannot_break_a_line():
    evil = LOG | {"op": "aten.x\n✕ forged line", "source": "a\x1b[2J\u202e.py:1"}
    found = lines(
        first_bad={"step": 1, "stage": "loss\nWhy", "tensor": "a\nb", "sink": "parameter"},
        findings=findings(origins=[evil]),
        cause="x\ny",
        checkpoint="c\nd",
    )
    assert len(found) == 5
    assert not any("\n" in line or "\x1b" in line or "\u202e" in line for line in found)


@pytest.mark.parametrize(
    "broken",
    [
        {"origins": None},
        {"origins": [None, 3]},
        {"reproduction": None},
        {"contamination": []},
        {"contamination": {"parameters": "w"}},
        {"origins": [{"op": 3, "tensor": "x", "where": ["y"]}]},
        {},
    ],
)
def test_findings_of_a_strange_form_still_give_five_lines(broken):
    assert len(lines(findings=broken)) == 5


def test_words_that_claim_too_much_are_never_used():
    said = []
    for verdict in ("bitwise", "same_mask", "not_reproduced", "unverifiable", None):
        for origins in ([LOG], []):
            for withheld in (True, False, None):
                reproduction = {"verdict": verdict, "survives_instrumentation": True}
                said += lines(
                    findings=findings(origins=origins, reproduction=reproduction),
                    update_withheld=withheld,
                )
    said += lines()
    text = " ".join(said).lower()
    for word in ("success", "passed", "root cause", "fixed", "amp issue", "first nan"):
        assert word not in text


def test_caught_and_born_are_never_mixed():
    assert "Born" not in " ".join(lines())
    assert "Caught" not in " ".join(lines(findings=findings()))


def test_a_bundle_alone_is_enough(tmp_path):
    writer = BundleWriter(tmp_path, "b")
    writer.add_tensors("batch.safetensors", {"x": torch.zeros(1)})
    path = writer.publish(first_bad=LOSS, completeness={"update": "missing pre-step parameters"})
    facts = summary_facts(open_bundle(path))
    assert summary_lines(facts)[0].startswith("✕ The loss became NaN. Caught at loss")
    facts = summary_facts(open_bundle(path), findings(reproduction={"verdict": "unverifiable"}))
    assert summary_lines(facts)[2].endswith("here: the bundle has no pre-step parameters.")


def test_where_nothing_tripped_nothing_is_said_to_fail():
    quiet = {"reproduction": {"verdict": "bitwise", "survives_instrumentation": True}}
    said = lines(first_bad=None, kind="captured", findings=quiet | {"origins": []})[2]
    assert said.endswith("nothing trips here either. The same with probes on.")
    assert "fails" not in said


def test_what_did_not_fail_without_probes_does_not_stop_failing_with_them():
    gone = {"reproduction": {"verdict": "not_reproduced", "survives_instrumentation": False}}
    assert "probes" not in lines(findings=gone)[2]


def test_an_exception_is_not_said_to_have_the_same_loss():
    record = {"step": 2, "stage": "forward", "sink": "exception", "kind": "exception"}
    raised = {
        "reproduction": {"verdict": "bitwise", "survives_instrumentation": True},
        "origins": [{"kind": "exception", "stage": "forward", "dtype": None}],
    }
    said = lines(first_bad=record | {"message": "ValueError: no"}, findings=raised)
    assert "same type of exception" in said[2]
    assert "loss bits" not in said[2]
    assert said[1] == "Why     Cause not known."


def test_a_scaler_skip_of_a_captured_step_is_not_called_nothing():
    quiet = {"reproduction": {"verdict": "bitwise"}, "origins": []}
    assert (
        "A scaler skip"
        in lines(first_bad=None, kind="captured", findings=quiet, scaler_skip=True)[1]
    )


def test_a_reduction_put_in_from_the_record_is_not_called_replayed():
    said = {
        "verdict": "bitwise",
        "deterministic_here": True,
        "survives_instrumentation": True,
        "reduction": "recorded",
    }
    assert lines(findings=findings(reproduction=said))[2] == (
        "Sure?   Replayed up to the reduction: same loss bits; the reduced gradients are those "
        "recorded, not computed again."
    )


def test_what_was_not_scanned_is_named_in_whole():
    unknown = dict.fromkeys(("parameters", "optimizer_state", "buffers", "checkpoints"))
    assert lines(findings=findings(contamination=CLEAN | unknown))[3] == (
        "Reach   Not known, since not scanned or not recorded: parameters, optimizer state, "
        "buffers and checkpoints."
    )
