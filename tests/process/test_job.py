"""A job with one process."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.stacks("2.15", "newest")

SCRIPT = """
import gc, sys
import tfdist

job = tfdist.init()
assert "tensorflow" in sys.modules
print("objects:", gc.get_freeze_count(), len(gc.get_objects()))
holder = [open(sys.argv[1], "w")]
holder.append(holder)
holder[0].write("the last line")
"""


def test_the_garbage_collector_skips_tensorflow_at_exit(tmp_path: Path) -> None:
    path = tmp_path / "log.txt"
    command = [sys.executable, "-c", SCRIPT, str(path)]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=100)
    assert ended.returncode == 0, ended.stderr
    (line,) = (line for line in ended.stdout.splitlines() if line.startswith("objects:"))
    kept, searched = map(int, line.split()[1:])
    assert kept > 10 * searched
    # Objects of the script are still collected, so the file is closed and its content is written.
    assert path.read_text() == "the last line"


FIT = """
import sys
import tfdist
import numpy as np, tensorflow as tf

job = tfdist.init(["--strategy=mirrored", "--num_cpu_devices=2"])
with job.scope():
    model = tf.keras.Sequential([tf.keras.Input([1]), tf.keras.layers.Dense(1)])
    model.compile("sgd", "mse")
data = tf.data.Dataset.from_tensor_slices((np.ones([8, 1]), np.ones([8, 1]))).batch(4)
callbacks = job.callbacks(sys.argv[1])
model.fit(data, callbacks=callbacks if "passed" in sys.argv else [], verbose=0)
"""


def test_fit_without_the_data_or_the_callbacks_of_the_job_is_told(tmp_path: Path) -> None:
    data, saved = "the data of fit is not from job.dataset", "tfdist has saved nothing"
    for arguments, told, untold in (([], saved, data), (["passed"], data, saved)):
        command = [sys.executable, "-c", FIT, str(tmp_path), *arguments]
        ended = subprocess.run(command, capture_output=True, text=True, timeout=100)
        assert ended.returncode == 0, ended.stderr
        assert ended.stderr.count(f"warning: {told}") == 1
        assert untold not in ended.stderr
