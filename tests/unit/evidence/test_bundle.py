import hashlib
import os
import zipfile
from pathlib import Path

import pytest
import torch

from workbench.errors import BundleError, UsageError
from workbench.evidence import (
    BundleWriter,
    Conditions,
    FirstBad,
    StepReference,
    find_bundles,
    open_bundle,
    pack,
)
from workbench.numerics import jsonio

BAD = FirstBad(
    run_id="run7", step=1834, stage="loss", tensor="loss", sink="loss", value=float("nan")
)


def write(directory, name="run7-step00001834", **fields):
    writer = BundleWriter(directory, name)
    writer.add_lines("ledger.jsonl", [{"step": 1, "loss": float("inf")}, {"step": 2, "loss": 1.0}])
    writer.add_json("evidence.json", {"counts": {"nan": 1}})
    writer.add_json("environment.json", {"python": "3.11"})
    writer.add_pytree("batch", [{"x": torch.arange(6.0).reshape(2, 3)}])
    writer.publish(run_id="run7", step=1834, first_bad=BAD, **fields)
    writer.add_tensors("state/model.safetensors", {"w": torch.ones(3, 2).t()})
    writer.add_text("source/train.py", "class Step: ...\n")
    return writer.seal()


def test_a_bundle_tells_what_was_written(tmp_path):
    conditions = Conditions(threads=3, scale=float("inf"))
    reference = StepReference(reference="train:Step", kind="module", digest="sha256:0")
    path = write(
        tmp_path,
        conditions=conditions,
        completeness={"forward_loss": "complete"},
        step_reference=reference,
        provenance={"dataset": "v3", "lr": float("nan")},
    )
    bundle = open_bundle(path)
    assert path.name == "run7-step00001834.bundle"
    assert (bundle.kind, bundle.sealed, bundle.conditions) == ("nonfinite", True, conditions)
    assert (bundle.first_bad.stage, bundle.manifest.step_reference) == ("loss", reference)
    assert bundle.completeness == {"forward_loss": "complete"}
    assert bundle.ledger() == [{"step": 1, "loss": float("inf")}, {"step": 2, "loss": 1.0}]
    assert (bundle.evidence(), bundle.environment()) == ({"counts": {"nan": 1}}, {"python": "3.11"})
    assert bundle.pytree("batch")[0]["x"].tolist() == [[0, 1, 2], [3, 4, 5]]
    assert bundle.tensors("state/model.safetensors")["w"].stride() == (1, 2)
    assert bundle.text("source/train.py") == "class Step: ...\n"
    assert bundle.has("batch.json")
    assert not bundle.has("state/rng.json")
    assert {check.status for check in bundle.verify()} == {"ok"}
    assert (
        bundle.digest
        == "sha256:" + hashlib.sha256((path / "manifest.json").read_bytes()).hexdigest()
    )
    assert bundle.findings_dir == tmp_path / "run7-step00001834.bundle.findings"


def test_the_file_table_is_exact(tmp_path):
    path = write(tmp_path)
    manifest = jsonio.loads((path / "manifest.json").read_bytes())
    there = {
        p.relative_to(path).as_posix(): {
            "size": p.stat().st_size,
            "sha256": hashlib.sha256(p.read_bytes()).hexdigest(),
        }
        for p in path.rglob("*")
        if p.is_file() and p.name != "manifest.json"
    }
    assert manifest["files"] == there
    assert manifest["format"] == "1.0"
    assert manifest["sealed"] is True


def test_the_index_and_a_choice_of_tensors(tmp_path):
    writer = BundleWriter(tmp_path, "x")
    w = torch.randn(4, 2)
    tensors = {"w": w, "tied": w.t(), "s": torch.eye(3).to_sparse(), "h": torch.ones(5).half()}
    writer.add_tensors("t.safetensors", tensors)
    bundle = open_bundle(writer.seal())
    index = bundle.tensor_index("t.safetensors")
    assert {name: entry["shape"] for name, entry in index.items()} == {
        "w": [4, 2],
        "tied": [2, 4],
        "s": [3, 3],
        "h": [5],
    }
    assert index["h"]["dtype"] == "float16"
    assert list(bundle.tensors("t.safetensors", ["tied"])) == ["tied"]
    assert torch.equal(bundle.tensors("t.safetensors", ["tied"])["tied"], w.t())
    assert "tied" in bundle.tensor_specs("t.safetensors")
    with pytest.raises(BundleError, match="no tensor 'nope'"):
        bundle.tensors("t.safetensors", ["nope"])


