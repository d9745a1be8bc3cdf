#!/usr/bin/env bash
# Keras 3.15.1 with TensorFlow 2.21.0: tf.train.Checkpoint does not save the states of the optimizers in
# a keras.optimizers.MultiOptimizer, with the model or alone. `restore` says nothing: the training goes
# on with new states.
# Output seen:
#   an optimizer with 8 variables, 4 of them in its checkpoint
#   the largest momentum, before: 0.0007, after the restore: 0.0000
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3.13 -m venv "$folder/venv"
"$folder/venv/bin/python" -m pip install --quiet tensorflow-cpu==2.21.0 keras==3.15.1
cat > "$folder/seen.py" <<'PROGRAM'
import sys

import keras
import numpy as np
import tensorflow as tf

FOLDER = sys.argv[1]


def compiled():
    first = keras.layers.Dense(1, use_bias=False, kernel_initializer="ones", name="first")
    last = keras.layers.Dense(1, use_bias=False, kernel_initializer="ones")
    inputs = keras.Input([1])
    model = keras.Model(inputs, last(first(inputs)))
    sgd, other = (keras.optimizers.SGD(0.001, momentum=0.9) for _ in range(2))
    by_path = keras.optimizers.OptimizerMap(sgd, {"first/.*": other})
    model.compile(keras.optimizers.MultiOptimizer(by_path), "mse")
    model.optimizer.build(model.trainable_variables)
    return model


def momentum(model):
    return max(
        float(np.abs(each.numpy()).max())
        for each in model.optimizer.variables
        if "momentum" in each.path
    )


model = compiled()
model.fit(np.ones([8, 1]), np.zeros([8, 1]), batch_size=2, epochs=50, verbose=0)
path = tf.train.Checkpoint(optimizer=model.optimizer).write(f"{FOLDER}/checkpoint")
saved = [name for name, _ in tf.train.list_variables(path) if name.endswith("VARIABLE_VALUE")]
print(
    f"an optimizer with {len(model.optimizer.variables)} variables, "
    f"{len(saved)} of them in its checkpoint"
)
restored = compiled()
tf.train.Checkpoint(optimizer=restored.optimizer).restore(path)
found = [momentum(each) for each in (model, restored)]
print("the largest momentum, before: {:.4f}, after the restore: {:.4f}".format(*found))
assert len(saved) < len(model.optimizer.variables)
assert found[0] > 0 and found[1] == 0
PROGRAM
TF_CPP_MIN_LOG_LEVEL=3 "$folder/venv/bin/python" "$folder/seen.py" "$folder" 2>/dev/null
