"""A copy of a bundle for others: statistics and digests where the original has values.

Everything that goes into the copy is named here; what is not named stays behind. So a field that
a later version records is left out until somebody decides that it may go.
"""

from __future__ import annotations

import hmac
import os
import secrets
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import msgspec
import numpy as np
import torch
from torch import Tensor

from workbench.errors import BundleError, UsageError
from workbench.evidence.incidents import RANKS, ranks_file
from workbench.evidence.reader import Bundle
from workbench.evidence.redact_findings import redact_findings
from workbench.evidence.redact_ranks import redact_decision, redact_ranks
from workbench.evidence.sample_values import SampleValues, rounded
from workbench.evidence.schema import GOALS, FirstBad, StepReference, check_name
from workbench.evidence.scrub import scrub, scrub_tree
from workbench.evidence.writer import BundleWriter
from workbench.numerics.digests import tensor_digest
from workbench.numerics.stats import tensor_stats

OP_INPUTS: Final = "op_inputs"
_BATCH: Final = "batch"
# A statistic of fewer elements is nearly one of them; a digest of fewer can be guessed.
_FEWEST: Final = 16
_COUNTS: Final = ("nan", "pos_inf", "neg_inf", "finite", "zeros", "subnormals")
_EVIDENCE: Final = (
    "schema kind stage phase micro_step tensor stopped_at bad bad_total bad_by_group loss losses "
    "gradients units update reduce digests soft_gates"
).split()
_LEDGER: Final = (
    "run_id step micro_step time rank world dp_rank tp_rank pp_rank model_commit tokenizer_hash "
    "config_hash precision mode loss loss_components loss_scale loss_scale_previous growth_tracker "
    "learning_rates grad_norm grad_norm_is_scaled optimizers consecutive_skips schedulers_advanced "
    "rng_digest first_bad_stage reduce fingerprint"
).split()
_KEYED: Final = ("batch_fingerprint", "sample_ids", "shard_id", "global_batch_id")
_PROVENANCE: Final = ("model_commit", "tokenizer_hash", "config_hash")


def redact(
    bundle: Bundle,
    out: str | os.PathLike[str],
    *,
    parameters: bool = True,
    op_inputs: Mapping[str, bytes] | None = None,
    findings: bool = True,
) -> Path:
    """Write a copy without sample values, paths, host and user names.

    The batch, gradients, buffers, optimizer state and random state become counts, rounded
    statistics and digests; identifiers of samples and shards become keyed digests that tell equal
    ones apart and nothing else; texts of exceptions, the user's attributes and code stay behind.

    Args:
        bundle: The bundle.
        out: Directory of the copy, which must not exist.
        parameters: Keep the values of parameters.
        op_inputs: Files of an op-level repro to take along, by name. They hold the real inputs of
            one op.
        findings: Write the findings beside the copy, without what quotes samples.

    Returns:
        The copy's path.

    Raises:
        UsageError: ``out`` exists.
        BundleError: The bundle is damaged.
    """
    target = Path(out)
    name = target.name if target.name.endswith(".bundle") else f"{target.name}.bundle"
    target = target.with_name(name)
    if os.path.lexists(target):
        raise UsageError(
            f"{str(target)!r} exists already, and a bundle is never overwritten. Choose another "
            "name with -o."
        )
    return _Copy(bundle, parameters).write(target, op_inputs or {}, findings)


