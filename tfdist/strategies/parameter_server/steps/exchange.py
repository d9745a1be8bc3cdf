"""Sums tensors over the workers of a synchronous step, through queues on a ps.

    exchange = Exchange(num_workers=2, device="/job:ps/replica:0/task:0/device:CPU:0")
    queues = exchange.begin()                     # before a step is traced
    total = exchange.sum(tensor)                  # in the step
    bool(queues)                                  # whether the step has called `sum`

A worker waits in `sum` until all others have called it in the same step, with or without data.
"""

from __future__ import annotations

import tensorflow as tf

from tfdist.strategies.parameter_server.steps.tracing import number_of_worker


class Exchange:
    """Sums over the workers of a step.

    Args:
      num_workers: how many workers make each step.
      device: where the sums are computed.
    """

    def __init__(self, num_workers: int, device: str) -> None:
        self._num_workers = num_workers
        self._device = device
        self._queues: list[tf.queue.QueueBase] = []

    def begin(self) -> list[tf.queue.QueueBase]:
        """Begins a step.

        Returns:
          The queues of its calls, once it is traced. They must live as long as its function.
        """
        self._queues = []
        return self._queues

    def sum(self, value: tf.Tensor) -> tf.Tensor:
        """The sum over the workers, in their order; all must call it at the same places.

        Args:
          value: of the same shape and dtype in all workers.
        """
        with tf.init_scope(), tf.device(self._device):
            # Queues of their own for each call: a worker may be a call ahead of another.
            sent = tf.queue.FIFOQueue(self._num_workers, [tf.int64, value.dtype])
            sums = tf.queue.FIFOQueue(self._num_workers, [value.dtype])
        self._queues += [sent, sums]

        def combine() -> tf.Tensor:
            messages = [sent.dequeue() for _ in range(self._num_workers)]
            order = tf.argsort(tf.stack([worker for worker, _ in messages]))
            values = tf.stack([each for _, each in messages])
            total = tf.reduce_sum(tf.gather(values, order), axis=0)
            for _ in messages:
                sums.enqueue(total)
            return tf.size(order)

        worker = tf.cast(number_of_worker(), tf.int64)
        with tf.device(self._device):
            sent.enqueue((worker, value))
            tf.cond(tf.equal(worker, 0), combine, lambda: 0)
            return tf.ensure_shape(sums.dequeue(), value.shape)
