"""A real Dask scheduler and real workers over TCP, one of them killed in the middle."""

import os
import shutil
import signal
import subprocess
import sys
import time

import pytest

from tests.unit.cli.conftest import run_process
from tests.unit.diagnose.triage_store import fleet
from workbench.cli import cluster as module
from workbench.cli.cluster import cluster
from workbench.diagnose.sweep import run_sweep
from workbench.diagnose.sweep_running import result_of
from workbench.errors import CannotRunError, UsageError

pytest.importorskip("distributed", reason="distributed is not installed")

STEP = ("--step", "tiny.py:LogOfZero")
DIES = """
import os


def build():
    os._exit(3)


def forward(model, batch):
    return model(batch["x"])


def loss(outputs, batch):
    return outputs.sum()
"""


class Cluster:
    """A scheduler and two workers, each a process in a folder of its own."""

    def __init__(self, folder):
        self.folder = folder
        self.file = folder / "scheduler.json"
        self.running = []
        self._start("scheduler", "--host", "127.0.0.1", "--port", "0", "--no-dashboard")
        self.workers = [self.add_worker(), self.add_worker()]

    def add_worker(self):
        how = ("--nthreads", "1", "--no-nanny", "--host", "127.0.0.1", "--no-dashboard")
        return self._start("worker", *how)

    def _start(self, kind, *words):
        words = ("-m", "dask", kind, *words, "--scheduler-file", str(self.file))
        log = (self.folder / f"{kind}-{len(self.running)}.log").open("w")
        env = os.environ | {"OMP_NUM_THREADS": "1"}
        process = subprocess.Popen(
            [sys.executable, *words], cwd=self.folder, stdout=log, stderr=log, env=env
        )
        self.running.append(process)
        return process

    @property
    def address(self):
        from workbench.numerics import jsonio

        deadline = time.monotonic() + 180  # a busy machine takes its time
        while not self.file.exists() and time.monotonic() < deadline:
            time.sleep(0.1)
        return jsonio.loads(self.file.read_bytes())["address"]

    def close(self):
        for process in reversed(self.running):
            process.kill()
            process.wait()


@pytest.fixture(scope="module")
def dask(tmp_path_factory):
    made = Cluster(tmp_path_factory.mktemp("dask"))
    yield made
    made.close()


def test_a_killed_worker_costs_its_cells_alone(here, dask, monkeypatch):
    folder, bundle = here
    words = ("sweep", str(bundle), *STEP, "--set", "keep_samples=0/1", "--set", "dtype=float64")
    words += ("--set", "max_grad_norm=1", "--dask", dask.address, "--json")
    process = subprocess.Popen(
        [sys.executable, "-m", "workbench", *words],
        cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    said = []
    for line in process.stderr:
        said.append(line)
        if line.startswith("1 of 5"):
            dask.workers[0].send_signal(signal.SIGKILL)  # the second cell of its own is running
            break
    out, _ = process.communicate(timeout=400)
    assert process.returncode == 0 and "Using 2 Dask workers" in "".join(said)
    from workbench.numerics import jsonio

    rows = {row["name"]: row for row in jsonio.loads(out)["cells"]}
    assert len(rows) == 5 and dask.workers[0].wait() == -signal.SIGKILL
    lost = [row for row in rows.values() if row["result"] == "died"]
    assert all(row["error"] for row in lost) and len(lost) <= 1
    kept = [row for row in rows.values() if row["result"] != "died"]
    assert {row["result"] for row in kept} <= {"unchanged", "gone", "moved"}
    assert rows["original"]["verdict"] == "bitwise" or rows["original"] in lost
    # merged by digest: what was finished is not run again, wherever it is asked for
    cells = [{"keep_samples": (0,)}, {"keep_samples": (1,)}, {"dtype": "float64"}]
    cells += [{"max_grad_norm": 1.0}]
    monkeypatch.chdir(folder)
    again = run_sweep(bundle, cells, step=STEP[1], resume=True)
    assert {row["name"] for row in again.rows if row["kept"]} == {row["name"] for row in kept}


def test_a_zoo_and_a_triage_on_the_cluster(tmp_path, dask, repository):
    dask.workers[0].kill()
    incidents = tmp_path / "incidents"
    incidents.mkdir()
    shutil.copy(repository / "tests/incidents/lnz1_layernorm_without_eps.py", incidents)
    (incidents / "zz99_dies.py").write_text(DIES)
    zoo = run_process("zoo", incidents.name, "--dask", dask.address, "--json", cwd=tmp_path)
    rows = zoo.json["incidents"]
    assert zoo.code == 0
    assert rows["lnz1_layernorm_without_eps"]["error"] is None
    assert rows["lnz1_layernorm_without_eps"]["origins"]
    assert "exit code 3" in rows["zz99_dies"]["error"]
    store = fleet(tmp_path / "store")
    words = ("triage", str(store), "--json")
    there = run_process(*words, "--dask", dask.address, cwd=tmp_path).json
    assert there == run_process(*words, cwd=tmp_path).json
    assert there["totals"]["incidents"] == 7 and there["totals"]["unreadable"] == 3


def test_when_the_last_worker_is_gone_what_is_left_is_given_up(dask, monkeypatch, capsys):
    monkeypatch.setattr(module, "WORKERS_S", 4)
    with cluster(dask.address) as executor:
        future = executor.submit(time.sleep, 60)
        time.sleep(1.0)
        for worker in dask.workers:
            worker.kill()
        assert result_of(future)["result"] == "died"
    assert "no worker for 4 s" in capsys.readouterr().err
    with pytest.raises(CannotRunError, match="had no worker"), cluster(dask.address):
        pass


def test_no_address_no_scheduler_no_package(monkeypatch):
    monkeypatch.setattr(module, "CONNECT_S", 1)
    nobody = "tcp://127.0.0.1:9"
    with pytest.raises(CannotRunError, match="No Dask scheduler answers"), cluster(nobody):
        pass
    with pytest.raises(UsageError, match="no address"), cluster("gopher://x:1"):
        pass
    monkeypatch.setitem(sys.modules, "distributed", None)
    with pytest.raises(CannotRunError, match=r"nonfinite-workbench\[dask\]"), cluster("tcp://x:1"):
        pass
    with cluster(None) as nothing:
        assert nothing is None
