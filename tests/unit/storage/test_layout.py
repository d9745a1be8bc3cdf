"""The checkpoint of another model is refused before anything of it is restored."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from tests.conftest import TinyTraining, keras_is_3
from tfdist.errors import UsageError

pytestmark = pytest.mark.stacks("2.15", "tf_keras", "newest")


def model_of(
    units: tuple[int, ...] = (8,), optimizer: str = "Adam", *, frozen: bool = False, **options: Any
) -> Any:
    hidden = [tf.keras.layers.Dense(each, "relu") for each in units]
    model = tf.keras.Sequential([tf.keras.Input([4]), *hidden, tf.keras.layers.Dense(3)])
    model.layers[0].trainable = not frozen
    loss = tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(getattr(tf.keras.optimizers, optimizer)(0.01, **options), loss)
    return model


def train(tiny: TinyTraining, output: Path, model: Any, epochs: int) -> Any:
    return tiny.job().fit(
        lambda: model, tiny.train_input, epochs=epochs, output_dir=str(output), verbose=0
    )


@pytest.mark.parametrize(
    ("saved", "started", "problem"),
    [
        ({"units": (3,)}, {"units": (3, 3)}, r"lacks \S*dense\w*/kernel, with the shape \[3, 3\]"),
        ({"units": (3, 3)}, {"units": (3,)}, r"has \S*dense\w*/kernel too, with the shape"),
        ({"units": (4,)}, {"units": (4, 4)}, r"with the shape \[4, 3\], not \[4, 4\]"),
        ({"units": (4,)}, {"units": (8,)}, r"with the shape \[4, 4\], not \[4, 8\]"),
        ({}, {"amsgrad": True}, "has the state of Adam, and the model has Adam with other options"),
        ({}, {"frozen": True}, "was saved with other frozen layers"),
        ({"optimizer": "SGD"}, {"optimizer": "SGD", "frozen": True}, "other frozen layers"),
    ],
)
def test_another_model_is_refused(
    saved: dict[str, Any],
    started: dict[str, Any],
    problem: str,
    tiny: TinyTraining,
    tmp_path: Path,
) -> None:
    train(tiny, tmp_path, model_of(**saved), 1)
    model = model_of(**started)
    before = model.get_weights()
    with pytest.raises(UsageError, match=rf"output_dir: received .*ckpt-5, which .*{problem}"):
        train(tiny, tmp_path, model, 2)
    for found, expected in zip(model.get_weights(), before, strict=True):
        np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("optimizer", ["SGD", "RMSprop"])
def test_the_state_of_another_optimizer(
    optimizer: str, tiny: TinyTraining, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """TensorFlow would restore the momentum of RMSprop into that of SGD. SGD of Keras 3 without
    momentum has no state."""
    train(tiny, tmp_path, model_of(optimizer=optimizer), 1)
    started = "Adam" if optimizer == "SGD" else "SGD"
    options: dict[str, Any] = {"momentum": 0.9} if started == "SGD" else {}
    model = model_of(optimizer=started, **options)
    if optimizer == "SGD" and keras_is_3():
        assert train(tiny, tmp_path, model, 2).epoch == [0, 1]
        assert "has the state of SGD; Adam starts without one" in capsys.readouterr().err
    else:
        words = f"has the state of {optimizer}, and the model has {started}"
        with pytest.raises(UsageError, match=words):
            train(tiny, tmp_path, model, 2)


def test_the_same_model_goes_on(tiny: TinyTraining, tmp_path: Path) -> None:
    train(tiny, tmp_path, model_of(), 1)
    assert train(tiny, tmp_path, model_of(), 2).epoch == [0, 1]
