"""A replay process that is none: it answers with the events a real one sends."""

from __future__ import annotations

from workbench.evidence import Table, table_from_rows

STAGES = (
    "input",
    "forward",
    "loss",
    "backward",
    "reduce",
    "unscale",
    "clip",
    "update",
    "after_update",
    "logging",
)
BAD = {"nan": 1, "pos_inf": 0, "neg_inf": 0, "finite": 0}


class FakeWorker:
    """Fails at ``loss`` unless autocast is off; answers at once.

    Args:
        slow: Give no answer until ``release`` is called.
    """

    def __init__(self, slow: bool = False) -> None:
        self.alive = True
        self.slow = slow
        self.sent: list[tuple[str, dict]] = []
        self.reached = 0
        self.conditions: dict = {}
        self._events: list[dict] = []

    def send(self, command: str, **arguments) -> None:
        self.sent.append((command, arguments))
        self._events += list(getattr(self, f"_{command}")(**arguments))

    def poll(self, timeout: float = 0.0) -> list[dict]:
        if self.slow and self._events:
            first, self._events = self._events[:1], self._events[1:]
            return first if first[0]["event"] != "done" else []
        events, self._events = self._events, []
        return events

    def stop(self) -> None:
        self.alive = False

    def die(self, message: str) -> None:
        self.alive = False
        self._events = [{"event": "died", "message": message}]

    def fails(self) -> bool:
        return self.conditions.get("autocast") != "off"

    def stage(self, name: str) -> dict:
        if STAGES.index(name) >= self.reached:
            return {"stage": name, "status": "not_run"}
        if name == "loss" and self.fails():
            return {"stage": name, "status": "bad", "tensor": "loss", "counts": BAD}
        return {"stage": name, "status": "clean", "sentence": f"{name} is finite."}

    def _result(self) -> dict:
        stages = [self.stage(name) for name in STAGES]
        return {"event": "done", "result": {"stages": stages, "without_effect": []}}

    def _advance(self, until: int):
        while self.reached < until:
            name = STAGES[self.reached]
            yield {"event": "stage_begun", "stage": name}
            self.reached += 1
            yield {"event": "stage_done", **self.stage(name)}

    def _step(self):
        yield from self._advance(self.reached + 1)
        yield self._result()

    def _run(self, until, conditions):
        self.reached, self.conditions = 0, conditions
        last = len(STAGES) if not self.fails() else 3
        yield from self._advance(last if until is None else STAGES.index(until) + 1)
        yield self._result()

    def _back(self):
        self.reached = max(self.reached - 1, 0)
        yield self._result()

    def _reset(self):
        self.reached = 0
        yield self._result()

    def _verdict(self):
        sentence = "Replayed exactly: same loss bits, same non-finite values."
        yield {"event": "done", "result": {"verdict": "bitwise", "sentence": sentence}}

    def _trace(self, conditions):
        self.conditions = conditions
        yield {"event": "done", "layers": layers(bad=self.fails())}

    def _diagnose(self, task=None, **arguments):
        result = findings() if task is None else {"result": "unchanged", "task": task}
        yield {"event": "done", "result": result}

    def beside(self, task: str) -> dict:
        """Arguments that a task has beside its name."""
        return {"cells": None} if task == "sweep" else {}

    def _compare(self, **arguments):
        row = {"name": "head", "only": "", "bitwise": False, "same_masks": True, "masks": []}
        parting = {"parts_at": "head", "masks_part_at": None, "compared_tensors": 1}
        yield {"event": "done", "result": {"rows": [row], **parting}}


def layers(bad: bool = True, blocks: int = 12) -> Table:
    """A layers table like a traced replay's; the last block overflows, the loss is NaN."""
    rows = []

    def add(module, kind, absmax, nan=0, neg=0):
        rows.append(
            {
                "order": len(rows),
                "module": module,
                "type": kind,
                "tensor": "activation",
                "name": "",
                "stage": "forward",
                "micro_step": 0,
                "dtype": "float16",
                "shape": "[8, 128, 768]",
                "nan": nan,
                "pos_inf": 0,
                "neg_inf": neg,
                "finite": 0 if nan == 1 else 786432 - nan - neg,
                "min": -absmax,
                "max": absmax,
                "absmax": absmax,
                "mean_square": (absmax / 5) ** 2,
                "zeros": 3,
                "subnormals": 0,
                "event": len(rows),
                "source": "model.py:88",
            }
        )

    add("embed", "Embedding", 3.1)
    for block in range(blocks):
        add(f"blocks.{block}.attn", "Attention", min(4.0 * 1.6 ** min(block, 40), 4e3))
        add(f"blocks.{block}.mlp.up", "Linear", min(9.0 * 1.9 ** min(block, 40), 2e4))
        add(f"blocks.{block}.mlp.down", "Linear", min(12.0 * 2.1 ** min(block, 40), 41216.0))
    add("head", "Linear", 38.7)
    add("", "loss", 1.0, nan=1 if bad else 0)
    rows[-2]["neg_inf"] = 3 if bad else 0
    return table_from_rows(rows)


def findings() -> dict:
    return {
        "schema": "workbench.findings/1",
        "first_bad": {"step": 18342, "stage": "loss", "tensor": "loss"},
        "reproduction": {"verdict": "bitwise", "survives_instrumentation": True},
        "origins": [
            {
                "kind": "birth",
                "stage": "loss",
                "op": "aten.log.default",
                "where": "loss",
                "module": "",
                "cause": "log_of_zero",
                "dtype": "float16",
                "source": "train.py:31",
                "tensor": {"name": "", "positions": {"count": 3, "first": [1, 0]}},
                "event": 118,
            }
        ],
        "contributors": [
            {"event": 112, "op": "aten._softmax.default", "role": "underflow_to_zero"}
        ],
        "chain": [],
        "counterfactuals": [
            {
                "intervention": "log_softmax instead of log(softmax)",
                "result": "gone",
                "placebo": "unchanged",
                "establishes": "The failure depends on this log.",
                "does_not_establish": "That the model is right otherwise.",
            }
        ],
        "contamination": {"parameters": []},
        "absorbed": [],
        "summary": [
            "✕ The loss became NaN. Born at aten.log.default in loss, train.py:31.",
            "Why     Log of zero: softmax rounded 3 of 8,192 probabilities to 0.",
            "Sure?   Replayed exactly: same loss bits, same non-finite values.",
            "Reach   Stopped before the update: no parameter holds a bad value.",
            "Resume  checkpoint-18000 (committed).",
        ],
        "limits": ["That float16 softmax is wrong elsewhere."],
    }
