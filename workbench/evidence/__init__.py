"""The bundle: schema, writing, reading, digests, environment, tables, and the five lines.

Names are loaded on first use.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from workbench.lazy import names_on_first_use

if TYPE_CHECKING:
    from workbench.evidence.archive import pack
    from workbench.evidence.conditions import Conditions, conditions_from, parse_setting
    from workbench.evidence.facts import SummaryFacts, summary_facts
    from workbench.evidence.machine import environment, environment_differences
    from workbench.evidence.packing import Packed, pack_tensors, unpack_tensors
    from workbench.evidence.paths import find_bundles
    from workbench.evidence.pytree import flatten, missing_objects, unflatten
    from workbench.evidence.reader import Bundle, FileCheck, open_bundle
    from workbench.evidence.records import AttributeDict, FieldTuple, Missing, loaded_class
    from workbench.evidence.schema import (
        GOALS,
        FileEntry,
        FirstBad,
        Manifest,
        StepReference,
        fingerprint,
    )
    from workbench.evidence.summary import summary_lines
    from workbench.evidence.table import Table, read_table, table_from_rows, write_table
    from workbench.evidence.verdicts import verdict_sentence
    from workbench.evidence.wording import (
        byte_size,
        clean,
        count_words,
        counted,
        joined,
        kind_word,
        number,
        shape,
    )
    from workbench.evidence.writer import BundleWriter

__all__ = [
    "GOALS",
    "AttributeDict",
    "Bundle",
    "BundleWriter",
    "Conditions",
    "FieldTuple",
    "FileCheck",
    "FileEntry",
    "FirstBad",
    "Manifest",
    "Missing",
    "Packed",
    "StepReference",
    "SummaryFacts",
    "Table",
    "byte_size",
    "clean",
    "conditions_from",
    "count_words",
    "counted",
    "environment",
    "environment_differences",
    "find_bundles",
    "fingerprint",
    "flatten",
    "joined",
    "kind_word",
    "loaded_class",
    "missing_objects",
    "number",
    "open_bundle",
    "pack",
    "pack_tensors",
    "parse_setting",
    "read_table",
    "shape",
    "summary_facts",
    "summary_lines",
    "table_from_rows",
    "unflatten",
    "unpack_tensors",
    "verdict_sentence",
    "write_table",
]

__getattr__ = names_on_first_use(
    __name__,
    {
        "archive": ("pack",),
        "conditions": ("Conditions", "conditions_from", "parse_setting"),
        "machine": ("environment", "environment_differences"),
        "packing": ("Packed", "pack_tensors", "unpack_tensors"),
        "pytree": ("flatten", "missing_objects", "unflatten"),
        "paths": ("find_bundles",),
        "reader": ("Bundle", "FileCheck", "open_bundle"),
        "records": ("AttributeDict", "FieldTuple", "Missing", "loaded_class"),
        "schema": ("GOALS", "FileEntry", "FirstBad", "Manifest", "StepReference", "fingerprint"),
        "summary": ("summary_lines",),
        "facts": ("SummaryFacts", "summary_facts"),
        "table": ("Table", "read_table", "table_from_rows", "write_table"),
        "verdicts": ("verdict_sentence",),
        "wording": (
            "byte_size",
            "clean",
            "count_words",
            "counted",
            "joined",
            "kind_word",
            "number",
            "shape",
        ),
        "writer": ("BundleWriter",),
    },
)
