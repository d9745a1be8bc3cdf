"""A step whose batch does not exist, at the end of data of unknown cardinality."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

from tests.support.new_process import run
from tfdist.upstream import step_without_batch

pytestmark = [pytest.mark.stacks("2.15", "newest"), pytest.mark.timeout(120)]


def test_a_step_runs_in_part_although_its_batch_does_not_exist() -> None:
    """The workaround is `step_without_batch`."""
    lines = run(
        "import tensorflow as tf",
        """
        counter = tf.Variable(0)

        @tf.function
        def step(iterator):
            def replica(batch):
                counter.assign_add(1)

            tf.distribute.get_strategy().run(replica, args=(next(iterator),))

        iterator = iter(tf.data.Dataset.range(2))
        try:
            while True:
                step(iterator)
        except tf.errors.OutOfRangeError:
            print(counter.numpy())
        """,
    )
    assert lines == ["3"]


def test_fit_and_evaluate_count_only_the_batches_of_data_of_unknown_cardinality() -> None:
    step_without_batch.apply()
    ones = np.ones([8, 1], np.float32)
    batches = tf.data.Dataset.from_tensor_slices((ones, ones)).filter(lambda *_: True)
    batches = batches.batch(2, drop_remainder=True)  # The metrics know the size without a batch.
    zero = tf.keras.layers.Dense(1, kernel_initializer="zeros")
    model = tf.keras.Sequential([tf.keras.Input([1]), zero, tf.keras.layers.Dropout(0.5)])
    model.compile("adam", "mse")
    model.optimizer.learning_rate = 0.0

    history = model.fit(batches, epochs=3, verbose=0, validation_data=batches).history

    assert model.optimizer.iterations.numpy() == 12
    assert history == {"loss": [1.0] * 3, "val_loss": [1.0] * 3}
    # The state of a generator of Keras 3: its seed, and how many times it was used.
    assert [state.numpy()[1] for state in model.non_trainable_variables] in ([12], [])
