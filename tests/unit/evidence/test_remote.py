"""Bundles elsewhere: a real object store, a web server, memory; and how much is fetched."""

import http.server
import shutil
import threading
from contextlib import suppress
from functools import partial

import fsspec
import pytest

from tests.unit.diagnose.triage_store import fleet
from workbench.diagnose.triage.run import run_triage
from workbench.errors import BundleError, CannotRunError, UsageError
from workbench.evidence import open_bundle, pack
from workbench.evidence.remote import Spot, find_stored, open_spot, read_stored

HEAVY = 300_000
"""Bytes of the one heavy file in the fleet."""


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    """The fleet; one bundle is there packed only, with its findings."""
    folder = fleet(tmp_path_factory.mktemp("fleet"))
    path = next((folder / "alpha").glob("*.bundle"))
    pack(open_bundle(path), folder / "alpha" / f"{path.name}.zip")
    shutil.rmtree(path)
    shutil.rmtree(folder / "alpha" / f"{path.name}.findings")
    return folder


def upload(folder, url):
    """Copy files as a user's upload does."""
    files, root = fsspec.core.url_to_fs(url)
    for path in sorted(p for p in folder.rglob("*") if p.is_file()):
        files.pipe_file(f"{root}/{path.relative_to(folder).as_posix()}", path.read_bytes())
    return files


class Sent:
    """What the S3 server sent: paths and bytes."""

    answers = []  # noqa: RUF012 - shared on purpose


class Quiet(http.server.SimpleHTTPRequestHandler):
    """Python's own web server; it knows no ranges, and counts what it sends."""

    sent = 0

    def copyfile(self, source, outputfile):
        data = source.read()
        Quiet.sent += len(data)
        outputfile.write(data)

    def log_message(self, *_):
        return


@pytest.fixture(scope="module")
def web(store):
    handler = partial(Quiet, directory=str(store))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


@pytest.fixture(scope="module")
def s3(store):
    """A real S3 server in this process, asked over TCP by s3fs."""
    pytest.importorskip("moto.server", reason="moto is not installed")
    pytest.importorskip("s3fs", reason="s3fs is not installed")
    from moto.server import ThreadedMotoServer

    server = ThreadedMotoServer("127.0.0.1", 0)
    server.start()
    served = server._server.app

    def counted(environ, start_response):
        for piece in served(environ, start_response):
            Sent.answers.append((environ["PATH_INFO"], len(piece)))
            yield piece

    server._server.app = counted
    with pytest.MonkeyPatch.context() as patch:
        port = server.get_host_and_port()[1]
        patch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{port}")
        patch.setenv("AWS_ACCESS_KEY_ID", "testing")
        patch.setenv("AWS_SECRET_ACCESS_KEY", "testing")
        patch.setenv("AWS_DEFAULT_REGION", "us-east-1")
        files, _ = fsspec.core.url_to_fs("s3://fleet")
        files.mkdir("fleet")
        upload(store, "s3://fleet/incidents")
        yield "s3://fleet/incidents"
    server.stop()


def comparable(triage):
    """What must not depend on where the store is."""
    groups = [(g["id"], g["count"], g["why"], g["runs"]) for g in triage.groups]
    spread = [one["spread"]["sentence"] for one in triage.incidents if one["spread"]]
    return groups, spread, triage.totals, sorted(row["name"] for row in triage.unreadable)


def test_an_object_store_says_what_the_folder_says(store, s3):
    here, there = run_triage(str(store), jobs=4), run_triage(s3, jobs=4)
    assert comparable(there) == comparable(here)
    assert here.totals["unreadable"] == 3 and here.totals["bundles"] == 8
    assert all(one["url"].startswith("s3://fleet/incidents/") for one in there.incidents)


def test_of_an_object_store_only_what_is_asked_for_is_fetched(s3):
    Sent.answers.clear()
    run_triage(s3)
    paths = {path for path, size in Sent.answers if size}
    assert any(path.endswith("manifest.json") for path in paths)
    assert not any(path.endswith(".safetensors") for path in paths)
    zipped = [size for path, size in Sent.answers if path.endswith(".zip")]
    assert 0 < sum(zipped) < 20_000
    assert sum(size for _, size in Sent.answers) < HEAVY


def test_memory_and_a_zip_by_its_parts(store):
    files = upload(store, "memory://incidents")
    try:
        assert comparable(run_triage("memory://incidents")) == comparable(run_triage(str(store)))
        (spot,) = [one for one in find_stored("memory://incidents").bundles if "zip" in one.url]
        bundle = open_spot(spot)
        assert [check.status for check in bundle.verify()] == ["ok"] * len(bundle.files())
        assert bundle.packed_findings() == ["findings/findings.json"]
    finally:
        files.rm("/incidents", recursive=True)


