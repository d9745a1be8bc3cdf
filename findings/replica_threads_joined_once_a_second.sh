#!/usr/bin/env bash
# TensorFlow 2.21.0 with Python 3.13: each trace of tf.distribute.Strategy.run takes a second more if the
# process has one core, as a task of MultiWorkerMirroredStrategy often has. The replica is traced in a
# thread; then tf.train.Coordinator.join checks once a second whether this thread has ended. At the first
# check it has not, with Python 3.13. With Python 3.11 it has. A fit with validation makes two or three
# such traces.
# Output seen; the numbers of the traces differ from run to run:
#   python3.11: 0 of 20 traces wait for a second; the median takes 0.00 s
#   python3.13: 15 of 20 traces wait for a second; the median takes 1.01 s
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cat > "$folder/seen.py" <<'PROGRAM'
import sys
import time

import tensorflow as tf

strategy = tf.distribute.MultiWorkerMirroredStrategy()


def traced():
    """The seconds of the first call of a new function."""

    @tf.function
    def step():
        return strategy.run(lambda: tf.constant(1.0) + 1.0)

    begin = time.perf_counter()
    step()
    return time.perf_counter() - begin


times = sorted(traced() for _ in range(20))
slow = sum(each > 1 for each in times)
python = f"python3.{sys.version_info.minor}"
print(f"{python}: {slow} of 20 traces wait for a second; the median takes {times[10]:.2f} s")
assert slow >= 10 if python == "python3.13" else slow <= 2
PROGRAM
for python in python3.11 python3.13; do
    "$python" -m venv "$folder/$python"
    "$folder/$python/bin/python" -m pip install --quiet tensorflow-cpu==2.21.0
    TF_CPP_MIN_LOG_LEVEL=3 taskset -c 0 "$folder/$python/bin/python" "$folder/seen.py" 2>/dev/null
done
