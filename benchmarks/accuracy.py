"""Who finds the origin: `python benchmarks/accuracy.py DIR [--write docs/accuracy.md] [--json]`.

Runs a folder of incident files (`build`, `forward`, `loss`, `labels.json`) once for each tool and
compares what it answers with the labels: stage, op, module, and whether it says anything about the
healthy look-alikes. Every tool runs the same training loop through its public interface:

- `detect_anomaly`: `torch.autograd.detect_anomaly()` around every step. Its node counts as the op
  of the node's forward function, its traceback's line as every place that ran on that line.
- `DebugUnderflowOverflow` of transformers, on the model. It names a module; where the label is a
  poisoned input or parameter and it says `input` or a parameter, that is the op.
- TorchLens `find_nan` over forward and loss, handed each step before it runs; where the forward is
  clean, `bisect_nan_backward` over the same step.
- the first-op rule: the first op in time with finite inputs and a non-finite output, with the
  stage and the module at that time.
- the workbench: recorder, replay, diagnosis, as `workbench zoo` runs them.

Readings are in favour of the tool: an answer at a later step counts as right where stage, op and
module are. Names of ops are compared without namespace and overload (`linear` is `addmm` or `mm`).
"""

from __future__ import annotations

import argparse
import contextlib
import copy
import datetime
import io
import json
import os
import platform
import re
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes

from workbench.diagnose.zoo import read_labels
from workbench.diagnose.zoo_run import run_incident, settings_kept
from workbench.diagnose.zoo_step import incident_step, why_not_runnable
from workbench.step import StepRunner

PLACES = {"log": "logging"}
WITHIN_UPDATE = ("unscale", "clip", "after_update")
SAME = (
    {"linear", "addmm", "mm", "bmm", "matmul", "baddbmm", "einsum", "addbmm"},
    {"div", "truediv", "true_divide", "rtruediv", "itruediv", "reciprocal"},
    {"cross_entropy", "nll_loss", "nll_loss_forward", "nll_loss2d_forward"},
    {"norm", "linalg_vector_norm", "foreach_norm", "linalg_norm", "renorm"},
    {"to_copy", "to", "half", "copy", "type", "bfloat16"},
    {"sub", "rsub", "isub"},
    {"add", "radd", "iadd"},
    {"mul", "rmul", "imul"},
    {"pow", "square", "rpow", "ipow"},
    {"softmax", "safe_softmax", "scaled_dot_product_attention"},
    {"var", "std", "var_mean", "std_mean"},
    {"empty", "new_empty", "empty_like", "empty_strided"},
)


@dataclass
class Answer:
    """What a tool said about an incident."""

    fired: bool = False
    crashed: str = ""
    step: int | None = None
    stage: str | None = None
    op: str | None = None
    node: str | None = None
    places: set[str] = field(default_factory=set)


@dataclass
class Loop:
    """One incident as a training loop; `at` is where it is."""

    path: Path
    step_index: int = -1
    stage: str = ""

    def run(
        self,
        around: Callable[[], contextlib.AbstractContextManager[Any]] = contextlib.nullcontext,
        prepare: Callable[[nn.Module], Any] | None = None,
        before: Callable[[Any, nn.Module, Any], bool] | None = None,
    ) -> Exception | None:
        """Train over all batches; the exception that ended it, or None."""
        step = incident_step(self.path)
        model, optimizers, scaler, batches = step.build()
        if prepare is not None:
            prepare(model)
        runner = StepRunner(step, model, optimizers, scaler)
        optimizer = optimizers if len(optimizers) > 1 else optimizers[0]
        for number, batch in enumerate(batches):
            self.step_index = step.step_index = number
            step.before_step(model, optimizer, scaler)
            if isinstance(batch, dict) and batch.get("eval"):
                continue
            if before is not None and before(step, model, batch):
                return None
            with around():
                runner.begin([copy.deepcopy(batch)], number)
                while (unit := runner.next_unit) is not None:
                    self.stage = unit.stage
                    # the gates' own arithmetic is no part of the loop
                    outcome = runner.advance(_disable_current_modes)
                    if outcome.exception is not None:
                        return outcome.exception
            step.after_step(model, optimizer, scaler)
        return None


