"""`Ledger`: which worker reads which shard in an epoch, and the steps made of each shard.

    ledger = Ledger(steps=[0, 0, 0], workers=[0, 1, 0])
    ledger.lease(worker=1)       # 1: a shard that only this worker reads, until it has ended
    ledger.end(1)
    ledger.release(worker=0)     # a lost one: the others read its shards on

There can be more shards than workers. A worker takes the next one when its own has ended.
"""

from __future__ import annotations

from collections.abc import Sequence


class Ledger:
    """The shards of an epoch.

    Args:
      steps: for each shard, the steps that were made before a restart.
      workers: for each shard, the worker that has read it last, and that should read it again: it
        has its dataset.

    Attributes:
      steps: for each shard, the steps that are known to be made.
    """

    def __init__(self, steps: Sequence[int], workers: Sequence[int]) -> None:
        self.steps = list(steps)
        self._workers = list(workers)
        self._held: set[int] = set()
        self._ended: set[int] = set()

    @property
    def is_over(self) -> bool:
        """Whether all shards have ended."""
        return not self.left

    @property
    def left(self) -> int:
        """The number of shards that have not ended."""
        return len(self.steps) - len(self._ended)

    def held_by(self, worker: int) -> list[int]:
        """The shards that a worker reads and that have not ended."""
        return sorted(each for each in self._held if self._workers[each] == worker)

    def lease(self, worker: int) -> int | None:
        """Gives a worker a free shard; None if there is none."""
        free = set(range(len(self.steps))) - self._held - self._ended
        shard = min(free, key=lambda each: (self._workers[each] != worker, each), default=None)
        if shard is not None:
            self._held.add(shard)
            self._workers[shard] = worker
        return shard

    def release(self, worker: int) -> None:
        """Takes the shards of a worker back."""
        self._held.difference_update(self.held_by(worker))

    def end(self, shard: int) -> None:
        """Records that a shard has ended."""
        self._held.discard(shard)
        self._ended.add(shard)
