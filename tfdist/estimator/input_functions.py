"""Wraps the input functions of Estimators, so that each task reads its own shard.

sharded(train_input, job)     # an input function for `tf.estimator` with this task's shard
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from tfdist.data import sharding
from tfdist.errors import UsageError
from tfdist.estimator.estimator_job import EstimatorJob

InputFunction = Callable[..., object]


def sharded(input_fn: InputFunction, job: EstimatorJob) -> InputFunction:
    """The training input function of this task.

    Args:
      input_fn: an input function for `tf.estimator` (with any of `mode`, `params` and `config`)
        that takes an `input_context` and returns that shard.
      job: this task's job.

    Raises:
      UsageError: several tasks train, but the function does not take an `input_context`.
    """
    if _num_tasks(job) > 1 and "input_context" not in _arguments(input_fn):
        raise UsageError(
            "input_fn",
            received="a function without input_context",
            accepted=f"a function with it, because {_num_tasks(job)} tasks train",
            remedy="Shard its dataset: dataset.shard(input_context.num_input_pipelines, "
            "input_context.input_pipeline_id).",
        )
    return _with_context(input_fn, job.input_context)


def unsharded(input_fn: InputFunction) -> InputFunction:
    """Wraps the input function of an evaluation, in which one task reads all examples."""
    return _with_context(input_fn, tf.distribute.InputContext())


def check_is_infinite(shard: InputFunction, estimator: tf.estimator.Estimator) -> None:
    """Checks that the dataset is infinite if several tasks train, because shards end at different
    steps.

    When a finite shard ends, synchronous workers would wait for this worker. Asynchronous workers
    would continue to train after the chief has saved the last checkpoint.

    Raises:
      UsageError: several tasks train, and the dataset is not known to be infinite.
    """
    tasks = _num_tasks(estimator.config.job)
    if tasks == 1:
        return
    # In a separate graph before the training, because this needs a session.
    with tf.Graph().as_default():
        dataset = shard(tf.estimator.ModeKeys.TRAIN, estimator.params, estimator.config)
        if not isinstance(dataset, tf.data.Dataset):
            return
        with tf.compat.v1.Session() as session:
            batches = int(session.run(dataset.cardinality()))
    if batches != sharding.INFINITE:
        is_unknown = batches == sharding.UNKNOWN
        raise UsageError(
            "input_fn",
            received=f"a dataset of {'unknown length' if is_unknown else f'{batches} batches'}",
            accepted=f"an infinite dataset, because {tasks} tasks train",
            remedy="Call repeat() on it as the last transformation, and pass max_steps.",
        )


def _with_context(input_fn: InputFunction, context: tf.distribute.InputContext) -> InputFunction:
    arguments = _arguments(input_fn)

    # `tf.estimator` inspects these names, and passes a context only under its own strategies.
    def call(
        mode: str,
        params: dict[str, Any],
        config: tf.estimator.RunConfig,
        input_context: tf.distribute.InputContext | None = None,
    ) -> object:
        given = {
            "mode": mode,
            "params": params,
            "config": config,
            "input_context": input_context or context,
        }
        return sharding.without_autotune(
            input_fn(**{name: value for name, value in given.items() if name in arguments})
        )

    return call


def _arguments(input_fn: InputFunction) -> set[str]:
    """The names of a function's arguments, without those that `functools.partial` has bound."""
    bound = getattr(input_fn, "keywords", {})
    return {*inspect.signature(input_fn).parameters} - {*bound}


def _num_tasks(job: EstimatorJob) -> int:
    """The number of tasks that train, each with a shard of its own."""
    return job.input_context.num_input_pipelines
