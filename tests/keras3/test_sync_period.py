"""Local SGD where Keras 3 begins an epoch with steps that were made before."""

from __future__ import annotations

from typing import Any

import pytest
import tensorflow as tf

from tests.conftest import TinyTraining
from tests.unit.strategies.test_local_sgd import WithAnother
from tfdist.compat.train_functions import AfterSkippedSteps
from tfdist.strategies.local_sgd import LocalSGD, OuterSteps, Synchronization

pytestmark = pytest.mark.stacks("2.21")


class GoesOn(tf.keras.callbacks.Callback):
    """As `tfdist.training.resume` does after a step of an epoch."""

    def __init__(self, step: int) -> None:
        super().__init__()
        self._step = step

    def on_train_begin(self, logs: dict[str, Any] | None = None) -> None:
        self.model.train_function = AfterSkippedSteps(self.model, self._step)


def test_steps_that_were_made_before_count_for_no_outer_step(tiny: TinyTraining) -> None:
    model, collectives = tiny.model(), WithAnother()
    local = LocalSGD(collectives, OuterSteps(period=2, momentum=0.9))
    local.state(model)
    local.begin()
    data = tiny.train_input(tf.distribute.InputContext())
    model.fit(data, callbacks=[GoesOn(4), Synchronization(local)], verbose=0)
    # Of five steps the last is made: the tasks meet at the end of the epoch.
    assert collectives.meetings == 1
    assert model.optimizer.iterations == 1
