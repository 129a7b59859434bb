"""A fabricated incident and its notebook, as if the template had run on it."""

from __future__ import annotations

import nbformat

from tests.unit.charts.fabricated import (
    HOSTILE,
    events_table,
    findings,
    layers_table,
    ledger,
)
from workbench.diagnose.answers import QUESTIONS, Answer
from workbench.numerics import jsonio
from workbench.reports import sections
from workbench.reports.build_templates import build, scripts
from workbench.reports.incident import Incident

DIGEST = "sha256:" + "3f2a91c4" * 8
SECTIONS = {
    "first-screen": sections.first_screen,
    "stages": sections.stages,
    "origin": sections.origin,
    "counterfactuals": sections.counterfactuals,
    "ranges": sections.ranges,
    "timeline": sections.timeline,
    "notes": sections.notes,
    "environment": sections.environment,
    "check": sections.check,
}


def incident(*, hostile=False, count=40, **changes):
    data = findings(hostile=hostile, digest=DIGEST)
    text = HOSTILE if hostile else "NVIDIA H100"
    made = Incident(
        name="run7-step00018342.bundle",
        digest=DIGEST,
        fingerprint="NF-3f2a91",
        first_bad={
            **data["first_bad"],
            "kind": "nan",
            "counts": {"nan": 1, "pos_inf": 0, "neg_inf": 0, "finite": 0},
        },
        conditions={"device": "cuda:0", "autocast": "float16"},
        completeness={"forward_loss": "complete", "update": "missing optimizer state"},
        ledger=ledger(),
        environment={"torch": "2.13", "devices": [{"name": text}], "note": text},
        manifest={"run_id": "run7", "step": 18342, "rank": 0, "world": 8},
        findings=data,
        findings_text=jsonio.dumps(data),
        summary=list(data["summary"]),
        answers=[
            Answer(key, question, f"Answer {key} {text}", f"evidence {text}", "workbench diagnose")
            for key, question in QUESTIONS.items()
        ],
        layers=layers_table(count, hostile=hostile),
        events=events_table(),
        origin_note="Findings saved beside the bundle, made from exactly this bundle.",
        differences=[{"field": text, "recorded": text, "here": None}],
        about={"author": text, "title": ""},
    )
    for name, value in changes.items():
        setattr(made, name, value)
    return made


def notebook(made=None, *, last="check"):
    """The template's notebook with outputs up to the cell ``last``."""
    made = made or incident()
    (script,) = [path for path in scripts() if path.stem == "incident"]
    node = nbformat.reads(build(script), 4)
    ran = True
    for cell in node.cells:
        name = cell.metadata.get("name", "")
        cell.metadata["workbench"] = {"state": "completed" if ran else "not run"}
        if name in SECTIONS and ran:
            cell.outputs = [
                nbformat.v4.new_output("display_data", data=bundle)
                for bundle in SECTIONS[name](made).bundles()
            ]
        if name == last:
            ran = False
    return node
