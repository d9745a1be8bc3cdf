"""How a dataset that is sharded already reaches Keras, which would shard and split it again.

    dataset = for_keras(Shards(local), steps)    # a tf.data.Dataset, with which `fit` can start
    class Strategy(TakesShards, tf.distribute.MirroredStrategy): …

Keras calls `strategy.experimental_distribute_dataset`, which takes a batch for the global one and
divides it. `TakesShards` recognises what `for_keras` returned and gives each replica its own batch.
"""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import tensorflow as tf

from tfdist.upstream import dataset_inputs, tf_data_autotune

UNKNOWN = int(tf.data.UNKNOWN_CARDINALITY)
INFINITE = int(tf.data.INFINITE_CARDINALITY)

_SHARDS = "_tfdist_shards"


@dataclass(frozen=True)
class Shards:
    """What a dataset of `job.dataset` stands for.

    Attributes:
      local: this task's shard, in batches of the per-replica size.
      makers: for each worker a function that makes its shard, where the chief places them.
      trains: whether it is trained on, so that a resumed job goes on within it.
    """

    local: tf.data.Dataset
    makers: tuple[Callable[[], tf.data.Dataset], ...] = ()
    trains: bool = False


def for_keras(shards: Shards, steps: int) -> tf.data.Dataset:
    """A dataset of the shards' elements that says it has `steps` of them, and remembers them.

    Args:
      shards: what will be read in its place.
      steps: steps of an epoch, the same in every task; UNKNOWN or INFINITE where that is so.
    """
    local = shards.local
    if steps == UNKNOWN:
        # A filter hides the cardinality of this task's shard, which is not that of an epoch.
        keras_dataset = local.filter(lambda *_: True)
    elif steps == INFINITE:
        keras_dataset = local.repeat()
    else:
        keras_dataset = local.apply(tf.data.experimental.assert_cardinality(steps))
    setattr(keras_dataset, _SHARDS, shards)
    return keras_dataset


def shards_of(dataset: Any) -> Shards | None:
    """The shards that `for_keras` was given; None for any other dataset.

    Raises:
      ValueError: the dataset was made from such a one, as Keras does for `class_weight`.
    """
    shards: Shards | None = getattr(dataset, _SHARDS, None)
    if shards is None and isinstance(dataset, tf.data.Dataset):
        for ancestor in dataset_inputs.ancestors(dataset):
            if hasattr(ancestor, _SHARDS):
                raise ValueError(
                    "A dataset of job.dataset was changed before it was distributed (Keras does "
                    "so for class_weight). Make the change in the dataset function: return "
                    "sample weights as a third element, for instance."
                )
    return shards


def without_autotune(dataset_fn: Callable[..., Any]) -> Callable[..., Any]:
    """`dataset_fn` whose datasets are not autotuned, but where their own options say that they are.

    The autotuning thread sleeps for ever longer, and the end of an iterator waits for it: after
    each epoch up to as long as the iterator has lived. What is to be chosen automatically then has
    TensorFlow's fixed values: as many parallel calls as there are threads, at most 16.
    """
    tf_data_autotune.apply()

    @functools.wraps(dataset_fn)
    def call(*args: Any, **kwargs: Any) -> Any:
        dataset = dataset_fn(*args, **kwargs)
        if not isinstance(dataset, tf.data.Dataset):
            return dataset
        with warnings.catch_warnings():
            # In a graph it warns that serialization loses the options.
            warnings.simplefilter("ignore")
            is_said = dataset.options().autotune.enabled is not None
        if is_said:
            return dataset
        options = tf.data.Options()
        options.autotune.enabled = False
        return dataset.with_options(options)

    return call


def count_batches(dataset: tf.data.Dataset) -> int:
    """How many batches `dataset` has, found by reading it once if need be; INFINITE if so."""
    batches = int(dataset.cardinality())
    if batches == UNKNOWN:
        batches = int(dataset.reduce(tf.constant(0, tf.int64), lambda count, _: count + 1))
    return batches


def with_repeats(dataset: tf.data.Dataset, count: int, source: tf.data.Dataset) -> tf.data.Dataset:
    """`dataset` and after it `count` batches of one example: the first of `source`.

    `source` is another dataset of the same examples, because reading from `dataset` would change
    the order into which it shuffles its next epoch.
    """
    batch = source.unbatch().batch(1).take(1).get_single_element()
    return dataset.concatenate(tf.data.Dataset.from_tensors(batch).repeat(count))


def empty_batches(dataset: tf.data.Dataset, count: int) -> tf.data.Dataset:
    """`count` batches without an example, of the elements of `dataset`."""

    def without_examples(*batch: Any) -> Any:
        emptied = tf.nest.map_structure(lambda tensor: tensor[:0], batch)
        # `map` hands a batch that is not a tuple over as its one argument.
        return emptied if isinstance(dataset.element_spec, tuple) else emptied[0]

    return dataset.take(1).map(without_examples).repeat(count)


class TakesShards:
    """For a `tf.distribute.Strategy`: gives each replica the batches of its own task's shard."""

    def experimental_distribute_dataset(self, dataset: Any, options: Any = None) -> Any:
        shards = shards_of(dataset)
        if shards is None:
            return super().experimental_distribute_dataset(dataset, options)  # type: ignore[misc]
        return self.distribute_datasets_from_function(  # type: ignore[attr-defined]
            lambda _: shards.local, options
        )