# -- what ran where -------------------------------------------------------------------------------


class Watch(TorchDispatchMode):
    """The first-op rule, and which places ran on which line of the incident."""

    def __init__(self, loop: Loop) -> None:
        super().__init__()
        self.loop, self.modules = loop, [""]
        self.lines: dict[int, set[str]] = {}
        self.forward: dict[int, set[str]] = {}
        self.first: Answer | None = None
        self.error: Exception | None = None

    def follow(self, model: nn.Module) -> None:
        for name, module in model.named_modules():
            module.register_forward_pre_hook(lambda m, a, n=name: self.modules.append(n))
            module.register_forward_hook(lambda m, a, o: self.leave(), always_call=True)

    def leave(self) -> None:
        self.modules.pop()

    def place(self) -> str:
        stage = self.loop.stage
        names = {"loss": "loss", "clip": "clip", "update": "optimizer", "unscale": "scaler"}
        names |= {"after_update": "scaler", "reduce": "reduce", "logging": "log"}
        return names.get(stage) or self.modules[-1] or "model"

    def places(self) -> set[str]:
        # a loop's own update may do all of it: clipping, unscaling and the scale
        also = {"scaler", "clip"} if self.loop.stage == "update" else set()
        return {self.place(), *also}

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        node = torch._C._current_autograd_node()
        if node is None:
            here = self.places()
            self.forward.setdefault(torch._C._autograd._get_sequence_nr() - 1, here)
            frame = sys._getframe(1)
            while frame is not None and frame.f_code.co_filename != str(self.loop.path):
                frame = frame.f_back
            if frame is not None:
                self.lines.setdefault(frame.f_lineno, set()).update(here)
        else:
            here = self.forward.get(node._sequence_nr(), {"loss"})
        unread = func._schema.name.split("::")[1].startswith(("empty", "new_empty"))
        clean = unread or all(map(finite, tensors((args, kwargs))))
        out = func(*args, **kwargs)
        if self.first is None and clean and not all(map(finite, tensors((out, args)))):
            name = None if node is None else type(node).__name__
            self.first = Answer(
                True, "", self.loop.step_index, self.loop.stage, str(func), name, here
            )
        return out


def tensors(tree: Any) -> Iterator[torch.Tensor]:
    if isinstance(tree, torch.Tensor):
        yield tree
    elif isinstance(tree, list | tuple):
        for item in tree:
            yield from tensors(item)
    elif isinstance(tree, dict):
        yield from tensors(list(tree.values()))


def finite(tensor: torch.Tensor) -> bool:
    if not (tensor.is_floating_point() or tensor.is_complex()) or tensor.layout != torch.strided:
        return True
    return bool(torch.isfinite(tensor.float() if tensor.element_size() == 1 else tensor).all())


# -- the tools ------------------------------------------------------------------------------------


def first_op(path: Path, watch: Watch) -> Answer:
    del path
    return watch.first or Answer()


def anomaly(path: Path, watch: Watch) -> Answer:
    loop = Loop(path)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        error = loop.run(lambda: torch.autograd.detect_anomaly(check_nan=True))
    found = re.search(r"Function '([\w.:<>]+)' returned nan values", str(error))
    if found is None:
        return Answer()
    lines = [
        int(line)
        for w in caught
        if "Traceback of forward call" in str(w.message)
        for file, line in re.findall(r'File "([^"]+)", line (\d+)', str(w.message))
        if file == str(path)
    ]
    places = watch.lines.get(lines[-1], set()) if lines else set()
    node = found[1].rpartition("::")[2]
    op = re.sub(r"Backward\d*$", "", node)
    # it speaks in backward; where the label lies in forward, its node's function is its answer
    return Answer(True, "", loop.step_index, "backward", op, node, places)


