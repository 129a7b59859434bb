"""Fail on tests that were skipped for a reason other than a missing GPU or an absent ../shared.

    python scripts/check_skips.py build/junit.xml

Silent and 0 when all is well, so that pytest's summary stays the last line of a run.
"""

from __future__ import annotations

import re
import sys
import xml.etree.ElementTree as ET
from pathlib import Path

ALLOWED = re.compile(r"\b(GPU|CUDA)\b|\.\./shared\b")


def problems(report: Path) -> list[str]:
    """List skipped tests without an allowed reason, or say that no test ran."""
    # The file was written by pytest a moment ago.
    cases = list(ET.parse(report).getroot().iter("testcase"))  # noqa: S314
    skipped = {case: mark for case in cases if (mark := case.find("skipped")) is not None}
    found = [
        f"{case.get('classname')}::{case.get('name')}: {mark.get('message') or 'no reason'}"
        for case, mark in skipped.items()
        if mark.get("type") == "pytest.skip" and not ALLOWED.search(mark.get("message") or "")
    ]
    if len(skipped) == len(cases):
        found.append(f"{report}: no test ran")
    return found


def main() -> int:
    """Print what is wrong to stderr."""
    found = problems(Path(sys.argv[1]))
    for line in found:
        print(f"skipped for a reason that is not allowed: {line}", file=sys.stderr)
    return int(bool(found))


if __name__ == "__main__":
    sys.exit(main())
