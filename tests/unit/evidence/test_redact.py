"""A redacted copy: no sentinel of the original is in any of its bytes, and it is a whole bundle."""

import contextlib
import struct

import numpy as np
import pytest
import torch

from workbench.cli.main import main
from workbench.errors import NonFiniteError, UsageError
from workbench.evidence import open_bundle, pack
from workbench.evidence.made import made_sentence
from workbench.evidence.redact import redact
from workbench.evidence.sample_values import SampleValues, rounded, rounded_array
from workbench.numerics import jsonio
from workbench.record import Policy, Recorder
from workbench.step import TrainingStep

VALUE = 1234.5678
LABEL = 987654
TEXT = "a-very-private-sentence"
NAME = "patient-0042-scan"
PLACE = "/home/alice/secret-project"


class Step(TrainingStep):
    """Divides by a batch field that is zero, after remembering its batch in every odd place."""

    def __init__(self):
        self.remembered = TEXT
        self.folder = f"{PLACE}/data"

    def build_model(self):
        torch.manual_seed(0)
        model = torch.nn.Sequential(torch.nn.Linear(8, 4), torch.nn.BatchNorm1d(4))
        model.register_buffer("memory", torch.zeros(20))
        model.note = TEXT
        return model

    def build_optimizer(self, model):
        return torch.optim.AdamW(model.parameters(), lr=1e-3)

    def forward(self, model, batch):
        model.memory.copy_(batch["x"].flatten()[:20])
        return model(batch["x"])

    def loss(self, outputs, batch):
        if batch["raises"]:
            raise ValueError(f"cannot read {PLACE}/part-7.bin: {TEXT} {VALUE}")
        return (outputs.sum(1) / batch["w"]).mean()


def batch(zero=False, raises=False):
    x = torch.randn(32, 8)
    x[3, 2] = VALUE
    w = torch.ones(32)
    w[5] = 0.0 if zero else 1.0
    return {
        "x": x,
        "w": w,
        "y": torch.full((32,), LABEL),
        "one": torch.tensor(VALUE),
        "raises": raises,
        "text": [TEXT],
        NAME: torch.full((4,), VALUE, dtype=torch.float64),
        "array": np.full(3, VALUE),
        "scalar": VALUE,
    }


def record(directory, *, raises=False):
    step = Step()
    model = step.build_model()
    recorder = Recorder(
        step,
        model,
        step.build_optimizer(model),
        directory=directory,
        run_id="clinic",
        policy=Policy(recovery_every=1),
        provenance={"shard_id": f"{PLACE}/shard-{NAME}", "model_commit": "abc123", "who": "alice"},
    )
    ids = [f"{NAME}-{i}" for i in range(32)]
    for number in range(3):
        last = number == 2
        with contextlib.suppress(NonFiniteError, ValueError):
            recorder.train_step(batch(zero=last, raises=raises and last), sample_ids=ids)
    (path,) = directory.glob("*.bundle")
    return open_bundle(path)


@pytest.fixture(scope="module", params=["divides by zero", "raises"])
def original(request, tmp_path_factory):
    home = tmp_path_factory.mktemp("original")
    bundle = record(home, raises=request.param == "raises")
    from workbench.diagnose import diagnose

    findings = diagnose(bundle, step=Step)
    findings.save(bundle.findings_dir)
    return bundle


@pytest.fixture(scope="module")
def copy(original, tmp_path_factory):
    return open_bundle(redact(original, tmp_path_factory.mktemp("copy") / "shared.bundle"))


def needles():
    texts = [
        TEXT,
        NAME,
        PLACE,
        "alice",
        "secret-project",
        "part-7",
        str(VALUE),
        str(LABEL),
        "1,234",
    ]
    numbers = [struct.pack("<f", VALUE), struct.pack("<d", VALUE), struct.pack("<q", LABEL)]
    numbers.append(struct.pack("<d", float(np.float32(VALUE))))
    return [text.encode() for text in texts] + numbers


def found_in(folder):
    """Every needle that is in the bytes of a file below a folder."""
    files = [path for path in folder.rglob("*") if path.is_file()]
    return {
        (needle, path.name) for path in files for needle in needles() if needle in path.read_bytes()
    }


def test_the_original_holds_every_needle_that_is_looked_for(original):
    held = {needle for needle, _ in found_in(original.path)}
    assert len(held) >= 8  # else the search below could not fail


def test_no_byte_of_the_copy_or_its_findings_has_a_sample_a_path_or_a_name(original, copy):
    assert found_in(copy.path.parent) == set()
    assert copy.findings_dir.is_dir()
    assert not (copy.path / "source").exists()
    assert not (copy.path / "trajectory").exists()
    assert "host" not in copy.environment()


def test_copy_verifies_and_says_what_is_missing_and_why(original, copy):
    assert {check.status for check in copy.verify()} == {"ok"}
    assert copy.sealed and copy.fingerprint == original.fingerprint
    assert copy.digest != original.digest
    assert all("redact" in text for text in copy.completeness.values())
    assert original.digest in copy.manifest.notes[0]
    assert "batch.safetensors" in copy.manifest.dropped
    assert copy.manifest.dropped["batch.safetensors"] == "reduced to statistics by redact"
    assert copy.manifest.provenance == {"model_commit": "abc123"}


