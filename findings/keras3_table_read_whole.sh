#!/usr/bin/env bash
# Keras 3.15.1 and tf_keras 2.21.0 with TensorFlow 2.21.0, a table of `layers.Embedding`:
# - Keras 3 reads the whole variable, and then takes the rows of a batch. Where the table is on another
#   device or server, a step moves the whole table. tf_keras gathers the rows where the table is.
# - The gradient has the rows of the batch in both. Adagrad of Keras 3 still computes the root of the
#   accumulators of all rows, so an update takes longer with a larger table; that of tf_keras does not.
# Output seen (the times differ from machine to machine):
#   keras 3.15.1: GatherV2, ReadVariableOp; 100 rows of 2,000,000 take 74.3 times as long as of 2,000
#   tf_keras 2.21.0: ResourceGather; 100 rows of 2,000,000 take 1.0 times as long as of 2,000
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3.13 -m venv "$folder/venv"
"$folder/venv/bin/python" -m pip install --quiet tensorflow-cpu==2.21.0 keras==3.15.1 tf_keras==2.21.0
cat > "$folder/seen.py" <<'PROGRAM'
import statistics
import sys
import time

import tensorflow as tf

keras = tf.keras
package = sys.modules[keras.Model.__module__.partition(".")[0]]


def operations():
    """How the layer reads its table."""
    layer = keras.layers.Embedding(100, 4)
    layer.build([None])
    graph = tf.function(layer).get_concrete_function(tf.TensorSpec([None], tf.int64)).graph
    found = {each.type for each in graph.get_operations()}
    return ", ".join(sorted(each for each in found if "Gather" in each or "Read" in each))


def seconds(rows):
    """The median time of an update of 100 rows."""
    layer, optimizer = keras.layers.Embedding(rows, 4), keras.optimizers.Adagrad()
    layer.build([None])
    optimizer.build(layer.trainable_variables)

    @tf.function
    def update():
        rows_of_batch = tf.range(100, dtype=tf.int64)
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(layer(rows_of_batch))
        gradients = tape.gradient(loss, layer.trainable_weights)
        assert isinstance(gradients[0], tf.IndexedSlices)
        optimizer.apply_gradients(zip(gradients, layer.trainable_weights))

    times = []
    for _ in range(30):
        begun = time.monotonic()
        update()
        times.append(time.monotonic() - begun)
    return statistics.median(times)


ratio = seconds(2_000_000) / seconds(2_000)
name = f"{package.__name__} {package.__version__}"
print(f"{name}: {operations()}; 100 rows of 2,000,000 take {ratio:.1f} times as long as of 2,000")
if package.__name__ == "keras":
    assert operations() == "GatherV2, ReadVariableOp" and ratio > 5
else:
    assert operations() == "ResourceGather" and ratio < 3
PROGRAM
for legacy in 0 1; do
    TF_CPP_MIN_LOG_LEVEL=3 TF_USE_LEGACY_KERAS=$legacy "$folder/venv/bin/python" "$folder/seen.py" 2>/dev/null
done
