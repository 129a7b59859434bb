"""Fuzz every reader of a stranger's files: ``python scripts/fuzz.py --minutes 30 [--out FILE]``.

Coverage guided by atheris (libFuzzer), with the structure-aware changes of ``tests/faults``; one
process a kind of file, one after the other. Where atheris is not installed (``pip install
atheris``) the same changes are made at random, which is said in the result. Inputs that did what
no input may do are kept in ``build/fuzz/``. Exit code 0: none was found.
"""

from __future__ import annotations

import argparse
import hashlib
import importlib
import importlib.util
import json
import os
import random
import signal
import sys
import tempfile
import time
import traceback
import warnings
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
KEPT = ROOT / "build" / "fuzz"
sys.path.insert(0, str(ROOT))


class Finder:
    """Reads inputs under watch and keeps one of every kind of failure.

    Attributes:
        inputs: How many were read.
        read: How many of them were read rather than refused.
        failures: By place and kind: what happened.
    """

    def __init__(self, name: str, folder: Path) -> None:
        from tests.faults.hostile import targets

        self.target = targets(folder)[name]
        self.folder = folder
        self.inputs = self.read = 0
        self.failures: dict[str, str] = {}
        for seed in self.target.seeds:  # what is imported late is imported now
            self.target.read(seed)

    def __call__(self, data: bytes) -> None:
        """Read one input."""
        from tests.faults.hostile import read_watched

        self.inputs += 1
        try:
            self.read += read_watched(self.target, data, self.folder)
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # noqa: BLE001 - every other end is what is looked for
            self.keep(error, data)

    def keep(self, error: BaseException, data: bytes) -> None:
        """Keep the first input of a kind of failure."""
        frames = traceback.extract_tb(error.__traceback__)
        ours = [f for f in frames if "workbench" in f.filename] or list(frames)
        place = f"{Path(ours[-1].filename).name}:{ours[-1].lineno} {type(error).__name__}"
        if place in self.failures:
            return
        self.failures[place] = f"{error!s:.200}"
        KEPT.mkdir(parents=True, exist_ok=True)
        stem = f"{self.target.name.replace(' ', '-')}-{hashlib.sha256(data).hexdigest()[:10]}"
        (KEPT / stem).write_bytes(data)
        (KEPT / f"{stem}.txt").write_text("".join(traceback.format_exception(error)))

    def say(self, engine: str, seconds: float) -> None:
        """Print what was seen as one line of JSON."""
        found = {
            "target": self.target.name, "engine": engine, "seconds": round(seconds, 1),
            "inputs": self.inputs, "read": self.read, "failures": self.failures,
        }  # fmt: skip
        print(json.dumps(found), flush=True)


def run_random(name: str, seconds: float) -> None:
    """Change true files at random, those before them too."""
    with tempfile.TemporaryDirectory() as folder:
        finder = Finder(name, Path(folder))
        rng = random.Random(0)
        begun = time.monotonic()
        while time.monotonic() - begun < seconds:
            data = rng.choice(finder.target.seeds)
            for _ in range(rng.randint(1, 4)):
                data = finder.target.mutate(data, rng)
            finder(data)
        finder.say("random", time.monotonic() - begun)


def run_guided(name: str, seconds: float) -> None:
    """Let coverage choose which inputs are changed further."""
    import atheris

    with tempfile.TemporaryDirectory() as folder, tempfile.TemporaryDirectory() as corpus:
        finder = Finder(name, Path(folder))
        for number, seed in enumerate(finder.target.seeds):
            (Path(corpus) / str(number)).write_bytes(seed)
        begun = time.monotonic()

        def one(data: bytes) -> None:
            finder(data)
            if time.monotonic() - begun > seconds:
                finder.say("atheris", time.monotonic() - begun)
                sys.stdout.flush()
                os._exit(0)  # libFuzzer has no other way to end early without an error

        def change(data: bytes, max_size: int, seed: int) -> bytes:
            rng = random.Random(seed)
            if rng.randint(0, 4) == 0:
                return atheris.Mutate(data, max_size)
            return finder.target.mutate(data, rng)[:max_size]

        words = [sys.argv[0], corpus, "-max_len=65536", "-verbosity=0", "-print_final_stats=0"]
        atheris.Setup(words, one, custom_mutator=change)
        atheris.Fuzz()


def load_readers(guided: bool) -> None:
    """Import every reader once, for all targets; those of ours count what they reach."""
    if not guided:
        importlib.import_module("tests.faults.hostile")
        return
    import atheris

    ours = ["workbench.evidence", "workbench.checkpoints", "workbench.numerics",
            "workbench.reports.extract", "workbench.diagnose.findings"]  # fmt: skip
    with atheris.instrument_imports(include=ours, enable_loader_override=False):
        importlib.import_module("tests.faults.hostile")


def one_process(name: str, seconds: float, guided: bool) -> list[str]:
    """What a forked process says of one target; that it did not end is a failure too."""
    with tempfile.TemporaryFile("w+") as said:
        pid = os.fork()
        if pid == 0:
            os.dup2(said.fileno(), 1)
            try:
                (run_guided if guided else run_random)(name, seconds)
            except BaseException:  # noqa: BLE001 - a fault of the fuzzer itself must be seen
                traceback.print_exc()
            finally:
                sys.stdout.flush()
                os._exit(1)
        begun, lost = time.monotonic(), "did not end"
        while time.monotonic() - begun < 3 * seconds + 120:
            if os.waitpid(pid, os.WNOHANG)[0]:
                lost = "ended without a word"
                break
            time.sleep(0.2)
        else:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
        said.seek(0)
        lines = [line for line in said.read().splitlines() if line.startswith("{")]
    nothing = {"target": name, "engine": "-", "inputs": 0, "read": 0, "failures": {"process": lost}}
    return lines or [json.dumps(nothing)]


def main() -> int:
    """Run every target for its share of the time."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--minutes", type=float, default=30.0)
    parser.add_argument("--out", type=Path, help="where the table goes, as Markdown")
    parser.add_argument("--target", help="only this one")
    given = parser.parse_args()
    warnings.simplefilter("ignore")
    guided = importlib.util.find_spec("atheris") is not None
    load_readers(guided)
    from tests.faults.hostile import targets

    with tempfile.TemporaryDirectory() as folder:
        names = [given.target] if given.target else list(targets(Path(folder)))
    rows = []
    for name in names:
        lines = one_process(name, given.minutes * 60 / len(names), guided)
        rows.append(json.loads(lines[-1]))
        print(lines[-1], flush=True)
    table = ["| file | engine | inputs | read, not refused | failures |", "|---|---|--:|--:|--:|"]
    for row in rows:
        seen = f"{row['inputs']:,} | {row['read']:,} | {len(row['failures'])}"
        table.append(f"| {row['target']} | {row['engine']} | {seen} |")
    print("\n".join(table))
    if given.out:
        given.out.write_text("\n".join(table) + "\n")
    return 1 if any(r["failures"] for r in rows) else 0


if __name__ == "__main__":
    sys.exit(main())
