"""Saves what is on two ps, and says how often a function was traced for it.

It ends with 1 where a checkpoint does not have the values that the variables had.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from unittest import mock

import tfdist  # isort: skip

import numpy as np
import tensorflow as tf
from absl import app, flags
from tensorflow.python.checkpoint import functional_saver

from tfdist.upstream import remote_variables

FLAGS = flags.FLAGS
tfdist.define_flags()
flags.DEFINE_string("output_dir", None, "Where the checkpoints are.", required=True)

SHAPES: tuple[list[int], ...] = ([], [3], [300, 300], [2, 0])
DTYPES = (tf.float32, tf.int64, tf.float64)


class State(tf.train.experimental.PythonState):
    text = ""

    def serialize(self) -> str:
        return self.text

    def deserialize(self, string_value: bytes) -> None:
        self.text = string_value.decode()


@contextmanager
def traces() -> Iterator[mock.Mock]:
    """The calls of `tf.function` by what writes checkpoints."""
    module = functional_saver.def_function
    with mock.patch.object(module, "function", side_effect=module.function) as function:
        yield function


@tfdist.exit_on_usage_error()
def main(_: list[str]) -> None:
    job = tfdist.init()
    if job.serves:
        return job.serve()
    with job.scope():
        variables = [
            tf.Variable(tf.zeros(shape, dtype)) for shape in SHAPES for dtype in (*DTYPES, tf.bool)
        ]
    assert len({variable.device for variable in variables}) == 2
    here, state = tf.Variable(0), State()
    options = tf.train.CheckpointOptions(
        experimental_io_device=job.distribution.checkpointing.io_device
    )
    every_one = tf.train.Checkpoint(variables=[*variables, here], state=state)
    few = tf.train.Checkpoint(variables=[variables[5], variables[2]], state=state)

    def saved(checkpoint: tf.train.Checkpoint, number: int) -> int:
        own = list(checkpoint.variables)
        for place, variable in enumerate(own):
            variable.assign(tf.cast(tf.fill(variable.shape, number + place), variable.dtype))
        state.text = str(number)
        with (
            job.distribution.checkpointing.save_scope(model) if number else nullcontext(),
            traces() as traced,
        ):
            path = checkpoint.write(f"{FLAGS.output_dir}/{number}", options=options)
        reader = tf.train.load_checkpoint(path)
        for place, variable in enumerate(own):
            value = reader.get_tensor(f"variables/{place}/.ATTRIBUTES/VARIABLE_VALUE")
            np.testing.assert_array_equal(value, variable.numpy())
            assert value.dtype == variable.dtype.as_numpy_dtype
        checkpoint.read(path, options=options).assert_consumed()
        assert state.text == str(number)
        return int(traced.call_count)

    print("by TensorFlow", saved(every_one, 0))
    with mock.patch.object(
        remote_variables, "_reading", side_effect=remote_variables._reading
    ) as reading:
        traced = [saved(every_one, 1), saved(every_one, 2), saved(few, 3)]
        print("together", *traced, "and", reading.call_count)
        with job.scope():
            every_one.variables.append(tf.Variable(7.0))
        print("with another one", saved(every_one, 4), "and", reading.call_count)


if __name__ == "__main__":
    app.run(main, flags_parser=tfdist.parse_flags)
