"""A fused optimizer under a loss scaler: a call that skips is not counted as an update."""

import pytest

from tests.gpu.training import Fused
from tests.gpu.updates import skip_between_updates

pytestmark = pytest.mark.gpu


def test_a_skip_of_fused_adamw_is_accounted_for(cuda, tmp_path, record_property):
    story = skip_between_updates(Fused(), cuda, tmp_path)
    record_property("detail", f"updated {story.updated}, skipped_by {story.skipped_by}")
    assert story.updated == [True, True, False, True]
    assert story.skipped_by == ["none", "none", "scaler", "none"]
    assert story.moved == [True, True, False, True]
    assert story.counters == [1.0, 2.0, 2.0, 3.0]
    assert story.found_inf == [0.0, 0.0, 1.0, 0.0]
