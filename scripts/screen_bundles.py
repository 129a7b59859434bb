"""Bundles for the screens that no demo run shows: made up, except where a real one is cheap."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.unit.widgets.conftest import make_bundle
from tests.unit.widgets.fakes import findings, layers
from workbench.evidence import Conditions, open_bundle, write_table
from workbench.numerics import jsonio

LONG = "model.decoder.stack.blocks.11.cross_attention.output_projection.low_rank_adapter.up_proj"
BLOCKS = 3333
"""Three layers a block: 10,000 layers and a few."""


@dataclass(frozen=True)
class Screen:
    """One bundle to look at.

    Attributes:
        name: Name of the picture.
        path: The bundle.
        tab: The tab that is looked at.
        decline: Whether a replay is asked for and declined first.
    """

    name: str
    path: Path
    tab: str = ""
    decline: bool = False


def make_all(work: Path, demo: Path) -> list[Screen]:
    """Make every bundle below a directory.

    Args:
        work: An empty directory.
        demo: A real bundle, which is copied and redacted.
    """
    makers: list[Callable[[Path, Path], Screen]] = [
        _without_code,
        _of_cuda,
        _alert,
        _three_origins,
        _many_layers,
        _long_names,
        _damaged,
        _redacted,
    ]
    return [make(work / make.__name__.removeprefix("_"), demo) for make in makers]


def _saved(path: Path, data: dict[str, Any], table: Any) -> None:
    """Findings and ranges beside a bundle, as a diagnosis leaves them."""
    bundle = open_bundle(path)
    data = data | {"bundle": {"id": bundle.id, "digest": bundle.digest, "kind": bundle.kind}}
    bundle.findings_dir.mkdir()
    (bundle.findings_dir / "findings.json").write_text(jsonio.dumps(data), encoding="utf-8")
    write_table(bundle.findings_dir / "trace", "layers", table)


def _without_code(work: Path, demo: Path) -> Screen:
    del demo
    path = make_bundle(work, reference="private_training.loop:Step")
    return Screen("no-code", path, decline=True)


def _of_cuda(work: Path, demo: Path) -> Screen:
    del demo
    conditions = Conditions(autocast="float16", device="cuda:0")
    return Screen("cuda-on-cpu", make_bundle(work, conditions=conditions))


def _alert(work: Path, demo: Path) -> Screen:
    del demo
    message = "The loss 9.1 is 4 times its usual 2.3."
    how = {"stage": "logging", "tensor": "loss_factor"}
    return Screen("alert", make_bundle(work, kind="alert", message=message, **how))


def _three_origins(work: Path, demo: Path) -> Screen:
    del demo
    path = make_bundle(work, stage="backward", tensor="blocks.3.attn.qkv.weight")
    data = findings()
    first = data["origins"][0]
    data["origins"] = [
        first,
        {**first, "op": "aten.div.Tensor", "where": "module", "module": "blocks.3.attn"},
        {**first, "kind": "poisoned_buffer", "op": "", "tensor": {"name": "norm.running_var"}},
    ]
    _saved(path, data, layers())
    return Screen("three-origins", path, tab="Origin")


def _many_layers(work: Path, demo: Path) -> Screen:
    del demo
    path = make_bundle(work)
    _saved(path, findings(), layers(blocks=BLOCKS))
    return Screen("10000-layers", path, tab="Ranges")


def _long_names(work: Path, demo: Path) -> Screen:
    del demo
    path = make_bundle(work, stage="forward", tensor=LONG, run_id="a-run-with-a-long-name-2026-11")
    table = layers()
    table.columns["module"] = [
        name.replace("blocks.", f"{LONG}.blocks.") for name in table.columns["module"]
    ]
    data = findings()
    data["origins"][0] |= {"where": "module", "module": LONG, "stage": "forward"}
    _saved(path, data, table)
    return Screen("long-names", path, tab="Origin")


def _damaged(work: Path, demo: Path) -> Screen:
    del demo
    path = make_bundle(work)
    (path / "state" / "model.safetensors").write_bytes(b"short")
    return Screen("damaged", path, tab="Evidence")


def _redacted(work: Path, demo: Path) -> Screen:
    """The real demo bundle, as it is given to others."""
    work.mkdir(parents=True)
    target = work / f"redacted-{demo.name}"
    command = [sys.executable, "-m", "workbench", "redact", str(demo), "-o", str(target)]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    return Screen("redacted", target, tab="Evidence")


def copied(demo: Path, work: Path) -> Path:
    """The real bundle without what an earlier diagnosis left beside it."""
    target = work / demo.name
    if demo.is_dir():
        shutil.copytree(demo, target)
    else:
        shutil.copy(demo, target)
    return target
