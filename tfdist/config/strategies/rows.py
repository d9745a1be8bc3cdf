"""The strategies of this package: the options of each one, and its row in the table."""

from __future__ import annotations

from dataclasses import dataclass

from tfdist.cluster import Cluster
from tfdist.cluster.task_types import PS, WORKER
from tfdist.config.options import Options, option
from tfdist.config.strategies.spec import EstimatorSpec, StrategySpec
from tfdist.errors import UsageError, refuse


@dataclass(frozen=True)
class AccumulationOptions(Options):
    """The options of strategies that can accumulate gradients."""

    accumulate_steps: int = option(
        1,
        "the number of batches for one update of the weights, which uses the mean of their "
        "gradients; job.global_batch_size and job.scaled_lr take it into account",
        least=1,
        same_in_all_tasks=True,
    )


@dataclass(frozen=True)
class LocalDevicesOptions(Options):
    """The options of strategies with replicas on the devices of one machine."""

    num_cpu_devices: int = option(
        1, "the number of CPU replicas on a machine without a GPU", least=1
    )


@dataclass(frozen=True)
class MirroredOptions(LocalDevicesOptions, AccumulationOptions):
    """The options of an all-reduce between the devices of one machine."""


@dataclass(frozen=True)
class SynchronousUpdates(Options):
    """The options of synchronous updates on parameter servers, for Keras and for Estimators."""

    sync: bool = option(
        False,
        "update synchronously, as all other strategies always do; job.global_batch_size and "
        "job.scaled_lr take this into account",
    )
    replicas_to_aggregate: int | None = option(
        None,
        "with --sync: the number of gradients per update; the tasks beyond it are backups (default "
        "the number of tasks that compute gradients)",
        least=1,
    )

    def num_tasks(self, cluster: Cluster) -> int:
        """The number of tasks that compute gradients; with Estimators the chief is one of them."""
        return len(cluster.training_tasks)

    def gradients_per_update(self, cluster: Cluster) -> int | None:
        """The number of gradients per update; None for asynchronous updates."""
        return (self.replicas_to_aggregate or self.num_tasks(cluster)) if self.sync else None

    def check(self, cluster: Cluster) -> None:
        replicas, tasks = self.replicas_to_aggregate, self.num_tasks(cluster)
        if replicas is not None and not (self.sync and replicas <= tasks):
            received = replicas if self.sync else f"{replicas} without --sync"
            accepted = f"1 to {tasks} with --sync ({tasks} tasks compute gradients)"
            remedy = "Correct the number, or leave it out to wait for all of them."
            refuse({"replicas_to_aggregate": received}, accepted, remedy)


@dataclass(frozen=True)
class ParameterServerOptions(SynchronousUpdates, AccumulationOptions):
    """The options of parameter servers for Keras."""

    variable_partitions: int | None = option(
        None, "the maximum number of partitions of a large variable over the ps", least=1
    )
    partition_bytes: int | None = option(
        None,
        "split variables of more than this number of bytes into partitions of at most this size",
        least=1,
    )
    pack_transfers: bool = option(
        True,
        "send the small tensors of a step together; --nopack_transfers sends each one separately, "
        "as TensorFlow does",
    )
    data_shards: int | None = option(
        None,
        "the number of shards of the data, which the workers take one after another: a fast worker "
        "takes more of them (default one for each worker)",
        least=1,
    )
    min_workers: int | None = option(
        None,
        "begin when this many workers are there; the others may join, and workers may leave after "
        "a SIGTERM, while the job runs (default all workers)",
        least=1,
    )

    @property
    def workers_at_start(self) -> int | None:
        return self.min_workers

    def num_tasks(self, cluster: Cluster) -> int:
        return len(cluster.worker)

    def num_shards(self, cluster: Cluster) -> int:
        """The number of shards of the data."""
        return self.data_shards or len(cluster.worker)

    def check(self, cluster: Cluster) -> None:
        if not cluster.worker:
            raise UsageError(
                "cluster.worker",
                received=[],
                accepted="at least one address in a cluster with ps",
                remedy="Add a worker: the chief of a Keras job coordinates and does not train.",
            )
        super().check(cluster)
        if self.sync:
            refuse(self.given("accumulate_steps", "data_shards", "min_workers"), "not with --sync")
        if not cluster.chief:
            refuse(self.given("min_workers"), "with a chief", "Add --chief: worker 0 cannot leave.")
        if (self.min_workers or 0) > len(cluster.worker):
            refuse(
                self.given("min_workers"),
                f"at most {len(cluster.worker)}, the number of workers in the cluster",
            )
        if self.num_shards(cluster) < len(cluster.worker):
            refuse(
                self.given("data_shards"),
                f"at least {len(cluster.worker)}, one for each worker",
                "Choose a larger number, or leave it out.",
            )
        if self.variable_partitions is not None:
            refuse(self.given("partition_bytes"), "not with --variable_partitions")


@dataclass(frozen=True)
class LocalSGDOptions(AccumulationOptions):
    """The options of local SGD, in which tasks average their weights and not their gradients."""

    sync_period: int | None = option(
        None,
        "local SGD for slow networks: the number of steps that each task makes independently "
        "before all tasks average their weights",
        least=1,
        same_in_all_tasks=True,
    )
    outer_learning_rate: float | None = option(
        None,
        "with --sync_period: the factor of the averaged weight change (default 1, or 0.7 with "
        "--outer_momentum)",
        least=0.0,
        same_in_all_tasks=True,
    )
    outer_momentum: float | None = option(
        None,
        "with --sync_period: Nesterov momentum over the averaged weight changes, as in DiLoCo, "
        "which uses 0.9 (default 0)",
        least=0.0,
        most=1.0,
        same_in_all_tasks=True,
    )

    def check(self, cluster: Cluster) -> None:
        if self.sync_period is None:
            outer = self.given("outer_learning_rate", "outer_momentum")
            refuse(outer, "only together with --sync_period", "Add it, or leave this one out.")
        else:
            of_gradients = self.given("accumulate_steps", "gradient_dtype")
            refuse(of_gradients, "not with --sync_period: local SGD sends no gradients")


