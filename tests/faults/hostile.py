"""What a stranger may hand over, one target a kind of file, and a watch over reading it.

A target takes the bytes of one file, puts them where such a file lies, and reads it as the tool
does. It returns, or raises the documented error; anything else is a finding: another exception,
code that ran, a file outside, an allocation beyond the bound, or no end.
"""

from __future__ import annotations

import hashlib
import io
import os
import resource
import shutil
import signal
import sys
import sysconfig
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import torch

from tests.faults import mutations as change
from workbench.checkpoints import checkpoint_at, scan
from workbench.checkpoints.ledgers import clean_steps_of
from workbench.checkpoints.pickled import read_pickle
from workbench.checkpoints.states import read_states
from workbench.diagnose.findings import Findings
from workbench.errors import BundleError, CheckpointError
from workbench.evidence import BundleWriter, Conditions, FirstBad, open_bundle, pack
from workbench.evidence.facts import summary_facts
from workbench.evidence.notes import read_notes
from workbench.evidence.summary import summary_lines
from workbench.evidence.table import read_table, table_from_rows, write_table
from workbench.numerics import jsonio
from workbench.reports.extract import FINDINGS_ID, RUN_ID, read_page

REFUSALS = (BundleError, CheckpointError)
SECONDS = 20
"""Longest a reader may take over a file of a few kilobytes."""
MORE_MEMORY = 3 * 2**30
"""Address space a reader may add; a buffer for scanning takes 32 MiB, threads of torch the rest."""


@dataclass(frozen=True)
class Target:
    """A kind of file.

    Attributes:
        name: Its name.
        seeds: True files of it.
        mutate: A change that keeps its structure.
        read: Takes the bytes and reads them as the tool does.
    """

    name: str
    seeds: list[bytes]
    mutate: object
    read: object


# -- reading everything ---------------------------------------------------------------------------


def look_at(path):
    """Everything that opening, inspecting and verifying a bundle reads."""
    bundle = open_bundle(path)
    said = [summary_lines(summary_facts(bundle)), bundle.verify(), bundle.packed_findings()]
    tables = (bundle.ledger, bundle.evidence, bundle.environment, lambda: read_notes(bundle))
    said.extend(_or_refused(read) for read in tables)
    for rel in bundle.files():
        if rel.endswith(".safetensors"):
            said.append(_or_refused(bundle.tensor_index, rel))
            said.append(_or_refused(bundle.tensors, rel))
            if bundle.has(rel.removesuffix("safetensors") + "json"):
                said.append(_or_refused(bundle.pytree, rel.removesuffix(".safetensors")))
        elif rel.endswith(".json"):
            said.append(_or_refused(bundle.json, rel))
    return said


def _or_refused(read, *arguments):
    try:
        return read(*arguments)
    except REFUSALS as error:
        return str(error)


# -- the true files -------------------------------------------------------------------------------


def true_bundle(folder):
    """A small bundle of every kind of content."""
    writer = BundleWriter(folder, "run-step00000002")
    writer.add_lines("ledger.jsonl", [{"step": n, "loss": 2.5, "alerts": []} for n in (1, 2)])
    bad = {"name": "loss", "kind": "loss", "counts": {"nan": 1}, "shape": [], "dtype": "float32"}
    writer.add_json("evidence.json", {"kind": "nonfinite", "stage": "loss", "bad": [bad]})
    writer.add_json("environment.json", {"torch": torch.__version__, "devices": []})
    w = torch.arange(12.0).reshape(3, 4)
    tree = {"x": w.t(), "n": [1, "a", None, 2.5, float("nan")], "t": (w, torch.eye(2).to_sparse())}
    writer.add_pytree("batch", tree)
    writer.add_tensors("m.safetensors", {"w": w, "tied": w.t(), "half": w.half()})
    first = FirstBad(run_id="run", step=2, stage="loss", tensor="loss")
    writer.update(run_id="run", first_bad=first, conditions=Conditions(threads=2))
    return writer.seal()