class _Copy:
    def __init__(self, bundle: Bundle, parameters: bool) -> None:
        self._bundle = bundle
        self._parameters = parameters
        self._key = secrets.token_bytes(32)
        stems = [rel.removesuffix(".json") for rel in bundle.files() if rel.endswith("batch.json")]
        self._values = SampleValues([bundle.pytree(stem) for stem in stems], _messages(bundle))

    def write(self, target: Path, op_inputs: Mapping[str, bytes], findings: bool) -> Path:
        writer = BundleWriter(target.parent, target.name)
        try:
            self._light(writer)
            writer.add_json("statistics.json", self._statistics())
            if self._bundle.has("state/model.json"):
                self._model(writer)
            for rel, data in op_inputs.items():
                writer.add_bytes(f"{OP_INPUTS}/{check_name(rel)}", data)
            for rel in self._bundle.files():
                if rel not in writer.manifest.files:
                    writer.drop(rel, _reason(rel))
            self._manifest(writer, bool(op_inputs))
            path = writer.seal()
        except BaseException:
            writer.abort()
            raise
        if findings:
            redact_findings(self._bundle, path, self._values)
        return path

    # -- light files ------------------------------------------------------------------------------

    def _light(self, writer: BundleWriter) -> None:
        bundle = self._bundle
        if bundle.has("ledger.jsonl"):
            writer.add_lines("ledger.jsonl", [self._record(one) for one in bundle.ledger()])
        if bundle.has("evidence.json"):
            writer.add_json("evidence.json", self._evidence(bundle.evidence()))
        if bundle.has("environment.json"):
            kept = {key: v for key, v in bundle.environment().items() if key != "host"}
            writer.add_json("environment.json", scrub_tree(kept))
        if said := ranks_file(bundle):
            kept = redact_ranks(said, self._values, parameters=self._parameters)
            writer.add_json(RANKS, scrub_tree(kept))

    def _record(self, record: Mapping[str, Any]) -> dict[str, Any]:
        kept = {key: self._plain(record.get(key)) for key in _LEDGER}
        kept |= {key: self._keyed(record.get(key)) for key in _KEYED}
        kept["batch_summary"] = _shapes(record.get("batch_summary"))
        kept["soft_gates"] = self._soft_gates(record.get("soft_gates"))
        kept["alerts"] = self._alerts(record.get("alerts"))
        kept["decision"] = redact_decision(record.get("decision"), self._values)
        return kept

    def _evidence(self, evidence: Mapping[str, Any]) -> dict[str, Any]:
        kept = {key: self._plain(evidence[key]) for key in _EVIDENCE if key in evidence}
        kept["soft_gates"] = self._soft_gates(evidence.get("soft_gates"))
        kept["alerts"] = self._alerts(evidence.get("alerts"))
        kept["reason"] = self._plain(evidence.get("reason"))
        kept["decision"] = redact_decision(evidence.get("decision"), self._values)
        kept["notes"] = [self._values.without(str(n), whole=True) for n in _list(evidence, "notes")]
        kept["input"] = [
            {key: self._plain(v.get(key)) for key in ("field", "index", "micro_step", "of")}
            for v in _list(evidence, "input")
            if isinstance(v, Mapping)
        ]
        error = evidence.get("exception")
        if isinstance(error, Mapping):
            place = scrub(str(error.get("raised_at") or ""))
            kept["exception"] = {"type": str(error.get("type")), "message": "", "raised_at": place}
        return kept

    def _plain(self, value: Any) -> Any:
        """Plain values with every text looked through; numbers here are of steps, not samples."""
        return self._values.without_tree(value)

    def _soft_gates(self, gates: Any) -> list[Any]:
        keys = ("where", "name", "counts")
        return [
            {key: self._plain(gate[key]) for key in keys if key in gate}
            for gate in gates or []
            if isinstance(gate, Mapping)
        ]

    def _alerts(self, alerts: Any) -> list[Any]:
        """Alerts without what they say of single samples."""
        return [
            {
                key: self._values.without_tree(value, whole=True)
                for key, value in alert.items()
                if "sample" not in str(key) and not isinstance(value, Mapping | list)
            }
            for alert in alerts or []
            if isinstance(alert, Mapping)
        ]

    def _keyed(self, value: Any) -> Any:
        """A digest under a key that is thrown away: equal stays equal, nothing can be guessed."""
        if value is None:
            return None
        if isinstance(value, list | tuple):
            return [self._keyed(item) for item in value]
        return f"redacted:{hmac.new(self._key, repr(value).encode(), 'sha256').hexdigest()[:12]}"

    # -- tensors ----------------------------------------------------------------------------------

    def _statistics(self) -> dict[str, Any]:
        """Statistics of everything that is not in the copy any more."""
        found: dict[str, Any] = {}
        if self._bundle.has("statistics.json"):
            recorded = self._bundle.json("statistics.json")
            found |= {str(k): _withheld(v) for k, v in recorded.items() if isinstance(v, Mapping)}
        if self._bundle.has("batch.json"):
            for place, batch in enumerate(self._bundle.pytree(_BATCH).get("micro_batches", [])):
                for name, tensor in _named(batch, f"{_BATCH}.{place}"):
                    found[name] = _described(tensor)
        for rel, prefix in (("gradients.safetensors", "gradient:"), *self._states()):
            if self._bundle.has(rel):
                for name in self._bundle.tensor_index(rel):
                    tensor = self._bundle.tensors(rel, [name])[name]
                    found[prefix + _safe(name.removeprefix("tensors."))] = _described(tensor)
        return found

    def _states(self) -> tuple[tuple[str, str], ...]:
        return (
            ("state/model.safetensors", "model:"),
            ("state/optimizer.safetensors", "optimizer:"),
        )

    def _model(self, writer: BundleWriter) -> None:
        """Names, kinds and modes of the model; values of parameters where they may be kept."""
        tree = self._bundle.pytree("state/model")
        if not isinstance(tree, Mapping):
            raise BundleError(
                f"'state/model.json' of {str(self._bundle.path)!r} is no model state, so it is not "
                "known what in it must not be shared. No copy was made; get a fresh bundle."
            )
        info, tensors = tree.get("info", {}), tree.get("tensors", {})
        kept = {
            name: tensor
            for name, tensor in tensors.items()
            if self._parameters and info.get(name, {}).get("kind") == "parameter"
        }
        modules = {
            path: {"type": one.get("type"), "training": one.get("training"), "attributes": {}}
            for path, one in tree.get("modules", {}).items()
        }
        left = {name: "left out by redact" for name in tensors if name not in kept}
        writer.add_pytree(
            "state/model",
            {
                "tensors": kept,
                "info": {name: info[name] for name in kept},
                "ties": [t for t in tree.get("ties", []) if all(name in kept for name in t)],
                "modules": modules,
                "missing": left,
            },
        )

    # -- the manifest -----------------------------------------------------------------------------

    def _manifest(self, writer: BundleWriter, has_inputs: bool) -> None:
        old = self._bundle.manifest
        reference = old.step_reference
        why = "reduced to statistics by redact"
        about = (
            f"A redacted copy of the bundle {old.id}, {self._bundle.digest}: batch, gradients, "
            "buffers, optimizer state and random state are statistics of three digits; texts of "
            "exceptions and code were left out."
        )
        writer.update(
            created=old.created,
            run_id=self._values.without(old.run_id),
            kind=old.kind,
            step=old.step,
            rank=old.rank,
            world=old.world,
            incident=self._plain(old.incident),
            level=old.level,
            fingerprint=old.fingerprint,
            first_bad=self._first_bad(old.first_bad),
            conditions=old.conditions,
            completeness=dict.fromkeys(GOALS, f"missing batch: {why}"),
            step_reference=StepReference(
                reference=scrub(reference.reference),
                kind=reference.kind,
                digest=reference.digest,
                low_level=reference.low_level,
            ),
            provenance={
                k: self._plain(old.provenance[k]) for k in _PROVENANCE if k in old.provenance
            },
            notes=[
                about,
                *(["It holds the real inputs of one op, in op_inputs/."] if has_inputs else []),
                *(self._values.without(note, whole=True) for note in old.notes),
            ],
        )

    def _first_bad(self, bad: FirstBad | None) -> FirstBad | None:
        if bad is None:
            return None
        message = self._values.without(bad.message, whole=True) if bad.kind == "alert" else ""
        if bad.kind == "exception":
            message = f"{bad.message.partition(':')[0][:80]} (its text was left out by redact)"
        return msgspec.structs.replace(
            bad, run_id=self._values.without(bad.run_id), message=message,
            value=bad.value if bad.sink != "input" else None,
        )  # fmt: skip