def test_a_web_server_without_ranges(store, web):
    Quiet.sent = 0
    found = run_triage(web, jobs=4)
    names = sorted(row["name"].partition("-")[0] for row in found.unreadable)
    assert names == ["alpha", "broken", "cut", "newer"]
    (packed,) = [row for row in found.unreadable if row["name"].endswith(".zip")]
    assert "does not serve parts of files" in packed["error"]
    assert found.totals["incidents"] == 6 and Quiet.sent < HEAVY


def test_a_zip_that_claims_a_huge_directory_is_refused(store):
    files = upload(store, "memory://hostile")
    try:
        (spot,) = [one for one in find_stored("memory://hostile").bundles if "zip" in one.url]
        path = spot.url.removeprefix("memory:/")
        data = bytearray(files.cat_file(path))
        files.pipe_file(path, bytes(data[:100]))
        with pytest.raises(BundleError):
            open_spot(spot)
    finally:
        files.rm("/hostile", recursive=True)


def test_a_store_that_cannot_be_read_is_one_paragraph(tmp_path):
    with pytest.raises(UsageError, match="nowhere"):
        find_stored(str(tmp_path / "nowhere"))
    with pytest.raises(UsageError, match="does not know"):
        find_stored("gopher://incidents")
    with pytest.raises(UsageError, match="nothing at"):
        find_stored("memory://nothing-here")
    with pytest.raises(CannotRunError, match="gcsfs"):
        find_stored("gs://bucket/incidents")
    with pytest.raises(CannotRunError, match=r"127\.0\.0\.1:9"):
        find_stored("http://127.0.0.1:9/incidents")
    assert read_stored(str(tmp_path / "absent.json"), 10) is None
    (tmp_path / "long.jsonl").write_bytes(b"0123456789")
    assert read_stored(str(tmp_path / "long.jsonl"), 4, tail=True) == b"6789"
    with pytest.raises(BundleError, match="10 bytes"):
        read_stored(str(tmp_path / "long.jsonl"), 4)
    with pytest.raises(UsageError, match=r"absent\.bundle"):
        open_spot(Spot(str(tmp_path / "absent.bundle")))


class Hostile(http.server.BaseHTTPRequestHandler):
    """Lists what is not its own, and answers without an end."""

    def do_GET(self):
        endless = self.command == "GET" and ("b.bundle" in self.path or "/endless" in self.path)
        self.send_response(200)
        self.send_header("Content-Type", "text/html")
        self.send_header(
            "Content-Length", str(10**12 if endless and self.command == "GET" else 900)
        )
        self.end_headers()
        if self.command == "HEAD":
            return
        here = self.path.rstrip("/")
        links = [f"{here}/b.bundle/", f"{here}/../up.bundle/", f"{here}/x::file:///etc/y.bundle/"]
        page = "".join(f'<a href="{link}">x</a>\n' for link in links).encode().ljust(900)
        with suppress(OSError):
            self.wfile.write(page)
            while endless:
                self.wfile.write(page * 100)

    do_HEAD = do_GET

    def log_message(self, *_):
        return


def test_a_hostile_web_server_takes_no_memory_and_sends_nobody_elsewhere(monkeypatch):
    monkeypatch.setattr("workbench.evidence.remote_files._LARGEST_READ", 1 << 20)
    monkeypatch.setattr("workbench.evidence.remote_files._LARGEST_LISTING", 1 << 20)
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Hostile) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        url = f"http://127.0.0.1:{server.server_port}"
        shelf = find_stored(f"{url}/inc")
        assert [spot.url for spot in shelf.bundles] == [f"{url}/inc/b.bundle"]
        assert "does not lie in the store" in shelf.notes[0]
        with pytest.raises(CannotRunError, match="sends more than 1048576 bytes"):
            open_spot(shelf.bundles[0])
        with pytest.raises(CannotRunError, match="sends more than 1048576 bytes"):
            find_stored(f"{url}/endless")
        monkeypatch.setattr("workbench.evidence.remote._MOST_FOLDERS", 1)
        assert find_stored(f"{url}/inc").notes[-1] == "Only the first 1 folders were searched."
        server.shutdown()


def test_a_file_address_follows_no_link(store, tmp_path):
    shutil.copytree(store, tmp_path / "fleet")
    path = next(tmp_path.rglob("*.bundle"))
    (path / "manifest.json").rename(tmp_path / "elsewhere.json")
    (path / "manifest.json").symlink_to(tmp_path / "elsewhere.json")
    (spot,) = [one for one in find_stored(f"file://{tmp_path}").bundles if path.name in one.url]
    with pytest.raises(BundleError, match="is a link"):
        open_spot(spot)