_GRADIENT_DTYPE = "send and sum the gradients in this dtype, which halves the traffic"


@dataclass(frozen=True)
class AllReduceOptions(Options):
    """The options of TensorFlow's all-reduce of gradients."""

    all_reduce: str = option(
        "auto", "the all-reduce of TensorFlow", choices=("auto", "ring", "nccl")
    )
    gradient_dtype: str | None = option(None, _GRADIENT_DTYPE, choices=("bfloat16", "float16"))


@dataclass(frozen=True)
class MultiWorkerMirroredOptions(AllReduceOptions, LocalSGDOptions):
    """The options of TensorFlow's all-reduce, of gradients or of weights."""

    @property
    def implementation(self) -> str | None:
        if self.sync_period is None:
            return None
        return "tfdist.strategies.multi_worker_local_sgd:MultiWorkerLocalSGD"


@dataclass(frozen=True)
class HorovodGradientOptions(Options):
    """The options of Horovod's all-reduce of gradients. Horovod cannot sum bfloat16."""

    gradient_dtype: str | None = option(None, _GRADIENT_DTYPE, choices=("float16",))


@dataclass(frozen=True)
class HorovodOptions(HorovodGradientOptions, LocalSGDOptions):
    """The options of Horovod's all-reduce, of gradients or of weights."""


@dataclass(frozen=True)
class InGraphOptions(Options):
    """The options of stages and replicas in one graph."""

    stages: int = option(
        1,
        "cut the model by layers into this number of stages, each on its own worker; a divisor of "
        "the number of workers",
        least=1,
    )
    microbatches: int = option(
        1,
        "divide the batch of a replica into this number of parts, so that its stages work at the "
        "same time",
        least=1,
    )
    recompute: bool = option(
        False,
        "compute each microbatch again for its gradient; a worker then keeps the activations of at "
        "most as many microbatches as there are stages, not of all",
    )

    def check(self, cluster: Cluster) -> None:
        workers = max(1, len(cluster.worker))
        if workers % self.stages:
            divisors = [str(number) for number in range(1, workers + 1) if workers % number == 0]
            given = {"stages": f"{self.stages} with {workers} worker{'s' * (workers > 1)}"}
            accepted = f"{', '.join(divisors)} (the divisors of the number of workers)"
            refuse(given, accepted, "Correct it, or change the number of workers.")
        if self.recompute and self.microbatches <= self.stages:
            given = {"recompute": f"{self.microbatches} microbatches in {self.stages} stages"}
            accepted = "more microbatches than stages; with fewer it does not need less memory"
            refuse(given, accepted, "Raise --microbatches, or leave it out.")


ROWS = (
    StrategySpec(
        "one_device",
        "tfdist.strategies.one_device:OneDevice",
        AccumulationOptions,
        estimator=EstimatorSpec("tfdist.estimator.sessions:LocalSessions"),
        executes_several_steps=True,
        single_replica=True,
        one_gpu="Add --strategy=mirrored to train on all of them.",
    ),
    StrategySpec(
        "mirrored",
        "tfdist.strategies.mirrored:Mirrored",
        MirroredOptions,
        estimator=EstimatorSpec("tfdist.estimator.mirrored:MirroredSessions", LocalDevicesOptions),
        executes_several_steps=True,
    ),
    StrategySpec(
        "central_storage",
        "tfdist.strategies.central_storage:CentralStorage",
        LocalDevicesOptions,
        shares_variables=True,
    ),
    StrategySpec(
        "parameter_server",
        "tfdist.strategies.parameter_server.strategy:ParameterServer",
        ParameterServerOptions,
        estimator=EstimatorSpec(
            "tfdist.estimator.between_graph:BetweenGraphSessions",
            SynchronousUpdates,
            strategy="tfdist.estimator.between_graph:BetweenGraph",
            serving=(PS,),
            one_gpu="Start one worker per GPU, and select its GPU with CUDA_VISIBLE_DEVICES.",
        ),
        spans_tasks=True,
        uses_ps=True,
        workers_read_data=True,
        workers_may_rejoin=True,
        elastic=True,
        serving=(WORKER, PS),
        shares_variables=True,
    ),
    StrategySpec(
        "multi_worker_mirrored",
        "tfdist.strategies.multi_worker_mirrored:MultiWorkerMirrored",
        MultiWorkerMirroredOptions,
        estimator=EstimatorSpec(
            "tfdist.estimator.multi_worker_mirrored:MultiWorkerMirroredSessions",
            AllReduceOptions,
        ),
        spans_tasks=True,
        elastic=True,
        executes_several_steps=True,
    ),
    StrategySpec(
        "in_graph",
        "tfdist.strategies.in_graph.strategy:InGraph",
        InGraphOptions,
        spans_tasks=True,
        serving=(WORKER,),
        fit_only=True,
        describes_model=True,
    ),
    StrategySpec(
        "horovod",
        "tfdist.strategies.horovod:Horovod",
        HorovodOptions,
        estimator=EstimatorSpec(
            "tfdist.estimator.horovod:HorovodSessions",
            HorovodGradientOptions,
            chief_evaluates=True,
        ),
        packages=("horovod",),
        spans_tasks=True,
        elastic=True,
        executes_several_steps=True,
        rendezvous="tfdist.coordination.stores.horovod_rendezvous",
        source="horovodrun",
        one_gpu="Start a rank for each GPU.",
    ),
)
