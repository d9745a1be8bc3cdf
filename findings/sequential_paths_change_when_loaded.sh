#!/usr/bin/env bash
# Keras 3.15.1 with TensorFlow 2.21.0: the path of a variable of a Sequential model that was just made
# begins with the name of the model, and that of the same model after load_model does not. So an
# OptimizerMap finds other optimizers for the same pattern: those of a MultiOptimizer change places when
# the model is loaded, and their states are left out, with a UserWarning each. The paths of a functional
# model stay.
# Output seen:
#   Sequential, made: sequential/first/kernel by adam, updates [0, 1]
#   Sequential, loaded: first/kernel by adagrad, updates [0, 0]
#   Functional, made: first/kernel by adagrad_1, updates [1, 1]
#   Functional, loaded: first/kernel by adagrad_1, updates [1, 1]
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3.13 -m venv "$folder/venv"
"$folder/venv/bin/python" -m pip install --quiet tensorflow-cpu==2.21.0 keras==3.15.1
cat > "$folder/seen.py" <<'PROGRAM'
import sys

import keras
import numpy as np

FILE = f"{sys.argv[1]}/model.keras"


def seen(how, model):
    """The path of the first layer's kernel, its optimizer, and the updates of all optimizers."""
    kernel = model.get_layer("first").kernel.path
    (of_first,) = {each.path.split("/")[0] for each in model.optimizer.variables if "first" in each.path}
    updates = [int(each.iterations) for each in model.optimizer.optimizers]
    print(f"{type(model).__name__}, {how}: {kernel} by {of_first}, updates {updates}")
    return kernel, of_first, updates


def made_and_loaded(model):
    by_path = {"first/.*": keras.optimizers.Adagrad()}
    by_path = keras.optimizers.OptimizerMap(keras.optimizers.Adam(), by_path)
    model.compile(keras.optimizers.MultiOptimizer(by_path), "mse")
    model.fit(np.ones([4, 1]), np.ones([4, 1]), verbose=0)
    model.save(FILE)
    return seen("made", model), seen("loaded", keras.models.load_model(FILE))


def layers():
    return [keras.layers.Dense(1, name="first"), keras.layers.Dense(1, name="last")]


made, loaded = made_and_loaded(keras.Sequential([keras.Input([1]), *layers()], name="sequential"))
assert made == ("sequential/first/kernel", "adam", [0, 1])
assert loaded == ("first/kernel", "adagrad", [0, 0])
first, last = layers()
inputs = keras.Input([1])
made, loaded = made_and_loaded(keras.Model(inputs, last(first(inputs))))
assert made == loaded
PROGRAM
TF_CPP_MIN_LOG_LEVEL=3 "$folder/venv/bin/python" "$folder/seen.py" "$folder" 2>/dev/null
