#!/usr/bin/env bash
# tf_keras 2.21.0 with TensorFlow 2.21.0, `layers.experimental.DynamicEmbedding`:
# - A batch with more different new ids than the vocabulary can hold stops the training, with
#   InvalidArgumentError.
# - An update of the vocabulary forgets the trained row of the ids outside of it, without a word: the row
#   has new values.
# - `predict` counts ids, too, so that they take the places of others in the next vocabulary.
# - A vocabulary of integers, which the documentation allows, cannot be updated: InvalidArgumentError, in
#   the thread of UpdateEmbeddingCallback, while the training goes on.
# Output seen:
#   a batch of 3 new ids, 2 places: InvalidArgumentError
#   the row of other ids: trained 5.00, after an update of the vocabulary 1.00
#   candidates: a, b; after predict: c, d
#   an update with int64: InvalidArgumentError
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3.13 -m venv "$folder/venv"
"$folder/venv/bin/python" -m pip install --quiet tensorflow-cpu==2.21.0 tf_keras==2.21.0
cat > "$folder/seen.py" <<'PROGRAM'
import numpy as np
import tensorflow as tf
import tf_keras

STRATEGY = tf.distribute.get_strategy()


def made(vocabulary):
    """A layer, and a model that learns one number for each id."""
    vocabulary = tf.constant(vocabulary)
    layer = tf_keras.layers.experimental.DynamicEmbedding(
        len(vocabulary), 1, vocabulary, embedding_initializer="ones"
    )
    inputs = tf_keras.Input([1], dtype=vocabulary.dtype)
    model = tf_keras.Model(inputs, tf_keras.layers.Flatten()(layer(inputs)))
    model.compile(tf_keras.optimizers.SGD(0.1), "mse")
    return layer, model


def error_of(work):
    try:
        work()
    except tf.errors.InvalidArgumentError as error:
        return type(error).__name__


def column(*ids):
    return np.array(ids)[:, None]


def candidates(layer):
    return sorted(layer.dynamic_lookup_layer.vocabulary_table_keys.numpy().astype(str))


layer, model = made(["a", "b"])
found = error_of(lambda: model.train_on_batch(column("c", "d", "e"), np.zeros(3)))
print(f"a batch of 3 new ids, 2 places: {found}")
assert found == "InvalidArgumentError"

layer, model = made(["a", "b"])
model.fit(column("a", "c", "b", "c"), np.full(4, 5.0), batch_size=2, epochs=99, verbose=0)
rows = [float(model.predict(column("z"), verbose=0)[0, 0])]
layer.update_embeddings(STRATEGY)
rows.append(float(model.predict(column("z"), verbose=0)[0, 0]))
print("the row of other ids: trained {:.2f}, after an update of the vocabulary {:.2f}".format(*rows))
assert abs(rows[0] - 5) < 0.1 and rows[1] == 1

layer, model = made(["a", "b"])
model.train_on_batch(column("a", "b"), np.zeros(2))
before = candidates(layer)
model.predict(column("c", "d"), verbose=0)
after = candidates(layer)
print(f"candidates: {', '.join(before)}; after predict: {', '.join(after)}")
assert before == ["a", "b"] and after == ["c", "d"]

layer, model = made(np.array([1, 2]))
model.train_on_batch(column(1, 3), np.zeros(2))
found = error_of(lambda: layer.update_embeddings(STRATEGY))
print(f"an update with int64: {found}")
assert found == "InvalidArgumentError"
PROGRAM
TF_CPP_MIN_LOG_LEVEL=3 TF_USE_LEGACY_KERAS=1 "$folder/venv/bin/python" "$folder/seen.py" 2>/dev/null
