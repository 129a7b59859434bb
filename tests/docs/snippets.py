"""Run what a page shows: its files, its Python and its commands, in the order of the page.

- ```` ```python title="train.py" ```` is written to that file;
- any other ```` ```python ```` runs, each page in one namespace;
- in ```` ```console ```` a line that starts with ``$`` runs; every other line must be part of what
  the commands above it printed;
- ``<!-- setup … -->`` is Python that the page needs and a reader does not: it runs in its place;
- ``<!-- not run: why -->`` before a block leaves it out.

Commands run in this process, so that a whole page costs one import of torch; `torchrun` starts real
ranks.
"""

from __future__ import annotations

import contextlib
import os
import re
import runpy
import shlex
import subprocess
import sys
import tempfile
import traceback
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
_BLOCK = re.compile(
    r"<!-- setup\n(?P<setup>.*?)-->"
    r"|(?P<skip><!-- not run: [^\n]+ -->\n\s*)?"
    r"^```(?P<kind>python|console)(?P<head>[^\n]*)\n(?P<body>.*?)^```",
    re.S | re.M,
)
_TITLE = re.compile(r'title="([^"]+)"')


@dataclass
class Page:
    """What ran of a page.

    Attributes:
        python: Blocks of Python that ran.
        commands: Commands that ran.
        left_out: Blocks that say why they are not run.
    """

    python: int = 0
    commands: list[str] = field(default_factory=list)
    left_out: int = 0


def run_page(path: Path) -> Page:
    """Run a page in the current folder.

    Raises:
        AssertionError: A block failed, or did not print what the page says.
    """
    text = path.read_text(encoding="utf-8")
    page, names = Page(), {"__name__": "__page__"}
    for block in _BLOCK.finditer(text):
        place = f"{path.name}:{text.count(chr(10), 0, block.start()) + 1}"
        if block["setup"] is not None:
            _python(block["setup"], names, place)
        elif block["skip"] is not None:
            page.left_out += 1
        elif block["kind"] == "console":
            _console(block["body"], page, place)
        elif title := _TITLE.search(block["head"]):
            Path(title[1]).write_text(block["body"], encoding="utf-8")
        else:
            _python(block["body"], names, place)
            page.python += 1
    return page


def _python(body: str, names: dict, place: str) -> None:
    try:
        exec(compile(body, place, "exec"), names)  # noqa: S102 - the project's own pages
    except Exception as error:
        raise AssertionError(f"{place} failed: {traceback.format_exc()[-1500:]}") from error


def _console(body: str, page: Page, place: str) -> None:
    said = ""
    for line in body.splitlines():
        if line.startswith("$ "):
            code, said = _command(shlex.split(line[2:]))
            page.commands.append(line[2:])
            fails = "Error" in body and line.startswith(("$ python", "$ torchrun"))
            expected = 1 if fails else 0
            assert code == expected, f"{place}: {line!r} ended with {code}: {said[-1500:]}"
        elif line.strip():
            assert line.strip() in said, f"{place}: {line!r} is not in: {said[-1500:]}"


def _command(words: list[str]) -> tuple[int, str]:
    """Run ``workbench …`` or ``python file.py`` here; exit code and all that was printed."""
    from workbench.cli.main import main

    if words[0] == "torchrun":
        return _ranks(words[1:])
    code = 0
    with _printed() as out:
        try:
            if words[0] == "workbench":
                code = main(words[1:]) or 0
            else:
                assert words[0] == "python", f"{words[0]!r} is not run here"
                _script(words[1:])
        except SystemExit as end:
            code = end.code if isinstance(end.code, int) else 1
        except Exception:  # noqa: BLE001 - a page shows how a script fails
            traceback.print_exc()
            code = 1
        sys.stdout.flush()
        out.seek(0)
        return code, out.read()


def _ranks(words: list[str]) -> tuple[int, str]:
    """Run ``torchrun …`` on a port of its own; exit code and all that its ranks printed."""
    done = subprocess.run(
        [sys.executable, "-m", "torch.distributed.run", "--standalone", *words],
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False, timeout=180,
        env=os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)},
    )  # fmt: skip
    return done.returncode, done.stdout


@contextlib.contextmanager
def _printed():
    """Everything that is printed within, by Python or through the descriptors, in one file."""
    before = (sys.stdout, sys.stderr, os.dup(1), os.dup(2))
    with tempfile.TemporaryFile("w+", encoding="utf-8") as out:
        sys.stdout = sys.stderr = out
        os.dup2(out.fileno(), 1)
        os.dup2(out.fileno(), 2)
        try:
            yield out
        finally:
            sys.stdout, sys.stderr = before[:2]
            for number, kept in enumerate(before[2:], 1):
                os.dup2(kept, number)
                os.close(kept)


def _script(words: list[str]) -> None:
    before = sys.argv
    sys.argv = words
    try:
        runpy.run_path(words[0], run_name="__main__")
    finally:
        sys.argv = before