def test_nothing_is_visible_before_it_is_published(tmp_path):
    writer = BundleWriter(tmp_path, "run-step00000001")
    writer.add_json("evidence.json", {})
    (hidden,) = tmp_path.iterdir()
    assert hidden.name.startswith(".")
    assert find_bundles(tmp_path) == []
    writer.abort()
    assert list(tmp_path.iterdir()) == []


def test_after_publishing_each_state_on_disk_is_a_true_bundle(tmp_path):
    writer = BundleWriter(tmp_path, "b")
    writer.add_json("evidence.json", {"a": 1})
    path = writer.publish(run_id="r")
    for i in range(3):
        writer.add_tensors(f"state/{i}.safetensors", {"x": torch.full((3,), float(i))})
        bundle = open_bundle(path)
        assert not bundle.sealed
        assert bundle.has(f"state/{i}.safetensors")
        assert {check.status for check in bundle.verify()} == {"ok"}
        assert [p.name for p in path.rglob(".*")] == []
    writer.abort()
    assert open_bundle(path).has("state/2.safetensors")


def test_a_failing_write_leaves_what_was_there(tmp_path):
    writer = BundleWriter(tmp_path, "b")
    writer.add_json("a.json", 1)
    path = writer.publish()
    with pytest.raises(UsageError):
        writer.add_json("b.json", object())
    assert [check.status for check in open_bundle(path).verify()] == ["ok"]
    assert list(path.rglob(".*")) == []


def test_a_part_of_many_files_comes_in_whole_or_not_at_all(tmp_path, monkeypatch):
    writer = BundleWriter(tmp_path, "b")
    writer.add_text("steps/first.txt", "there")
    path = writer.publish(run_id="r")
    before = (path / "manifest.json").read_bytes()
    synced, fsync = [], os.fsync
    monkeypatch.setattr(os, "fsync", lambda descriptor: synced.append(fsync(descriptor)))
    with writer.together():
        for i in range(40):
            writer.add_pytree(f"steps/{i}/batch", {"x": torch.full((3,), float(i))})
            with pytest.raises(ValueError, match="nested"), writer.together():
                writer.add_text(f"steps/{i}/bad.txt", "taken back")
                raise ValueError("nested")
        staged = writer.bytes_written
        assert (path / "manifest.json").read_bytes() == before
        assert not (path / "steps" / "3").exists()
    assert len(synced) == 80 + 40 + 1 + 2, "files, new folders, the old one, manifest with its own"
    bundle = open_bundle(path)
    assert {check.status for check in bundle.verify()} == {"ok"}
    assert len(bundle.files()) == 81
    assert (
        staged
        == writer.bytes_written
        == sum(entry.size for entry in bundle.manifest.files.values())
    )
    assert torch.equal(bundle.pytree("steps/7/batch")["x"], torch.full((3,), 7.0))
    before = (path / "manifest.json").read_bytes()
    failing = Path.rename

    def full(self, target):
        if self.name == "b.json":
            raise OSError(28, "No space left on device")
        return failing(self, target)

    monkeypatch.setattr(Path, "rename", full)
    with pytest.raises(OSError, match="No space"), writer.together():
        writer.add_json("a.json", 1)
        writer.add_json("b.json", 2)
        writer.add_json("c/d.json", 3)
    assert (path / "manifest.json").read_bytes() == before
    assert sorted(p.name for p in path.iterdir()) == ["manifest.json", "steps"]
    monkeypatch.setattr(Path, "rename", failing)
    writer.add_json("b.json", 2)
    writer.seal()
    assert {check.status for check in open_bundle(path).verify()} == {"ok"}
    assert list(path.rglob(".*")) == []


def test_no_bundle_is_ever_overwritten(tmp_path):
    (tmp_path / "run7-step00001834-2.bundle").mkdir()
    first, second, third = (write(tmp_path) for _ in range(3))
    assert [p.name for p in (first, second, third)] == [
        "run7-step00001834.bundle",
        "run7-step00001834-3.bundle",
        "run7-step00001834-4.bundle",
    ]
    assert len({open_bundle(p).id for p in (first, second, third)}) == 3


