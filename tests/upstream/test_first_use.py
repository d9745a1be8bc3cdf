"""The line that has used TensorFlow too early."""

from __future__ import annotations

import pytest
import tensorflow as tf

from tfdist.errors import UsageError
from tfdist.upstream import first_use

pytestmark = pytest.mark.stacks("2.15", "newest")


def set_devices() -> None:
    """Sets what can only be set before the first operation."""
    tf.constant(1.0)
    (cpu, *_) = tf.config.list_physical_devices("CPU")
    tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 3)


def test_tensorflow_names_no_line() -> None:
    with pytest.raises(RuntimeError, match="cannot be modified after being initialized") as error:
        set_devices()
    assert __file__ not in str(error.value)


def test_the_recorded_line_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(first_use, "_found", ["train.py:8: SCALE = tf.constant(1.0)"])
    with (
        pytest.raises(UsageError, match=r"before tfdist.init, in train.py:8: SCALE = .*Move the"),
        first_use.explained(),
    ):
        set_devices()


def test_an_error_without_an_earlier_use_is_another_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(first_use, "_found", [])
    with pytest.raises(RuntimeError, match="cannot be modified"), first_use.explained():
        set_devices()
