"""Damaged and hostile bundles: the outcome is a BundleError or a correct read, nothing else."""

import hashlib
import os
import shutil
import struct
import zipfile
from pathlib import Path

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from workbench.errors import BundleError, StrictJsonError, UsageError
from workbench.evidence import BundleWriter, Conditions, FirstBad, open_bundle, pack
from workbench.evidence.notes import write_notes
from workbench.evidence.safetensors_file import SafetensorsFile
from workbench.numerics import jsonio

FILES = ("ledger.jsonl", "evidence.json", "batch.json", "batch.safetensors", "m.safetensors")


def everything(bundle):
    """All a bundle says, as comparable values."""

    def plain(tensors):
        return {name: (t.layout, t.to_dense().tolist()) for name, t in tensors.items()}

    return {
        "kind": bundle.kind,
        "first_bad": bundle.first_bad,
        "conditions": bundle.conditions,
        "ledger": bundle.ledger(),
        "evidence": bundle.evidence(),
        "batch": str(bundle.pytree("batch")),
        "index": bundle.tensor_index("m.safetensors"),
        "m": plain(bundle.tensors("m.safetensors")),
        "text": bundle.text("source/step.py"),
    }


@pytest.fixture(scope="module")
def original(tmp_path_factory):
    directory = tmp_path_factory.mktemp("original")
    writer = BundleWriter(directory, "run-step00000002")
    writer.add_lines("ledger.jsonl", [{"step": 1, "loss": 2.5}, {"step": 2, "loss": 3.5}])
    writer.add_json("evidence.json", {"counts": {"nan": 1}})
    writer.add_text("source/step.py", "x = 1\n")
    writer.add_pytree("batch", {"x": torch.arange(4.0).reshape(2, 2).t(), "n": [1, "a"]})
    w = torch.arange(12.0).reshape(3, 4)
    writer.add_tensors("m.safetensors", {"w": w, "tied": w.t(), "s": torch.eye(2).to_sparse()})
    bad = FirstBad(run_id="run", step=2, stage="loss", tensor="loss")
    writer.update(run_id="run", first_bad=bad, conditions=Conditions(threads=2))
    return writer.seal()


@pytest.fixture(scope="module")
def truth(original):
    return everything(open_bundle(original))


@pytest.fixture
def copy(original, tmp_path):
    target = tmp_path / original.name
    shutil.copytree(original, target)
    return target


@pytest.fixture(scope="module")
def packed(original, tmp_path_factory):
    return pack(open_bundle(original), tmp_path_factory.mktemp("packed") / "b.bundle.zip")


def edit_manifest(path, change):
    """Rewrite the manifest as an attacker would, digests of other files included."""
    manifest = jsonio.loads((path / "manifest.json").read_bytes())
    change(manifest)
    (path / "manifest.json").write_text(jsonio.dumps(manifest))


def relist(path, rel):
    """Make the manifest agree with a changed file: only the reader's own checks are left."""
    data = (path / rel).read_bytes()
    entry = {"size": len(data), "sha256": hashlib.sha256(data).hexdigest()}
    edit_manifest(path, lambda manifest: manifest["files"].update({rel: entry}))


def read_or_refuse(path, truth):
    try:
        found = everything(open_bundle(path))
    except BundleError as error:
        assert str(error)
        return False
    assert found == truth
    return True


