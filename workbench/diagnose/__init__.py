"""Find where a non-finite value was born, why, and what that shows.

The package itself is callable: ``workbench.diagnose(bundle, step=...)`` runs ``run.diagnose``.
Importing any part of the package binds the name ``workbench.diagnose`` to this module, so the
module has to be what the public name promises.
"""

from __future__ import annotations

import sys
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING, Any

from workbench.lazy import names_on_first_use

if TYPE_CHECKING:
    from workbench.diagnose.cell import run_cell
    from workbench.diagnose.findings import Findings
    from workbench.diagnose.minimal import minimal_changes, minimal_modules
    from workbench.diagnose.run import diagnose
    from workbench.diagnose.sweep import Sweep, run_sweep
    from workbench.diagnose.worker import run_in_worker
    from workbench.diagnose.zoo import run_zoo

__all__ = [
    "Findings",
    "Sweep",
    "diagnose",
    "minimal_changes",
    "minimal_modules",
    "run_cell",
    "run_in_worker",
    "run_sweep",
    "run_zoo",
]

_resolve = names_on_first_use(
    __name__,
    {
        "cell": ("run_cell",),
        "findings": ("Findings",),
        "minimal": ("minimal_changes", "minimal_modules"),
        "run": ("diagnose",),
        "sweep": ("Sweep", "run_sweep"),
        "worker": ("run_in_worker",),
        "zoo": ("run_zoo",),
    },
)


class _CallableModule(ModuleType):
    """A module that runs ``diagnose`` when it is called."""

    def __call__(self, *args: Any, **kwargs: Any) -> Findings:
        """Diagnose a bundle; see ``workbench.diagnose.run.diagnose``."""
        function = import_module(f"{__name__}.run").diagnose
        return function(*args, **kwargs)  # type: ignore[no-any-return]

    def __getattr__(self, name: str) -> Any:
        return _resolve(name)


sys.modules[__name__].__class__ = _CallableModule
