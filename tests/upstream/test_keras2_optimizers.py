"""What tfdist assumes about the optimizers of Keras 2."""

from __future__ import annotations

import pytest

from tests.support.new_process import run

pytestmark = pytest.mark.stacks("2.15", "tf_keras")

STEPS = """
    import tfdist
    import tensorflow as tf

    table, weights = tf.Variable(tf.ones([5, 2])), tf.Variable(tf.ones([3]))
    optimizer = tf.keras.optimizers.SGD(0.1)
    optimizer.build([table, weights])
    for step in (1.0, 0.7):
        rows = tf.IndexedSlices(tf.fill([2, 2], step), tf.constant([1, 3]), tf.constant([5, 2]))
        optimizer.apply_gradients([(rows, table), (tf.fill([3], step), weights)])
    print(any(each.numpy().any() for each in optimizer.momentums))
    for each in (table, weights):
        print(*each.numpy().ravel().tolist())
    momentum = tf.keras.optimizers.SGD(0.1, momentum=0.5)
    momentum.build([weights])
    momentum.apply_gradients([(tf.ones([3]), weights)])
    print(momentum.momentums[0].numpy().any())
    """


def test_sgd_without_momentum_writes_its_updates_to_the_momentum() -> None:
    """The workaround is `keras2_plain_sgd`."""
    by_momentum = run("import tfdist", STEPS)
    fix = """
        import tfdist
        from tfdist.upstream import keras2_plain_sgd

        keras2_plain_sgd.apply()
        keras2_plain_sgd.apply()
        """
    plain = run(fix, STEPS)
    assert (by_momentum[0], plain[0]) == ("True", "False")
    assert plain[1:] == by_momentum[1:]
    assert plain[-1] == "True"
