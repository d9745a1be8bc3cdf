"""Input functions of Estimators: each task reads its own shard.

sharded(train_input, job)     # an input function for `tf.estimator`, of this task's examples
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from tfdist.data import sharding
from tfdist.errors import UsageError
from tfdist.estimator.job import EstimatorJob

InputFunction = Callable[..., Any]


def sharded(input_fn: InputFunction, job: EstimatorJob) -> InputFunction:
    """The training input of this task.

    Args:
      input_fn: as `tf.estimator` takes it (`mode`, `params` and `config` if it asks for them), with
        an `input_context` that says which shard of how many it is to return.
      job: this task's job.

    Raises:
      UsageError: several tasks train, and the function does not ask for an `input_context`.
    """
    if job.num_input_pipelines > 1 and "input_context" not in _arguments(input_fn):
        raise UsageError(
            "input_fn",
            received="a function without input_context",
            accepted=f"one with it, as {job.num_input_pipelines} tasks train",
            remedy="Shard its dataset: dataset.shard(input_context.num_input_pipelines, "
            "input_context.input_pipeline_id).",
        )
    return _with_context(input_fn, job.input_context)


def whole(input_fn: InputFunction) -> InputFunction:
    """The input of an evaluation, which one task makes of all examples."""
    return _with_context(input_fn, tf.distribute.InputContext())


def check_is_infinite(
    input_fn: InputFunction,
    job: EstimatorJob,
    params: dict[str, Any],
    config: tf.estimator.RunConfig,
) -> None:
    """Refuses a dataset that may end, where several tasks train: they would not end together.

    Synchronous workers would wait for the one whose shard has ended; asynchronous ones would train
    on when the chief has saved the last checkpoint.

    Raises:
      UsageError: the dataset is not known to be without end, and several tasks train.
    """
    if job.num_input_pipelines == 1:
        return
    given = {"mode": tf.estimator.ModeKeys.TRAIN, "params": params, "config": config}
    # In a graph of its own and before the training, because a graph cannot be asked.
    with tf.Graph().as_default():
        dataset = input_fn(**given, input_context=job.input_context)
        if not isinstance(dataset, tf.data.Dataset):
            return
        with tf.compat.v1.Session() as session:
            batches = int(session.run(dataset.cardinality()))
    if batches != sharding.INFINITE:
        is_unknown = batches == sharding.UNKNOWN
        raise UsageError(
            "input_fn",
            received=f"a dataset of {'unknown length' if is_unknown else f'{batches} batches'}",
            accepted=f"one without end, as {job.num_input_pipelines} tasks train",
            remedy="Call repeat() on it, last of all, and say max_steps.",
        )


def _with_context(input_fn: InputFunction, context: tf.distribute.InputContext) -> InputFunction:
    arguments = _arguments(input_fn)

    # `tf.estimator` looks at these names, and gives a context only under its strategies.
    def call(
        mode: str,
        params: dict[str, Any],
        config: tf.estimator.RunConfig,
        input_context: tf.distribute.InputContext | None = None,
    ) -> Any:
        given = {
            "mode": mode,
            "params": params,
            "config": config,
            "input_context": input_context or context,
        }
        return sharding.without_autotune(input_fn)(
            **{name: value for name, value in given.items() if name in arguments}
        )

    return call


def _arguments(input_fn: InputFunction) -> set[str]:
    """The arguments that a function takes by name and is not given yet."""
    bound = getattr(input_fn, "keywords", {})
    return {*inspect.signature(input_fn).parameters} - {*bound}