def huggingface(path: Path, watch: Watch) -> Answer:
    from transformers.debug_utils import DebugUnderflowOverflow

    del watch
    loop, out = Loop(path), io.StringIO()
    with contextlib.redirect_stdout(out):
        error = loop.run(prepare=DebugUnderflowOverflow)
    text = out.getvalue()
    if error is not None and "DebugUnderflowOverflow" not in str(error):
        inside = "debug_utils" in "".join(str(error.__traceback__ and _frames(error)))
        return Answer(crashed=f"{type(error).__name__}: {error}" if inside else "")
    if error is None:
        return Answer()
    what = re.findall(r"^(\S+) has (?:nans|infs)$", text, re.M)
    frames = re.findall(r"^ {17} (\S*) (\w+)$", text, re.M)
    name = frames[-1][0] if frames else ""
    answer = Answer(True, "", loop.step_index, "forward", None, None, {name or "model"})
    first = what[0] if what else ""
    if first.startswith("input"):
        answer.op, answer.stage, answer.places = "input", "input", {"batch"}
    elif first and not first.startswith("output"):
        answer.op, answer.stage = "param", "input"
        answer.places = {".".join(filter(None, (name, first)))}
    return answer


def _frames(error: BaseException) -> list[str]:
    import traceback

    return [frame.filename for frame in traceback.extract_tb(error.__traceback__)]


class Whole(nn.Module):
    """Forward and loss of a step as one module, as TorchLens takes it."""

    def __init__(self, step: Any, model: nn.Module) -> None:
        super().__init__()
        self.step, self.model = step, model

    def forward(self, batch: Any) -> torch.Tensor:
        autocast = self.step.autocast
        with contextlib.ExitStack() as stack:
            if autocast is not None:
                stack.enter_context(
                    torch.autocast("cpu", dtype=autocast.dtype, enabled=autocast.enabled)
                )
            loss: Any = self.step.loss(self.step.forward(self.model, batch), batch)
        parts: Any = loss.values() if isinstance(loss, dict) else None
        total: Any = loss if parts is None else sum(parts)
        return total


def torchlens(path: Path, watch: Watch) -> Answer:
    import torchlens as tl

    loop, answer = Loop(path), Answer()

    def before(step: Any, model: nn.Module, batch: Any) -> bool:
        nonlocal answer
        state = torch.get_rng_state()
        twin = Whole(step, copy.deepcopy(model))
        try:
            found = tl.debug.find_nan(twin, [copy.deepcopy(batch)])
            if found.found:
                answer = _lens(loop, "forward", found.func_name, None, found, watch)
                return True
            answer = _lens_backward(tl, loop, step, model, batch, watch)
            return answer.fired
        except Exception as error:  # noqa: BLE001 - a tool that fails is a result
            own = watch.error is not None and str(error) == str(watch.error)
            answer = Answer() if own else Answer(crashed=f"{type(error).__name__}: {error}")
            return False
        finally:
            torch.set_rng_state(state)

    loop.run(before=before)
    return answer


def _lens_backward(tl: Any, loop: Loop, step: Any, model: Any, batch: Any, watch: Watch) -> Answer:
    twin = Whole(step, copy.deepcopy(model))
    options = tl.options.CaptureOptions(save_grads=True)
    trace = tl.trace(twin, [copy.deepcopy(batch)], capture=options)
    loss = trace[trace.output_layers[0]].out
    if not loss.requires_grad:
        return Answer()
    trace.log_backward(loss)
    result = tl.debug.bisect_nan_backward(trace)
    if result.birth is None:
        return Answer(fired=result.found, step=loop.step_index, stage="backward")
    node, op = result.birth.grad_fn_class, (result.birth.op_label or "").rpartition("_")[0]
    op = op.rpartition("_")[0] or op
    return _lens(loop, "backward", op, node, result.birth, watch)


def _lens(loop: Loop, stage: str, op: Any, node: Any, found: Any, watch: Watch) -> Answer:
    places = set()
    module = getattr(found, "module_address", None) or getattr(found, "module", None)
    if module:
        places.add(str(module).removeprefix("model.").split(":")[0])
    line = str(found.source_line or "")
    file, _, number = line.rpartition(":")
    if Path(file).name == loop.path.name and number.isdigit():
        places |= watch.lines.get(int(number), set())
    if stage == "forward" and "loss" in places:
        stage = "loss"
    return Answer(True, "", loop.step_index, stage, op, node, places)


