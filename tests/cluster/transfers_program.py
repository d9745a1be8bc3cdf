"""Random steps with and without packed transfers; says of each how many transfers it has.

A step reads and writes variables of two ps and computes with what it has read, here and there, in
random order. It ends with 1 where the two ways do not give the same values.
"""

from __future__ import annotations

import contextlib
import random
from collections.abc import Callable
from typing import Any

import tfdist  # isort: skip

import tensorflow as tf
from absl import app

from tfdist.strategies.epoch_coordinator import EpochCoordinator
from tfdist.strategies.packed_transfers import packed_transfers

tfdist.define_flags()

STEPS = 10
SHAPE = [2, 3]


def random_step(seed: int, variables: list[tf.Variable]) -> list[tf.Tensor]:
    chance = random.Random(seed)
    known = [tf.ones(SHAPE) * tf.cast(tf.size(tf.range(3)), tf.float32)]

    def here() -> tf.Tensor:
        return chance.choice(known) * 0.5 + chance.choice(known)

    def on_ps() -> tf.Tensor:
        with tf.device(chance.choice(variables).device):
            return chance.choice(known) + chance.choice(known) * 0.25

    def read() -> tf.Tensor:
        return chance.choice(variables).read_value()

    def read_after() -> tf.Tensor:
        with tf.control_dependencies([chance.choice(known)]):
            return chance.choice(variables).read_value()

    def gather() -> tf.Tensor:
        rows = tf.cast(chance.choice(known)[:, 0] > 1.0, tf.int64)
        return tf.gather(chance.choice(variables), rows)

    def in_function() -> tf.Tensor:
        variable = chance.choice(variables)
        return tf.function(lambda value: value + variable.assign_add(value * 0.125))(
            chance.choice(known)
        )

    def large() -> tf.Tensor:
        return tf.reduce_mean(tf.tile(chance.choice(known), [50_000, 1])[1:]) + tf.zeros(SHAPE)

    def write() -> None:
        chance.choice(variables).assign_sub(chance.choice(known) * 0.0625)

    def overwrite() -> None:
        chance.choice(variables).assign(chance.choice(known))

    def check() -> None:
        tf.debugging.assert_less(chance.choice(known), 1e30)

    makers = [here, on_ps, read, read, read_after, gather, in_function, large]
    for _ in range(50):
        made = chance.choice([*makers, write, write, overwrite, check])()
        if made is not None:
            known.append(made)
    return known


def transfers(graph: Any, variables: list[tf.Variable]) -> int:
    """How many tensors operations have from another device, each counted once a device."""
    devices = {variable.handle.ref(): variable.device for variable in variables}
    captured = {inner.ref(): devices.get(outer.ref()) for outer, inner in graph.captures}

    def device(operation: Any) -> str:
        found = [captured.get(tensor.ref()) for tensor in operation.inputs]
        on_ps = [found for found in (*found, operation.device) if found and "job:ps" in found]
        return on_ps[0] if on_ps else "worker"

    return len(
        {
            (tensor.ref(), device(operation))
            for operation in graph.get_operations()
            for tensor in operation.inputs
            if tensor.op.type not in ("Const", "Placeholder")
            and device(tensor.op) != device(operation)
        }
    )


def main(_: list[str]) -> None:
    job = tfdist.init()
    if job.serves:
        return job.serve()
    with job.scope():
        variables = [tf.Variable(tf.fill(SHAPE, float(number))) for number in range(6)]
    coordinator = EpochCoordinator(job.strategy)

    def ended(seed: int, context: Callable[[], Any]) -> tuple[Any, int]:
        for number, variable in enumerate(variables):
            variable.assign(tf.fill(SHAPE, float(number)))

        @tf.function(autograph=False)
        def step() -> list[tf.Tensor]:
            with context():
                return random_step(seed, variables)

        function = step.get_concrete_function()
        values = coordinator.schedule(step).fetch()
        values += [variable.numpy() for variable in variables]
        return values, transfers(function.graph, variables)

    for seed in range(STEPS):
        expected, by_itself = ended(seed, contextlib.nullcontext)
        found, packed = ended(seed, packed_transfers)
        for value, right in zip(found, expected, strict=True):
            tf.debugging.assert_equal(value, right, f"step {seed}")
        print("transfers", by_itself, packed, flush=True)


if __name__ == "__main__":
    app.run(main, flags_parser=tfdist.parse_flags)
