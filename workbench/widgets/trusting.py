"""The answers to the trust card: whose code may run, for this kernel."""

from __future__ import annotations

from typing import Any

from workbench.errors import UsageError
from workbench.widgets import actions as a
from workbench.widgets.code_text import CodeReader
from workbench.widgets.state import State
from workbench.widgets.store import Store
from workbench.widgets.trust import may_run


class Trusting:
    """The part of `Workbench` that answers whether the step's code may run."""

    bundle: Any
    _store: Store
    _jobs: Any
    _commands: Any

    @property
    def state(self) -> State:
        """Everything on screen, as one frozen value."""
        return self._store.state

    def allow(self, how: str = "own", reference: str = "") -> None:
        """Answer the trust card: run ``own`` code here, or the ``source`` in the bundle.

        Args:
            how: ``"own"`` or ``"source"``.
            reference: Where the own code is; the bundle's reference when empty.

        Raises:
            UsageError: ``how`` is neither.
        """
        if how not in ("own", "source"):
            raise UsageError(
                f"allow() was given {how[:40]!r}, so nothing was allowed to run. Give 'own' for "
                "your code, or 'source' for the copy in the bundle."
            )
        trust = self.state.trust
        if reference:
            self._store.dispatch(a.TrustEdited((("reference", reference),)))
        pending = trust.pending
        self._store.dispatch(a.TrustGiven(how))
        self._jobs.close()
        if pending:
            self._commands.act(pending)

    def allow_as_chosen(self) -> None:
        """Answer as the card stands; nothing happens while the answer is not complete."""
        trust = self.state.trust
        code = CodeReader(self.bundle).read(trust.reference)
        facts = self.state.facts
        reference = trust.reference or facts.step_reference
        if may_run(trust, reference, facts.digest, bool(code.bundled)):
            self.allow(trust.choice, trust.reference)

    def decline(self) -> None:
        """Stay with recorded evidence."""
        self._store.dispatch(a.TrustDeclined())

    def choose_code(self) -> None:
        """Open the trust card; its answer starts a replay."""
        self._store.dispatch(a.TrustAsked("run_to_first_bad"))
