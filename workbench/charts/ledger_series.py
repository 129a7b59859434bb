"""A ledger as series over steps, in plain arrays: a panel's first chart waits for no xarray."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

LedgerSeries = dict[str, npt.NDArray[Any]]
"""Equally long arrays by name, one element a record."""
# Ledger field -> array; all are numbers or None.
_SERIES = {"loss": "loss", "grad_norm": "grad_norm", "loss_scale": "scale"}
SERIES = ("loss", "grad_norm", "scale", "learning_rate")


def ledger_series(records: Sequence[Mapping[str, Any]], rank: int | None = None) -> LedgerSeries:
    """A ledger's series.

    Args:
        records: L1 records, in the order they were written.
        rank: Keep only this rank's records; None keeps all.

    Returns:
        ``step`` (int64), for each of ``loss, grad_norm, scale, learning_rate`` a float64 array
        (NaN where not finite or not recorded) and ``<name>_kind`` (``finite``, ``nan``,
        ``pos_inf``, ``neg_inf`` or ``missing``); ``skipped_by`` (``none``, ``scaler``, ``gate``);
        ``alerts``, their messages as one text, empty where there are none.
    """
    kept = [r for r in records if rank is None or r.get("rank") in (None, rank)]
    data: LedgerSeries = {}
    for field, name in _SERIES.items():
        _add_series(data, name, [_scalar(record.get(field)) for record in kept])
    _add_series(data, "learning_rate", [_learning_rate(record) for record in kept])
    data["step"] = np.asarray([int(r.get("step") or 0) for r in kept], dtype=np.int64)
    skips = [_skipped_by(record) for record in kept]
    data["skipped_by"] = np.asarray(skips, dtype=object).reshape(len(kept))
    alerts = [_alert_words(record) for record in kept]
    data["alerts"] = np.asarray(alerts, dtype=object).reshape(len(kept))
    return data


def _add_series(data: LedgerSeries, name: str, values: list[float | None]) -> None:
    kinds = [_kind(value) for value in values]
    finite = [
        value if value is not None and kind == "finite" else math.nan
        for value, kind in zip(values, kinds, strict=True)
    ]
    data[name] = np.asarray(finite, dtype=np.float64)
    data[f"{name}_kind"] = np.asarray(kinds, dtype=object).reshape(len(kinds))


def _kind(value: float | None) -> str:
    if value is None:
        return "missing"
    if math.isnan(value):
        return "nan"
    if math.isinf(value):
        return "pos_inf" if value > 0 else "neg_inf"
    return "finite"


def _scalar(value: Any) -> float | None:
    """A number of the ledger; also one still in the tagged form of strict JSON."""
    if isinstance(value, Mapping) and value.get("finite") is False:
        return float(str(value.get("value")))
    return float(value) if isinstance(value, (int, float)) else None


def _learning_rate(record: Mapping[str, Any]) -> float | None:
    """The first parameter group's rate: nested lists are one list per optimizer."""
    rates = record.get("learning_rates")
    while isinstance(rates, (list, tuple)) and rates:
        rates = rates[0]
    return _scalar(rates)


def _alert_words(record: Mapping[str, Any]) -> str:
    found = record.get("alerts") or ()
    said = [str(a.get("message") or a.get("name") or "") for a in found if isinstance(a, Mapping)]
    return " ".join(one for one in said if one)


def _skipped_by(record: Mapping[str, Any]) -> str:
    reasons = [str(o.get("skipped_by") or "none") for o in record.get("optimizers") or ()]
    return next((reason for reason in reasons if reason != "none"), "none")
