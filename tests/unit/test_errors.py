"""A mistake that is found within a TensorFlow function is reported like any other."""

from __future__ import annotations

import pytest
import tensorflow as tf

from tfdist.errors import UsageError

pytestmark = pytest.mark.stacks("2.15", "newest")


def test_autograph_passes_a_usage_error_on() -> None:
    @tf.function(autograph=True)
    def step() -> None:
        raise UsageError("field", received=1, accepted="2", remedy="Correct it.")

    with pytest.raises(UsageError, match=r"^field: received 1; accepted: 2. Correct it.$"):
        step()
