"""What the recorder does when something trips, and how much it may keep."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal, get_args

from workbench.errors import UsageError

Action = Literal["raise", "skip", "continue"]
OnNonfinite = Action | Callable[[Any], Action]
InputPolicy = Literal["warn", "trip", "off"]
Save = Literal["all", "statistics"]
Ranks = Literal["together", "alone"]


@dataclass(frozen=True)
class Alerts:
    """When finite but unusual numbers make a bundle of kind ``alert``. None switches one off.

    Attributes:
        consecutive_skips: Scaler skips in a row.
        skip_ratio: Share of skipped steps within ``window``, once a quarter of it has run.
        window: Steps the ratio looks back over.
        minimum_scale: The loss scale falls below this.
        grad_norm_factor: The gradient norm exceeds its median over ``window`` this many times.
        loss_factor: The loss's magnitude exceeds its median over ``window`` this many times.
        scale_falls: The loss scale fell this often and never rose in between.
        repeated_trips: The same module, or the same data shard of several, tripped this often
            within ``window`` steps.
        update_ratio_factor: An update, over the parameters it changed, exceeds its median over
            ``window`` this many times; seen on a sample of the largest parameters.
    """

    consecutive_skips: int | None = 8
    skip_ratio: float | None = 0.5
    window: int = 100
    minimum_scale: float | None = 1.0
    grad_norm_factor: float | None = None
    loss_factor: float | None = None
    scale_falls: int | None = 12
    repeated_trips: int | None = 3
    update_ratio_factor: float | None = None

    def __post_init__(self) -> None:
        """Refuse thresholds that could never or always trip."""
        if self.window < 1:
            raise UsageError(
                f"Alerts(window={self.window!r}) looks back over no steps, so no share can be "
                "taken. Use a whole number of at least 1."
            )
        for name in sorted(self.__dataclass_fields__.keys() - {"window", "minimum_scale"}):
            value = getattr(self, name)
            if value is not None and not value > 0:
                raise UsageError(
                    f"Alerts({name}={value!r}) would trip at every step. Use a number above 0, or "
                    "None to switch this alert off."
                )


@dataclass(frozen=True)
class Policy:
    """The recorder's policy.

    Attributes:
        on_nonfinite: ``raise`` a ``NonFiniteError``, ``skip`` the update, ``continue`` as if
            nothing was seen, or a function that is given the trip and returns one of the three.
        input: Whether a batch field outside its declared domain is written to the ledger
            (``warn``), trips (``trip``), or is not looked at (``off``).
        max_bundles: Most bundles of one run.
        max_bytes: Most bytes of one bundle; the heaviest parts are left out first.
        max_total_bytes: Most bytes of all bundles of one run.
        save: ``all``, or ``statistics``: no values of batch, parameters and gradients.
        ranks: Whether all ranks of ``torch.distributed`` decide ``together``, or each ``alone``:
            ranks that do not train one model.
        deep_scan_every: Every so many steps outputs, large batch fields, and after the update all
            parameters and optimizer state are looked at in full; 0 never. In between, and without
            a hint such as a jump of the gradient norm, a large model is looked at in turns.
        recovery_every: Every so many steps a state is kept to replay from; 1 keeps the state
            before the current update too, so that what shows only after it replays; 0 keeps none.
        recovery_bytes: Most memory the kept states may take.
        ledger_window: Records of the steps before an incident that go into its bundle.
        ledger_bytes: Most bytes of a run's ledger: at half of them it becomes the part before,
            which replaces an older one; 0 for no bound.
        alerts: When to make a bundle of kind ``alert``.
    """

    on_nonfinite: OnNonfinite = "raise"
    input: InputPolicy = "warn"
    max_bundles: int = 8
    max_bytes: int = 16 * 2**30
    max_total_bytes: int = 64 * 2**30
    save: Save = "all"
    ranks: Ranks = "together"
    deep_scan_every: int = 100
    recovery_every: int = 0
    recovery_bytes: int = 2 * 2**30
    ledger_window: int = 200
    ledger_bytes: int = 2**30
    alerts: Alerts = field(default_factory=Alerts)

    def __post_init__(self) -> None:
        """Refuse values that are not understood."""
        legal = {"on_nonfinite": Action, "input": InputPolicy, "save": Save, "ranks": Ranks}
        for name, kinds in legal.items():
            value = getattr(self, name)
            if callable(value) and name == "on_nonfinite":
                continue
            if value not in get_args(kinds):
                raise UsageError(
                    f"Policy({name}={value!r}) is not understood. Legal values are: "
                    f"{', '.join(map(repr, get_args(kinds)))}"
                    f"{', or a function that returns one' if name == 'on_nonfinite' else ''}."
                )
        if not isinstance(self.alerts, Alerts):
            raise UsageError(
                f"Policy(alerts={self.alerts!r:.80}) is not understood. Pass a workbench Alerts, "
                "whose fields say when to make a bundle; None in a field switches it off."
            )
        for name in ("max_bundles", "max_bytes", "max_total_bytes", "recovery_bytes"):
            self._refuse_negative(name)
        for name in ("deep_scan_every", "recovery_every", "ledger_window", "ledger_bytes"):
            self._refuse_negative(name)

    def _refuse_negative(self, name: str) -> None:
        value = getattr(self, name)
        if not isinstance(value, int) or value < 0:
            raise UsageError(
                f"Policy({name}={value!r}) is not understood. Use a whole number of at least 0."
            )
