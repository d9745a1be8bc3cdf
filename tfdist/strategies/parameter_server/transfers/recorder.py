"""Records the gradients and assignments of a worker's step instead of applying them.

recorder = Recorder()
recorder.wrap(optimizer)
with recorder.recording(statistics) as recorded:     # while the worker's step is traced
    logs = train_step(batch)                         # changes no weights
recorded.in_packs(packs=True)                        # its contribution to the update
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import tensorflow as tf

from tfdist.compat import keras as keras_compat
from tfdist.compat.replaced import replace
from tfdist.strategies.optimizer_calls import Update, taking_updates
from tfdist.strategies.parameter_server.transfers.contributions import Recorded
from tfdist.strategies.parameter_server.transfers.recorded_changes import recorded_changes


class Recorder:
    """Records the gradients of wrapped optimizers while a step is traced."""

    def __init__(self) -> None:
        # Not a variable of the thread: TensorFlow traces what `strategy.run` calls in another one.
        self._recorded: Recorded | None = None

    def wrap(self, optimizer: Any) -> Any:
        """Makes an optimizer record its gradients during `recording`; otherwise it applies them.

        Args:
          optimizer: a Keras optimizer; changed in place and returned.
        """

        def take(gradients: list[Any], variables: list[Any], update: Update) -> None:
            if self._recorded is None:
                update(gradients)
            else:
                self._recorded.add(update, gradients, variables)

        _apply_where_weights_are(optimizer)
        replace(optimizer, *taking_updates(optimizer, take))
        return optimizer

    @contextmanager
    def recording(self, statistics: Iterable[tf.Variable] = ()) -> Iterator[Recorded]:
        """Records what a step does, while it is traced in the current graph.

        Args:
          statistics: variables whose changes are averaged, too, if the step assigns to them: the
            moving statistics of batch normalization, or the weights of another network. Counters
            change once for an update.
        """
        self._recorded = recorded = Recorded(tf.compat.v1.get_default_graph())
        with ExitStack() as stack:
            for variable in statistics:
                stack.enter_context(recorded_changes(variable, recorded))
            try:
                yield recorded
            finally:
                self._recorded = None


def _apply_where_weights_are(optimizer: Any) -> None:
    """Turns off the sum over replicas: an update has one, whose gradients are averages already.

    TensorFlow would sum them in the task that runs the update, which is the chief. So all gradients
    would pass through it. The legacy optimizers of Keras 2 do not allow this.
    """
    is_keras_3 = keras_compat.is_keras_3(optimizer)
    name = "_all_reduce_sum_gradients" if is_keras_3 else "aggregate_gradients"
    for inner in keras_compat.inner_optimizers(optimizer):
        replace(inner, name, list)
