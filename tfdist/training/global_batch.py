"""The rows of the whole batch in a train step, for losses with in-batch negatives; `Job.gather`.

    rows = of_all_replicas(strategy, rows)     # within a step of `fit`

A softmax over the candidates of a batch (two towers, contrastive losses) depends on all examples of
the batch. A replica that sees only its own rows has fewer negatives than one process.
"""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from tfdist.compat import denominators
from tfdist.compat.denominators import Step
from tfdist.errors import UsageError
from tfdist.strategies.base import Strategy


def of_all_replicas(strategy: Strategy[Any], rows: Any) -> tf.Tensor:
    """The rows of all replicas, those of this replica first; see `Job.gather`.

    Args:
      strategy: the strategy.
      rows: a tensor of numbers, shape [n, …]; replicas may have different n.
    """
    topology, step = strategy.topology, denominators.current()
    rows = tf.convert_to_tensor(rows)
    sums, is_alone = strategy.sum_of_step, topology.num_replicas == 1
    is_apart = not topology.is_synchronous or topology.averages_weights
    if is_apart or (sums is None and not is_alone):
        raise _refused(
            f"{strategy.name}, whose updates do not wait for the batches of all replicas",
            "an update for the batches of all replicas together",
            "Choose --sync without --replicas_to_aggregate, or multi_worker_mirrored or horovod "
            "without --sync_period.",
        )
    if sums is None or is_alone:
        return rows
    if topology.joins_batches:
        return sums(rows)
    if step is None or step.is_apart:
        return rows
    if step.settings.is_loop or not step.is_at_top:
        raise _refused(
            "a call in a loop or a condition, such as that of --accumulate_steps",
            "a call in each step, in all replicas",
            "Call it outside of tf.cond and loops, without --accumulate_steps.",
        )
    place = strategy.replica_of_step()
    own = tf.shape(rows)[0]
    mask = tf.one_hot(place, topology.num_replicas)
    sizes = tf.cast(sums(mask * tf.cast(own, tf.float32)), tf.int32)
    before = tf.reduce_sum(sizes[:place])
    after = tf.reduce_sum(sizes) - before - own
    padded = tf.pad(rows, [[before, after], *[[0, 0]] * (rows.shape.rank - 1)])
    found = tf.roll(_sum(step, padded), -before, axis=0)
    return tf.ensure_shape(found, [None, *rows.shape[1:]])


def _sum(step: Step, rows: tf.Tensor) -> tf.Tensor:
    """The sum over the replicas of a step, whose gradient is that of the loss of all of them."""
    sums = step.settings.sums
    assert sums is not None

    @tf.custom_gradient
    def summed(value: tf.Tensor) -> Any:
        def gradient(upstream: tf.Tensor) -> tf.Tensor:
            # `reduce_weighted` will multiply by this replica's share what the others have lost
            # with theirs.
            share = tf.cast(step.share, upstream.dtype)
            return tf.math.divide_no_nan(sums(share * upstream), share)

        return sums(value), gradient

    return summed(rows)


def _refused(received: str, accepted: str, remedy: str) -> UsageError:
    return UsageError("job.gather", received=received, accepted=accepted, remedy=remedy)
