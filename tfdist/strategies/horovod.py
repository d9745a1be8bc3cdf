"""`horovod`: synchronous ring all-reduce by Horovod, over Gloo, MPI or NCCL.

`horovodrun` and `tfdist run` set Horovod's own environment variables. A job that is started from a
cluster description maps the chief and the workers to ranks in this order, and rank 0 serves
Horovod's rendezvous on its address.
"""

from __future__ import annotations

import atexit
import math
import os
import sys
from collections.abc import Sequence
from functools import partial
from typing import Any

import tensorflow as tf
from absl import logging

from tfdist.cluster import host_and_port
from tfdist.compat import checks
from tfdist.compat import keras as keras_compat
from tfdist.compat.denominators import reduce_weighted
from tfdist.compat.gradients import distinct
from tfdist.config.strategies.rows import HorovodGradientOptions
from tfdist.coordination import startup
from tfdist.coordination.stores import horovod_rendezvous
from tfdist.coordination.stores.kv_store import RendezvousStore
from tfdist.errors import UsageError
from tfdist.process.devices import use_devices
from tfdist.strategies.collectives import Collectives, by_dtype, in_packs
from tfdist.strategies.keras2_gradients import reduce_gradients
from tfdist.strategies.ranks import Ranks
from tfdist.strategies.replicas import collective_sparse_gradients
from tfdist.upstream import (
    horovod_optimizer,
    keras3_callbacks,
    keras3_loss,
    keras3_optimizer,
    synchronized_layers,
)

try:
    import horovod.tensorflow as hvd
except ImportError as error:
    raise ImportError(
        "The strategy horovod needs Horovod, built against this TensorFlow: run "
        "`tfdist horovod build`."
    ) from error


_GLOO_TIMEOUT = "HOROVOD_GLOO_TIMEOUT_SECONDS"


class Horovod(Ranks[HorovodGradientOptions]):
    """Every rank has a copy of the variables; Horovod averages the gradients."""

    name = "horovod"

    def set_up(self, options: HorovodGradientOptions) -> None:
        is_keras_3 = keras_compat.is_keras_3(tf.keras.Model)
        if is_keras_3:
            keras3_loss.apply()
        if self.cluster:
            self._find_peers()
        if self.settings.given_heartbeat_timeout is not None or _GLOO_TIMEOUT not in os.environ:
            # hvd.init reads this variable, in whole seconds.
            os.environ[_GLOO_TIMEOUT] = str(math.ceil(self.settings.heartbeat_timeout))
        hvd.init()
        self.kv_store = self._rendezvous_store()
        self.set_up_ranks(HorovodCollectives())
        if not self.cluster:
            # There was no startup barrier.
            script = sys.argv[0]
            self.agreement.check("starting", lambda: startup.versions(("horovod",), script))
        if is_keras_3 and not self.topology.is_chief:
            keras3_callbacks.apply()
        use_devices(self.settings.num_gpus, local_rank=hvd.local_rank())

    def wrap_optimizer(self, optimizer: Any) -> Any:
        if self.local or horovod_optimizer.is_distributed(optimizer):
            return optimizer
        if keras_compat.is_keras_3(optimizer):
            # Horovod's own wrapper does not reduce the gradients of a Keras 3 optimizer.
            return keras3_optimizer.apply_reduced(optimizer, self.averages)
        # Horovod's own wrapper averages only in `minimize`, and a user-defined train step may call
        # `apply_gradients`.
        return reduce_gradients(optimizer, self.averages)

    def averages(self, gradients: Sequence[Any], variables: Sequence[Any]) -> list[Any]:
        """The gradients of the whole batch, from those of the ranks.

        Args:
          gradients: tensors, `tf.IndexedSlices`, or None.
          variables: their variables.
        """
        compression = hvd.Compression.fp16 if self.options.gradient_dtype else hvd.Compression.none
        reduce = partial(_sums_of, compression=compression)
        sums = partial(collective_sparse_gradients.with_small_tables, reduce=reduce)
        return reduce_weighted(gradients, variables, sums, replicas=hvd.size())

    def prepare(self, model: tf.keras.Model) -> None:
        super().prepare(model)
        if model.jit_compile:
            # Keras 3 turns it on by itself on a GPU.
            logging.warning("jit_compile is off: XLA cannot compile the steps of Horovod.")
            model.jit_compile = False
        if self.local:
            return
        synchronized_layers.reduce_over_ranks(model, self.collectives.sum)
        if not keras_compat.is_keras_3(model):
            return
        optimizers = keras_compat.optimizers_of(model)
        if any(map(horovod_optimizer.is_distributed, optimizers)):
            raise UsageError(
                "optimizer",
                received="an optimizer of hvd.DistributedOptimizer, which does not reduce the "
                "gradients of Keras 3",
                accepted="a Keras optimizer, under horovod",
                remedy="Compile the model with the Keras optimizer; tfdist wraps it.",
            )
        for optimizer in optimizers:
            checks.check_optimizer(optimizer, self.name)

    def _rendezvous_store(self) -> RendezvousStore | None:
        host = os.environ.get("HOROVOD_GLOO_RENDEZVOUS_ADDR")
        if hvd.size() == 1 or host is None:  # MPI has no such store.
            return None
        port = int(os.environ["HOROVOD_GLOO_RENDEZVOUS_PORT"])
        return RendezvousStore(host, port, self.settings.token)

    def _find_peers(self) -> None:
        trainers = self.cluster.training_tasks
        host, port = host_and_port(self.cluster.address(trainers[0]))
        hosts = [host_and_port(self.cluster.address(task))[0] for task in trainers]
        rank = trainers.index(self.task)
        if rank == 0:
            server = horovod_rendezvous.serve_hosts(hosts, host, port, self.settings.token)
            server.__enter__()
            atexit.register(server.__exit__, None, None, None)
        # hvd.init reads only the environment.
        variables = horovod_rendezvous.environment_of(hosts, rank, host, port)
        if horovod_rendezvous.INTERFACE_VARIABLE in os.environ:
            variables.pop(horovod_rendezvous.INTERFACE_VARIABLE, None)
        os.environ.update(variables)
        # Horovod aborts if the rendezvous does not answer.
        horovod_rendezvous.wait_for_server(host, port, self.settings.startup_timeout)


