"""``--dask``: a Dask cluster as an executor, through distributed's own."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterator
from concurrent.futures import Executor
from contextlib import contextmanager
from typing import Any

from workbench.cli.output import note
from workbench.errors import CannotRunError, UsageError
from workbench.evidence.wording import counted

CONNECT_S = 10
WORKERS_S = 30
_LOOK_S = 1.0


@contextmanager
def cluster(address: str | None) -> Iterator[Executor | None]:
    """The executor of a Dask scheduler; None where no address was given.

    Args:
        address: ``tcp://host:port``.

    Raises:
        CannotRunError: distributed is not installed, nothing answers there, or it has no worker.
        UsageError: It is no address.
    """
    if address is None:
        yield None
        return
    try:
        from distributed import Client
    except ImportError as error:
        raise CannotRunError(
            f"--dask {address} needs 'distributed', which is not installed here ({error}), so "
            "nothing was run. Install it with: pip install 'nonfinite-workbench[dask]'; or leave "
            "--dask out and use --jobs on this machine."
        ) from error
    # its warnings are for those who watch a cluster; what a lost worker cost stands in the result
    logging.getLogger("distributed").setLevel(logging.CRITICAL)
    try:
        client = Client(address, timeout=CONNECT_S, set_as_default=False)
    except ValueError as error:
        raise UsageError(
            f"{address!r} is no address of a Dask scheduler ({error}), so nothing was run. The "
            "scheduler prints its own as it starts, for example tcp://10.0.0.5:8786."
        ) from error
    except OSError as error:
        raise CannotRunError(
            f"No Dask scheduler answers at {address!r} ({type(error).__name__}: {error}), so "
            "nothing was run. Start one with `dask scheduler`, and workers with `dask worker "
            f"{address}`; or leave --dask out."
        ) from error
    with client:
        try:
            client.wait_for_workers(1, timeout=WORKERS_S)
        except TimeoutError as error:
            raise CannotRunError(
                f"The Dask scheduler at {address!r} had no worker for {WORKERS_S} s, so nothing "
                f"was run. Start one with: dask worker {address}"
            ) from error
        count = len(client.scheduler_info(n_workers=-1)["workers"])
        note(f"Using {counted(count, 'Dask worker')} of {address}")
        executor = client.get_executor()
        with _watched(client, executor, address):
            yield executor


@contextmanager
def _watched(client: Any, executor: Executor, address: str) -> Iterator[None]:
    """Give up what is left when the last worker is gone and none comes; Dask waits for ever."""
    ended = threading.Event()

    def watch() -> None:
        seen = time.monotonic()
        while not ended.wait(_LOOK_S):
            if _has_workers(client):
                seen = time.monotonic()
            elif time.monotonic() - seen > WORKERS_S:
                note(f"{address} has had no worker for {WORKERS_S} s: what is left is given up.")
                executor.shutdown(wait=False)
                return

    thread = threading.Thread(target=watch, name="workbench-dask", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()


def _has_workers(client: Any) -> bool:
    try:
        return bool(client.status == "running" and client.scheduler_info(n_workers=-1)["workers"])
    except (OSError, RuntimeError):  # the scheduler itself is gone
        return False
