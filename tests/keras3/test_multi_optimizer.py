"""A `MultiOptimizer`: the states of the optimizers in it are part of a checkpoint."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from tests.conftest import TinyTraining
from tfdist.errors import UsageError

pytestmark = pytest.mark.stacks("newest")

EPOCHS = 3


class Stop(Exception):
    pass


class StopsAt(tf.keras.callbacks.Callback):
    """Raises an error after a step, counted from 1 over all epochs."""

    def __init__(self, step: int) -> None:
        super().__init__()
        self._remaining = step

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self._remaining -= 1
        if self._remaining == 0:
            raise Stop


def fit(
    tiny: TinyTraining, output: Path, *, of_first: Any, stops: StopsAt | None = None
) -> tf.keras.Model:
    """Trains a model whose first layer has an optimizer of its own."""
    job, model = tiny.job(), tiny.model(layers=(tf.keras.layers.Dense(4, name="first"),))
    optimizers = tf.keras.optimizers
    by_path = optimizers.OptimizerMap(optimizers.Adam(0.01), {"first/.*": of_first})
    model.compile(optimizers.MultiOptimizer(by_path), model.loss)
    model.set_weights([np.ones_like(weight) for weight in model.get_weights()])
    callbacks = [*job.callbacks(str(output), save_steps=2), *([stops] if stops else [])]
    model.fit(job.dataset(tiny.train_input), epochs=EPOCHS, callbacks=callbacks, verbose=0)
    return model


def test_a_resumed_training_has_the_states_of_all_optimizers(
    tiny: TinyTraining, tmp_path: Path
) -> None:
    adagrad = tf.keras.optimizers.Adagrad
    expected = fit(tiny, tmp_path / "uninterrupted", of_first=adagrad(0.1))
    with pytest.raises(Stop):
        fit(tiny, tmp_path / "cut", of_first=adagrad(0.1), stops=StopsAt(7))
    # The rate of the checkpoint is used.
    model = fit(tiny, tmp_path / "cut", of_first=adagrad(0.2))
    pairs = [(model.weights, expected.weights)]
    pairs.append((model.optimizer.variables, expected.optimizer.variables))
    for found, other in pairs:
        assert len(found) == len(other)
        for one, another in zip(found, other, strict=True):
            np.testing.assert_array_equal(one.numpy(), another.numpy())


def test_the_state_of_another_optimizer_is_refused(tiny: TinyTraining, tmp_path: Path) -> None:
    optimizers = tf.keras.optimizers
    fit(tiny, tmp_path, of_first=optimizers.Adagrad(0.1))
    (tmp_path / "done.json").unlink()
    with pytest.raises(UsageError, match="MultiOptimizer of RMSprop and Adam"):
        fit(tiny, tmp_path, of_first=optimizers.RMSprop(0.1))