@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_one_flipped_bit_is_noticed(original, truth, tmp_path_factory, data):
    path = tmp_path_factory.mktemp("flip") / original.name
    shutil.copytree(original, path)
    rel = data.draw(st.sampled_from(FILES))
    content = bytearray((path / rel).read_bytes())
    bit = data.draw(st.integers(0, len(content) * 8 - 1))
    content[bit // 8] ^= 1 << bit % 8
    (path / rel).write_bytes(content)
    assert not read_or_refuse(path, truth)
    assert {c.rel for c in open_bundle(path).verify() if c.status == "digest"} == {rel}


@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_a_damaged_manifest_is_refused_or_still_a_manifest(original, tmp_path_factory, data):
    path = tmp_path_factory.mktemp("manifest") / original.name
    shutil.copytree(original, path)
    content = bytearray((path / "manifest.json").read_bytes())
    at = data.draw(st.integers(0, len(content) - 1))
    how = data.draw(st.sampled_from(["flip", "cut", "drop"]))
    if how == "flip":
        content[at] ^= 1 << data.draw(st.integers(0, 7))
    elif how == "cut":
        del content[at:]
    else:
        del content[at : at + data.draw(st.integers(1, 20))]
    (path / "manifest.json").write_bytes(content)
    try:
        bundle = open_bundle(path)
        bundle.verify()
        everything(bundle)
    except BundleError:
        pass


@settings(max_examples=100, deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_a_damaged_zip_is_refused_or_reads_true(original, truth, packed, tmp_path_factory, data):
    path = tmp_path_factory.mktemp("zip") / "b.bundle.zip"
    content = bytearray(packed.read_bytes())
    at = data.draw(st.integers(0, len(content) - 1))
    how = data.draw(st.sampled_from(["flip", "cut", "drop", "insert"]))
    if how == "flip":
        content[at] ^= 1 << data.draw(st.integers(0, 7))
    elif how == "cut":
        del content[at:]
    elif how == "drop":
        del content[at : at + 7]
    else:
        content[at:at] = b"PK\x03\x04"
    path.write_bytes(content)
    try:
        bundle = open_bundle(path)
    except BundleError:
        return
    if bundle.manifest_bytes == (original / "manifest.json").read_bytes():
        read_or_refuse(path, truth)
    else:
        with pytest.raises(BundleError):
            everything(bundle)
            raise BundleError("a changed manifest that still lists true files")


@settings(max_examples=100, deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_a_hostile_tensor_file_with_a_matching_digest(original, tmp_path_factory, data):
    path = tmp_path_factory.mktemp("tensors") / original.name
    shutil.copytree(original, path)
    content = bytearray((path / "m.safetensors").read_bytes())
    header = int.from_bytes(content[:8], "little")
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(0, header + 7))
        content[at] = data.draw(st.sampled_from(b'0123456789"[]{},:-aFe ') | st.integers(0, 255))
    (path / "m.safetensors").write_bytes(content)
    relist(path, "m.safetensors")
    try:
        bundle = open_bundle(path)
        bundle.tensor_index("m.safetensors")
        bundle.tensors("m.safetensors")
    except BundleError:
        pass


@pytest.mark.parametrize("rel", FILES)
@pytest.mark.parametrize("keep", [0, 1, 0.5, -1])
def test_a_truncated_file_is_damaged(copy, truth, rel, keep):
    data = (copy / rel).read_bytes()
    size = int(len(data) * keep) if isinstance(keep, float) else keep % len(data)
    (copy / rel).write_bytes(data[:size])
    assert not read_or_refuse(copy, truth)
    (check,) = [c for c in open_bundle(copy).verify() if c.status != "ok"]
    assert (check.rel, check.status, check.found) == (rel, "size", size)


def test_a_missing_file_is_said_to_be_missing(copy):
    (copy / "batch.safetensors").unlink()
    bundle = open_bundle(copy)
    assert [c.rel for c in bundle.verify() if c.status == "missing"] == ["batch.safetensors"]
    with pytest.raises(BundleError, match="does not match"):
        bundle.pytree("batch")
    assert bundle.evidence() == {"counts": {"nan": 1}}


def test_other_files_can_still_be_read(copy):
    (copy / "m.safetensors").write_bytes(b"x")
    bundle = open_bundle(copy)
    with pytest.raises(BundleError, match=r"m\.safetensors does not match its digest"):
        bundle.tensors("m.safetensors")
    assert len(bundle.ledger()) == 2


@pytest.mark.parametrize("target", ["/etc/passwd", "evidence.json", "../outside"])
def test_links_are_never_followed(copy, target):
    (copy.parent / "outside").write_bytes((copy / "batch.json").read_bytes())
    (copy / "batch.json").unlink()
    (copy / "batch.json").symlink_to(target)
    with pytest.raises(BundleError, match="link"):
        open_bundle(copy).json("batch.json")


def test_a_linked_folder_is_not_followed(copy, tmp_path):
    shutil.move(copy / "source", tmp_path / "elsewhere")
    (copy / "source").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(BundleError, match="link"):
        open_bundle(copy).text("source/step.py")


@pytest.mark.parametrize("where", ["", "/trace", "/findings.json"])
def test_a_link_where_results_lie_is_neither_packed_nor_written_through(copy, tmp_path, where):
    secret = tmp_path / "secret"
    secret.mkdir()
    (secret / "id_rsa").write_text("PRIVATE")
    results = copy.with_name(copy.name + ".findings")
    if where:
        results.mkdir()
    Path(f"{results}{where}").symlink_to(secret / "id_rsa" if "json" in where else secret)
    with pytest.raises(BundleError, match="is a link"):
        pack(open_bundle(copy), tmp_path / "out.zip")
    with pytest.raises(BundleError, match="is a link"):
        write_notes(open_bundle(copy), [])
    assert not (tmp_path / "out.zip").exists()
    assert [path.name for path in secret.iterdir()] == ["id_rsa"]


def test_a_linked_manifest_is_not_followed(copy, tmp_path):
    shutil.move(copy / "manifest.json", tmp_path / "m.json")
    (copy / "manifest.json").symlink_to(tmp_path / "m.json")
    with pytest.raises(BundleError, match="link"):
        open_bundle(copy)


def test_a_pipe_in_place_of_a_file_does_not_hang(copy):
    (copy / "evidence.json").unlink()
    os.mkfifo(copy / "evidence.json")
    with pytest.raises(BundleError):
        open_bundle(copy).evidence()


@pytest.mark.parametrize(
    "rel",
    ["../../etc/passwd", "/etc/passwd", "a/../../b", ".ssh/id", "a\x00b", "a\\b", "manifest.json"],
)
def test_a_manifest_cannot_name_files_outside(copy, rel):
    entry = {"size": 1, "sha256": "0" * 64}
    edit_manifest(copy, lambda manifest: manifest["files"].update({rel: entry}))
    with pytest.raises(BundleError, match="not a file name"):
        open_bundle(copy)


def test_only_listed_files_are_read(copy):
    (copy / "extra.json").write_text("{}")
    bundle = open_bundle(copy)
    assert not bundle.has("extra.json")
    for rel in ("extra.json", "../run-step00000002.bundle/evidence.json", "manifest.json"):
        with pytest.raises(BundleError, match="has no file"):
            bundle.json(rel)


@pytest.mark.parametrize(
    "change",
    [
        lambda m: m.update(format="2.0"),
        lambda m: m.update(format="0.9"),
        lambda m: m.update(format=1.0),
        lambda m: m.pop("format"),
        lambda m: m.update(files=[]),
        lambda m: m["files"]["evidence.json"].update(size=-1),
        lambda m: m["files"]["evidence.json"].update(size="9"),
        lambda m: m["files"]["evidence.json"].update(sha256="../x"),
        lambda m: m.update(step="two"),
        lambda m: m.update(first_bad=3),
        lambda m: m["conditions"].update(autocast="strange"),
        lambda m: m["conditions"].update(device="cuda:0; rm"),
        lambda m: m.update(completeness=["x"]),
    ],
)
def test_a_manifest_that_is_none_is_refused(copy, change):
    edit_manifest(copy, change)
    with pytest.raises(BundleError):
        open_bundle(copy)


def test_a_newer_major_format_is_refused_clearly_and_a_newer_minor_is_read(copy, truth):
    edit_manifest(copy, lambda m: m.update(format="2.0", kind=3))
    with pytest.raises(BundleError, match=r"Written by format 2\.0; this version reads 1\.x"):
        open_bundle(copy)
    edit_manifest(copy, lambda m: m.update(format="1.7", kind="nonfinite", later={"a": [1]}))
    edit_manifest(copy, lambda m: m["conditions"].update(later_setting=1))
    assert everything(open_bundle(copy)) == truth


@pytest.mark.parametrize("text", ["[]", "3", "null", '"x"', "", "{", "NaN", "\x00" * 40])
def test_a_manifest_of_another_kind_is_refused(copy, text):
    (copy / "manifest.json").write_text(text)
    with pytest.raises(BundleError):
        open_bundle(copy)


def test_duplicate_keys_are_refused_everywhere(copy):
    text = (copy / "manifest.json").read_text().rstrip()
    (copy / "manifest.json").write_text(text[:-1] + ', "sealed": false}')
    with pytest.raises(StrictJsonError, match="'sealed' twice"):
        open_bundle(copy)


@pytest.mark.parametrize("text", ['{"a": 1, "a": 2}', '{"a": NaN}', '{"a": 1e999}', "[" * 5000])
def test_loose_json_with_a_matching_digest_is_refused(copy, text):
    (copy / "evidence.json").write_text(text)
    relist(copy, "evidence.json")
    with pytest.raises(StrictJsonError):
        open_bundle(copy).evidence()


def test_sizes_are_checked_before_anything_is_allocated(copy):
    edit_manifest(copy, lambda m: m["files"]["m.safetensors"].update(size=2**60))
    bundle = open_bundle(copy)
    for read in (bundle.tensors, bundle.tensor_index, bundle.read_bytes, bundle.json):
        with pytest.raises(BundleError):
            read("m.safetensors")


def header_file(header, data=b""):
    text = header if isinstance(header, bytes) else jsonio.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + data


def entry(dtype="F32", shape=(1,), offsets=(0, 4)):
    return {"dtype": dtype, "shape": list(shape), "data_offsets": list(offsets)}


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"short",
        struct.pack("<Q", 2**63) + b"{}",
        struct.pack("<Q", 200_000_000) + b"{}",
        struct.pack("<Q", 3) + b"{}",
        header_file(b"\xff\xfe"),
        header_file(b"[]"),
        header_file(b"{" * 1000),
        header_file(b'{"a": {}, "a": {}}'),
        header_file({"t": entry(shape=(2**61,), offsets=(0, 2**63 - 1))}, b"1234"),
        header_file({"t": entry(shape=(10**9, 10**9), offsets=(0, 4))}, b"1234"),
        header_file({"t": entry(shape=(-1,), offsets=(0, 4))}, b"1234"),
        header_file({"t": entry(shape=(1.0,), offsets=(0, 4))}, b"1234"),
        header_file({"t": entry(shape=(True,), offsets=(0, 4))}, b"1234"),
        header_file({"t": entry(shape=(1,) * 65, offsets=(0, 4))}, b"1234"),
        header_file({"t": entry(offsets=(4, 0))}, b"1234"),
        header_file({"t": entry(offsets=(0, 4, 8))}, b"1234"),
        header_file({"t": entry(offsets=(4, 8))}, b"12345678"),
        header_file({"t": entry(), "u": entry()}, b"1234"),
        header_file({"t": entry()}, b"123"),
        header_file({"t": entry()}, b"12345"),
        header_file({"t": entry(dtype="F99")}, b"1234"),
        header_file({"t": entry(dtype=["F32"])}, b"1234"),
        header_file({"t": 3}, b"1234"),
        header_file({"t": None}, b"1234"),
        header_file({"__metadata__": {"a": 1}, "t": entry()}, b"1234"),
        header_file({"__metadata__": "x", "t": entry()}, b"1234"),
        header_file({"__metadata__": {"workbench.pack": "[1]"}, "t": entry()}, b"1234"),
        header_file({"__metadata__": {"workbench.pack": '{"t": 3}'}, "t": entry()}, b"1234"),
        header_file({"__metadata__": {"workbench.pack": "NaN"}, "t": entry()}, b"1234"),
        header_file(
            {
                "__metadata__": {
                    "workbench.pack": jsonio.dumps(
                        {
                            "v": {
                                "storage": "t",
                                "offset": 0,
                                "dtype": "float32",
                                "shape": [10**13],
                                "stride": [0],
                            }
                        }
                    )
                },
                "t": entry(),
            },
            b"1234",
        ),
    ],
)
def test_hostile_tensor_files_are_refused(copy, content):
    (copy / "m.safetensors").write_bytes(content)
    relist(copy, "m.safetensors")
    bundle = open_bundle(copy)
    with pytest.raises(BundleError):
        bundle.tensor_index("m.safetensors")
        bundle.tensors("m.safetensors")