def test_statistics_keep_counts_shapes_and_three_digits(original, copy):
    found = copy.json("statistics.json")
    x = found["batch.0.x"]
    assert (x["shape"], x["dtype"], x["finite"]) == ([32, 8], "float32", 256)
    assert x["max"] == pytest.approx(1230.0)
    assert x["digest"].startswith("sha256:") or len(x["digest"]) == 64
    assert found["batch.0.w"]["zeros"] == 1
    one = found["batch.0.one"]
    assert one["finite"] == 1 and "max" not in one and "digest" not in one
    assert "batch.0.unnamed" in found  # a field named after a file


def test_ledger_keeps_the_run_and_tells_equal_samples_apart_from_others(original, copy):
    before, after = original.ledger(), copy.ledger()
    assert [r["loss"] for r in before] == [r["loss"] for r in after] or before[-1]["loss"] is None
    assert [r["step"] for r in after] == [0, 1, 2]
    ids = after[-1]["sample_ids"]
    assert ids == after[0]["sample_ids"] and len(set(ids)) == 32
    assert "scalars" not in after[-1]["batch_summary"]


def test_parameters_stay_unless_they_are_dropped_and_buffers_go(original, copy, tmp_path):
    kept = set(copy.tensor_index("state/model.safetensors"))
    assert kept == {"tensors.0.weight", "tensors.0.bias", "tensors.1.weight", "tensors.1.bias"}
    less = open_bundle(redact(original, tmp_path / "less.bundle", parameters=False))
    assert not less.has("state/model.safetensors")
    assert found_in(less.path) == set()


def test_copy_is_diagnosed_without_code_and_its_findings_are_its_own(original, copy):
    from workbench.diagnose import Findings, diagnose

    assert diagnose(copy).data["bundle"]["digest"] == copy.digest
    found = Findings.load(copy)
    assert found is not None and found.replayed
    assert found.data["origins"][0]["op"] == Findings.load(original).data["origins"][0]["op"]
    assert found.events is not None
    assert made_sentence(copy).startswith("made 20")
    assert any(original.digest in limit for limit in found.data["limits"])


def test_replay_of_the_copy_says_that_redact_took_the_batch(copy):
    from workbench.diagnose import diagnose

    found = diagnose(copy, step=Step)
    assert any("redact" in limit for limit in found.data["limits"])


def test_packed_copy_holds_nothing_either(copy, tmp_path):
    path = pack(copy, tmp_path / "shared.bundle.zip")
    assert not [needle for needle in needles() if needle in path.read_bytes()]
    assert "findings/findings.json" in open_bundle(path).packed_findings()


def test_a_packed_bundle_is_redacted_with_its_packed_findings(original, tmp_path):
    packed = open_bundle(pack(original, tmp_path / "whole.bundle.zip"))
    copy = open_bundle(redact(packed, tmp_path / "out"))
    assert copy.path.name == "out.bundle"
    assert found_in(copy.path) == set()
    assert (copy.findings_dir / "findings.json").is_file()
    assert found_in(copy.findings_dir) == set()


def test_nothing_is_overwritten(original, tmp_path):
    (tmp_path / "there.bundle").mkdir()
    with pytest.raises(UsageError, match="exists already"):
        redact(original, tmp_path / "there")


def test_command_keeps_the_inputs_of_the_op_alone(tmp_path, capfd):
    bundle = record(tmp_path / "run")
    out = tmp_path / "out.bundle"
    with pytest.raises(SystemExit) as ended:
        main(["redact", str(bundle.path), "-o", str(out), "--keep-op-inputs", "--json",
              "--step", f"{__file__}:Step"])  # fmt: skip
    assert ended.value.code == 0
    data = jsonio.loads(capfd.readouterr().out)
    assert data["schema"] == "workbench.redact/1"
    copy = open_bundle(out)
    assert {"op_inputs/repro.py", "op_inputs/inputs.safetensors"} <= set(copy.files())
    assert any("real inputs of one op" in note for note in copy.manifest.notes)
    assert {name for name in data["files"] if "batch" in name} == set()


@pytest.mark.parametrize(
    ("text", "whole", "left"),
    [
        ("the maximum is 1234.57", False, "the maximum is [removed]"),
        ("the maximum is 1,234.57", False, "the maximum is [removed]"),
        ("about 1.23e+03", False, "about 1.23e+03"),
        ("step 7 of 42", True, "step 7 of 42"),
        ("the label 42 is out of range", True, "the label [removed] is out of range"),
        ("the label 42 is out of range", False, "the label 42 is out of range"),
        ("at labels[42]", True, "at labels[42]"),
        ("it said hunter2 twice", False, "it said [removed] twice"),
        ("cannot open /data/x/y.bin", False, "cannot open y.bin"),
    ],
)
def test_texts_lose_what_the_batch_holds(text, whole, left):
    values = SampleValues([{"x": torch.tensor([1234.5678, 42.0, 7.0]), "t": "hunter2"}])
    assert values.without(text, whole=whole) == left


def test_rounding_keeps_three_digits_and_what_is_not_finite():
    assert rounded({"a": [1234.5678, 0.0, None, 7]}) == {"a": [1230.0, 0.0, None, 7]}
    column = rounded_array(np.array([1234.5678, -0.00012345, np.nan, np.inf, 0.0, 5e-324]))
    assert column[:2] == pytest.approx([1230.0, -0.000123])
    assert np.isnan(column[2]) and column[3] == np.inf and column[4] == 0.0
