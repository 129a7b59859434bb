"""Two runs of one step, or the recorded tensors of two bundles, tensor by tensor.

Masks come before errors: which elements are NaN or infinite is compared first, values only where
both are finite.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, Final

from workbench.errors import CannotRunError, WorkbenchError
from workbench.evidence import environment_differences, open_bundle
from workbench.numerics import compare
from workbench.replay.retain import MAX_BYTES
from workbench.step.names import inner_model, named_parameters

if TYPE_CHECKING:
    from torch import Tensor

    from workbench.evidence import Bundle, Conditions
    from workbench.replay.replay import Replay

SCHEMA: Final = "workbench.comparison/1"
RECORDED_FILES: Final = (
    "batch.safetensors",
    "state/model.safetensors",
    "state/optimizer.safetensors",
    "gradients.safetensors",
)
"""Files of a bundle whose tensors are compared by name."""
MOST_PROBLEMS: Final = 20

Data = dict[str, Any]
Say = Callable[[str], None]


def compare_runs(replay: Replay, first: Conditions, second: Conditions, say: Say) -> Data:
    """Run the step under two sets of conditions without probes, and compare what they computed.

    Args:
        replay: The replay; its live session is left alone.
        first: Conditions of the one run.
        second: Conditions of the other.
        say: Called with a sentence before each run.

    Returns:
        ``workbench.comparison/1``: one row for the output of each module's last call, the loss and
        each gradient, in the order they came to be, and where the runs part.

    Raises:
        CannotRunError: The step cannot be replayed here.
    """
    wanted = _everything(replay, first)
    a: dict[str, Tensor] = {}
    note = ""
    for names, said in wanted:
        try:
            say("The first of the two runs")
            a = replay.retain(names, conditions=first, max_bytes=MAX_BYTES)
            note = said
            break
        except CannotRunError:
            if names == wanted[-1][0]:
                raise
    say("The second of the two runs")
    b = replay.retain(names, conditions=second, max_bytes=MAX_BYTES)
    say("Comparing")
    order = dict.fromkeys((*a, *b))
    rows = [tensor_row(name, a.get(name), b.get(name)) for name in order]
    return {"schema": SCHEMA, "of": "runs", "rows": rows, "note": note, **_parting(rows)}


def _everything(replay: Replay, conditions: Conditions) -> list[tuple[list[str], str]]:
    """What is kept, and what is kept instead where that is too much."""
    from workbench.replay.session import Session

    model = Session(replay.source, conditions).runner.model
    modules = [name for name, _ in inner_model(model).named_modules()]
    gradients = [f"gradient:{name}" for name, _ in named_parameters(model)]
    few = [name for name in modules if name.count(".") <= 1 and name]
    return [
        ([*modules, "loss", *gradients], ""),
        ([*few, "loss"], "Too much to keep: only the outer modules and the loss were compared."),
        (["loss"], "Too much to keep: only the loss was compared."),
    ]


def compare_bundles(bundle: Bundle, other: Bundle, say: Say) -> Data:
    """Compare what two bundles recorded, tensor by tensor; no code of either is run.

    Args:
        bundle: The bundle under question.
        other: The bundle it is compared with.
        say: Called with a sentence as each file begins.

    Returns:
        ``workbench.comparison/1``, with ``conditions``, ``environment`` and ``caught`` of both.
    """
    rows: list[Data] = []
    problems: list[str] = []
    for rel in RECORDED_FILES:
        missing = [one.path.name for one in (bundle, other) if not one.has(rel)]
        if missing:
            problems.append(f"{rel} is not in {' and '.join(missing)}.")
            continue
        say(f"Comparing {rel}")
        rows += _file_rows(bundle, other, rel, problems)
    changed = bundle.conditions.changes(other.conditions)
    conditions = [
        {"field": key, "a": _plain(getattr(bundle.conditions, key)), "b": _plain(value)}
        for key, value in changed.items()
    ]
    return {
        "schema": SCHEMA,
        "of": "bundles",
        "rows": rows,
        "note": " ".join(problems[:MOST_PROBLEMS]),
        "conditions": conditions,
        "environment": environment_differences(bundle.environment(), other.environment()),
        "caught": {"a": _caught(bundle), "b": _caught(other)},
        **_parting(rows),
    }


def compare_paths(path: str, other: str, say: Say) -> Data:
    """`compare_bundles` of two paths."""
    return compare_bundles(open_bundle(path), open_bundle(other), say)


def _file_rows(bundle: Bundle, other: Bundle, rel: str, problems: list[str]) -> Iterable[Data]:
    a, b = bundle.tensor_index(rel), other.tensor_index(rel)
    for name in dict.fromkeys((*a, *b)):
        try:
            ours = bundle.tensors(rel, [name])[name] if name in a else None
            theirs = other.tensors(rel, [name])[name] if name in b else None
        except WorkbenchError as error:
            problems.append(str(error))
            continue
        yield {**tensor_row(name, ours, theirs), "file": rel}


def tensor_row(name: str, a: Tensor | None, b: Tensor | None) -> Data:
    """One tensor of both as plain data.

    Args:
        name: Its name.
        a: The tensor in the one, None where it is missing.
        b: The tensor in the other.
    """
    if a is None or b is None:
        there = a if a is not None else b
        shape = [] if there is None else list(there.shape)
        return {"name": name, "only": "b" if a is None else "a", "shape_a": shape, "shape_b": shape}
    if a.device != b.device:
        a, b = a.cpu(), b.cpu()
    found = compare(a, b)
    data = found.as_dict()
    errors = data.pop("errors") or {}
    for key in ("reference_a", "reference_b", "same_kinds"):
        data.pop(key, None)
    return {"name": name, "only": "", **data, **errors}


def _parting(rows: list[Data]) -> Data:
    """The first row whose values differ, and the first whose non-finite sets do."""
    both = [row for row in rows if not row["only"]]
    bits = next((row["name"] for row in both if _differs(row)), None)
    masks = next((row["name"] for row in both if not row["same_masks"]), None)
    return {
        "parts_at": bits,
        "masks_part_at": masks,
        "bitwise": sum(1 for row in both if row["bitwise"]),
        "same_masks": sum(1 for row in both if row["same_masks"]),
        "compared_tensors": len(both),
        "only_a": sum(1 for row in rows if row["only"] == "a"),
        "only_b": sum(1 for row in rows if row["only"] == "b"),
    }


def _differs(row: Data) -> bool:
    """Whether anything but the dtype differs: equal values in two dtypes have not parted."""
    if row["bitwise"]:
        return False
    return not row["same_masks"] or row["dtype_a"] == row["dtype_b"] or bool(row.get("max_abs"))


def _caught(bundle: Bundle) -> Mapping[str, Any] | None:
    return None if bundle.first_bad is None else bundle.first_bad.as_dict()


def _plain(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else value
