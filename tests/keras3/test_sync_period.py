"""Local SGD when Keras 3 resumes in mid-epoch and skips the steps that were already run."""

from __future__ import annotations

from typing import Any

import pytest
import tensorflow as tf

from tests.conftest import TinyTraining
from tests.unit.strategies.test_local_sgd import TwoTasks
from tfdist.compat.train_functions import AfterSkippedSteps
from tfdist.config.strategies.rows import HorovodOptions
from tfdist.strategies.local_sgd import LocalSGD, Synchronization

pytestmark = pytest.mark.stacks("2.21")


class SkipSteps(tf.keras.callbacks.Callback):
    """Skips the first steps of an epoch, like `tfdist.training.resume`."""

    def __init__(self, step: int) -> None:
        super().__init__()
        self._step = step

    def on_train_begin(self, logs: dict[str, Any] | None = None) -> None:
        self.model.train_function = AfterSkippedSteps(self.model, self._step)


def test_skipped_steps_do_not_count_for_outer_steps(tiny: TinyTraining) -> None:
    model, collectives = tiny.model(), TwoTasks()
    local = LocalSGD(collectives, 2, HorovodOptions(outer_momentum=0.9))
    local.state(model)
    local.begin()
    data = tiny.train_input(tf.distribute.InputContext())
    model.fit(data, callbacks=[SkipSteps(4), Synchronization(local)], verbose=0)
    # Only the last of five steps runs: the tasks average their weights at the end of the epoch.
    assert collectives.sums == 1
    assert model.optimizer.iterations == 1
