"""Checks for training data that a task cannot use, or that the tasks would not share.

check_batched(shard)                # raises UsageError
warn_if_too_few(strategy, batches)  # every training task must call it
"""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from tfdist.data.feed import Feed
from tfdist.errors import UsageError, log
from tfdist.strategies.base import Strategy, Topology


def check_batched(shard: tf.data.Dataset) -> None:
    """Raises UsageError for a shard of single examples."""
    specs = [
        each for each in tf.nest.flatten(shard.element_spec) if isinstance(each, tf.TensorSpec)
    ]
    known = [spec for spec in specs if spec.shape.rank is not None]
    # A batch of all its parts has one size, which is unknown in most datasets.
    sizes = {spec.shape[0] if spec.shape.rank else () for spec in known}
    is_single = () in sizes or (len(sizes) > 1 and None not in sizes)
    # A train step of one's own may take numbers, but hardly pairs of them.
    if is_single and isinstance(shard.element_spec, tuple):
        shapes = ", ".join(f"{spec.dtype.name} of shape {spec.shape}" for spec in known)
        raise UsageError(
            "training data",
            received=f"elements without a batch: {shapes}",
            accepted="batches of the per-replica size",
            remedy="Call dataset.batch(size) in the input function.",
        )


def warn_if_not_sharded(feed: Feed, topology: Topology) -> None:
    """Warns, in the chief, of an input function that returns the whole dataset for each shard."""
    if topology.is_chief and feed.is_not_sharded:
        log(
            f"warning: each of the {topology.num_shards} shards has all "
            f"{int(feed.batches.cardinality())} batches of the training data, so each example is "
            "used several times per epoch. "
            "Shard the dataset by the context, or return all of it from a function without a "
            "parameter"
        )


def warn_if_too_few(strategy: Strategy[Any], batches: int) -> None:
    """Warns of tasks without any batch. Every training task must call it.

    Args:
      strategy: the job's strategy.
      batches: the number of batches of this task's shard.
    """
    of_tasks = strategy.gather(batches)
    idle = of_tasks.count(0)
    if idle and strategy.topology.is_chief:
        log(f"warning: {idle} of {len(of_tasks)} tasks have no batch of the training data")


def warn_if_not_shared(topology: Topology) -> None:
    """Warns, in the chief, of data of `fit` that is not from `job.dataset`.

    Args:
      topology: the replicas and tasks of the job.
    """
    if topology.is_chief and max(topology.num_replicas, len(topology.peers)) > 1:
        log(
            "warning: the data of fit is not from job.dataset, so tfdist does not shard it. "
            "A tf.distribute strategy divides each batch of a tf.data.Dataset among its replicas; "
            "otherwise, each task trains on all of the data. Use model.fit(job.dataset(data), …)"
        )