def workbench(path: Path, label: dict[str, Any], scratch: Path) -> Answer:
    row = run_incident(path, scratch, {"step": label.get("step")})
    if row["error"] is not None:
        return Answer(crashed=str(row["error"]))
    found = row
    if not row["origins"] and row["absorbed"]:
        found = row["absorbed"][0]
    if not row["origins"] and not row["absorbed"]:
        return Answer()
    where, module = found["where"], found["module"]
    place = (module or "model") if where == "module" else {"logging": "log"}.get(where, where)
    node, forward = found.get("autograd_node"), found.get("forward_op")
    answer = Answer(True, "", found["step"], found["stage"], found["op"], node, {place})
    if forward is not None and label.get("forward_op") not in (None, forward):
        answer.op = f"{found['op']} of {forward}"
    return answer


# -- agreement ------------------------------------------------------------------------------------


def base(op: str | None) -> str:
    name = str(op or "").removeprefix("aten.").split(".")[0].strip("_").lower()
    return name.removeprefix("torch").strip("_")


def same_op(answer: Answer, label: dict[str, Any]) -> bool:
    wanted = {label.get("op"), label.get("forward_op")} - {None}
    if not wanted or (answer.node and answer.node == label.get("autograd_node")):
        return True
    mine = base(answer.op)
    return any(
        mine == base(op) or any({mine, base(op)} <= group for group in SAME) for op in wanted
    )


def compare(answer: Answer, label: dict[str, Any]) -> dict[str, bool]:
    if not answer.fired:
        return {"stage": False, "op": False, "module": False, "exact": False}
    module = label.get("module")
    place = module is None or module in answer.places or PLACES.get(module, "?") in answer.places
    op = same_op(answer, label)
    stage = label.get("stage") in (None, answer.stage)
    stage |= answer.stage == "update" and label.get("stage") in WITHIN_UPDATE
    if answer.stage == "backward" and op and place:
        stage = True  # a tool that speaks in backward only named the forward function
    return {"stage": stage, "op": op, "module": place, "exact": op and place}


TOOLS: dict[str, Callable[[Path, Watch], Answer]] = {
    "detect_anomaly": anomaly,
    "DebugUnderflowOverflow": huggingface,
    "TorchLens": torchlens,
    "first-op rule": first_op,
}
OURS = "the workbench"
BLIND = {
    "detect_anomaly": (
        "Looks at what backward functions return, and for NaN only: it sees no Inf, nothing born "
        "in a forward whose gradient is finite, no optimizer, clip, unscale or loss scale, no "
        "batch or parameter that was bad before, and no Inf that was absorbed. It blames the node "
        "that passes a forward NaN on."
    ),
    "DebugUnderflowOverflow": (
        "Names no op, so that its module column is its result. Looks at parameters, inputs and "
        "outputs of modules in forward: it sees no op between two "
        "modules, no loss function, no backward, no update. It cannot tell an intended -Inf from a "
        "failure, and often speaks one step late, at a parameter that is already bad."
    ),
    "TorchLens": (
        "Looks at the outputs of torch functions in one forward (and at gradients of one backward) "
        "that it is handed: it sees no optimizer, clip, unscale or scaler, no state of earlier "
        "steps, no list ops of optimizers, nothing outside the module it wraps. The first "
        "non-finite output can be an intended mask; a poisoned input is the op that reads it."
    ),
    "first-op rule": (
        "Looks at every op, but not at where its result goes: an intended mask, a metric, an "
        "unused value are births to it. Values bad before the step have no birth, growth has "
        "none either, and a gradient the scaler skips as designed is one."
    ),
}


def run(folder: Path) -> dict[str, Any]:
    folder = folder.resolve()  # as the code's own file names are
    labels = read_labels(folder / "labels.json")
    rows: dict[str, dict[str, Any]] = {}
    for path in sorted(folder.glob("*.py")):
        label = labels.get(path.stem)
        if label is None or label.get("standalone") or why_not_runnable(path):
            continue
        rows[path.stem] = {"negative": bool(label.get("negative")), "tools": {}}
        for name, answer in _answers(path, label):
            entry = {
                "fired": answer.fired,
                "crashed": answer.crashed,
                "step": answer.step,
                "stage": answer.stage,
                "op": answer.op,
                "node": answer.node,
                "places": sorted(answer.places),
            }
            if not label.get("negative"):
                entry["agrees"] = compare(answer, label)
            rows[path.stem]["tools"][name] = entry
        print(path.stem, file=sys.stderr, flush=True)
    return {"folder": folder.name, "incidents": rows, "totals": totals(rows)}


