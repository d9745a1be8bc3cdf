"""What the tasks of each split send each other in one step, in bytes.

    transfers = all_reduce(gradient_bytes, workers=4)
    sent(transfers)["worker:0"], received(transfers)["worker:0"]

A step is one batch of every replica. The messages around the tensors are not counted.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import IntEnum

from tfdist.splits.model import Layer


class Phase(IntEnum):
    """The phases of a step, which follow each other."""

    WEIGHTS = 0
    FORWARD = 1
    BACKWARD = 2
    GRADIENTS = 3


@dataclass(frozen=True)
class Transfer:
    """Bytes that one task sends to another in one step."""

    phase: Phase
    sender: str
    receiver: str
    bytes: float


def worker(index: int) -> str:
    """The name of a worker."""
    return f"worker:{index}"


def all_reduce(gradient_bytes: float, workers: int) -> list[Transfer]:
    """Ring all-reduce: each of W workers sends 2 (W - 1) / W * G bytes to the next one.

    In W - 1 rounds each worker sends one W-th of the gradients and adds what it receives; in W - 1
    more rounds the sums go around. (Patarasuk and Yuan 2009, "Bandwidth optimal all-reduce
    algorithms for clusters of workstations".)

    Args:
      gradient_bytes: G, the bytes of all gradients of a replica.
      workers: W.
    """
    bytes_sent = 2 * (workers - 1) / workers * gradient_bytes
    if workers == 1:
        return []
    return [
        Transfer(Phase.GRADIENTS, worker(rank), worker((rank + 1) % workers), bytes_sent)
        for rank in range(workers)
    ]


def parameter_servers(parameter_bytes: float, workers: int, ps: int) -> list[Transfer]:
    """Parameter servers: each worker reads P bytes of weights and returns P bytes of gradients.

    Each of p ps stores P / p bytes, so it sends W / p * P bytes to W workers, and receives as
    many. (Li et al. 2014, "Scaling distributed machine learning with the parameter server".)

    Args:
      parameter_bytes: P, the bytes of the trainable weights, which are spread evenly.
      workers: W.
      ps: p.
    """
    part = parameter_bytes / ps
    pairs = [(f"ps:{server}", worker(rank)) for server in range(ps) for rank in range(workers)]
    return [
        *(Transfer(Phase.WEIGHTS, server, rank, part) for server, rank in pairs),
        *(Transfer(Phase.GRADIENTS, rank, server, part) for server, rank in pairs),
    ]


def in_graph(
    stages: Sequence[Layer],
    replicas: int,
    *,
    batch_size: int,
    input_bytes: float,
    output_bytes: float,
) -> list[Transfer]:
    """One client, worker 0, with R replicas of a pipeline of S stages (Huang et al. 2019, "GPipe").

    Stage s of replica r is worker r S + s. With P_s the weights of stage s, b the batch size, and
    A_s the bytes per example between stages s and s + 1:

    - weights: worker s sends P_s to stage s of each other replica;
    - forward: worker 0 sends b I to the first stage of each other replica, stage s sends b A_s to
      stage s + 1, and the last stage sends b O to worker 0;
    - backward: the gradients of the outputs and of the borders go the other way;
    - gradients: stage s of each other replica returns P_s to worker s.

    What stays in one worker is not sent. For S = 1 worker 0 sends (R - 1) (P + b I + b O) and
    receives (R - 1) (P + b O) bytes.

    Args:
      stages: the stages.
      replicas: R.
      batch_size: b, the examples of each replica in a step.
      input_bytes: I, per example.
      output_bytes: O, per example.
    """
    client = worker(0)
    found: list[Transfer] = []
    for replica in range(replicas):
        workers = [worker(replica * len(stages) + stage) for stage in range(len(stages))]
        for stage, own in enumerate(stages):
            owner, weights = worker(stage), own.parameter_bytes
            found.append(Transfer(Phase.WEIGHTS, owner, workers[stage], weights))
            found.append(Transfer(Phase.GRADIENTS, workers[stage], owner, weights))
        found.append(Transfer(Phase.FORWARD, client, workers[0], batch_size * input_bytes))
        borders = [
            *((workers[s], workers[s + 1], stages[s].border_bytes) for s in range(len(stages) - 1)),
            (workers[-1], client, output_bytes),
        ]
        for before, after, border in borders:
            found.append(Transfer(Phase.FORWARD, before, after, batch_size * border))
            found.append(Transfer(Phase.BACKWARD, after, before, batch_size * border))
    return [transfer for transfer in found if transfer.sender != transfer.receiver]


def sent(transfers: Iterable[Transfer]) -> dict[str, float]:
    """The bytes that each task sends."""
    found: defaultdict[str, float] = defaultdict(float)
    for transfer in transfers:
        found[transfer.sender] += transfer.bytes
    return found


def received(transfers: Iterable[Transfer]) -> dict[str, float]:
    """The bytes that each task receives."""
    found: defaultdict[str, float] = defaultdict(float)
    for transfer in transfers:
        found[transfer.receiver] += transfer.bytes
    return found