class Bench:
    """A folder with one true bundle; targets change one file of it."""

    def __init__(self, folder):
        self.folder = Path(folder)
        self.bundle = true_bundle(self.folder)
        self.files = {
            str(p.relative_to(self.bundle)): p.read_bytes()
            for p in self.bundle.rglob("*")
            if p.is_file()
        }
        self.manifest = jsonio.loads(self.files["manifest.json"])
        self.zip = pack(open_bundle(self.bundle), self.folder / "true.bundle.zip").read_bytes()

    def in_bundle(self, rel):
        """A reader of one file of the bundle, listed with its true size and digest."""

        def read(data):
            digest = hashlib.sha256(data).hexdigest()
            listed = {**self.manifest["files"], rel: {"size": len(data), "sha256": digest}}
            text = jsonio.dumps({**self.manifest, "files": listed}).encode()
            with self.put({rel: data, "manifest.json": text}):
                look_at(self.bundle)

        return read

    def read_manifest(self, data):
        with self.put({"manifest.json": data}):
            look_at(self.bundle)

    @contextmanager
    def put(self, contents):
        """Put other contents in place for a while."""
        for rel, data in contents.items():
            (self.bundle / rel).write_bytes(data)
        try:
            yield
        finally:
            for rel in contents:
                (self.bundle / rel).write_bytes(self.files[rel])

    def beside(self, name, read):
        """A reader of a file beside the bundle, in its findings."""
        path = open_bundle(self.bundle).findings_dir / name

        def reader(data):
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(data)
            try:
                read(open_bundle(self.bundle))
            finally:
                shutil.rmtree(open_bundle(self.bundle).findings_dir)

        return reader

    def file(self, name, read):
        """A reader of a file of its own."""
        path = self.folder / name

        def reader(data):
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(data)
            return read(path)

        return reader


def targets(folder):
    """All targets, over a folder of their own."""
    bench = Bench(folder)
    files = bench.files
    findings = {
        "schema": "workbench.findings/1",
        "bundle": {"digest": open_bundle(bench.bundle).digest, "id": "x", "kind": "nonfinite"},
        "origins": [{"kind": "birth", "op": "aten.log.default"}], "summary": ["a"], "limits": [],
    }  # fmt: skip
    notes = {"id": "a", "time": "t", "view": "v", "claim": "c", "sentence": "s", "run": "r"}
    page = (
        "<!doctype html><html><head></head><body><section id='a'><h2>A</h2><p>b</p></section>"
        f'<script type="application/json" id="{RUN_ID}">{jsonio.dumps({"made": 1})}</script>'
        f'<script type="application/json" id="{FINDINGS_ID}">{jsonio.dumps(findings)}</script>'
        "</body></html>"
    ).encode()
    states = {
        "schema": "workbench.checkpoints/1", "clean_from": 0, "clean_through": 4,
        "checkpoints": {"a.pt": {"state": "suspect", "step": 3, "fingerprint": [["a.pt", 1, 2]],
                                 "scan": None, "reproduced": None, "history": []}},
    }  # fmt: skip
    saved, stream = _saved()
    table = bench.folder / "tables"
    write_table(table, "events", table_from_rows([{"op": "a", "nan": 1, "v": 0.5}] * 3))
    list_of = [
        Target("manifest", [files["manifest.json"]], change.mutate_json, bench.read_manifest),
        *(
            Target(rel, [files[rel]], how, bench.in_bundle(rel))
            for rel, how in {
                "batch.json": change.mutate_json,
                "batch.safetensors": change.mutate_safetensors,
                "m.safetensors": change.mutate_safetensors,
                "evidence.json": change.mutate_json,
                "ledger.jsonl": change.mutate_lines,
            }.items()
        ),
        Target(
            "zip",
            [bench.zip],
            lambda data, rng: change.mutate_zip(
                data,
                rng,
                lambda c, r: (change.mutate_json if c[:1] == b"{" else change.mutate_bytes)(c, r),
            ),
            bench.file("other.bundle.zip", look_at),
        ),
        Target(
            "ledger beside",
            [files["ledger.jsonl"]],
            change.mutate_lines,
            bench.file("run.ledger.jsonl", clean_steps_of),
        ),
        Target("pickle", [stream], change.mutate_pickle, lambda data: read_pickle(data, "x.pt")),
        Target("checkpoint", [saved], change.mutate_checkpoint, bench.file("c/a.pt", _scan)),
        Target(
            "checkpoint safetensors",
            [files["m.safetensors"]],
            change.mutate_safetensors,
            bench.file("c/b.safetensors", _scan),
        ),
        Target(
            "states",
            [jsonio.dumps(states).encode()],
            change.mutate_json,
            bench.file("s/workbench-checkpoints.json", lambda path: read_states(path.parent)),
        ),
        Target(
            "notes",
            [jsonio.dumps({"schema": "workbench.notes/1", "notes": [notes]}).encode()],
            change.mutate_json,
            bench.beside("notes.json", read_notes),
        ),
        Target(
            "findings",
            [jsonio.dumps(findings).encode()],
            change.mutate_json,
            bench.beside("findings.json", _findings),
        ),
        Target("page", [page], change.mutate_page, bench.file("report.html", read_page)),
        Target(
            "table",
            [(table / "events.json").read_bytes()],
            change.mutate_json,
            bench.file("tables/events.json", lambda path: read_table(path.parent, "events")),
        ),
    ]
    return {target.name: target for target in list_of}