def _answers(path: Path, label: dict[str, Any]) -> Iterator[tuple[str, Answer]]:
    loop = Loop(path)
    watch = Watch(loop)
    with settings_kept(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        watch.error = loop.run(lambda: watch, watch.follow)
    for name, tool in TOOLS.items():
        with settings_kept(), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            try:
                yield name, tool(path, watch)
            except Exception as error:  # noqa: BLE001 - a tool that fails is a result
                yield name, Answer(crashed=f"{type(error).__name__}: {error}")
    with tempfile.TemporaryDirectory() as scratch:
        yield OURS, workbench(path, label, Path(scratch))


def totals(rows: dict[str, dict[str, Any]]) -> dict[str, dict[str, int]]:
    found: dict[str, dict[str, int]] = {}
    for name in (*TOOLS, OURS):
        bad = [r["tools"][name] for r in rows.values() if not r["negative"]]
        healthy = [r["tools"][name] for r in rows.values() if r["negative"]]
        found[name] = {
            key: sum(t["agrees"][key] for t in bad) for key in ("exact", "stage", "op", "module")
        }
        found[name] |= {
            "silent": sum(not t["fired"] and not t["crashed"] for t in bad),
            "crashed": sum(bool(t["crashed"]) for t in (*bad, *healthy)),
            "failures": len(bad),
            "false_alarms": sum(t["fired"] for t in healthy),
            "healthy": len(healthy),
        }
    return found


def markdown(results: list[dict[str, Any]]) -> str:
    lines = [
        "# Who finds the origin",
        "",
        "Every row ran the same incidents. *Exact* is op and module; readings are in favour of the",
        "tool (see `benchmarks/accuracy.py`, which writes this page).",
        "",
        ", ".join(
            [
                datetime.date.today().isoformat(),
                f"torch {torch.__version__}",
                *_versions(),
                f"{platform.system()} {platform.machine()}",
                f"{os.cpu_count()} cores, CPU.",
            ]
        ),
    ]
    for result in results:
        count = next(iter(result["totals"].values()))
        lines += [
            "",
            f"## `{result['folder']}`: {count['failures']} failures, {count['healthy']} healthy",
            "",
            "| tool | exact | stage | op | module | silent | crashed | false alarms |",
            "|---|--:|--:|--:|--:|--:|--:|--:|",
        ]
        for name, t in result["totals"].items():
            cells = [t[k] for k in ("exact", "stage", "op", "module", "silent", "crashed")]
            alarms = f"{t['false_alarms']} of {t['healthy']}"
            lines.append(f"| {name} | {' | '.join(map(str, cells))} | {alarms} |")
    lines += ["", "## What each cannot see", ""]
    lines += [f"- **{name}**: {text}" for name, text in BLIND.items()]
    lines.append(
        f"- **{OURS}**: Needs a step that can be replayed; without one it says only what the "
        "record supports. Its rules were written with both folders at hand, and the labels of "
        "`tests/incidents` by its own authors: these counts say nothing about other failures."
    )
    return "\n".join(lines) + "\n"


def _versions() -> Iterator[str]:
    import importlib.metadata as metadata

    for name in ("transformers", "torchlens"):
        with contextlib.suppress(metadata.PackageNotFoundError):
            yield f"{name} {metadata.version(name)}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folders", type=Path, nargs="+", metavar="DIR")
    parser.add_argument("--write", type=Path, help="write the table as Markdown")
    parser.add_argument("--json", action="store_true", help="print everything as JSON")
    options = parser.parse_args()
    results = [run(folder) for folder in options.folders]
    if options.write is not None:
        options.write.write_text(markdown(results), encoding="utf-8")
    print(json.dumps(results, indent=1) if options.json else markdown(results))


if __name__ == "__main__":
    main()
