"""What is in a bundle, but for when and where it was made."""

import json

from workbench.numerics import jsonio

TIMES = {"time", "run_id"}
_MADE = {"created", "id", "files"}
_WITH_TIMES = {"ledger.jsonl", "environment.json", "manifest.json"}


def records(path):
    """The records of a ledger, without their times."""
    lines = [json.loads(line) for line in path.read_bytes().splitlines()]
    return [{k: v for k, v in line.items() if k not in TIMES} for line in lines]


def contents(bundle):
    """All that is in a bundle, by file."""
    files = sorted(p for p in bundle.rglob("*") if p.is_file())
    found = {str(p.relative_to(bundle)): p for p in files}
    read = {
        name: jsonio.loads(path.read_bytes()) if path.suffix == ".json" else path.read_bytes()
        for name, path in found.items()
        if name not in _WITH_TIMES
    }
    for content in read.values():
        if isinstance(content, dict) and isinstance(content.get("exception"), dict):
            content["exception"].pop("raised_at", None)
    manifest = jsonio.loads((bundle / "manifest.json").read_bytes())
    return read | {
        "names": list(found),
        "ledger": records(found["ledger.jsonl"]),
        "manifest": {k: v for k, v in manifest.items() if k not in _MADE},
    }
