#!/usr/bin/env bash
# Checks recorder and replay on one CUDA GPU in under four minutes, and writes what was found.
#
#   bash scripts/gpu_check.sh [OUT_DIR]      OUT_DIR/gpu_check.{json,md}; default docs/gpu
#
# PYTHON names the interpreter (default python3). Wheels in a folder .whl at the root of the
# repository are installed into a temporary directory first, without an index.
# Exit code: 0 all checks held, 1 one failed or did not finish, 4 no CUDA GPU or a package missing.
set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
python=${PYTHON:-python3}
if ! found=$(command -v "$python"); then
  echo "The GPU check was not run: there is no Python interpreter '$python' here. Name one with" \
    "PYTHON=... . Nothing was written." >&2
  exit 4
fi
python=$found
[[ $python == /* ]] || python=$PWD/$python
out=${1:-$root/docs/gpu}
[[ $out == /* ]] || out=$PWD/$out
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$root"

paths=$root
wheels=("$root"/.whl/*.whl)
if [[ -e ${wheels[0]} ]]; then
  "$python" -m pip install --quiet --disable-pip-version-check --no-index --no-deps \
    --target "$work/packages" "${wheels[@]}"
  paths=$root:$work/packages
fi
export PYTHONPATH=$paths${PYTHONPATH:+:$PYTHONPATH}
export PYTHONDONTWRITEBYTECODE=1
export PYTEST_DISABLE_PLUGIN_AUTOLOAD=1
# cuBLAS repeats its bits only with a fixed workspace
export CUBLAS_WORKSPACE_CONFIG=:4096:8
# compiled kernels of other runs must not decide what is measured here
export TORCHINDUCTOR_CACHE_DIR=$work/inductor TRITON_CACHE_DIR=$work/triton

status=0
"$python" - <<'EOF' || status=$?
import importlib.util
import sys

wanted = "torch numpy safetensors msgspec click tqdm xarray pytest".split()
missing = [name for name in wanted if importlib.util.find_spec(name) is None]
if missing:
    sys.exit(
        f"The GPU check was not run: Python {sys.version.split()[0]} ({sys.executable}) lacks "
        f"{', '.join(missing)}. Install what is missing, name another interpreter with PYTHON=..., "
        "or put wheels into a folder .whl at the root of the repository. Nothing was written."
    )
import torch

if not torch.cuda.is_available():
    sys.exit(
        f"The GPU check was not run: torch {torch.__version__} ({sys.executable}) finds no CUDA "
        "GPU on this machine, and every check compares what a GPU does. Run it on a machine with "
        "an NVIDIA GPU, its driver, and a CUDA build of torch; PYTHON=... names another "
        "interpreter. Nothing was written."
    )
EOF
if [[ $status -ne 0 ]]; then
  exit 4
fi
mkdir -p "$out"

# The project's own options name plugins that need not be here.
cat > "$work/pytest.ini" <<'EOF'
[pytest]
addopts = --import-mode=importlib --strict-markers -ra
faulthandler_timeout = 90
markers =
    gpu: needs a CUDA device
EOF

# Interrupted rather than killed, pytest still reports the checks it came to.
check() { # NAME SECONDS PYTEST_ARGUMENT...
  local name=$1 seconds=$2 code=0
  shift 2
  timeout --signal=INT --kill-after=8 "$seconds" "$python" -m pytest -q \
    -c "$work/pytest.ini" --rootdir "$root" -p no:cacheprovider --basetemp "$work/$name" \
    -o junit_family=xunit1 --junitxml "$work/$name.xml" "$@" || code=$?
  echo "$name $code" >> "$work/codes"
}

started=$SECONDS
check main 145 tests/gpu --ignore tests/gpu/test_device_assert.py
# A device-side assert comes last and in a process of its own.
check assert 60 tests/gpu/test_device_assert.py

"$python" - "$work" "$out" "$((SECONDS - started))" <<'EOF'
"""Write gpu_check.json and gpu_check.md from what pytest reported."""

import datetime
import json
import platform
import re
import subprocess
import sys
import xml.etree.ElementTree as ET
from pathlib import Path

import torch

work, out, seconds = Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3])


def first_line(command):
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=20, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    lines = done.stdout.strip().splitlines()
    return lines[0].strip() if done.returncode == 0 and lines else None


def one(case):
    """One check: what pytest says of it, and the detail the test gave."""
    properties = {p.get("name"): p.get("value", "") for p in case.iter("property")}
    detail = properties.get("detail", "")
    result = "passed"
    for kind in ("failure", "error"):
        if (found := case.find(kind)) is not None:
            result = "failed"
            detail = f"{found.get('message', '')} {detail}"
    if (found := case.find("skipped")) is not None:
        known = found.get("type") == "pytest.xfail"
        result = "known gap" if known else "skipped"
        detail = f"{detail}; {found.get('message', '')}" if detail else found.get("message", "")
    group = case.get("classname", "").rpartition(".")[2].removeprefix("test_").replace("_", " ")
    name, _, parameter = case.get("name", "").removeprefix("test_").partition("[")
    title = name.replace("_", " ") + (f" [{parameter}" if parameter else "")
    detail = " ".join(detail.split())[:400]
    took = round(float(case.get("time", 0)), 2)
    return {"group": group, "check": title, "result": result, "seconds": took, "detail": detail}


checks = []
for line in (work / "codes").read_text().splitlines():
    name, code = line.split()
    report = work / f"{name}.xml"
    try:
        # a test that was interrupted leaves an entry without a name: it came to no result
        cases = [c for c in ET.parse(report).getroot().iter("testcase") if c.get("name")]
    except (OSError, ET.ParseError):
        cases = []
    checks += [one(case) for case in cases]
    if code not in ("0", "1") or not cases:
        why = "ran out of time" if code in ("2", "124", "137") else f"pytest ended with {code}"
        part = "the device assert" if name == "assert" else "the checks"
        checks.append({
            "group": "gpu check", "check": f"{part} came to an end", "result": "failed",
            "seconds": 0.0, "detail": f"{why} after {len(cases)} checks",
        })

device = torch.cuda.get_device_properties(0)
facts = {
    "date": datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%d %H:%M UTC"),
    "device": device.name,
    "capability": f"{device.major}.{device.minor}",
    "driver": first_line(["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]),
    "torch": torch.__version__,
    "cuda": torch.version.cuda,
    "cudnn": torch.backends.cudnn.version(),
    "python": platform.python_version(),
    "commit": first_line(["git", "rev-parse", "--short=12", "HEAD"]),
    "seconds": seconds,
}
kinds = ("passed", "failed", "known gap", "skipped")
totals = {kind: sum(c["result"] == kind for c in checks) for kind in kinds}
data = {"schema": "workbench.gpu_check/1", **facts, "totals": totals, "checks": checks}
(out / "gpu_check.json").write_text(json.dumps(data, indent=2, sort_keys=True) + "\n")


def cell(text):
    return re.sub(r"([|<>`*_\[\]])", r"\\\1", str(text))


def rows():
    """Every check on a row; the long list of autocast ops on one while it holds."""
    ops = [c for c in checks if c["group"] == "autocast policy" and "[" in c["check"]]
    held = bool(ops) and all(c["result"] == "passed" for c in ops)
    if held:
        took = sum(c["seconds"] for c in ops)
        yield "the result has the same dtype on both", "passed", took, f"{len(ops)} ops"
    for c in checks:
        if not (held and c in ops):
            yield c["check"], c["result"], c["seconds"], c["detail"][:200]


lines = ["# GPU check", ""]
lines += [f"- {key}: {cell(value)}" for key, value in facts.items() if value is not None]
lines += [f"- result: {', '.join(f'{number} {kind}' for kind, number in totals.items())}", ""]
lines += ["| check | result | seconds | detail |", "|---|---|---|---|"]
lines += [
    f"| {cell(name)} | {result} | {took:.1f} | {cell(detail)} |"
    for name, result, took, detail in rows()
]
(out / "gpu_check.md").write_text("\n".join(lines) + "\n")
print(f"{out / 'gpu_check.md'}: {', '.join(f'{n} {kind}' for kind, n in totals.items())}")
ran = len(checks) > totals["skipped"]
sys.exit(1 if totals["failed"] or not ran else 0)
EOF
