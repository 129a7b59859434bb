"""Makes the tabs' regions. Each is imported when it is first looked at: charts take a second."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from workbench.widgets.parts import Act
from workbench.widgets.store import Region, Store


def makers(
    store: Store, act: Act, bundle: Any, other: Callable[[], Any]
) -> dict[str, Callable[[], Region]]:
    """What makes each tab's region, by the tab's name.

    Args:
        store: The panel's state.
        act: Asks the panel to do something by one action name.
        bundle: The opened bundle.
        other: Gives the bundle it is compared with, or None.
    """

    def origin() -> Region:
        from workbench.widgets.origin import Origin

        return Origin(store, act)

    def ranges() -> Region:
        from workbench.widgets.ranges import Ranges

        return Ranges(store, act)

    def timeline() -> Region:
        from workbench.widgets.timeline import Timeline

        return Timeline(store, act, bundle)

    def compare() -> Region:
        from workbench.widgets.compare import Compare

        return Compare(store, act, bundle, other)

    def evidence() -> Region:
        from workbench.widgets.evidence_tab import Evidence

        return Evidence(store, act, bundle)

    return {
        "origin": origin,
        "ranges": ranges,
        "timeline": timeline,
        "compare": compare,
        "evidence": evidence,
    }
