"""`horovod`: ring all-reduce by Horovod, over Gloo, MPI or NCCL.

Started by `horovodrun` (or `tfdist run`), Horovod's own environment says who is who. Started from
a cluster description, chief and workers are the ranks in that order, and rank 0 serves Horovod's
rendezvous on its address.
"""

from __future__ import annotations

import atexit
import math
import os
from collections.abc import Iterable, Sequence
from functools import partial
from typing import Any

import tensorflow as tf
from absl import logging

from tfdist import compat, versions
from tfdist import horovod_rendezvous as rendezvous
from tfdist.cluster import host_and_port
from tfdist.errors import UsageError
from tfdist.flags import JobFlags
from tfdist.strategies import keras3
from tfdist.strategies.collectives import by_dtype
from tfdist.strategies.devices import check_one_gpu, use_devices
from tfdist.strategies.gradient_dtype import not_sent_in
from tfdist.strategies.local_sgd import outer_steps
from tfdist.strategies.packing import over_packs
from tfdist.strategies.ranks import Ranks
from tfdist.strategies.session_contract import NOT_WRAPPED
from tfdist.strategies.v1_optimizers import distributed

try:
    import horovod.tensorflow as hvd
except ImportError as error:
    raise ImportError(
        versions.refusal(
            "horovod", tensorflow=tf.__version__, keras=compat.keras_of(tf.keras.Model).__version__
        )
        or "The strategy horovod needs Horovod, built against this TensorFlow: run "
        "scripts/build_horovod, or HOROVOD_WITH_TENSORFLOW=1 HOROVOD_WITH_GLOO=1 pip install "
        "--no-build-isolation horovod==0.28.1."
    ) from error


_GLOO_TIMEOUT = "HOROVOD_GLOO_TIMEOUT_SECONDS"


class Horovod(Ranks):
    """Every rank with a copy of the variables; Horovod averages the gradients."""

    name = "horovod"

    def optimizer(self, optimizer: Any) -> Any:
        """`optimizer` with its gradients averaged over the ranks, unless each steps by itself."""
        if self.local:
            return optimizer
        self._averages = True
        compression = hvd.Compression.fp16 if self._options.gradient_dtype else hvd.Compression.none
        if compat.is_keras_3(optimizer):
            # Horovod's own wrapper of such an optimizer reduces nothing, and does not say so.
            return keras3.applies(optimizer, partial(_averages, compression=compression))
        wrap = partial(hvd.DistributedOptimizer, compression=compression)
        if self.for_estimators:
            return distributed(optimizer, wrap)
        own = getattr(optimizer, "inner_optimizer", optimizer)
        if not isinstance(own, tf.keras.optimizers.Optimizer):
            return wrap(optimizer)

        # Horovod's own wrapper averages in `minimize` alone, and a train step of the user's own
        # calls `apply_gradients`.
        def aggregate_gradients(pairs: Iterable[tuple[Any, tf.Variable]]) -> list[Any]:
            pairs = list(pairs)
            gradients, variables = [pair[0] for pair in pairs], [pair[1] for pair in pairs]
            averages = _averages(gradients, variables, compression=compression)
            return list(zip(averages, variables, strict=True))

        own.aggregate_gradients = aggregate_gradients
        return optimizer

    def check(self, model: tf.keras.Model) -> None:
        super().check(model)
        if self.local:
            return
        optimizer, is_keras_3 = model.optimizer, compat.is_keras_3(model)
        if is_keras_3:
            keras3.check_optimizer(optimizer, self.name)
            if model.jit_compile:
                # Keras chooses it by itself where there is a GPU; Horovod is no part of XLA.
                logging.warning("jit_compile is off: XLA cannot compile the steps of Horovod.")
                model.jit_compile = False
                model.make_train_function(force=True)
        if not self._averages and self._options.gradient_dtype:
            raise not_sent_in(self._options.gradient_dtype, optimizer)
        if keras3.is_wrapped(optimizer) if is_keras_3 else _averages_itself(model):
            return
        is_horovods = type(optimizer).__module__.startswith("horovod.")
        raise UsageError(
            "optimizer",
            received="that of hvd.DistributedOptimizer, which reduces no gradients of Keras 3"
            if is_horovods
            else f"{type(optimizer).__name__} as it is, whose gradients are not reduced",
            accepted="what job.optimizer returns, under horovod",
            remedy="Give model.compile job.optimizer(optimizer); for float16 that of a "
            "LossScaleOptimizer.",
        )

    def session_hooks(self) -> list[tf.compat.v1.train.SessionRunHook]:
        return [_broadcast_hook(self)]

    def agreed(self, number: int) -> int:
        # In a session, because scripts of Estimators may have turned eager execution off.
        with tf.Graph().as_default(), tf.compat.v1.Session(config=self.session_config) as session:
            return int(session.run(hvd.broadcast(tf.constant(number, tf.int64), root_rank=0)))

    @property
    def trainers(self) -> tuple[str, tuple[str, ...]]:
        return str(hvd.rank()), tuple(map(str, range(hvd.size())))

    @property
    def board(self) -> rendezvous.KeyValueStore | None:
        if hvd.size() == 1:
            return None
        return rendezvous.KeyValueStore(
            os.environ["HOROVOD_GLOO_RENDEZVOUS_ADDR"],
            int(os.environ["HOROVOD_GLOO_RENDEZVOUS_PORT"]),
        )

    def _set_up(self, options: JobFlags) -> None:
        check_one_gpu(options.num_gpus, self.name, "Start a rank for each GPU.")
        if compat.is_keras_3(tf.keras.Model):
            keras3.weigh_scalar_losses()
        self._averages = False
        if self.cluster:
            self._find_the_others()
        if options.heartbeat_timeout is not None or _GLOO_TIMEOUT not in os.environ:
            # Read in hvd.init(), in whole seconds.
            os.environ[_GLOO_TIMEOUT] = str(math.ceil(self.heartbeat_timeout))
        hvd.init()
        self._set_up_ranks(_Collectives(), outer_steps(options))
        if compat.is_keras_3(tf.keras.Model) and not self.is_chief:
            keras3.leave_saving_to_the_chief()
        use_devices(options.num_gpus, local_rank=hvd.local_rank())
        self.strategy = tf.distribute.get_strategy()

    def _find_the_others(self) -> None:
        trainers = self.cluster.trainers
        host, port = host_and_port(self.cluster.address(trainers[0]))
        slots = rendezvous.slots(
            [host_and_port(self.cluster.address(task))[0] for task in trainers]
        )
        rank = trainers.index(self.task)
        if rank == 0:
            server = rendezvous.serve(slots, host, port)
            server.__enter__()
            atexit.register(server.__exit__, None, None, None)
        # Horovod reads the environment only, in hvd.init().
        variables = rendezvous.environment(slots[rank], host, port)
        if rendezvous.INTERFACE_VARIABLE in os.environ:  # The user knows the network better.
            variables.pop(rendezvous.INTERFACE_VARIABLE, None)
        os.environ.update(variables)
        # Horovod gives the others 30 seconds to start, and then aborts.
        rendezvous.meet(host, port, rank, len(slots), timeout=self.startup_timeout)


