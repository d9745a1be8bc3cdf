#!/usr/bin/env bash
# TensorFlow Recommenders Addons 0.8.1 with TensorFlow 2.16.2 and tf_keras 2.16.0: two surprises with the
# optimizers of tf_keras in a DynamicEmbeddingOptimizer, both without an error:
# - The accumulators of Adagrad and Ftrl begin with 0 in a dynamic table, whatever their
#   `initial_accumulator_value` is. So Adagrad changes a new row by almost its whole learning rate,
#   also for small gradients. With the `legacy` Adagrad it is as in an Embedding.
# - `restrict` of one table removes the accumulators of the same ids in other tables of the optimizer, too,
#   which have no policy and keep their rows.
# Output seen:
#   first update, Embedding, Adagrad: 0.0003
#   first update, dynamic, Adagrad: 0.0953
#   first update, dynamic, legacy Adagrad: 0.0003
#   bounded table, before restrict: 6 rows, 6 accumulators; after: 2 rows, 2 accumulators
#   the other table, before restrict: 6 rows, 6 accumulators; after: 6 rows, 2 accumulators
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3.11 -m venv "$folder/venv"
"$folder/venv/bin/python" -m pip install --quiet tensorflow-recommenders-addons==0.8.1 \
    tensorflow==2.16.2 tf_keras==2.16.0
cat > "$folder/seen.py" <<'PROGRAM'
import contextlib
import io

import numpy as np
import tensorflow as tf
import tf_keras

with contextlib.redirect_stdout(io.StringIO()):
    from tensorflow_recommenders_addons import dynamic_embedding as tfra

IDS = np.arange(6)


def compiled(tables, optimizer, gradient=1.0):
    """A model whose loss is the sum of all rows of the batch, times a number."""
    inputs = [tf_keras.Input([1], dtype=tf.int64) for _ in tables]
    rows = [table(each) for table, each in zip(tables, inputs, strict=True)]
    total = tf_keras.layers.Lambda(lambda each: sum(tf.reduce_sum(rows, [1, 2]) for rows in each))
    model = tf_keras.Model(inputs, total(rows))
    model.compile(optimizer, lambda _, sums: gradient * tf.reduce_sum(sums))
    return model


def first_update(table, optimizer):
    model = compiled([table], optimizer, gradient=0.001)
    before = model(IDS[:1, None]).numpy()
    model.train_on_batch(IDS[:1, None], np.zeros(1))
    return float(before[0] - model(IDS[:1, None]).numpy()[0])


def dynamic(name, policy=None):
    return tfra.keras.layers.Embedding(
        1, initializer=tf_keras.initializers.Ones(), name=name, restrict_policy=policy
    )


adagrad, legacy = tf_keras.optimizers.Adagrad, tf_keras.optimizers.legacy.Adagrad
found = {
    "Embedding, Adagrad": first_update(tf_keras.layers.Embedding(6, 1), adagrad(0.1)),
    "dynamic, Adagrad": first_update(
        dynamic("a"), tfra.DynamicEmbeddingOptimizer(adagrad(0.1, initial_accumulator_value=0.1))
    ),
    "dynamic, legacy Adagrad": first_update(
        dynamic("b"), tfra.DynamicEmbeddingOptimizer(legacy(0.1, initial_accumulator_value=0.1))
    ),
}
for name, update in found.items():
    print(f"first update, {name}: {update:.4f}")
right, wrong = (0.1 * 0.001 / (first + 0.001**2 + 1e-7) ** 0.5 for first in (0.1, 0.0))
assert abs(found["Embedding, Adagrad"] - right) < 1e-5
assert abs(found["dynamic, legacy Adagrad"] - right) < 1e-5
assert abs(found["dynamic, Adagrad"] - wrong) < 1e-5

tables = [dynamic("bounded", tfra.FrequencyRestrictPolicy), dynamic("other")]
model = compiled(tables, tfra.DynamicEmbeddingOptimizer(adagrad(0.1)))
for ids in (IDS, IDS[:2]):
    model.train_on_batch([ids[:, None]] * 2, np.zeros(len(ids)))


def sizes(table):
    (accumulators,) = table.optimizer_vars
    return int(table.params.size()), int(accumulators.size())


before = [sizes(table) for table in tables]
tables[0].params.restrict(2)
after = [sizes(table) for table in tables]
words = "before restrict: {} rows, {} accumulators; after: {} rows, {} accumulators"
for name, *seen in zip(("bounded table", "the other table"), before, after, strict=True):
    print(f"{name},", words.format(*seen[0], *seen[1]))
assert before == [(6, 6), (6, 6)]
assert after == [(2, 2), (6, 2)]
PROGRAM
TF_CPP_MIN_LOG_LEVEL=3 TF_USE_LEGACY_KERAS=1 "$folder/venv/bin/python" "$folder/seen.py" 2>/dev/null
