"""How many runs of steps the parameter-server coordinator schedules."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.processes import launch

pytestmark = [pytest.mark.stacks("2.15"), pytest.mark.timeout(120)]

PROGRAM = """
import tfdist
import tensorflow as tf
from absl import app, flags
from tfdist.strategies.parameter_server.steps.worker_thread import WorkerThread

tfdist.define_flags()
flags.DEFINE_bool("repeat", False, "Repeat the data forever.")
runs, scheduled = [0], [0]

def counted(self, request, start=WorkerThread.start):
    runs[-1] += 1
    scheduled[-1] += request.limit
    return start(self, request)

def either(x, y):
    if x[0] > 0:  # AutoGraph must convert this.
        x = 2 * x
    return x, y

def main(_):
    job = tfdist.init()
    if job.serves:
        return job.serve()
    with job.scope():
        model = tf.keras.Sequential([tf.keras.layers.Input([2]), tf.keras.layers.Dense(1)])
        model.compile("sgd", "mse", steps_per_execution=3 if flags.FLAGS.repeat else None)

    def train_input(context):
        data = tf.data.Dataset.from_tensor_slices((tf.ones([80, 2]), tf.ones([80, 1])))
        data = data.shard(context.num_input_pipelines, context.input_pipeline_id)
        return (data.repeat() if flags.FLAGS.repeat else data).map(either).batch(2)

    WorkerThread.start = counted
    ended = tf.keras.callbacks.LambdaCallback(
        on_epoch_end=lambda *_: (runs.append(0), scheduled.append(0))
    )
    steps = 7 if flags.FLAGS.repeat else None
    dataset = job.dataset(train_input)
    model.fit(dataset, epochs=4, steps_per_epoch=steps, verbose=0, callbacks=[ended])
    print("runs", *runs[:-1], flush=True)
    print("scheduled", *scheduled[:-1], flush=True)
    print("updates", int(model.optimizer.iterations.numpy()), flush=True)

if __name__ == "__main__":
    app.run(main, flags_parser=tfdist.parse_flags)
"""


def test_later_epochs_need_few_runs(tmp_path: Path) -> None:
    output = train(tmp_path)
    first, *later = numbers_of("runs", output)
    assert numbers_of("updates", output) == [4 * 40]
    # Runs grow in the first epoch, whose end the coordinator detects after more runs.
    assert len(later) == 3
    # Every 10 ms between the ends of the two workers cost a run. On a busy machine, at least one of
    # three epochs ends quickly.
    assert 2 <= min(later) < min(first, 20), (first, later)


def test_repeated_data_schedules_exactly_the_requested_steps(tmp_path: Path) -> None:
    output = train(tmp_path, "--repeat")
    assert numbers_of("scheduled", output) == [7] * 4
    assert numbers_of("updates", output) == [28]


def train(directory: Path, *own_flags: str) -> str:
    script = directory / "train.py"
    script.write_text(PROGRAM)
    flags = ["--strategy=parameter_server", "--ps=1", "--workers=2", "--chief"]
    ended = launch(directory, *flags, str(script), *own_flags, deadline=100)
    assert ended.code == 0, ended.output
    return ended.output


def numbers_of(word: str, output: str) -> list[int]:
    (line,) = [line for line in output.splitlines() if word in line]
    return [int(number) for number in line.split(word)[1].split()]