@pytest.mark.parametrize(
    "rel",
    [
        "../x",
        "/etc/x",
        "a/../b",
        ".hidden",
        "a/.b",
        "manifest.json",
        "",
        "a b",
        "ü",
        "a\\b",
        "a//b",
    ],
)
def test_names_outside_the_alphabet_are_refused(tmp_path, rel):
    writer = BundleWriter(tmp_path, "b")
    with pytest.raises(UsageError):
        writer.add_text(rel, "x")
    with pytest.raises(UsageError):
        BundleWriter(tmp_path, rel or "/")


def test_a_file_is_written_once_and_a_sealed_bundle_never(tmp_path):
    writer = BundleWriter(tmp_path, "b")
    writer.add_text("a.txt", "x")
    with pytest.raises(UsageError, match="added before"):
        writer.add_text("a.txt", "y")
    writer.seal()
    with pytest.raises(UsageError, match="sealed"):
        writer.add_text("b.txt", "y")


def test_fields_the_writer_owns_cannot_be_set(tmp_path):
    writer = BundleWriter(tmp_path, "b")
    for field in ("files", "sealed", "nonsense"):
        with pytest.raises(UsageError, match="no field"):
            writer.publish(**{field: 1})


def test_dropped_files_are_named_with_their_reason(tmp_path):
    writer = BundleWriter(tmp_path, "b")
    writer.drop("state/optimizer.safetensors", "over max_bytes")
    bundle = open_bundle(writer.seal())
    with pytest.raises(BundleError, match="left out: over max_bytes"):
        bundle.tensors("state/optimizer.safetensors")


def test_the_fingerprint_is_that_of_the_class_not_of_the_step(tmp_path):
    def of(name, **changes):
        fields = {"run_id": "r", "step": 1, "stage": "loss", "tensor": "loss"} | changes
        writer = BundleWriter(tmp_path, name)
        return open_bundle(writer.publish(world=4, first_bad=FirstBad(**fields))).fingerprint

    assert of("a") == of("b", run_id="s", step=99, rank=3, counts={"nan": 7})
    assert len({of("c"), of("d", stage="backward"), of("e", tensor="x"), of("f", kind="+inf")}) == 4
    assert of("g").startswith("NF-")
    assert len(of("h")) == 9


def test_large_files_are_digested_in_a_thread_and_right(tmp_path):
    writer = BundleWriter(tmp_path, "b")
    tensors = {f"t{i}": torch.randn(300_000 + i) for i in range(20)}
    tensors |= {f"small{i}": torch.randn(3) for i in range(700)}
    writer.add_tensors("t.safetensors", tensors)
    bundle = open_bundle(writer.seal())
    assert {check.status for check in bundle.verify()} == {"ok"}
    back = bundle.tensors("t.safetensors")
    assert all(torch.equal(back[name], t) for name, t in tensors.items())


def test_plain_files_are_read_by_the_safetensors_package(tmp_path):
    from safetensors.torch import load_file

    writer = BundleWriter(tmp_path, "b")
    tensors = {
        "w": torch.randn(3, 4),
        "b": torch.randn(5).bfloat16(),
        "i": torch.tensor(3),
        "t": torch.randn(2, 3).t(),
        "f8": torch.ones(2).to(torch.float8_e5m2),
        "e": torch.zeros(0, 2),
        "odd": torch.ones(3, dtype=torch.int8),
    }
    writer.add_tensors("m.safetensors", tensors)
    back = load_file(writer.seal() / "m.safetensors")
    assert back.keys() == tensors.keys()
    assert all(torch.equal(back[name].float(), t.float()) for name, t in tensors.items())


def test_the_safetensors_package_writes_what_we_read(tmp_path):
    from safetensors.torch import save

    writer = BundleWriter(tmp_path, "b")
    w = torch.randn(3)
    writer.add_bytes("m.safetensors", save({"w": w, "x": torch.ones(1).half()}, {"k": "v"}))
    back = open_bundle(writer.seal()).tensors("m.safetensors")
    assert torch.equal(back["w"], w)


def test_tensors_are_read_into_memory_of_their_own(tmp_path):
    writer = BundleWriter(tmp_path, "b")
    writer.add_tensors("m.safetensors", {"a": torch.zeros(3), "b": torch.zeros(3)})
    back = open_bundle(writer.seal()).tensors("m.safetensors")
    back["a"].fill_(7.0)
    assert not back["b"].any()
    assert back["a"].untyped_storage().nbytes() == 12