class HorovodCollectives(Collectives):
    """Horovod's collectives, as `tfdist.strategies.collectives` defines them."""

    def __init__(self) -> None:
        self.rank = int(hvd.rank())
        self.size = int(hvd.size())

    def sum(self, values: Sequence[tf.Tensor]) -> list[tf.Tensor]:
        return by_dtype(partial(hvd.grouped_allreduce, op=hvd.Sum), values)

    def broadcast(self, variables: Sequence[tf.Variable]) -> None:
        hvd.broadcast_variables(keras_compat.as_tensorflow(variables), root_rank=0)


def _sums_of(gradients: Sequence[Any], *, compression: Any) -> list[Any]:
    present = [each for each in gradients if each is not None]
    dense = [each for each in present if not isinstance(each, tf.IndexedSlices)]
    reduce = partial(hvd.grouped_allreduce, op=hvd.Sum, compression=compression)
    totals = iter(by_dtype(partial(in_packs, reduce), dense))
    sums: list[Any] = []
    for gradient in gradients:
        if isinstance(gradient, tf.IndexedSlices):
            sums.append(_sum_rows(gradient, compression))
        else:
            sums.append(None if gradient is None else next(totals))
    return sums


def _sum_rows(gradient: tf.IndexedSlices, compression: Any) -> tf.IndexedSlices:
    """Sums a sparse gradient over the ranks: gathers the rows, or sums a dense table."""
    gradient = distinct(gradient)
    rows = tf.size(gradient.indices)
    reduce = partial(hvd.allreduce, op=hvd.Sum, compression=compression)

    def gather() -> tf.IndexedSlices:
        sent, dtype = compression.compress(gradient)
        found = collective_sparse_gradients.gathered(sent, _round_up(rows), hvd.allgather)
        return compression.decompress(found, dtype)

    # Two ranks never have more rows than two tables.
    if hvd.size() <= 2:
        return gather()
    all_rows = hvd.allreduce(rows, op=hvd.Sum)
    return collective_sparse_gradients.rows_or_table(
        gradient, all_rows, gather=gather, reduce=reduce
    )


def _round_up(rows: tf.Tensor) -> tf.Tensor:
    """Rounds up a number of rows, because Horovod sends more messages when a shape changes."""
    eighth = tf.cast(tf.maximum(rows, 64), tf.float32) / 8
    step = tf.cast(2.0 ** tf.floor(tf.math.log(eighth) / math.log(2.0)), rows.dtype)
    return -(-rows // step) * step
