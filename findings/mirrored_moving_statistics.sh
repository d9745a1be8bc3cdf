#!/usr/bin/env bash
# TensorFlow 2.15.1 with MirroredStrategy: after `fit`, the trained model and a model that has got its
# weights by `get_weights` evaluate differently if the model has BatchNormalization. Each replica keeps
# moving statistics of its own, and `evaluate` and `predict` use those of the replica that gets the
# batch. `get_weights`, checkpoints and exported models have their mean.
# Output seen:
#   moving means of the replicas: 0.00 1.54
#   loss of the trained model: 22.31
#   loss of a model with its weights: 10.16
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3.11 -m venv "$folder/venv"
"$folder/venv/bin/python" -m pip install --quiet tensorflow-cpu==2.15.1
cat > "$folder/seen.py" <<'PROGRAM'
import numpy as np
import tensorflow as tf

(processor,) = tf.config.list_physical_devices("CPU")
tf.config.set_logical_device_configuration(
    processor, [tf.config.LogicalDeviceConfiguration()] * 2
)
tf.keras.utils.set_random_seed(1)
# Each batch of 8 is divided: the second replica has other means than the first one.
shift = 3.0 * (np.arange(64) // 4 % 2)[:, None]
x = (np.random.default_rng(0).normal(size=[64, 4]) + shift).astype("float32")
options = tf.data.Options()
options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.OFF
data = tf.data.Dataset.from_tensor_slices((x, x.sum(1))).batch(8).with_options(options)


def made():
    layers = [tf.keras.layers.BatchNormalization(), tf.keras.layers.Dense(1)]
    model = tf.keras.Sequential([tf.keras.Input([4]), *layers])
    model.compile(tf.keras.optimizers.SGD(0.01), "mse")
    return model


with tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"]).scope():
    trained = made()
trained.fit(data, epochs=9, verbose=0)
copied = made()
copied.set_weights(trained.get_weights())
means = [each.numpy().mean() for each in trained.layers[0].moving_mean.values]
print("moving means of the replicas:", *(f"{mean:.2f}" for mean in means))
losses = [model.evaluate(data, verbose=0) for model in (trained, copied)]
print(f"loss of the trained model: {losses[0]:.2f}")
print(f"loss of a model with its weights: {losses[1]:.2f}")
assert abs(losses[0] - losses[1]) > 0.1 * losses[1]
PROGRAM
TF_CPP_MIN_LOG_LEVEL=3 "$folder/venv/bin/python" "$folder/seen.py"
