"""The tables of `DynamicEmbedding` in a training: who admits which ids, and when rows are freed.

dynamic_tables.distribute(model, strategy, shares_variables=False)    # before the first step
dynamic_tables.evict(model)                                           # before a save
callbacks = [TableFacts(), …]                                         # users_rows, in the logs
"""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import tensorflow as tf

from tfdist.compat import keras as keras_compat
from tfdist.errors import UsageError
from tfdist.layers.dynamic_embedding import of_model
from tfdist.process import quantities
from tfdist.strategies.base import Strategy
from tfdist.strategies.sizes import bytes_of
from tfdist.training.global_batch import of_all_replicas


def distribute(model: Any, strategy: Strategy[Any], shares_variables: bool) -> None:
    """Lets all replicas that have their own copies of a table admit the same ids.

    Args:
      model: a model, which is built.
      strategy: the strategy.
      shares_variables: whether the replicas have the variables in common.

    Raises:
      UsageError: the strategy computes layers where it chooses.
    """
    for table in of_model(model):
        if strategy.topology.joins_batches:
            raise UsageError(
                f"the layer {table.name}",
                received=f"a DynamicEmbedding under {strategy.name}",
                accepted="a layer of tensors only, which it can place and cut",
                remedy="Choose parameter_server, multi_worker_mirrored or horovod.",
            )
        is_copied = strategy.topology.num_replicas > 1 and not shares_variables
        table.gather = partial(of_all_replicas, strategy) if is_copied else None


def evict(model: Any) -> dict[str, np.ndarray]:
    """Frees rows of the tables of a model; returns the ids that had them, by table."""
    optimizers = keras_compat.optimizers_of(model)
    inner = [each for own in optimizers for each in keras_compat.inner_optimizers(own)]
    return {table.name: table.evict(inner) for table in of_model(model)}


def describe(model: Any) -> list[str]:
    """The size of each table of a model, as a line for the user."""
    return [
        f"{table.name}: {table.capacity:,} rows of {table.dimension} columns for ids without a "
        f"vocabulary, {quantities.size(sum(map(bytes_of, table.weights)))}"
        for table in of_model(model)
    ]


class TableFacts(tf.keras.callbacks.Callback):
    """Adds to an epoch's logs how full its dynamic tables are; see `DynamicEmbedding.facts`."""

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        if logs is not None:
            for table in of_model(self.model):
                logs.update({f"{table.name}_{name}": each for name, each in table.facts().items()})