def test_writing_a_snapshot_leaves_it_shared(tmp_path):
    t = torch.randn(1000)
    snapshot = torch._lazy_clone(t)
    BundleWriter(tmp_path, "b").add_tensors("m.safetensors", {"t": snapshot})
    assert torch._C._is_cow_tensor(t)
    assert torch._C._is_cow_tensor(snapshot)


class TestPacked:
    def test_a_zip_reads_like_its_directory(self, tmp_path):
        path = write(tmp_path)
        bundle = open_bundle(path)
        bundle.findings_dir.mkdir()
        (bundle.findings_dir / "findings.json").write_text("{}")
        packed = open_bundle(pack(bundle, tmp_path / "out.bundle.zip"))
        assert packed.digest == bundle.digest
        assert packed.verify() == bundle.verify()
        assert packed.ledger() == bundle.ledger()
        name = "state/model.safetensors"
        assert torch.equal(packed.tensors(name)["w"], bundle.tensors(name)["w"])
        assert packed.packed_findings() == ["findings/findings.json"]
        assert packed.read_packed_findings("findings/findings.json") == b"{}"
        assert not packed.has("findings/findings.json")

    def test_the_same_bundle_gives_the_same_zip_and_none_is_overwritten(self, tmp_path):
        bundle = open_bundle(write(tmp_path))
        one, two = pack(bundle, tmp_path / "1.zip"), pack(bundle, tmp_path / "2.zip")
        assert one.read_bytes() == two.read_bytes()
        with pytest.raises(UsageError, match="exists"):
            pack(bundle, one)

    def test_results_stay_behind_when_asked(self, tmp_path):
        bundle = open_bundle(write(tmp_path))
        bundle.findings_dir.mkdir()
        (bundle.findings_dir / "findings.json").write_text("{}")
        packed = open_bundle(pack(bundle, tmp_path / "o.zip", findings=False))
        assert packed.packed_findings() == []

    def test_a_damaged_bundle_is_not_packed(self, tmp_path):
        path = write(tmp_path)
        (path / "evidence.json").write_text("{  }")
        with pytest.raises(BundleError):
            pack(open_bundle(path), tmp_path / "o.zip")
        assert not list(tmp_path.glob("*.zip*"))
        assert not list(tmp_path.glob(".*"))

    def test_a_zip_made_by_hand_with_a_folder_around_it_is_read(self, tmp_path):
        path = write(tmp_path)
        with zipfile.ZipFile(tmp_path / "h.zip", "w") as archive:
            for file in sorted(path.rglob("*")):
                archive.write(file, file.relative_to(tmp_path))
        assert {c.status for c in open_bundle(tmp_path / "h.zip").verify()} == {"ok"}


def test_bundles_are_found_newest_first_and_a_damaged_one_hides_no_other(tmp_path):
    old, new = write(tmp_path / "a", "old"), write(tmp_path / "b", "new")
    os.utime(old / "manifest.json", (1, 1))
    (tmp_path / "bad.bundle").mkdir()
    (tmp_path / "bad.bundle" / "manifest.json").write_text("{")
    os.utime(tmp_path / "bad.bundle" / "manifest.json", (2, 2))
    (tmp_path / "empty.bundle").mkdir()
    BundleWriter(tmp_path, "unpublished").add_text("x.txt", "x")
    packed = pack(open_bundle(old), tmp_path / "p.bundle.zip")
    os.utime(packed, (3, 3))
    found = find_bundles(tmp_path)
    assert found == [new, packed, tmp_path / "bad.bundle", old]
    assert find_bundles(tmp_path / "nowhere") == []


def test_a_field_named_by_half_a_character_is_refused(tmp_path):
    path = write(tmp_path)
    manifest = path / "manifest.json"
    manifest.write_text(manifest.read_text().replace('"run_id"', '"\\ud800"'))
    with pytest.raises(BundleError, match="is not valid"):
        open_bundle(path)


def test_a_file_that_is_no_json_is_named_with_its_bundle(tmp_path):
    from workbench.errors import StrictJsonError
    from workbench.evidence.schema import decode_manifest

    with pytest.raises(StrictJsonError) as caught:
        decode_manifest(b'{"format": NaN}', str(tmp_path / "a.bundle"))
    assert "'manifest.json'" in str(caught.value)
    assert "a.bundle" in str(caught.value)
    assert "jsonio" not in str(caught.value)
