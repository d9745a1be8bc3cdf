"""The callback that makes TensorFlow execute several short steps in one call.

Between two calls of TensorFlow, Keras takes longer than a small model needs for its step. So
`job.fit` measures the steps, and makes executions of about 0.1 s out of them. The values of
`model.compile(steps_per_execution=…)` and callbacks that act on each batch are left alone.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from tfdist.compat import keras as keras_compat
from tfdist.compat.train_functions import is_skipping
from tfdist.errors import log
from tfdist.strategies.replicas import keras2_executions
from tfdist.training.state import TrainingState
from tfdist.upstream.keras_callback_logs import IgnoresStepLogs

_EXECUTION_SECONDS = 0.1
# Longer steps would gain a few percent, and a large model is traced for a minute.
_LEAST_STEPS = 5
# Tracing the train function again takes as long as thousands of short steps.
_MEASURED_SECONDS = 2.0
_FIRST_MEASURED = 64
_MOST_STEPS = 256
_UNDECIDED = "not yet"

# Each training has its own keys: those of an earlier one are still in the store.
_trainings = 0


def callbacks(
    state: TrainingState,
    model: tf.keras.Model,
    own: Sequence[tf.keras.callbacks.Callback],
    *,
    save_steps: int | None,
    validation: tf.data.Dataset | None = None,
) -> list[tf.keras.callbacks.Callback]:
    """The callback for a call of `fit`; none if each step must be an execution.

    Call it within the `replaced.fitting` of that `fit`, with which the executions end.

    Args:
      state: knows the strategy and the data.
      model: the compiled model.
      own: the user's callbacks.
      save_steps: an execution ends where a checkpoint is due.
      validation: the data of the validation.
    """
    # Up to 3.10, Keras 3 tells callbacks only the first step of an execution.
    is_supported = not (3,) <= keras_compat.keras_version(model) < (3, 11)
    is_allowed = (
        state.role.spec.executes_several_steps
        and not state.strategy.topology.averages_weights
        and not model.run_eagerly
    )
    if not (is_allowed and is_supported):
        return []
    module: Any = keras2_executions
    if keras_compat.is_keras_3(model):  # The module imports Keras 3.
        from tfdist.strategies.replicas import keras3_executions as module
    if module.is_chosen(model):
        return []
    # Keras 2 refuses a validation of unknown length whose first execution has several steps.
    has_length = validation is None or int(validation.cardinality()) >= 0
    return [
        StepsPerExecution(
            state,
            module.Executions(model).set_steps,
            save_steps=save_steps,
            on_batches=[type(each).__name__ for each in own if module.acts_on_batches(each)],
            changes_within_epoch=has_length,
        )
    ]


class StepsPerExecution(IgnoresStepLogs):
    """Chooses the number of steps per execution, the same in all tasks, in the first epoch.

    Args:
      state: knows the strategy.
      set_steps: sets the number of steps of the next executions of the model.
      save_steps: see `callbacks`.
      on_batches: the names of the callbacks that act on each batch; if there are any, the number
        stays 1, and the chief says so if the steps are short.
      changes_within_epoch: whether the number may change before the first validation.
      clock: returns seconds, from any starting point.
    """

    def __init__(
        self,
        state: TrainingState,
        set_steps: Callable[[int], None],
        *,
        save_steps: int | None = None,
        on_batches: Sequence[str] = (),
        changes_within_epoch: bool = True,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__()
        self._state = state
        self._set_steps = set_steps
        self._save_steps = save_steps
        self._on_batches = on_batches
        self._changes_within_epoch = changes_within_epoch
        self._clock = clock
        global _trainings
        _trainings += 1
        self._chosen: int | None = None
        self._used = 1
        self._seen = 0
        self._next = _FIRST_MEASURED
        self._seconds = 0.0

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        if self._chosen is not None:
            self._use(self._chosen)
        self._set_steps(self._used)

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        self._begun = self._clock()

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        if self._chosen is None and not is_skipping(self.model):
            self._measure()
        # Executions must end at the multiples of their length, where checkpoints are due.
        if self._chosen and self._changes_within_epoch and (batch + 1) % self._chosen == 0:
            self._use(self._chosen)

    def on_test_begin(self, logs: Any = None) -> None:
        self._set_steps(1)

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        # Other callbacks may evaluate the model, or predict with it.
        self._set_steps(1)

    def _use(self, steps: int) -> None:
        if steps != self._used:
            self._used = steps
            self._set_steps(steps)

    def _measure(self) -> None:
        # The first step is traced in its call.
        self._seconds += self._clock() - self._begun if self._seen else 0.0
        self._seen += 1
        if self._seen < self._next:
            return
        self._next *= 2
        key = f"tfdist_steps_per_execution_{_trainings}_{self._seen}"
        choice = self._state.strategy.value_of_chief(key, self._choice)
        if choice != _UNDECIDED:
            self._chosen = int(choice)

    def _choice(self) -> str:
        if self._seconds < _MEASURED_SECONDS:
            return _UNDECIDED
        seconds = self._seconds / (self._seen - 1)
        steps = self.params["steps"]
        short = min(round(_EXECUTION_SECONDS / max(seconds, 1e-6)), _MOST_STEPS)
        # Without a known number, an execution could end with the data.
        fitting = min(short, steps or 1) if short >= _LEAST_STEPS else 1
        if self._save_steps:
            fitting = next(n for n in range(fitting, 0, -1) if self._save_steps % n == 0)
        if fitting > 1 and self._on_batches:
            log(
                f"a step takes {1000 * seconds:.2g} ms, and {', '.join(self._on_batches)} acts on "
                f"each of them; without it, {fitting} steps would be one call of TensorFlow"
            )
            return "1"
        return str(fitting)
