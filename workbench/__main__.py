"""``python -m workbench`` is the same as the ``workbench`` command."""

from __future__ import annotations

from workbench.cli.main import main

main()
