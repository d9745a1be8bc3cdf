"""`horovod`: ring all-reduce by Horovod, over Gloo, MPI or NCCL.

Started by `horovodrun` (or `tfdist run`), Horovod's own environment says who is who. Started from
a cluster description, chief and workers are the ranks in that order, and rank 0 serves Horovod's
rendezvous on its address.
"""

from __future__ import annotations

import atexit
import math
import os
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import tensorflow as tf

from tfdist import horovod_rendezvous as rendezvous
from tfdist.checkpoints import Position
from tfdist.cluster import host_and_port
from tfdist.flags import JobFlags
from tfdist.strategies import datasets
from tfdist.strategies.base import DatasetFunction, Job
from tfdist.strategies.devices import use_devices
from tfdist.strategies.redealt import Rest, rest_of_epoch
from tfdist.strategies.session_contract import NOT_WRAPPED
from tfdist.strategies.v1_optimizers import distributed

try:
    import horovod.tensorflow as hvd
except ImportError as error:
    raise ImportError(
        "The strategy horovod needs Horovod, built against this TensorFlow: run "
        "scripts/build_horovod, or HOROVOD_WITH_TENSORFLOW=1 HOROVOD_WITH_GLOO=1 pip install "
        "--no-build-isolation horovod==0.28.1."
    ) from error


_GLOO_TIMEOUT = "HOROVOD_GLOO_TIMEOUT_SECONDS"


class Horovod(Job):
    """Every rank with a copy of the variables; Horovod averages the gradients."""

    name = "horovod"

    @property
    def is_chief(self) -> bool:
        return bool(hvd.rank() == 0)

    @property
    def num_replicas(self) -> int:
        return int(hvd.size())

    @property
    def num_input_pipelines(self) -> int:
        return self.num_replicas

    @property
    def input_pipeline_id(self) -> int:
        return int(hvd.rank())

    @property
    def num_local_replicas(self) -> int:
        return 1

    def scope(self) -> AbstractContextManager[Any]:
        return nullcontext()

    def optimizer(self, optimizer: Any) -> Any:
        """`optimizer` with its gradients averaged over the ranks."""
        self._averages = True
        if self.for_estimators:
            return distributed(optimizer, hvd.DistributedOptimizer)
        return hvd.DistributedOptimizer(optimizer)

    def session_hooks(self) -> list[tf.compat.v1.train.SessionRunHook]:
        return [_Broadcast(self)]

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

    def engine_callbacks(self) -> list[tf.keras.callbacks.Callback]:
        return [_ClusterMetrics(), _AveragedStatistics()]

    def start_equal(self, model: tf.keras.Model, position: Position) -> Position:
        """Gives every rank the epoch, the weights and the optimizer's state of rank 0.

        Raises:
          ValueError: the model has no weights yet.
        """
        if not model.built:
            raise ValueError(
                "model: received one without weights; accepted under horovod: a built one, whose "
                "weights all ranks can start with. Give it an Input layer or call model.build."
            )
        optimizer_variables = model.optimizer.variables
        if callable(optimizer_variables):
            optimizer_variables = optimizer_variables()
        # Keras does not count the learning rate among the optimizer's variables.
        learning_rate = model.optimizer.learning_rate
        state = [learning_rate] if isinstance(learning_rate, tf.Variable) else []
        hvd.broadcast_variables([*model.variables, *optimizer_variables, *state], root_rank=0)
        agreed: Position = hvd.broadcast_object(position, root_rank=0)
        return agreed

    def rest_of_epoch(self, position: Position, usual_steps: int | None) -> Rest | None:
        # Where Keras reads less than all of the data for an epoch, they do not end with it.
        whole = [int(dataset.cardinality()) for dataset in self._local_datasets[-1:]]
        if self._dataset_fn is None or self.is_infinite or whole != [usual_steps]:
            return None
        dataset_fn, ranks = self._dataset_fn, position.earlier[0][0]

        def shard(index: int) -> tf.data.Dataset:
            return dataset_fn(
                tf.distribute.InputContext(
                    num_input_pipelines=ranks, input_pipeline_id=index, num_replicas_in_sync=ranks
                )
            )

        counts = [
            datasets.count_batches(shard(index)) if index % hvd.size() == hvd.rank() else 0
            for index in range(ranks)
        ]
        (summed,) = _all_reduce_sum([tf.constant(counts, tf.int64)])
        return rest_of_epoch(
            shard,
            summed.numpy().tolist(),
            position,
            ranks=hvd.size(),
            rank=hvd.rank(),
            usual_steps=whole[0],
        )

    def _set_up(self, options: JobFlags) -> None:
        self._averages = False
        if self.cluster:
            self._find_the_others()
        if options.heartbeat_timeout is not None or _GLOO_TIMEOUT not in os.environ:
            # Read in hvd.init(), in whole seconds.
            os.environ[_GLOO_TIMEOUT] = str(math.ceil(self.heartbeat_timeout))
        hvd.init()
        gpus = use_devices(options.num_gpus)
        if gpus[0].startswith("GPU"):
            visible = tf.config.get_visible_devices("GPU")
            tf.config.set_visible_devices(visible[hvd.local_rank() % len(visible)], "GPU")
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

    def _distribute(self, dataset_fn: DatasetFunction, training: bool) -> tf.data.Dataset:
        local = self._shard(dataset_fn)
        if not training:
            if any(True for _ in local.take(1)):
                return local
            # Keras wants a batch to evaluate, also in a rank that has no example.
            return datasets.empty_batches(dataset_fn(tf.distribute.InputContext()), 1)
        # A rank must know before an epoch whether the others have more.
        batches = datasets.count_batches(local)
        if batches == datasets.INFINITE:
            return self._remembered(local)
        everywhere = [int(count) for count in hvd.allgather(tf.constant([batches], tf.int64))]
        if min(everywhere) == 0:
            raise RuntimeError(
                f"rank {everywhere.index(0)} of {hvd.size()} got no example to train on: "
                "train on fewer ranks, or on more data."
            )
        steps = max(everywhere)
        if batches < steps:
            source = self._shard(dataset_fn)
            local = datasets.with_repeats(local, steps - batches, source)
        return self._remembered(local.apply(tf.data.experimental.assert_cardinality(steps)))

    def _shard(self, dataset_fn: DatasetFunction) -> tf.data.Dataset:
        return dataset_fn(self.input_context)

    def _evaluate(self, model: tf.keras.Model, dataset_fn: DatasetFunction) -> dict[str, float]:
        model.evaluate(self.eval_dataset(dataset_fn), verbose=0)
        return _summed_results(model)


