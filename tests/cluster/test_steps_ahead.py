"""How many steps a coordinator of parameter servers schedules beyond those that find data."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cluster.processes import launch

pytestmark = pytest.mark.timeout(120)

PROGRAM = """
import tfdist
import tensorflow as tf
from absl import app
from tfdist.strategies.epoch_coordinator import EpochCoordinator

tfdist.define_flags()
scheduled = [0]

def counted(self, fn, iterator, schedule=EpochCoordinator.schedule_guarded):
    scheduled[-1] += 1
    return schedule(self, fn, iterator)

def main(_):
    job = tfdist.init()
    if job.serves:
        return job.serve()
    with job.scope():
        model = tf.keras.Sequential([tf.keras.layers.Input([2]), tf.keras.layers.Dense(1)])
        model.compile("sgd", "mse")

    def train_input(context):
        data = tf.data.Dataset.from_tensor_slices((tf.ones([80, 2]), tf.ones([80, 1])))
        return data.shard(context.num_input_pipelines, context.input_pipeline_id).batch(2)

    EpochCoordinator.schedule_guarded = counted
    ended = tf.keras.callbacks.LambdaCallback(on_epoch_end=lambda *_: scheduled.append(0))
    model.fit(job.dataset(train_input), epochs=4, verbose=0, callbacks=[ended])
    print("scheduled", *scheduled[:-1], flush=True)

if __name__ == "__main__":
    app.run(main, flags_parser=tfdist.parse_flags)
"""


def test_later_epochs_end_with_hardly_a_step_without_data(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(PROGRAM)
    flags = ["--strategy=parameter_server", "--ps=1", "--workers=2", "--chief"]
    ended = launch(tmp_path, *flags, str(script), deadline=100)
    assert ended.code == 0, ended.output
    (line,) = [line for line in ended.output.splitlines() if "scheduled" in line]
    first, *later = map(int, line.split("scheduled")[1].split())
    # 40 batches, and each of two workers must say that it has no more. In the first epoch the
    # coordinator learns of the end when it has scheduled 8 steps a worker beyond it.
    assert first >= 40 + 8
    assert len(later) == 3
    for steps in later:
        assert 42 <= steps < first - 4, line