def _findings(bundle):
    found = Findings.load(bundle)
    if found is not None:
        summary_lines(summary_facts(bundle, found.data))


def _scan(path):
    checkpoint = checkpoint_at(path)
    if checkpoint is not None:
        scan(checkpoint).as_dict()


def _saved():
    """A file of ``torch.save``, and the stream in it."""
    import zipfile

    net = torch.nn.Linear(2, 2)
    made = {"model": net.state_dict(), "step": 3, "lr": 0.1, "list": [torch.ones(3).half(), {1: 2}]}
    out = io.BytesIO()
    torch.save(made, out)
    with zipfile.ZipFile(io.BytesIO(out.getvalue())) as archive:
        (name,) = [n for n in archive.namelist() if n.endswith("data.pkl")]
        return out.getvalue(), archive.read(name)


# -- the watch ------------------------------------------------------------------------------------


class Hostile(BaseException):
    """What must never happen while a stranger's file is read."""


_OURS = tuple(
    str(Path(p).resolve())
    for p in {
        *sysconfig.get_paths().values(),
        sys.prefix,
        sys.base_prefix,
        Path(__file__).parents[2],
    }
)
_FORBIDDEN = ("os.system", "os.exec", "os.fork", "os.posix_spawn", "subprocess.", "socket.",
              "pickle.", "ctypes.dlopen", "os.kill", "shutil.rmtree.x")  # fmt: skip
_watch = {"folder": None, "on": False}


def _hook(event, arguments):
    if not _watch["on"]:
        return
    if event.startswith(_FORBIDDEN):
        raise Hostile(f"{event} {arguments!r:.200}")
    if event == "exec":
        file = getattr(arguments[0], "co_filename", "")
        if not file.startswith((*_OURS, "<frozen", "<string>", "<")):
            raise Hostile(f"ran code of {file!r}")
    if event == "open" and isinstance(arguments[0], str | bytes | os.PathLike):
        path = os.path.realpath(os.fsdecode(arguments[0]))
        if not path.startswith((_watch["folder"], *_OURS, "/proc/self")):
            raise Hostile(f"opened {path!r}")


def _too_long(*_):
    raise Hostile(f"no end within {SECONDS} seconds")


@contextmanager
def watched(folder):
    """Within: forbidden acts, reads outside of the folder, and endless reads raise ``Hostile``."""
    if _watch["folder"] is None:
        sys.addaudithook(_hook)
    _watch["folder"] = os.path.realpath(folder)
    before = signal.signal(signal.SIGALRM, _too_long)
    signal.alarm(SECONDS)
    limits = resource.getrlimit(resource.RLIMIT_AS)
    held = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (held + MORE_MEMORY, limits[1]))
    _watch["on"] = True
    try:
        yield
    finally:
        _watch["on"] = False
        resource.setrlimit(resource.RLIMIT_AS, limits)
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def read_watched(target, data, folder):
    """Read one file under watch; whether it was read, rather than refused.

    Raises:
        BaseException: Anything that is not a documented refusal.
    """
    with watched(folder):
        try:
            target.read(data)
        except REFUSALS as error:
            assert str(error).strip(), "a refusal without a word"
            return False
    return True