def _messages(bundle: Bundle) -> list[str]:
    """What exceptions said: their texts are the user's, and may quote anything."""
    bad = bundle.first_bad
    error = bundle.evidence().get("exception")
    said = str(error.get("message") or "") if isinstance(error, Mapping) else ""
    first = bad.message if bad is not None and bad.kind == "exception" else ""
    return [said, first.partition(": ")[2]]


def _reason(rel: str) -> str:
    reduced = rel.startswith(("batch.", "gradients.", "state/model.", "state/optimizer."))
    return "reduced to statistics by redact" if reduced else "not copied by redact"


def _list(data: Mapping[str, Any], key: str) -> list[Any]:
    value = data.get(key)
    return value if isinstance(value, list) else []


def _safe(name: str) -> str:
    """A field's name; what is no name, such as a file name used as a key, is left out."""
    parts = name.split(".")
    return ".".join(p if p.isidentifier() or p.isdigit() else "unnamed" for p in parts)


def _named(tree: Any, path: str) -> list[tuple[str, Tensor]]:
    found: list[tuple[str, Tensor]] = []
    if isinstance(tree, Mapping):
        for key, value in tree.items():
            found += _named(value, f"{path}.{_safe(str(key))}")
    elif isinstance(tree, list | tuple):
        for place, item in enumerate(tree):
            found += _named(item, f"{path}.{place}")
    elif isinstance(tree, np.ndarray) and tree.dtype.kind in "biufc":
        found.append((path, torch.as_tensor(tree)))
    elif isinstance(tree, Tensor):
        found.append((path, tree))
    elif hasattr(tree, "__dict__"):
        found += _named(vars(tree), path)
    return found


def _described(t: Tensor) -> dict[str, Any]:
    described: dict[str, Any] = {"shape": list(t.shape), "dtype": str(t.dtype).partition(".")[2]}
    described |= tensor_stats(t).as_dict()
    described = _withheld(described)
    if t.numel() >= _FEWEST and t.layout is torch.strided:
        described["digest"] = tensor_digest(t)
    return described


def _withheld(described: Mapping[str, Any]) -> dict[str, Any]:
    """Statistics of three digits; of few elements only how many there are of each kind."""
    total = sum(int(described.get(key) or 0) for key in _COUNTS[:4])
    if total >= _FEWEST:
        return {str(key): rounded(value) for key, value in described.items()}
    kept = ("shape", "dtype", *_COUNTS)
    return {key: described[key] for key in kept if key in described}


def _shapes(summary: Any) -> dict[str, Any]:
    """Shapes and dtypes of a batch, without its scalars."""
    found = summary if isinstance(summary, Mapping) else {}
    fields = found.get("fields")
    named = fields.items() if isinstance(fields, Mapping) else ()
    return {
        "micro_batches": found.get("micro_batches"),
        "fields": {_safe(str(name)): str(text)[:200] for name, text in named},
    }


__all__ = ["OP_INPUTS", "redact"]
