"""A bad step whose evidence cannot be written: the disk is full, or not there."""

from __future__ import annotations

import math
import tempfile
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import Any, ClassVar

from workbench.record.drill.fault import Fault, Put, largest_parameter, spoil
from workbench.record.drill.hooks import attribute, both, while_hooked


class _EvidenceUnwritable(Fault):
    name: ClassVar = "evidence_unwritable"
    what: ClassVar = "+Inf in a parameter while no file can be written, as on a full disk"
    boundaries: ClassVar = ("recorder",)

    def during(self, put: Put, step: int) -> AbstractContextManager[Any]:
        if step != put.at:
            return nullcontext()

        def after(optimizer: Any, args: Any, kwargs: Any) -> None:
            del optimizer, args, kwargs
            spoil(largest_parameter(put), math.inf)

        return both(while_hooked(put.optimizers[0].register_step_post_hook(after)), _nowhere(put))


@contextmanager
def _nowhere(put: Put) -> Iterator[None]:
    """Let the recorder write below a file, which is an error of the system as a full disk is."""
    with (
        tempfile.NamedTemporaryFile() as file,
        attribute(put.recorder, "directory", Path(file.name) / "incidents"),
    ):
        yield


fault = _EvidenceUnwritable()
