"""The split to choose for a model and a network, and the reason in a sentence.

choice = choose(splits, bandwidth=1.25e9, batch_size=32)
choice.split, choice.reason
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tfdist.planner.costs import Candidate
from tfdist.planner.quantities import seconds_text, size_text


@dataclass(frozen=True)
class Choice:
    """A split, or None if the memory suffices for none; and why."""

    split: Candidate | None
    reason: str


def choose(
    splits: Sequence[Candidate],
    *,
    bandwidth: float,
    batch_size: int,
    memory: float | None = None,
    replica_seconds: float | None = None,
) -> Choice:
    """The split that fits in the memory and trains the most examples per second.

    Without `replica_seconds`, the split with the fewest seconds of network per example among those
    that fit and use all workers. Of equal splits, the first one.

    Args:
      splits: the splits, in the order of preference.
      bandwidth: bytes per second of a task's link.
      batch_size: examples of a replica in a step.
      memory: bytes of a task; None if it does not matter.
      replica_seconds: seconds in which one worker computes a step of one replica alone.
    """

    def seconds_per_example(split: Candidate) -> float:
        step = (
            split.network_seconds(bandwidth)
            if replica_seconds is None
            else split.step_seconds(bandwidth, replica_seconds)
        )
        return step / (split.replicas * batch_size)

    fitting = [split for split in splits if memory is None or split.memory <= memory]
    if not fitting:
        least = min(splits, key=lambda split: split.memory)
        return Choice(
            None, f"none fits; {least.flags} needs the least memory, {size_text(least.memory)}"
        )
    able = fitting
    if replica_seconds is None:
        # One process sends nothing, but the seconds that the other workers save are unknown.
        workers = max(split.replicas * split.stages for split in splits)
        able = [each for each in fitting if each.replicas * each.stages == workers] or fitting
    best = min(able, key=seconds_per_example)
    # Rounding must not separate equal splits.
    limit = 1.000001 * seconds_per_example(best)
    best, *equal = [split for split in able if seconds_per_example(split) <= limit]
    seconds = seconds_per_example(best)
    compared = ""
    if len(fitting) < len(splits):
        compared = f" of the {len(able)} splits that fit in {size_text(memory or 0)}"
        # Without their seconds, only those that use all workers are compared.
        compared += " and use all workers" * (replica_seconds is None)
    reason = (
        f"the fewest seconds of network per example{compared}: {seconds_text(seconds)}"
        if replica_seconds is None
        else f"the most examples/s{compared}: {1 / seconds:,.0f}"
    )
    if equal:
        reason += f"; equally good here: {', '.join(split.flags for split in equal)}"
    return Choice(best, reason)
