#!/usr/bin/env bash
# TensorFlow 2.21.0: in a tf.function, `a == b` of tensors with the static shapes [None] and [2] has no
# static shape, not even a rank, while `tf.equal(a, b)` has the shape [2]. What needs the rank, such as
# tf.boolean_mask, then fails while it is traced. (`a == b` returns False where shapes do not fit, as
# NumPy did, so TensorFlow does not infer a shape unless both are known.)
# Output seen:
#   a == b: <unknown>   tf.equal(a, b): (2,)   a < b: (2,)
#   boolean_mask(a, a == b): ValueError: Number of mask dimensions must be specified
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3.13 -m venv "$folder/venv"
"$folder/venv/bin/python" -m pip install --quiet tensorflow-cpu==2.21.0
cat > "$folder/seen.py" <<'PROGRAM'
import tensorflow as tf


@tf.function(input_signature=[tf.TensorSpec([None], tf.int64)])
def traced(a):
    b = tf.constant([1, 2], tf.int64)
    shapes = [(a == b).shape, tf.equal(a, b).shape, (a < b).shape]
    print(f"a == b: {shapes[0]}   tf.equal(a, b): {shapes[1]}   a < b: {shapes[2]}")
    assert shapes[0].rank is None
    assert shapes[1].as_list() == shapes[2].as_list() == [2]
    try:
        return tf.boolean_mask(a, a == b)
    except ValueError as error:
        text = str(error)
        print(f"boolean_mask(a, a == b): ValueError: {text.partition(',')[0]}")
        assert text.startswith("Number of mask dimensions must be specified")
        return tf.boolean_mask(a, tf.equal(a, b))


assert traced(tf.constant([1, 3], tf.int64)).numpy().tolist() == [1]
PROGRAM
"$folder/venv/bin/python" "$folder/seen.py" 2>/dev/null
