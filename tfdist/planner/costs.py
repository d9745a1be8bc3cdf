"""The splits of a job: what each one sends, the memory that it needs, and its seconds.

splits = candidates(Training(model, workers=4))
splits[1].flags, splits[1].network_seconds(bandwidth=125e6), splits[1].memory
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from tfdist.planner import traffic as step_traffic
from tfdist.planner.model import Layer, Model
from tfdist.planner.traffic import Bytes, Traffic, worker


@dataclass(frozen=True)
class Training:
    """A training to split.

    Attributes:
      model: the model.
      workers: the number of workers, one device each.
      ps: the number of parameter servers, if the split has any.
      batch_size: examples of a replica in a step.
      slots: the numbers that the optimizer keeps for each parameter: 0 for SGD, 1 with momentum,
        2 for Adam.
      microbatches: the parts into which a pipeline divides the batch of a replica; None for four
        per stage, or one example each.
    """

    model: Model
    workers: int
    ps: int = 1
    batch_size: int = 32
    slots: int = 2
    microbatches: int | None = None


@dataclass(frozen=True)
class Candidate:
    """A way to split a job.

    Attributes:
      flags: the strategy and its flags.
      tasks: the number of tasks.
      replicas: the number of copies of the model that compute at the same time.
      stages: the number of stages of each replica.
      microbatches: the number of microbatches of each replica; 1 without a pipeline.
      traffic: what the tasks send and receive in a step of all replicas.
      memory: bytes of the fullest task.
      is_synchronous: whether the replicas wait for each other in each step.
    """

    flags: str
    tasks: int
    replicas: int
    traffic: Traffic
    memory: float
    stages: int = 1
    microbatches: int = 1
    is_synchronous: bool = True

    @cached_property
    def busiest(self) -> str:
        """The task that sends and receives the most bytes; the first of several."""
        traffic = self.traffic
        tasks = traffic.tasks or [worker(0)]
        return max(tasks, key=lambda task: traffic.sent(task) + traffic.received(task))

    @property
    def sent(self) -> float:
        """The bytes that the busiest task sends in a step."""
        return self.traffic.sent(self.busiest)

    @property
    def received(self) -> float:
        """The bytes that the busiest task receives in a step."""
        return self.traffic.received(self.busiest)

    @property
    def bubble(self) -> float:
        """The share of a step in which a pipeline's worker waits for the other stages.

        (S - 1) / (M + S - 1), for S equal stages and M microbatches (Huang et al. 2019, "GPipe").
        """
        return (self.stages - 1) / (self.microbatches + self.stages - 1)

    def network_seconds(self, bandwidth: float) -> float:
        """The seconds in which a step's bytes pass the fullest link, without computation.

        Links carry `bandwidth` in each direction at the same time. In a synchronous step the phases
        follow each other, and each lasts as long as its fullest link needs. Asynchronous workers
        are in different phases, so a ps sends and receives at the same time; the step lasts as
        long as the fuller direction of the fullest ps needs, but at least as long as a worker needs
        for its own phases.

        Args:
          bandwidth: bytes per second of a task's link, in each direction.
        """
        if self.is_synchronous:
            phases = self.traffic.phases.values()
            return sum(max(map(_fuller, each.values()), default=0) for each in phases) / bandwidth
        return max(self._own_bytes(), self.sent, self.received) / bandwidth

    def step_seconds(self, bandwidth: float, replica_seconds: float) -> float:
        """The seconds of a step of all replicas: the computation, then the network.

        A replica of S stages computes for replica_seconds / S / (1 - bubble). No part of the
        network's time is hidden behind the computation, except in an asynchronous job, where one
        worker computes while others send.

        Args:
          bandwidth: bytes per second of a task's link, in each direction.
          replica_seconds: seconds in which one worker computes a step of one replica alone.
        """
        compute = replica_seconds / self.stages / (1 - self.bubble)
        if self.is_synchronous:
            return compute + self.network_seconds(bandwidth)
        return max(compute + self._own_bytes() / bandwidth, self.network_seconds(bandwidth))

    def idle_share(self, bandwidth: float, replica_seconds: float | None) -> float:
        """The share of a step in which a worker does not compute.

        Without `replica_seconds`, only the bubble of a pipeline.
        """
        if replica_seconds is None:
            return self.bubble
        return 1 - replica_seconds / self.stages / self.step_seconds(bandwidth, replica_seconds)

    def _own_bytes(self) -> float:
        """The sum over the phases of what one worker sends or receives."""
        phases = self.traffic.phases.values()
        return sum(_fuller(each[worker(0)]) for each in phases if worker(0) in each)


def _fuller(size: Bytes) -> float:
    """The bytes of the fuller direction of a link."""
    return max(size.sent, size.received)


def candidates(job: Training) -> list[Candidate]:
    """The splits that a job can have, with a pipeline for each number of stages that divides W."""
    counts = [
        stages
        for stages in range(1, job.workers + 1)
        if job.workers % stages == 0 and job.model.can_have(stages)
    ]
    return [
        one_device(job),
        all_reduce("multi_worker_mirrored", job),
        all_reduce("horovod", job),
        parameter_server(job, is_synchronous=False),
        parameter_server(job, is_synchronous=True),
        *(in_graph(job, stages) for stages in counts),
    ]


def one_device(job: Training) -> Candidate:
    """One process.

    Memory: weights, gradients and slots, (2 + slots) P, untrained weights U, and activations.
    """
    return Candidate("one_device", 1, 1, Traffic(), _replica_memory(job))


def all_reduce(strategy: str, job: Training) -> Candidate:
    """A ring of all workers. Memory of each: that of one process."""
    ring = step_traffic.all_reduce(job.model.parameter_bytes, job.workers)
    return Candidate(strategy, job.workers, job.workers, ring, _replica_memory(job))


def parameter_server(job: Training, *, is_synchronous: bool) -> Candidate:
    """Parameter servers.

    Memory of each of p ps: weights, slots and the gradients of W workers, and untrained weights,
    ((1 + slots + W) P + U) / p.
    Memory of a worker: weights, gradients and untrained weights, 2 P + U, and activations.
    """
    total, untrained = job.model.parameter_bytes, job.model.untrained_bytes
    of_ps = ((1 + job.slots + job.workers) * total + untrained) / job.ps
    of_worker = 2 * total + untrained + _activations(job.model.stages(1)[0], job.batch_size)
    return Candidate(
        f"parameter_server --ps={job.ps}" + " --sync" * is_synchronous,
        job.workers + job.ps,
        job.workers,
        step_traffic.parameter_servers(total, job.workers, job.ps),
        max(of_ps, of_worker),
        is_synchronous=is_synchronous,
    )


def in_graph(job: Training, stages: int) -> Candidate:
    """Replicas of a pipeline.

    Memory of stage s of replica 0: weights, slots and the gradients of R replicas,
    (1 + slots + R) P_s, untrained weights U_s, and the activations of the stage for the whole
    batch.
    """
    replicas = job.workers // stages
    layers = job.model.stages(stages)
    microbatches = 1 if stages == 1 else (job.microbatches or min(4 * stages, job.batch_size))
    flags = f"in_graph --stages={stages}"
    return Candidate(
        flags if stages == 1 else f"{flags} --microbatches={microbatches}",
        job.workers,
        replicas,
        step_traffic.in_graph(
            layers,
            replicas,
            batch_size=job.batch_size,
            input_bytes=job.model.input_bytes,
            output_bytes=job.model.output_bytes,
        ),
        max(
            (1 + job.slots + replicas) * layer.parameter_bytes
            + layer.untrained_bytes
            + _activations(layer, job.batch_size)
            for layer in layers
        ),
        stages,
        microbatches,
    )


def _replica_memory(job: Training) -> float:
    (model,) = job.model.stages(1)
    weights = (2 + job.slots) * model.parameter_bytes + model.untrained_bytes
    return weights + _activations(model, job.batch_size)


def _activations(stage: Layer, batch_size: int) -> float:
    return batch_size * (stage.activation_bytes or 0)
