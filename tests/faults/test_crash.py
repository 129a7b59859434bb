"""A recording process is killed at random moments; the whole of it is ``scripts/crash.py``."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent

# A process of its own: it forks, which must not happen beside the threads of a test run.
RUN = """
import json, sys
sys.path.insert(0, "scripts")
from pathlib import Path
import crash
print(json.dumps(crash.run(8, seed=3, directory=Path(sys.argv[1]), places=2, files=20)))
"""


def test_killed_at_eight_moments_nothing_that_was_said_is_lost(tmp_path):
    done = subprocess.run(
        [sys.executable, "-c", RUN, tmp_path / "runs"],
        cwd=ROOT, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]
    seen = json.loads(done.stdout.splitlines()[-1])
    assert seen["kills"] == 9
    assert seen["steps_told"] > 10
    assert seen["acknowledged"] > 5
    assert seen["sealed_at_end"] >= 1
    assert seen["cuts"] > 15