class _Broadcast(hvd.BroadcastGlobalVariablesHook):
    """Gives every rank the variables of rank 0, whose gradients it then averages."""

    def __init__(self, job: Horovod) -> None:
        super().__init__(root_rank=0)
        self._job = job

    def begin(self) -> None:
        if not self._job._averages:
            raise RuntimeError(NOT_WRAPPED)
        super().begin()


class _ClusterMetrics(tf.keras.callbacks.Callback):
    """Puts the metrics of all ranks' examples into the logs in place of this rank's.

    The metrics' variables are sums, as TensorFlow's own strategies take them to be, so that summing
    them over the ranks counts each example once, also where the ranks have unequally many.
    """

    def __init__(self) -> None:
        super().__init__()
        self._training: dict[str, float] | None = None
        self._validation: dict[str, float] = {}
        self._in_epoch = False

    def on_epoch_begin(self, epoch: int, logs: dict[str, float] | None = None) -> None:
        self._training, self._validation, self._in_epoch = None, {}, True

    def on_test_begin(self, logs: dict[str, float] | None = None) -> None:
        # Evaluation resets the metrics, so the training's are read here.
        if self._in_epoch:
            self._training = _summed_results(self.model)

    def on_test_end(self, logs: dict[str, float] | None = None) -> None:
        if self._in_epoch:
            self._validation = _summed_results(self.model)

    def on_epoch_end(self, epoch: int, logs: dict[str, float] | None = None) -> None:
        training = self._training or _summed_results(self.model)
        if logs is not None:
            logs.update(training)
            logs.update({f"val_{name}": value for name, value in self._validation.items()})
        self._in_epoch = False


class _AveragedStatistics(tf.keras.callbacks.Callback):
    """Averages what is not trained, such as BatchNormalization's statistics, after each epoch.

    `tf.distribute` saves the mean over its replicas in the same way.
    """

    def on_epoch_end(self, epoch: int, logs: dict[str, float] | None = None) -> None:
        variables = [
            variable
            for variable in self.model.non_trainable_variables
            if variable.dtype.is_floating
        ]
        if variables:
            means = hvd.grouped_allreduce([variable.value() for variable in variables])
            for variable, mean in zip(variables, means, strict=True):
                variable.assign(mean)


def _summed_results(model: tf.keras.Model) -> dict[str, float]:
    """The metrics' results over all ranks, each rank's own left as they are; collective."""
    variables = [variable for metric in model.metrics for variable in metric.variables]
    before = [variable.value() for variable in variables]
    for variable, total in zip(variables, _all_reduce_sum(before), strict=True):
        variable.assign(total)
    results = {name: value.numpy() for name, value in model.get_metrics_result().items()}
    for variable, value in zip(variables, before, strict=True):
        variable.assign(value)
    return results


def _all_reduce_sum(values: Sequence[tf.Tensor]) -> list[tf.Tensor]:
    return list(hvd.grouped_allreduce(list(values), op=hvd.Sum))
