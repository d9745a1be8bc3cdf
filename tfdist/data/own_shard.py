"""Selects this task's shard of the example datasets, CIFAR-10 and MNIST."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tfdist.errors import UsageError

if TYPE_CHECKING:
    import tensorflow as tf


def own_shard(
    input_context: tf.distribute.InputContext | None, examples: int, batch_size: int
) -> tuple[int, int]:
    """The number of input pipelines, and the index of this one.

    Args:
      input_context: selects the shard; None for all examples.
      examples: the number of all examples.
      batch_size: the number of examples per batch.

    Raises:
      UsageError: the batch size is below 1, or there are more input pipelines than examples.
    """
    import tensorflow as tf

    if batch_size < 1:
        raise UsageError(
            "batch_size",
            received=batch_size,
            accepted="an integer of at least 1",
            remedy="Choose a larger number.",
        )
    context = input_context or tf.distribute.InputContext()
    pipelines = context.num_input_pipelines
    if pipelines > examples:
        raise UsageError(
            "input_context",
            received=f"{pipelines} input pipelines",
            accepted=f"at most {examples}, the number of examples",
            remedy="Use fewer workers or more data.",
        )
    return pipelines, context.input_pipeline_id


def sharded_options(input_context: tf.distribute.InputContext | None) -> tf.data.Options:
    """Options that fix a dataset's order, and keep `fit` from sharding a shard again."""
    import tensorflow as tf

    options = tf.data.Options()
    options.autotune.enabled = False
    options.deterministic = True
    # The whole data cannot be sharded by files, because their cardinality is asserted.
    policy = tf.data.experimental.AutoShardPolicy
    options.experimental_distribute.auto_shard_policy = policy.OFF if input_context else policy.DATA
    return options
