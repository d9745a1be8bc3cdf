#!/usr/bin/env bash
# TensorFlow Models 2.15.0 with TensorFlow 2.15.1: its AdamWeightDecay, the optimizer of its BERT, clips
# the gradients of each replica before MirroredStrategy sums them. With n replicas each has a part of
# the gradient, so the sum may be n times as long as `gradient_clip_norm` allows. One process and two
# replicas with the same examples then make other updates. With a limit that no gradient reaches, they
# make the same ones.
# Output seen:
#   one process, clipped to 1: 1.00
#   two replicas, clipped to 1: 2.00
#   one process, not clipped: 10.00
#   two replicas, not clipped: 10.00
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3.11 -m venv "$folder/venv"
"$folder/venv/bin/python" -m pip install --quiet tensorflow-cpu==2.15.1 tensorflow-addons==0.23.0 \
    gin-config==0.5.0 PyYAML==6.0.3
# Its requirements name TensorFlow once more, and dozens of packages for other models.
"$folder/venv/bin/python" -m pip install --quiet --no-deps tf-models-official==2.15.0
cat > "$folder/seen.py" <<'PROGRAM'
import tensorflow as tf
from official.nlp.optimization import AdamWeightDecay

(processor,) = tf.config.list_physical_devices("CPU")
tf.config.set_logical_device_configuration(
    processor, [tf.config.LogicalDeviceConfiguration()] * 2
)


def applied(devices, limit):
    """The gradient that an update has used: Adam's first moment, with beta_1 = 0."""
    strategy = tf.distribute.MirroredStrategy(devices)
    with strategy.scope():
        weight = tf.Variable(0.0)
        optimizer = AdamWeightDecay(beta_1=0.0, gradient_clip_norm=limit)
    part = 10.0 / strategy.num_replicas_in_sync

    @tf.function
    def step():
        strategy.run(lambda: optimizer.apply_gradients([(tf.constant(part), weight)]))

    step()
    (moment,) = [each for each in optimizer.variables() if each.name.split(":")[0].endswith("/m")]
    return float(tf.convert_to_tensor(strategy.experimental_local_results(moment)[0]))


found = {}
for words, limit in (("clipped to 1", 1.0), ("not clipped", 1e9)):
    for name, devices in (("one process", ["CPU:0"]), ("two replicas", ["CPU:0", "CPU:1"])):
        found[name, limit] = applied(devices, limit)
        print(f"{name}, {words}: {found[name, limit]:.2f}")
assert abs(found["two replicas", 1.0] - 2 * found["one process", 1.0]) < 1e-3
assert abs(found["two replicas", 1e9] - found["one process", 1e9]) < 1e-3
PROGRAM
TF_CPP_MIN_LOG_LEVEL=3 TF_USE_LEGACY_KERAS= "$folder/venv/bin/python" "$folder/seen.py"
