"""The tables of `DynamicEmbedding` in a training: who admits which ids, and when rows are freed.

dynamic_tables.distribute(model, strategy, …)    # before the first step
dynamic_tables.evict(model)                       # before a save
callbacks = [TableFacts(activity), …]             # users_rows, in the logs
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

import numpy as np
import tensorflow as tf

from tfdist.compat import keras as keras_compat
from tfdist.coordination.liveness.activity import Activity
from tfdist.errors import UsageError, refuse
from tfdist.layers.dynamic_embedding import of_model
from tfdist.process import quantities
from tfdist.strategies.base import Strategy
from tfdist.strategies.sizes import bytes_of
from tfdist.training.global_batch import of_all_replicas


def distribute(
    model: Any,
    strategy: Strategy[Any],
    *,
    is_shared: bool,
    is_loop: bool,
    given: Mapping[str, Any],
) -> None:
    """Lets all replicas that have their own copies of a table admit the same ids.

    Args:
      model: the model.
      strategy: the strategy.
      is_shared: whether the replicas have the variables in common.
      is_loop: whether the steps of a replica are in a loop, where it cannot wait for the others.
      given: flags for dynamic tables, by name, with the values received.

    Raises:
      UsageError: the replicas cannot do so in each step; or the strategy cuts the model; or it has
        no dynamic table and there are flags for them.
    """
    tables = of_model(model, built=False)
    if not tables:
        remedy = "Leave it out, or export the whole model with --export_steps."
        refuse(given, "with a model that has a DynamicEmbedding", remedy)
    topology = strategy.topology
    is_copied = topology.num_replicas > 1 and not is_shared
    received = "a DynamicEmbedding under"
    if topology.joins_batches:
        received += f" {strategy.name}"
    elif is_copied and topology.averages_weights:
        received += " --sync_period"
    elif is_copied and is_loop:
        received += f" {strategy.name} with --accumulate_steps"
    else:
        received = ""
    for table in tables:
        if received:
            raise UsageError(
                f"the layer {table.name}",
                received=received,
                accepted="one where each step of a replica can have the ids of all",
                remedy="Choose parameter_server, or multi_worker_mirrored or horovod without these "
                "flags.",
            )
        table.gather = partial(of_all_replicas, strategy) if is_copied else None


def evict(model: Any) -> dict[str, np.ndarray]:
    """Frees rows of the tables of a model; returns the ids that had them, by table."""
    optimizers = keras_compat.optimizers_of(model)
    inner = [each for own in optimizers for each in keras_compat.inner_optimizers(own)]
    return {table.name: table.evict(inner) for table in of_model(model)}


def describe(model: Any) -> list[str]:
    """How full each table of a model is, as a line for the user."""
    lines = []
    for table in of_model(model):
        rows, size = table.facts()["rows"], quantities.size(sum(map(bytes_of, table.weights)))
        lines.append(f"{table.name} {rows:,} of {table.capacity:,} rows, {size}")
    return lines


class TableFacts(tf.keras.callbacks.Callback):
    """Adds to an epoch's logs how full its dynamic tables are; see `DynamicEmbedding.facts`.

    Args:
      activity: shows it in the panel and in `tfdist status`, too.
    """

    def __init__(self, activity: Activity) -> None:
        super().__init__()
        self._activity = activity

    def on_train_begin(self, logs: dict[str, Any] | None = None) -> None:
        self._activity.describe(tables="; ".join(describe(self.model)))

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        self.on_train_begin()
        if logs is not None:
            for table in of_model(self.model):
                logs.update({f"{table.name}_{name}": each for name, each in table.facts().items()})
