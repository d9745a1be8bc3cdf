"""`Feed`: the user's data for a training or an evaluation, as a strategy reads it.

feed = Feed(train_input, topology.input_context, trains=True, accumulate_steps=4)
feed.local                       # this task's shard, in groups of 4 batches
feed.shard(other_context)        # another one, for the worker that reads it
"""

from __future__ import annotations

import functools
from typing import Any

import tensorflow as tf

from tfdist.data import inputs, sharding
from tfdist.data.inputs import Data
from tfdist.errors import UsageError
from tfdist.upstream import dataset_inputs


class Feed:
    """The user's data, as a dataset for each shard.

    The user's function is called once for `batches`, `local` and what follows from them, and once
    for each call of `shard`.

    Args:
      data: what the user has passed; see `inputs.shard_function`.
      context: the argument of the input function in this task.
      trains: whether this is training data.
      batch_size: the number of arrays' rows in a batch of a replica.
      reads_here: whether this process reads its shard itself; otherwise others read the shards.
      accumulate_steps: the number of batches that are joined in a group, for one update.

    Attributes:
      data: what the user has passed.
      trains: whether this is training data, which may repeat examples if the engine needs equal
        numbers of steps. Evaluation data contains every example once.

    Raises:
      UsageError: the data is something else, or the tasks would not get different shards of it.
    """

    def __init__(
        self,
        data: Data,
        context: tf.distribute.InputContext,
        *,
        trains: bool,
        batch_size: int | None = None,
        reads_here: bool = True,
        accumulate_steps: int = 1,
    ) -> None:
        self.data = data
        self.trains = trains
        self._context = context
        self._accumulate_steps = accumulate_steps
        self._function = inputs.shard_function(
            data if inputs.is_whole(data) else self._call,
            trains=trains,
            batch_size=batch_size,
            reads_here=reads_here,
        )
        self._shards = True

    @functools.cached_property
    def batches(self) -> tf.data.Dataset:
        """This task's shard as the input function returns it, in batches."""
        return sharding.without_autotune(self._function(self._context))

    @functools.cached_property
    def local(self) -> tf.data.Dataset:
        """This task's shard, in the groups of batches that a step uses."""
        return self._grouped(self.batches)

    def shard(self, context: tf.distribute.InputContext) -> tf.data.Dataset:
        """A new dataset of the shard that `context` selects, in groups."""
        return self._grouped(sharding.without_autotune(self._function(context)))

    @property
    def batch_size(self) -> int | None:
        """The number of examples of a per-replica batch; None if it is unknown."""
        return dataset_inputs.batch_size(self.batches)

    @property
    def is_not_sharded(self) -> bool:
        """Whether the input function returns the whole dataset although other tasks also read it:
        it has not read the index of its shard."""
        datasets = [self.batches, *dataset_inputs.ancestors(self.batches)]
        if self._shards or self._context.num_input_pipelines == 1:
            return False
        sizes = [int(each.cardinality()) for each in datasets]
        # A single batch may be the shard of a small dataset; negative numbers are unknown and
        # infinite. A generator, whose length is unknown, may still ask when it is read.
        return sizes[0] > 1 and sharding.UNKNOWN not in sizes

    def _call(self, context: tf.distribute.InputContext) -> tf.data.Dataset:
        """Calls the user's function, and records whether it reads the index of its shard."""
        function: Any = self.data
        own = _Context(
            context.num_input_pipelines, context.input_pipeline_id, context.num_replicas_in_sync
        )
        dataset: tf.data.Dataset = function(own)
        self._shards = own.was_asked
        return dataset

    def _grouped(self, dataset: tf.data.Dataset) -> tf.data.Dataset:
        steps = self._accumulate_steps
        return grouped(dataset, steps) if steps > 1 else dataset


class _Context(tf.distribute.InputContext):
    """The argument of an input function; records whether the function uses it to shard.

    Attributes:
      was_asked: whether the index of the shard was read.
    """

    was_asked = False

    @property
    def input_pipeline_id(self) -> int:
        self.was_asked = True
        number: int = super().input_pipeline_id
        return number


def grouped(dataset: tf.data.Dataset, steps: int) -> tf.data.Dataset:
    """Joins the batches of a dataset in groups.

    Args:
      dataset: batches of tensors; all but the last have the same size.
      steps: the number of batches in a group.

    Raises:
      UsageError: the size of the batches is unknown, or the elements are not dense tensors.
    """
    size = dataset_inputs.batch_size(dataset)
    specs: list[Any] = tf.nest.flatten(dataset.element_spec)
    if size is None or not all(isinstance(spec, tf.TensorSpec) for spec in specs):
        raise UsageError(
            "--accumulate_steps",
            received=f"{steps}, with elements {dataset.element_spec}",
            accepted="a dataset of dense tensors that batch(size) has joined",
            remedy="Leave it out, or call dataset.batch(size) in the input function.",
        )
    groups = dataset.rebatch(size * steps)
    # Unknown in a graph, such as that in which a worker makes its shard.
    batches = tf.get_static_value(dataset.cardinality())
    if batches is None or batches < 0:
        return groups
    return groups.apply(tf.data.experimental.assert_cardinality(-(-batches // steps)))
