"""Minimal reproductions of what Keras 3 does with the rows of a table, which tfdist works around.

A test fails when upstream has fixed its bug: then remove the workaround that it names.
"""

from __future__ import annotations

import pytest

from tests.support.new_process import run

pytestmark = [pytest.mark.stacks("2.21"), pytest.mark.timeout(120)]


def test_adam_squares_each_occurrence_of_a_row() -> None:
    """The workaround is `keras3_repeated_rows`."""
    script = """
        import keras

        def trained(gradient):
            variable = keras.Variable([[1.0], [1.0]])
            keras.optimizers.Adam(0.1, clipnorm=1.0).apply([gradient], [variable])
            keras.optimizers.Adagrad(0.1).apply([gradient], [variable])
            return variable.numpy().tolist()

        rows = tf.IndexedSlices(tf.constant([[1.0], [3.0]]), tf.constant([1, 1]), [2, 1])
        print(trained(rows) == trained(tf.convert_to_tensor(rows)))
        """
    assert run("import tensorflow as tf", script) == ["False"]
    fix = """
        import tensorflow as tf
        from tfdist.upstream import keras3_repeated_rows

        keras3_repeated_rows.apply()
        keras3_repeated_rows.apply()
        """
    assert run(fix, script) == ["True"]


def test_a_layer_reads_a_whole_table() -> None:
    """The workaround is `keras3_gathered_rows`."""
    script = """
        import zlib
        import keras

        keras.mixed_precision.set_global_policy("mixed_bfloat16")
        layer = keras.layers.Embedding(5, 3, embeddings_initializer="ones")
        layer.build()
        layer.embeddings.assign(keras.ops.reshape(keras.ops.arange(15.0) / 7, [5, 3]))
        dense, ragged = tf.constant([[1, -1], [3, 3]]), tf.ragged.constant([[1, -1], [3]])

        @tf.function
        def rows_and_gradient(ids):
            with tf.GradientTape() as tape:
                rows = layer(ids)
                rows = getattr(rows, "flat_values", rows)
                total = tf.reduce_sum(tf.cast(rows, tf.float32) ** 2)
            gradient = tape.gradient(total, layer.embeddings.value)
            return rows, gradient.values, gradient.indices

        for ids in (dense, ragged):
            graph = rows_and_gradient.get_concrete_function(ids).graph
            types = {each.type for each in graph.get_operations()}
            print("+".join(sorted(each for each in types if "Read" in each or "Gather" in each)))
            rows, values, indices = rows_and_gradient(ids)
            found = [rows, values, indices % 5]
            print(rows.dtype.name, *(zlib.crc32(each.numpy().tobytes()) for each in found))
        """
    whole = run("import tensorflow as tf", script)
    fix = """
        import tensorflow as tf
        from tfdist.upstream import keras3_gathered_rows

        keras3_gathered_rows.apply()
        keras3_gathered_rows.apply()
        """
    rows = run(fix, script)
    assert whole[::5] == ["GatherV2+ReadVariableOp"] * 2
    assert rows[::5] == ["ResourceGather"] * 2
    assert rows[1:5] == whole[1:5] and rows[6:] == whole[6:] != []


def test_adagrad_reads_a_whole_accumulator() -> None:
    """The workaround is `keras3_sparse_adagrad`."""
    script = """
        import keras

        variable = keras.Variable(tf.random.stateless_uniform([1000, 4], [1, 2]))
        optimizer = keras.optimizers.Adagrad(0.1)
        optimizer.build([variable])

        @tf.function
        def step(values, ids):
            shape = tf.constant([1000, 4])
            optimizer.apply([tf.IndexedSlices(values, ids, shape)], [variable])

        for ids in ([1, 7], [7, 999]):
            step(tf.random.stateless_uniform([2, 4], ids), tf.constant(ids))
        graph = step.get_concrete_function(tf.ones([2, 4]), tf.constant([1, 2])).graph
        print(any(each.type == "Sqrt" and each.outputs[0].shape[0] == 1000
                  for each in graph.get_operations()))
        for each in (variable, optimizer._accumulators[0]):
            print(*each.numpy().ravel().tolist())
        """
    whole = run("import tensorflow as tf", script)
    fix = """
        import tensorflow as tf
        from tfdist.upstream import keras3_sparse_adagrad

        keras3_sparse_adagrad.apply()
        keras3_sparse_adagrad.apply()
        """
    rows = run(fix, script)
    assert (whole[0], rows[0]) == ("True", "False")
    # TensorFlow multiplies by the reciprocal root where it sees that it can.
    assert list(map(float, rows[1:])) == pytest.approx(list(map(float, whole[1:])), rel=1e-6)
    assert len(rows) == 1 + 2 * 4000
