"""Sums tensors over the workers of a synchronous step, through queues on a ps.

    exchange = Exchange(num_workers=2, device="/job:ps/replica:0/task:0/device:CPU:0")
    queues = exchange.begin()                     # before a step is traced
    total = exchange.sum(tensor)                  # in the step
    bool(queues)                                  # whether the step has called `sum`
    present = exchange.who(has_data)              # in every worker, before the step

A worker waits in `sum` until all others that have data have called it in the same step.
"""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from tfdist.strategies.parameter_server.steps.tracing import number_of_worker


class Exchange:
    """Sums over the workers of a step.

    Args:
      num_workers: how many workers there are.
      device: where the sums are computed.

    Attributes:
      present: which workers make the step that is being traced, bool, shape [num_workers].
    """

    present: tf.Tensor

    def __init__(self, num_workers: int, device: str) -> None:
        self.num_workers = num_workers
        self._device = device
        self._queues: list[tf.queue.QueueBase] = []

    def begin(self) -> list[tf.queue.QueueBase]:
        """Begins a step.

        Returns:
          The queues of its calls, once it is traced. They must live as long as its function.
        """
        self._queues = []
        return self._queues

    def who(self, has_data: tf.Tensor) -> tf.Tensor:
        """Which workers have data, bool, shape [num_workers]. Every worker must call it."""
        own = tf.one_hot(number_of_worker(), self.num_workers, has_data, False)
        everyone = tf.ones([self.num_workers], tf.bool)
        return self._sum(tf.cast(own, tf.int32), everyone) > 0

    def sum(self, value: tf.Tensor) -> tf.Tensor:
        """The sum over the workers that are present, in their order.

        Args:
          value: of the same shape and dtype in all workers.
        """
        return self._sum(value, self.present)

    def _sum(self, value: tf.Tensor, present: tf.Tensor) -> tf.Tensor:
        with tf.init_scope(), tf.device(self._device):
            # Queues of their own for each call: a worker may be a call ahead of another.
            sent = tf.queue.FIFOQueue(self.num_workers, [tf.int64, value.dtype])
            sums = tf.queue.FIFOQueue(self.num_workers, [value.dtype])
        self._queues += [sent, sums]
        worker = tf.cast(number_of_worker(), tf.int64)
        with tf.device(self._device):
            places = tf.where(present)[:, 0]

            def take(count: tf.Tensor, found: tf.TensorArray) -> tuple[tf.Tensor, tf.TensorArray]:
                sender, each = sent.dequeue()
                return count + 1, found.write(tf.cast(sender, tf.int32), each)

            def combine() -> tf.Tensor:
                found = tf.TensorArray(value.dtype, self.num_workers, element_shape=value.shape)

                def is_missing(count: tf.Tensor, *_: Any) -> tf.Tensor:
                    return count < tf.size(places)

                _, found = tf.while_loop(is_missing, take, [0, found])
                total = tf.reduce_sum(found.gather(tf.cast(places, tf.int32)), axis=0)

                def give(count: tf.Tensor) -> tf.Tensor:
                    sums.enqueue(total)
                    return count + 1

                return tf.while_loop(is_missing, give, [0])[0]

            sent.enqueue((worker, value))
            tf.cond(tf.equal(worker, places[0]), combine, lambda: 0)
            return tf.ensure_shape(sums.dequeue(), value.shape)
