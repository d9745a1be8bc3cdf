"""Runs random steps with and without packed transfers, and prints how many transfers each has.

A step reads and writes variables of two ps and computes on the worker and the ps, in random order.
The program fails if packed transfers change a value.
"""

from __future__ import annotations

import contextlib
import random
from collections.abc import Callable
from typing import Any

import tfdist  # isort: skip

import tensorflow as tf
from absl import app

from tfdist.strategies.parameter_server.steps.coordinator import EpochCoordinator
from tfdist.strategies.parameter_server.transfers.packed_step import packed_transfers

tfdist.define_flags()

STEPS = 10
SHAPE = [2, 3]


def random_step(seed: int, variables: list[tf.Variable]) -> list[tf.Tensor]:
    rng = random.Random(seed)
    known = [tf.ones(SHAPE) * tf.cast(tf.size(tf.range(3)), tf.float32)]

    def here() -> tf.Tensor:
        return rng.choice(known) * 0.5 + rng.choice(known)

    def on_ps() -> tf.Tensor:
        with tf.device(rng.choice(variables).device):
            return rng.choice(known) + rng.choice(known) * 0.25

    def read() -> tf.Tensor:
        return rng.choice(variables).read_value()

    def read_after() -> tf.Tensor:
        with tf.control_dependencies([rng.choice(known)]):
            return rng.choice(variables).read_value()

    def gather() -> tf.Tensor:
        rows = tf.cast(rng.choice(known)[:, 0] > 1.0, tf.int64)
        return tf.gather(rng.choice(variables), rows)

    def in_function() -> tf.Tensor:
        first, second = rng.sample(variables, 2)
        return tf.function(lambda value: value * second + first.assign_add(value * 0.125))(
            rng.choice(known)
        )

    def in_branch() -> tf.Tensor:
        first, second = rng.sample(variables, 2)
        value = rng.choice(known)
        return tf.cond(
            tf.reduce_sum(value) > 1.0,
            lambda: first.assign_sub(value * 0.125) + second,
            lambda: first * 0.5 + second,
        )

    def in_loop() -> tf.Tensor:
        variable = rng.choice(variables)
        return tf.while_loop(
            lambda step, _: step < 2,
            lambda step, value: (step + 1, value * 0.5 + variable),
            (0, rng.choice(known)),
        )[1]

    def large() -> tf.Tensor:
        return tf.reduce_mean(tf.tile(rng.choice(known), [50_000, 1])[1:]) + tf.zeros(SHAPE)

    def write() -> None:
        rng.choice(variables).assign_sub(rng.choice(known) * 0.0625)

    def overwrite() -> None:
        rng.choice(variables).assign(rng.choice(known))

    def check() -> None:
        tf.debugging.assert_less(rng.choice(known), 1e30)

    makers = [here, on_ps, read, read, read_after, gather, large]
    makers += [in_function, in_branch, in_loop]
    for _ in range(50):
        made = rng.choice([*makers, write, write, overwrite, check])()
        if made is not None:
            known.append(made)
    return known


def transfers(graph: Any, variables: list[tf.Variable]) -> int:
    """The number of tensors that operations read from another device, counted once per device."""
    devices = {variable.handle.ref(): variable.device for variable in variables}
    captured = {inner.ref(): devices.get(outer.ref()) for outer, inner in graph.captures}

    def device(operation: Any) -> str:
        calls = any(attribute.type == "func" for attribute in operation.op_def.attr)
        inputs = () if calls else operation.inputs
        found = [captured.get(tensor.ref()) for tensor in inputs]
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
    section = tf.CriticalSection()
    coordinator = EpochCoordinator(job.strategy)

    def least(seed: int, variables: list[tf.Variable]) -> list[tf.Tensor]:
        """Updates two variables under a lock; the second update needs the result of the first."""

        def under_lock(variable: tf.Variable, value: tf.Tensor) -> tf.Tensor:
            return section.execute(lambda: variable.assign(tf.minimum(variable, value)))

        first = under_lock(variables[0], variables[2] - float(seed))
        return [first, under_lock(variables[4], first * variables[2])]

    def ended(
        context: Callable[[], Any], seed: int, steps: Callable[..., list[tf.Tensor]] = random_step
    ) -> tuple[Any, int]:
        for number, variable in enumerate(variables):
            variable.assign(tf.fill(SHAPE, float(number)))

        @tf.function(autograph=False)
        def step() -> list[tf.Tensor]:
            with context():
                return steps(seed, variables)

        function = step.get_concrete_function()
        values = coordinator.schedule(step).fetch()
        values += [variable.numpy() for variable in variables]
        return values, transfers(function.graph, variables)

    for seed in range(STEPS):
        expected, unpacked = ended(contextlib.nullcontext, seed)
        found, packed = ended(packed_transfers, seed)
        for value, right in zip(found, expected, strict=True):
            tf.debugging.assert_equal(value, right, f"step {seed}")
        print("transfers", unpacked, packed, flush=True)
    expected = ended(contextlib.nullcontext, STEPS, least)[0]
    found = ended(packed_transfers, STEPS, least)[0]
    for value, right in zip(found, expected, strict=True):
        tf.debugging.assert_equal(value, right, "under a lock")
    print("under a lock", flush=True)
    print("packs", EpochCoordinator(job.strategy).packs_transfers, flush=True)


if __name__ == "__main__":
    app.run(main, flags_parser=tfdist.parse_flags)