def _averages_itself(model: tf.keras.Model) -> bool:
    """Whether Horovod averages a compiled model of Keras 2, as far as can be seen.

    A train step of the user's own may do so with `hvd.DistributedGradientTape`.
    """
    if type(model).train_step is not compat.keras_of(model).Model.train_step:
        return True
    own = getattr(model.optimizer, "inner_optimizer", model.optimizer)
    if "aggregate_gradients" in vars(own):
        return True
    # Horovod makes a class of its own for each optimizer, which no other name tells.
    return any(hasattr(optimizer, "_allreduce_grads") for optimizer in (model.optimizer, own))


def _averages(gradients: Sequence[Any], _: Any, *, compression: Any) -> list[Any]:
    """The averages over the ranks; None where there is no gradient."""
    average = partial(hvd.allreduce, compression=compression)
    averages: list[Any] = [
        average(gradient) if isinstance(gradient, tf.IndexedSlices) else None
        for gradient in gradients
    ]
    # What was accumulated may be in variables.
    dense = {
        place: tf.convert_to_tensor(gradient)
        for place, gradient in enumerate(gradients)
        if gradient is not None and not isinstance(gradient, tf.IndexedSlices)
    }
    for place, found in zip(dense, over_packs(average, list(dense.values())), strict=True):
        averages[place] = found
    return averages


def _broadcast_hook(job: Horovod) -> tf.compat.v1.train.SessionRunHook:
    """Gives every rank the variables of rank 0, whose gradients it then averages."""

    # Horovod has none where TensorFlow has no Estimators.
    class Broadcast(hvd.BroadcastGlobalVariablesHook):
        def begin(self) -> None:
            if not job._averages:
                raise RuntimeError(NOT_WRAPPED)
            super().begin()

    return Broadcast(root_rank=0)


class _Collectives:
    """Horovod's collectives, as `tfdist.strategies.collectives` has them."""

    @property
    def rank(self) -> int:
        return int(hvd.rank())

    @property
    def size(self) -> int:
        return int(hvd.size())

    def sum(self, values: Sequence[tf.Tensor]) -> list[tf.Tensor]:
        return by_dtype(partial(hvd.grouped_allreduce, op=hvd.Sum), values)

    def gather(self, number: int) -> list[int]:
        return [int(value) for value in hvd.allgather(tf.constant([number], tf.int64))]

    def broadcast(self, variables: Sequence[tf.Variable]) -> None:
        hvd.broadcast_variables(compat.as_tensorflow(variables), root_rank=0)

    def say(self, text: str) -> str:
        said: str = hvd.broadcast_object(text, root_rank=0)
        return said