@given(st.binary(max_size=60))
def test_any_bytes_are_a_tensor_file_or_a_bundle_error(content):
    import io

    for data in (content, header_file(content, content)):
        try:
            file = SafetensorsFile(io.BytesIO(data), len(data), "x")
        except BundleError:
            continue
        for name in file.names():
            file.read(name)


class TestZip:
    def rebuilt(self, packed, target, change=None, extra=(), compress=zipfile.ZIP_STORED):
        with zipfile.ZipFile(packed) as old, zipfile.ZipFile(target, "w", compress) as new:
            for info in old.infolist():
                if change is None or change(info.filename):
                    new.writestr(info.filename, old.read(info))
            for info, data in extra:
                new.writestr(info, data)
        return target

    def test_compressed_members_are_refused(self, packed, tmp_path):
        path = self.rebuilt(packed, tmp_path / "c.zip", compress=zipfile.ZIP_DEFLATED)
        with pytest.raises(BundleError, match="compressed"):
            open_bundle(path)

    def test_a_bomb_is_refused_unread(self, packed, tmp_path):
        path = tmp_path / "bomb.zip"
        with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
            archive.writestr("manifest.json", "0" * (16 << 20))
        assert path.stat().st_size < 100_000
        with pytest.raises(BundleError, match="compressed"):
            open_bundle(path)

    @pytest.mark.parametrize("name", ["../evil.json", "/abs.json", "a/../../b", ".hidden"])
    def test_names_that_point_outside_are_refused(self, packed, tmp_path, name):
        path = self.rebuilt(packed, tmp_path / "z.zip", extra=[(name, b"x")])
        with pytest.raises(BundleError):
            open_bundle(path)

    def test_a_link_inside_is_refused(self, packed, tmp_path):
        info = zipfile.ZipInfo("link.json")
        info.external_attr = 0o120777 << 16
        path = self.rebuilt(packed, tmp_path / "z.zip", extra=[(info, b"/etc/passwd")])
        with pytest.raises(BundleError, match="link"):
            open_bundle(path)

    @pytest.mark.filterwarnings("ignore:Duplicate name")
    def test_two_files_of_one_name_are_refused(self, packed, tmp_path):
        path = self.rebuilt(packed, tmp_path / "z.zip", extra=[("evidence.json", b"{}")])
        with pytest.raises(BundleError, match="twice"):
            open_bundle(path)

    def test_a_zip_without_a_manifest_is_none(self, packed, tmp_path):
        path = self.rebuilt(packed, tmp_path / "z.zip", lambda name: name != "manifest.json")
        with pytest.raises(BundleError, match=r"no manifest\.json"):
            open_bundle(path)

    def test_a_member_that_claims_more_than_the_file_has(self, packed, tmp_path):
        path = tmp_path / "z.zip"
        content = bytearray(packed.read_bytes())
        at = content.rfind(b"PK\x01\x02")
        struct.pack_into("<II", content, at + 20, 0x7FFFFFF0, 0x7FFFFFF0)
        path.write_bytes(content)
        try:
            checks = open_bundle(path).verify()
        except BundleError:
            return
        assert any(check.status != "ok" for check in checks)

    @pytest.mark.parametrize(
        "content", [b"", b"PK\x05\x06" + b"\0" * 18, b"x" * 1000, b"PK\x03\x04"]
    )
    def test_what_is_no_zip_is_refused(self, tmp_path, content):
        (tmp_path / "z.zip").write_bytes(content)
        with pytest.raises(BundleError):
            open_bundle(tmp_path / "z.zip")


@pytest.mark.parametrize("path", ["absent.bundle", "a\x00b", "", "file.bundle/inner"])
def test_what_is_not_there_is_a_slip_and_no_damage(tmp_path, path):
    (tmp_path / "file.bundle").write_text("x")
    with pytest.raises(UsageError):
        open_bundle(tmp_path / path)


def test_what_is_no_bundle_is_refused(tmp_path):
    (tmp_path / "empty.bundle").mkdir()
    for path in ("/dev/null", tmp_path / "empty.bundle"):
        with pytest.raises(BundleError):
            open_bundle(path)
