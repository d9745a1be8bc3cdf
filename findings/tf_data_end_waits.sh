#!/usr/bin/env bash
# TensorFlow 2.21.0: after its last element, a loop over a tf.data dataset sometimes waits for almost as long
# as it has taken, before it ends. 2.15.1 does so, too. The thread that tunes the dataset sleeps for a time
# that doubles from 10 ms on. When the iterator goes away, this thread is woken before the flag is set that
# tells it to end, so it may sleep again, and the loop waits for it. Without autotuning no loop waits.
# Output seen; the numbers of the loops that wait differ from run to run:
#   loops of 0.35 s: 8 of 40 wait, for at most 0.26 s
#   loops of 0.35 s, without autotuning: 0 of 40 wait
#   a loop of 2.70 s waits for 2.29 s
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3.13 -m venv "$folder/venv"
"$folder/venv/bin/python" -m pip install --quiet tensorflow-cpu==2.21.0
cat > "$folder/seen.py" <<'PROGRAM'
import time

import tensorflow as tf

MATRIX = tf.random.normal([500, 500])


def waited(seconds, autotune=True):
    """The seconds from the end of the work on the last element to the end of the loop."""
    options = tf.data.Options()
    options.autotune.enabled = autotune
    data = tf.data.Dataset.range(round(100 * seconds))
    data = data.map(lambda each: each, num_parallel_calls=2).prefetch(2).with_options(options)
    for _ in data:
        until = time.perf_counter() + 0.01
        while (now := time.perf_counter()) < until:
            tf.matmul(MATRIX, MATRIX)
    return time.perf_counter() - now


for words, autotune in (("", True), (", without autotuning", False)):
    waits = [wait for wait in (waited(0.35, autotune) for _ in range(40)) if wait > 0.15]
    longest = f", for at most {max(waits):.2f} s" if waits else ""
    print(f"loops of 0.35 s{words}: {len(waits)} of 40 wait{longest}")
    assert bool(waits) == autotune
waits = (waited(2.7) for _ in range(40))
wait = next(wait for wait in waits if wait > 1)
print(f"a loop of 2.70 s waits for {wait:.2f} s")
PROGRAM
TF_CPP_MIN_LOG_LEVEL=3 "$folder/venv/bin/python" "$folder/seen.py" 2>/dev/null
