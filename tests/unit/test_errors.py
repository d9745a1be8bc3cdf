"""A mistake that is found within a TensorFlow function is reported like any other."""

from __future__ import annotations

import pytest
import tensorflow as tf

from tfdist.errors import EXIT_USAGE, UsageError, exit_on_usage_error

pytestmark = pytest.mark.stacks("2.15", "newest")


def test_autograph_passes_a_usage_error_on() -> None:
    @tf.function(autograph=True)
    def step() -> None:
        raise UsageError("field", received=1, accepted="2", remedy="Correct it.")

    with pytest.raises(UsageError, match=r"^field: received 1; accepted: 2. Correct it.$"):
        step()


def test_a_usage_error_that_keras_has_wrapped_is_one_sentence(
    capsys: pytest.CaptureFixture[str],
) -> None:
    error = UsageError("job.gather", received=1, accepted="2", remedy="Do it.")
    with pytest.raises(SystemExit) as exit_, exit_on_usage_error():
        try:
            raise error
        except UsageError as inner:
            raise RuntimeError(
                f"Exception encountered when calling Towers.call().\n{inner}"
            ) from None
    assert exit_.value.code == EXIT_USAGE
    assert capsys.readouterr().err == f"tfdist: error: {error}\n"


def test_an_error_after_a_usage_error_is_its_own() -> None:
    with pytest.raises(RuntimeError, match="another"), exit_on_usage_error():
        try:
            raise UsageError("field", received=1, accepted="2", remedy="Do it.")
        except UsageError:
            raise RuntimeError("another") from None
