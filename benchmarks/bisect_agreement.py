"""Does a bisect name what a full trace names? `python benchmarks/bisect_agreement.py FOLDER...`.

Every incident of the folders is recorded, bisected by hooks, and traced in full; one row each says
whether kind, stage, op, place, source line and autograd node agree, how many runs of the step the
bisect took, and whether it fell back on a full trace. `--halve` searches by halving.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path
from typing import Any

from workbench.diagnose.analysis import Judged, analyse
from workbench.diagnose.bisect import bisect
from workbench.diagnose.origin_rows import origin_row
from workbench.diagnose.zoo_run import record
from workbench.diagnose.zoo_step import incident_step
from workbench.errors import WorkbenchError
from workbench.evidence import open_bundle
from workbench.replay import Replay

KEYS = ("kind", "stage", "op", "where", "module", "in_loss", "source", "autograd_node")


def of_full_trace(bundle: Any, step: Any) -> list[dict[str, Any]]:
    """What slicing a full trace names, first to last."""
    replay = Replay(bundle, step=step)
    trace = replay.trace(exponents=False)
    # an exception that met nothing non-finite is its own origin
    found = analyse(trace, replay.kept, raises=True)
    rows = [origin_row(Judged(judged.case, None), bundle) for judged in found.origins]
    return [{key: row[key] for key in KEYS} for row in rows]


def compared(path: Path, halve: bool) -> tuple[str, str]:
    """One incident: whether the answers agree, and how the bisect found it."""
    with tempfile.TemporaryDirectory() as directory:
        made = record(path, Path(directory), None)
        if made.bundle is None:
            return "not recorded", ""
        bundle, step = open_bundle(made.bundle), incident_step(path)
        wanted = of_full_trace(bundle, step)
        found = bisect(bundle, step=step, halve=halve)
    own = None if found.origin is None else {key: found.origin[key] for key in KEYS}
    how = f"{len(found.probes)} runs{', full trace' if found.used_full_trace else ''}"
    if own == (wanted[0] if wanted else None):
        return "same", how
    first = wanted[0] if wanted else {}
    other = " (another of its origins)" if own in wanted else ""
    parts = [f"{k}: {own[k] if own else None} / {first.get(k)}" for k in KEYS
             if (own or {}).get(k) != first.get(k)]  # fmt: skip
    return f"DIFFERS{other}: {'; '.join(parts)}", how


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", nargs="+", type=Path)
    parser.add_argument("--halve", action="store_true")
    parser.add_argument("--only", help="incidents whose name holds this")
    options = parser.parse_args()
    counts: dict[str, int] = {}
    for folder in options.folder:
        for path in sorted(folder.glob("*.py")):
            if path.stem.startswith("_") or (options.only and options.only not in path.stem):
                continue
            try:
                said, how = compared(path, options.halve)
            except (WorkbenchError, RuntimeError, ImportError, AttributeError) as error:
                said, how = f"not run: {type(error).__name__}: {str(error)[:120]}", ""
            key = said.partition(":")[0]
            counts[key] = counts.get(key, 0) + 1
            print(f"{path.stem:48} {said:8} {how}", flush=True)
    print(", ".join(f"{count} {what}" for what, count in sorted(counts.items())))
    sys.exit(1 if any(key.startswith("DIFFERS") for key in counts) else 0)


if __name__ == "__main__":
    main()
