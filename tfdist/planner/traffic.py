"""What the tasks of each split send and receive in one step, in bytes.

    traffic = all_reduce(gradient_bytes, workers=4)
    traffic.sent(worker(0)), traffic.received(worker(0)), traffic.total

A step is one batch of every replica. The messages around the tensors are not counted.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum

from tfdist.planner.model import Layer


class Phase(IntEnum):
    """The phases of a step, which follow each other."""

    WEIGHTS = 0
    FORWARD = 1
    BACKWARD = 2
    GRADIENTS = 3


@dataclass
class Bytes:
    """What a task sends and receives in a phase."""

    sent: float = 0
    received: float = 0


class Traffic:
    """The bytes of one step, by phase and task."""

    def __init__(self) -> None:
        self.phases: dict[Phase, dict[str, Bytes]] = {phase: defaultdict(Bytes) for phase in Phase}

    def add(self, phase: Phase, task: str, *, sent: float = 0, received: float = 0) -> None:
        """Adds what a task sends and receives."""
        found = self.phases[phase][task]
        found.sent += sent
        found.received += received

    def move(self, phase: Phase, sender: str, receiver: str, size: float) -> None:
        """Adds bytes that one task sends to another; what stays in a task is not sent."""
        if sender != receiver:
            self.add(phase, sender, sent=size)
            self.add(phase, receiver, received=size)

    @property
    def tasks(self) -> list[str]:
        """The tasks that send or receive."""
        return list(dict.fromkeys(task for of_phase in self.phases.values() for task in of_phase))

    def sent(self, task: str) -> float:
        """The bytes that a task sends."""
        return sum(each[task].sent for each in self.phases.values() if task in each)

    def received(self, task: str) -> float:
        """The bytes that a task receives."""
        return sum(each[task].received for each in self.phases.values() if task in each)

    @property
    def total(self) -> float:
        """The bytes that all tasks send."""
        return sum(each.sent for of_phase in self.phases.values() for each in of_phase.values())


def worker(index: int) -> str:
    """The name of a worker."""
    return f"worker:{index}"


def server(index: int) -> str:
    """The name of a parameter server."""
    return f"ps:{index}"


def all_reduce(gradient_bytes: float, workers: int) -> Traffic:
    """Ring all-reduce: each of W workers sends 2 (W - 1) / W G bytes to the next one.

    In W - 1 rounds each worker sends one W-th of the gradients and adds what it receives; in W - 1
    more rounds the sums go around (Patarasuk and Yuan 2009, "Bandwidth optimal all-reduce
    algorithms for clusters of workstations").

    Args:
      gradient_bytes: G, the bytes of all gradients of a replica.
      workers: W.
    """
    traffic = Traffic()
    size = 2 * (workers - 1) / workers * gradient_bytes
    for rank in range(workers):
        traffic.move(Phase.GRADIENTS, worker(rank), worker((rank + 1) % workers), size)
    return traffic


def parameter_servers(parameter_bytes: float, workers: int, ps: int) -> Traffic:
    """Parameter servers: each worker reads P bytes of weights and returns P bytes of gradients.

    Each of p ps stores P / p bytes, so it sends W / p P bytes to the W workers, and receives as
    many (Li et al. 2014, "Scaling distributed machine learning with the parameter server").

    Args:
      parameter_bytes: P, the bytes of the trainable weights, which are spread evenly.
      workers: W.
      ps: p.
    """
    traffic = Traffic()
    of_ps = workers / ps * parameter_bytes
    for index in range(ps):
        traffic.add(Phase.WEIGHTS, server(index), sent=of_ps)
        traffic.add(Phase.GRADIENTS, server(index), received=of_ps)
    for rank in range(workers):
        traffic.add(Phase.WEIGHTS, worker(rank), received=parameter_bytes)
        traffic.add(Phase.GRADIENTS, worker(rank), sent=parameter_bytes)
    return traffic


def in_graph(
    stages: Sequence[Layer],
    replicas: int,
    *,
    batch_size: int,
    input_bytes: float,
    output_bytes: float,
) -> Traffic:
    """One client, worker 0, with R replicas of a pipeline of S stages (Huang et al. 2019, "GPipe").

    Stage s of replica r is worker r S + s. With P_s the weights of stage s, b the batch size, and
    A_s the bytes per example between stages s and s + 1:

    - weights: worker s sends P_s to stage s of each other replica;
    - forward: worker 0 sends b I to the first stage of each other replica, stage s sends b A_s to
      stage s + 1, and the last stage sends b O to worker 0;
    - backward: the gradients of the outputs and of the borders go the other way;
    - gradients: stage s of each other replica returns P_s to worker s.

    For S = 1 worker 0 sends (R - 1) (P + b I + b O) and receives (R - 1) (P + b O) bytes.

    A value that a later stage needs counts at each border before it; `in_graph` sends it directly.

    Args:
      stages: the stages.
      replicas: R.
      batch_size: b, the examples of each replica in a step.
      input_bytes: I, per example.
      output_bytes: O, per example.
    """
    traffic = Traffic()
    client = worker(0)
    for replica in range(replicas):
        workers = [worker(replica * len(stages) + stage) for stage in range(len(stages))]
        for index, stage in enumerate(stages):
            owner, weights = worker(index), stage.parameter_bytes
            traffic.move(Phase.WEIGHTS, owner, workers[index], weights)
            traffic.move(Phase.GRADIENTS, workers[index], owner, weights)
        traffic.move(Phase.FORWARD, client, workers[0], batch_size * input_bytes)
        # The output of each stage, and where it goes.
        sizes = [*(stage.border_bytes for stage in stages[:-1]), output_bytes]
        for sender, receiver, size in zip(workers, [*workers[1:], client], sizes, strict=True):
            traffic.move(Phase.FORWARD, sender, receiver, batch_size * size)
            traffic.move(Phase.BACKWARD, receiver, sender, batch_size * size)
    return traffic
