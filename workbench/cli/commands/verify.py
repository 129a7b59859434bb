"""``workbench verify``: digests, and on request whether the incident reproduces."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from workbench.cli.command import Command
from workbench.cli.options import bundle_argument, code_options, json_option, require_code
from workbench.cli.output import emit, say, table
from workbench.errors import BundleError, CannotRunError, CheckFailedError
from workbench.evidence.wording import command_line, counted

if TYPE_CHECKING:
    from pathlib import Path

    from workbench.evidence import Bundle, FileCheck


@click.command("verify", cls=Command, section="Look", order=3)
@bundle_argument
@click.option("--reproduces", is_flag=True, help="Replay the step too; exit 5 if it does not fail.")
@code_options
@json_option
def command(
    bundle: Path, reproduces: bool, step: str | None, trust: str | None, as_json: bool
) -> None:
    """Check every file of BUNDLE against its digest.

    Exits 3 when a listed file is missing or differs. A bundle whose writing was cut short is
    called incomplete, and passes when the files it lists match.
    """
    from workbench.evidence import open_bundle

    opened = open_bundle(bundle)
    if reproduces:
        require_code(opened, step, trust)
    checks = opened.verify()
    bad = [check for check in checks if check.status != "ok"]
    reproduction = None if bad or not reproduces else _reproduction(opened, step, trust)
    if as_json:
        emit(_data(opened, checks, reproduction))
    else:
        _print(opened, checks, reproduction)
    if bad:
        raise BundleError(
            f"{str(bundle)!r} is damaged in {len(bad):,} of {counted(len(checks), 'file')}: "
            f"{', '.join(f'{c.rel!r} ({c.status})' for c in bad[:5])}. Nothing from there is shown "
            "or replayed. Get a fresh copy of the bundle."
        )
    if reproduction is not None:
        _require(bundle, reproduction)


def _reproduction(bundle: Bundle, step: str | None, trust: str | None) -> dict[str, Any]:
    from workbench.replay import Replay

    return Replay(bundle, step=step, trust=trust).verdict().to_data()


def _state(bundle: Bundle, checks: list[FileCheck]) -> str:
    if any(check.status != "ok" for check in checks):
        return "damaged"
    return "ok" if bundle.sealed else "incomplete"


def _data(
    bundle: Bundle, checks: list[FileCheck], reproduction: dict[str, Any] | None
) -> dict[str, Any]:
    return {
        "schema": "workbench.verify/1",
        "path": str(bundle.path),
        "digest": bundle.digest,
        "state": _state(bundle, checks),
        "sealed": bundle.sealed,
        "files": [
            {"path": c.rel, "status": c.status, "bytes": c.size, "found": c.found} for c in checks
        ],
        "reproduction": reproduction,
    }


def _print(bundle: Bundle, checks: list[FileCheck], reproduction: dict[str, Any] | None) -> None:
    from workbench.evidence import byte_size

    bad = [c for c in checks if c.status != "ok"]
    rows = [(c.rel, c.status, f"listed {byte_size(c.size)}") for c in bad]
    for line in table(rows):
        say(line)
    word = {"ok": "intact", "incomplete": "incomplete", "damaged": "damaged"}[
        _state(bundle, checks)
    ]
    good = f"{len(checks) - len(bad):,} of {counted(len(checks), 'file')}"
    say(f"{word}: {good} as recorded. {bundle.digest}")
    if reproduction is not None:
        say(reproduction["sentence"])


def _require(path: Path, reproduction: dict[str, Any]) -> None:
    verdict = reproduction["verdict"]
    if verdict == "not_reproduced":
        raise CheckFailedError(
            f"The incident of {str(path)!r} did not reproduce here (verdict 'not_reproduced'). "
            "That does not clear the step: its environment may differ from this one, see "
            f"`{command_line('inspect', path)}`."
        )
    if verdict == "unverifiable":
        raise CannotRunError(
            f"Whether the incident of {str(path)!r} reproduces cannot be checked here (verdict "
            "'unverifiable'): the bundle lacks what a replay compares with. "
            f"`{command_line('inspect', path)}` lists what is missing."
        )
