"""Fabricated tables, ledgers and findings with the shapes and odd values real ones have."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

import numpy as np

HOSTILE = '</script><img src=x onerror="window.hacked=1"><a href="javascript:1">'


@dataclass
class FakeTable:
    columns: dict[str, Any]
    attrs: dict[str, Any] = field(default_factory=dict)


def layers_table(count=12, *, hostile=False, bad=True, dtype="float16", tensor="activation"):
    """``count`` layers in order; the last ones have 3 −Inf and then 1 NaN when ``bad``."""
    modules = [
        f"blocks.{i // 4}.{('norm', 'attn', 'mlp.up', 'mlp.down')[i % 4]}" for i in range(count)
    ]
    if hostile:
        modules[1] = HOSTILE
    high = np.asarray([0.5 * 1.9 ** (i % 18) for i in range(count)])
    counts = {kind: np.zeros(count, dtype=np.int64) for kind in ("nan", "pos_inf", "neg_inf")}
    finite = np.full(count, 8192, dtype=np.int64)
    if bad:
        counts["neg_inf"][-2] = 3
        finite[-2] -= 3
        counts["nan"][-1] = 1
        finite[-1] = 0
    low = -0.8 * high
    absmax, mean_square = high.copy(), (0.3 * high) ** 2
    for values in (low, high, absmax, mean_square):
        values[finite == 0] = math.nan
    return FakeTable(
        {
            "order": np.arange(count),
            "module": modules,
            "type": ["Linear"] * count,
            "tensor": [tensor] * count,
            "name": ["out"] * count,
            "stage": ["forward"] * count,
            "micro_step": np.zeros(count, dtype=np.int64),
            "dtype": [dtype] * count,
            "shape": ["[8, 128, 8]"] * count,
            **counts,
            "finite": finite,
            "min": low,
            "max": high,
            "absmax": absmax,
            "mean_square": mean_square,
            "zeros": np.zeros(count, dtype=np.int64),
            "subnormals": np.zeros(count, dtype=np.int64),
            "event": np.arange(count),
            "source": [f"model.py:{80 + i}" for i in range(count)],
        }
    )


def ledger(steps=40, first=18303, *, bad=True):
    """``steps`` records; two scaler skips, and a NaN loss in the last one when ``bad``."""
    records = []
    scale = 65536.0
    for i in range(steps):
        skipped = "scaler" if i in (10, 25) else "none"
        records.append(
            {
                "run_id": "run7",
                "step": first + i,
                "micro_step": 0,
                "rank": 0,
                "world": 8,
                "time": 1762933920.0 + i,
                "loss": 2.5 - 0.01 * i + 0.05 * math.sin(i),
                "grad_norm": math.inf if skipped == "scaler" else 1.0 + 0.2 * math.cos(i),
                "loss_scale": scale,
                "learning_rates": [[3e-4 * (1 - i / 80)]],
                "optimizers": [
                    {
                        "attempted": True,
                        "updated": skipped == "none",
                        "skipped_by": skipped,
                        "found_inf": skipped == "scaler",
                    }
                ],
                "alerts": [],
            }
        )
        scale = scale / 2 if skipped == "scaler" else scale
    if bad:
        records[-1].update(loss=math.nan, grad_norm=None)
        records[-1]["optimizers"][0].update(attempted=False, updated=False, skipped_by="gate")
    return records


def findings(*, hostile=False, digest="sha256:" + "3f2a91c4" * 8):
    """A findings/1 dict of a log(softmax) failure."""
    where = HOSTILE if hostile else "blocks.2.mlp.down"
    return {
        "schema": "workbench.findings/1",
        "bundle": {"id": "run7-step00018342", "digest": digest, "kind": "nonfinite"},
        "first_bad": {
            "run_id": HOSTILE if hostile else "run7",
            "step": 18342,
            "micro_step": 0,
            "rank": 0,
            "stage": "loss",
            "tensor": "loss",
        },
        "reproduction": {
            "verdict": "bitwise",
            "deterministic_here": True,
            "survives_instrumentation": True,
            "differences": [],
        },
        "origins": [
            {
                "kind": "conversion",
                "step": 18342,
                "micro_step": 0,
                "rank": 0,
                "stage": "loss",
                "op": "aten.mul.Tensor",
                "where": "loss",
                "module": where,
                "in_loss": True,
                "autograd_node": None,
                "forward_op": None,
                "cause": "log_of_zero",
                "range": "underflow",
                "dtype": "float16",
                "tensor": {
                    "name": "probabilities",
                    "positions": {"count": 3, "first": [1, 0], "samples": [1]},
                },
                "source": "train.py:31",
                "event": 118,
            }
        ],
        "contributors": [
            {"event": 112, "op": "aten._softmax.default", "role": "underflow_to_zero"}
        ],
        "chain": [
            {
                "event": 112,
                "op": "aten._softmax.default",
                "sentence": "softmax gave 3 zeros",
                "source": "train.py:30",
            },
            {
                "event": 116,
                "op": "aten.log.default",
                "sentence": "log(0) gave 3 −Inf",
                "source": "train.py:31",
            },
            {
                "event": 118,
                "op": "aten.mul.Tensor",
                "sentence": "0 × −Inf gave 3 NaN",
                "source": "train.py:31",
            },
            {
                "event": 120,
                "op": "aten.mean.default",
                "sentence": "mean made the loss NaN",
                "source": "train.py:32",
            },
        ],
        "counterfactuals": [
            {
                "intervention": "log_softmax instead of log(softmax)",
                "result": "gone",
                "placebo": "unchanged",
                "establishes": "The failure needs log of a softmax that rounded to zero.",
                "does_not_establish": "That training stays finite after this step.",
            }
        ],
        "contamination": {
            "collective": False,
            "parameters": [],
            "optimizer_state": [],
            "buffers": [],
            "checkpoints": [],
        },
        "absorbed": [],
        "step_order": [],
        "alerts": [],
        "summary": [
            f"✕ The loss became NaN. Born at aten.mul.Tensor in {where}, train.py:31.",
            "Why     log of zero: softmax rounded 3 of 8,192 probabilities to 0.",
            "Sure?   Replayed exactly: same loss bits, same non-finite values.",
            "Reach   Stopped before the update: no parameter or checkpoint holds a bad value.",
            "Resume  checkpoint-18000 (committed). Before that, try: log_softmax.",
        ],
        "limits": ["Nothing is known about other seeds."],
    }


def write_bundle(directory, *, hostile=False, with_findings=True, layers=40, reference=""):
    """A sealed bundle on disk, and findings with their trace beside it."""
    from workbench.diagnose import Findings
    from workbench.evidence import (
        BundleWriter,
        Conditions,
        FirstBad,
        StepReference,
        Table,
        environment,
        open_bundle,
    )

    data = findings(hostile=hostile)
    bad = data["first_bad"]
    writer = BundleWriter(directory, "run7-step00018342")
    writer.manifest.id = "0123456789abcdef"
    writer.add_lines("ledger.jsonl", ledger())
    recorded = environment()
    recorded["devices"] = [{"name": HOSTILE if hostile else "NVIDIA H100", "capability": "9.0"}]
    recorded["host"] = "0123456789ab"
    writer.add_json("environment.json", recorded)
    writer.publish(
        run_id=bad["run_id"],
        step=bad["step"],
        world=8,
        step_reference=StepReference(reference=reference, kind="module" if reference else "none"),
        created="2025-11-12T07:52:00Z",
        first_bad=FirstBad(
            **bad,
            sink="loss",
            kind="nan",
            counts={"nan": 1, "pos_inf": 0, "neg_inf": 0, "finite": 0},
        ),
        conditions=Conditions(device="cuda:0", autocast="float16", scale=16384.0),
        completeness={
            "forward_loss": "complete",
            "backward": "complete",
            "update": "missing optimizer state",
            "trajectory": "not kept",
        },
    )
    path = writer.seal()
    if with_findings:
        bundle = open_bundle(path)
        data["bundle"] = {"id": bundle.id, "digest": bundle.digest, "kind": bundle.kind}
        table = Table(layers_table(layers, hostile=hostile).columns)
        gradients = layers_table(6, tensor="parameter_gradient", hostile=hostile, bad=False)
        merged = {
            name: np.concatenate([values, gradients.columns[name]])
            if isinstance(values, np.ndarray)
            else values + gradients.columns[name]
            for name, values in table.columns.items()
        }
        merged["order"] = np.arange(len(merged["module"]))
        Findings(data, Table(events_table().columns), Table(merged)).save(bundle.findings_dir)
    return path


def events_table():
    """Four ops: three of forward, the last of the loss with one NaN."""
    stages = ["forward", "forward", "forward", "loss"]
    zeros = np.zeros(4, dtype=np.int64)
    nan = zeros.copy()
    nan[3] = 1
    return FakeTable(
        {
            "event": np.arange(4),
            "op": [
                "aten.addmm.default",
                "aten._softmax.default",
                "aten.log.default",
                "aten.mean.default",
            ],
            "stage": stages,
            "nan": nan,
            "pos_inf": zeros,
            "neg_inf": np.asarray([0, 0, 3, 0]),
            "finite": np.asarray([8192, 8192, 8189, 0]),
        }
    )
