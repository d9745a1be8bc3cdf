"""The tables of `DynamicEmbedding` in a training: who admits which ids, and when rows are freed.

dynamic_tables.distribute(model, strategy, …)    # before the first step
dynamic_tables.evict(model, steps=1200)          # after a save, if the training goes on
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
from tfdist.errors import UsageError, log, refuse
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
    names = [table.name for table in tables]
    topology, optimizers = strategy.topology, _optimizers_of(model)
    is_copied = topology.num_replicas > 1 and not is_shared
    for table in tables:
        if names.count(table.name) > 1:
            raise UsageError(
                f"the layer {table.name}",
                received="two dynamic tables of this name",
                accepted="a name for each table",
                remedy="Pass another name to one of them.",
            )
        received = ""
        if getattr(model, "jit_compile", False):
            received = "a DynamicEmbedding with jit_compile"
        elif any(getattr(each, "use_ema", False) for each in optimizers):
            received = "a DynamicEmbedding with an optimizer that has use_ema"
        elif any(type(each).__name__ == "Adafactor" for each in optimizers):
            received = "a DynamicEmbedding with Adafactor"
        elif topology.joins_batches:
            received = f"a DynamicEmbedding under {strategy.name}"
        elif is_copied and topology.averages_weights:
            received = "a DynamicEmbedding under --sync_period"
        elif is_copied and is_loop:
            received = f"a DynamicEmbedding under {strategy.name} with --accumulate_steps"
        if received:
            raise UsageError(
                f"the layer {table.name}",
                received=received,
                accepted="one without XLA, with an optimizer that knows nothing of rows without an "
                "id, where each step of a replica can have the ids of all",
                remedy="Leave it out, or choose parameter_server, multi_worker_mirrored or horovod "
                "without these flags.",
            )
        table.gather = partial(of_all_replicas, strategy) if is_copied else None


def evict(model: Any, steps: int) -> dict[str, np.ndarray]:
    """Frees rows of the tables of a model, after a number of train steps.

    Returns:
      The ids that had these rows, by table.
    """
    optimizers = _optimizers_of(model)
    return {table.name: table.evict(optimizers, steps) for table in of_model(model)}


def _optimizers_of(model: Any) -> list[Any]:
    optimizers = keras_compat.optimizers_of(model)
    return [each for own in optimizers for each in keras_compat.inner_optimizers(own)]


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
      is_chief: whether this task warns of a table that is not trained.
    """

    def __init__(self, activity: Activity, *, is_chief: bool) -> None:
        super().__init__()
        self._activity, self._warns = activity, is_chief

    def on_train_begin(self, logs: dict[str, Any] | None = None) -> None:
        self._activity.describe(tables="; ".join(describe(self.model)))

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        self.on_train_begin()
        for table in of_model(self.model) if self._warns else ():
            if not table.calls() and table.trainable:
                self._warns = False  # Once is enough.
                log(
                    f"warning: the table {table.name} has met no id in training: pass it the "
                    "argument training of the model's call"
                )
        if logs is not None:
            for table in of_model(self.model):
                logs.update({f"{table.name}_{name}": each for name, each in table.facts().items()})
