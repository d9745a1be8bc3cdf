"""Changes the number of steps per execution of a Keras 3 model during a training.

    with replaced.fitting():
        executions = Executions(model)
        model.fit(…)         # a callback calls executions.set_steps

Keras 3 reads `steps_per_execution` once, before it calls the callbacks of a training, and has a
loop whose collective operations are in a `tf.cond`, where synchronous strategies may deadlock.
Here, an execution never has more steps than the epoch, so that its loop needs no condition.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from typing import Any

import keras
import tensorflow as tf
from keras.src.backend.tensorflow import trainer

from tfdist.compat.replaced import at_end, replace

# The executions of the training whose iterator Keras makes next.
_next: list[Executions] = []


class Executions:
    """Sets the number of steps per execution of a compiled model that does not run eagerly.

    It does so until the training that has begun (`tfdist.compat.replaced`) ends.
    """

    def __init__(self, model: Any) -> None:
        self._model = model
        self._steps = 1
        # The steps of the execution that has begun.
        self._begun = 1
        make = model.make_train_function

        def make_train_function(force: bool = False) -> None:
            if force or model.train_function is None:
                make(force=True)
                model.train_function = self._several(model.train_function)

        _apply()
        _next.append(self)
        at_end(_next.clear)
        replace(model, "make_train_function", make_train_function)
        replace(model, "train_function", None)

    def set_steps(self, steps: int) -> None:
        """Sets the number of steps of the next executions; the last one of an epoch has fewer."""
        self._steps = steps

    def of_single(self, steps: Iterator[tuple[int, int, Any]]) -> Iterator[tuple[int, int, Any]]:
        """Joins steps to executions: tuples of the first step, the last step and the iterator."""
        for first, last, iterator in steps:
            self._begun = 1
            while self._begun < self._steps and (step := next(steps, None)) is not None:
                last = step[1]
                self._begun += 1
            yield first, last, iterator

    def _several(self, single: Any) -> Any:
        model = self._model
        strategy = model.distribute_strategy
        run = functools.partial(strategy.run, model.train_step)
        step = model._autoconvert_optionals(
            tf.function(
                lambda data: run(args=(data,)),
                reduce_retracing=True,
                jit_compile=model.jit_compile,
                autograph=False,
            )
        )

        @tf.function(reduce_retracing=True)
        @tf.autograph.experimental.do_not_convert
        def train(iterator: Any, steps: tf.Tensor) -> Any:
            def body(done: tf.Tensor) -> tf.Tensor:
                step(iterator.get_next())
                return done + 1

            tf.while_loop(lambda done: done < steps - 1, body, [tf.constant(0)])
            # Only the last step computes the results of metrics over all replicas.
            results = step(iterator.get_next())
            return trainer.reduce_per_replica(results, strategy, reduction="auto")

        def train_function(iterator: Any) -> Any:
            if self._begun == 1:
                return single(iterator)
            return train(iterator, tf.constant(self._begun))

        return train_function


def is_chosen(model: Any) -> bool:
    """Whether the `steps_per_execution` of `compile` differs from the default, 1."""
    return bool(model.steps_per_execution != 1)


def acts_on_batches(callback: keras.callbacks.Callback) -> bool:
    """Whether a callback does something for each batch of a training."""
    if isinstance(callback, keras.callbacks.TensorBoard):
        return (
            callback.update_freq != "epoch"
            or callback.write_steps_per_second
            or callback._should_trace
        )
    saves = (keras.callbacks.ModelCheckpoint, keras.callbacks.BackupAndRestore)
    if isinstance(callback, saves):
        return bool(callback.save_freq != "epoch")
    hooks = ("on_batch_begin", "on_batch_end", "on_train_batch_begin", "on_train_batch_end")
    return not all(getattr(getattr(callback, hook), "_is_default", False) for hook in hooks)


@functools.cache
def _apply() -> None:
    """Makes the iterator of a training join its steps to executions."""
    base: Any = trainer.TFEpochIterator

    class EpochIterator(base):
        def __init__(self, *args: Any, **options: Any) -> None:
            super().__init__(*args, **options)
            # Those of a validation are made later.
            self._executions = _next.pop() if _next else None

        def _enumerate_iterator(self) -> Iterator[tuple[int, int, Any]]:
            steps = super()._enumerate_iterator()
            return self._executions.of_single(steps) if self._executions else steps

    trainer.TFEpochIterator = EpochIterator
