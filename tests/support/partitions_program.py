"""Trains, saves and restores a model whose variables lie in parts on several ps, in one process.

    partitions_program.py DIRECTORY

The servers of each cluster run in this process. Writes `result.json`, the exported model and its
predictions to the directory.
"""

from __future__ import annotations

import json
import sys
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import tfdist  # isort: skip  # noqa: F401

import numpy as np
import tensorflow as tf

from tfdist.compat import keras as keras_compat
from tfdist.config.strategies.rows import ParameterServerOptions
from tfdist.data import sharding
from tfdist.data.position import Position
from tfdist.storage.checkpointer import Checkpointer
from tfdist.storage.export import export
from tfdist.storage.output_directory import OutputDirectory
from tfdist.strategies.parameter_server.steps.coordinator import EpochCoordinator
from tfdist.strategies.parameter_server.strategy import _Checkpointing
from tfdist.strategies.parameter_server.tensorflow_strategy import PassesShards
from tfdist.strategies.parameter_server.variables import partitioner as partitions
from tfdist.strategies.parameter_server.variables.checkpoint_layout import WholeLayout
from tfdist.tools.launch.local import hold_ports

KERAS_3 = keras_compat.is_keras_3(tf.keras.Model)
ROWS, WIDTH = 50, 4
IO_DEVICE = "/job:chief/replica:0/task:0/device:CPU:0"
IDS = np.random.default_rng(3).integers(0, ROWS, size=(32, 3)).astype("int32")
TARGETS = np.random.default_rng(4).normal(size=(32, 1)).astype("float32")
#: By step: the number of ps (0: no strategy) and the bytes of a part. Each restores the last one.
LAYOUTS = ((2, 128), (1, None), (3, 96), (0, None), (2, 64))


def cluster(num_ps: int, part: int | None) -> PassesShards:
    """A strategy with one worker and `num_ps` ps, whose servers run in this process."""
    with hold_ports(num_ps + 2) as ports:
        addresses = [f"127.0.0.1:{port}" for port in ports]
    servers = {"worker": addresses[:1], "ps": addresses[1:-1]}
    spec = tf.train.ClusterSpec(servers)
    # A worker with one thread could wait for itself.
    config = tf.compat.v1.ConfigProto(inter_op_parallelism_threads=4)
    running = [
        tf.distribute.Server(spec, job_name=job, task_index=task, protocol="grpc", config=config)
        for job in servers
        for task in range(len(servers[job]))
    ]
    partitioner = partitions.partitioner_of(ParameterServerOptions(partition_bytes=part))
    strategy = PassesShards({**servers, "chief": addresses[-1:]}, partitioner)
    strategy.servers = running
    EpochCoordinator(strategy)
    return strategy


def build(optimizer: str) -> tf.keras.Model:
    layers = tf.keras.layers
    model = tf.keras.Sequential(
        [
            layers.Input([3], dtype="int32"),
            layers.Embedding(ROWS, WIDTH, name="table"),
            layers.Flatten(),
            layers.Dense(7, activation="tanh", name="hidden"),
            layers.Dense(1, name="last"),
        ]
    )
    optimizers = {
        "adam": tf.keras.optimizers.Adam(0.01),
        "momentum": tf.keras.optimizers.SGD(0.1, momentum=0.9),
    }
    if KERAS_3 and optimizer == "momentum":
        of_table = {"table/.*": tf.keras.optimizers.Adagrad(0.5)}
        by_path = tf.keras.optimizers.OptimizerMap(optimizers["momentum"], of_table)
        optimizers["momentum"] = tf.keras.optimizers.MultiOptimizer(by_path)
    model.compile(optimizers[optimizer], "mse")
    model.optimizer.build(model.trainable_variables)
    return model


def saved_values(path: str) -> dict[str, np.ndarray]:
    names = [name for name, _ in tf.train.list_variables(path) if name.endswith("VARIABLE_VALUE")]
    return {name: tf.train.load_variable(path, name) for name in names}


def fit(model: tf.keras.Model) -> None:
    def make() -> tf.data.Dataset:
        return tf.data.Dataset.from_tensor_slices((IDS, TARGETS)).batch(8)

    shards = sharding.Shards(make(), (make,), trains=True)
    model.fit(sharding.for_keras(shards, sharding.UNKNOWN), epochs=2, verbose=0)


def gradients(model: tf.keras.Model) -> list[tuple[str, str]]:
    """By trainable variable, its name and the type of its gradient."""
    variables = keras_compat.as_tensorflow(model.trainable_variables)

    def step(ids: tf.Tensor) -> tf.Tensor:
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(model(ids))
        found.extend(type(gradient).__name__ for gradient in tape.gradient(loss, variables))
        return loss

    found: list[str] = []
    tf.function(step).get_concrete_function(tf.TensorSpec([None, 3], tf.int32))
    return [(variable.name, kind) for variable, kind in zip(variables, found, strict=True)]


def describe(strategy: PassesShards, model: tf.keras.Model) -> dict[str, Any]:
    placement = strategy.placement
    variables = keras_compat.as_tensorflow(model.trainable_variables)
    return {
        "bytes_per_ps": placement.bytes_per_ps(),
        "variables": len(variables),
        "largest": max(int(tf.size(variable)) * 4 for variable in variables),
        "gradients": gradients(model),
        "devices": [
            [variable.device, *(slot.device for slot in placement.slots_of(variable))]
            for variable in variables
        ],
    }


def export_model(model: tf.keras.Model, directory: Path) -> None:
    np.save(directory / "predictions.npy", model.predict(IDS, verbose=0))
    export(model, OutputDirectory(str(directory)), writes=True, io_device=IO_DEVICE)


def run(optimizer: str, directory: Path) -> dict[str, Any]:
    result: dict[str, Any] = {"layouts": [], "different": []}
    expected: dict[str, np.ndarray] = {}
    last: str | None = None
    for number, (num_ps, part) in enumerate(LAYOUTS):
        strategy = cluster(num_ps, part) if num_ps else None
        with strategy.scope() if strategy is not None else nullcontext():
            model = build(optimizer)
        checkpointing = None
        if strategy is not None:
            for split in strategy.split_variables:
                split.put_together()
            checkpointing = _Checkpointing(num_ps)
            checkpointing.layout = WholeLayout(model, strategy.placement)
        checkpointer = Checkpointer(
            model,
            directory / optimizer / str(number),
            writes=True,
            io_device=IO_DEVICE if checkpointing is not None else None,
            state=checkpointing.state(model) if checkpointing is not None else None,
        )
        if strategy is not None:
            result["layouts"].append(describe(strategy, model))
        if last is None:
            fit(model)
            if optimizer == "adam":
                export_model(model, directory)
        else:
            checkpointer.restore(last)
        checkpointer.save(Position(1), number=1)
        last = str(directory / optimizer / str(number) / "ckpt-1")
        found = saved_values(last)
        if not expected:
            expected = found
            result["shapes"] = sorted(list(value.shape) for value in found.values())
        for name in expected.keys() & found.keys():
            if name[:12] != "save_counter" and not np.array_equal(found[name], expected[name]):
                result["different"].append([number, name])
        # Keras 3's optimizer saves the variables that the checkpoint has already.
        names = sorted(name for name in expected.keys() ^ found.keys())
        result["different"] += [name for name in names if "/_trainable_variables/" not in name]
    result["trained"] = float(sum(np.abs(value).sum() for value in expected.values()))
    return result


class Subclass(tf.keras.layers.Embedding):
    """May use its table in other ways."""


def layers() -> dict[str, Any]:
    """What the layers of Keras 3 do with variables in parts."""
    keras = tf.keras
    strategy = cluster(2, 128)
    value = np.arange(ROWS * WIDTH, dtype="float32").reshape(ROWS, WIDTH)
    features = np.random.default_rng(5).normal(size=(5, 12)).astype("float32")
    with strategy.scope():
        table = keras.layers.Embedding(ROWS, WIDTH, weights=value, name="table")
        kernel = keras.layers.Dense(7, kernel_regularizer="l2", name="kernel")
        others = [
            keras.layers.Embedding(
                ROWS, WIDTH, embeddings_constraint="non_neg", name="with_constraint"
            ),
            Subclass(ROWS, WIDTH, name="of_subclass"),
        ]
        for layer in others:
            layer.build()
        product = kernel(features)
        # Keras creates the variables of the inner layers at the end of a symbolic call.
        inner = [keras.layers.Embedding(ROWS, WIDTH), keras.layers.Dense(7)]

        class Outer(tf.keras.Model):
            def __init__(self) -> None:
                super().__init__()
                self.inner = inner

            def call(self, ids: Any) -> Any:
                return inner[1](tf.reshape(inner[0](ids), [-1, 12]))

        outer = Outer()
        keras.Sequential([keras.layers.Input([3], dtype="int32"), outer])
    negative = np.array([[0, -1], [-ROWS, 7]])
    ragged = tf.ragged.constant([[1, 2, 49], [], [0]])
    weights = kernel.get_weights()
    penalty = sum(float(loss) for loss in kernel.losses)
    differences = {
        "negative": np.abs(table(negative) - value[negative]).max(),
        "ragged": np.abs(table(ragged).flat_values - value[[1, 2, 49, 0]]).max(),
        "whole": np.abs(tf.convert_to_tensor(table.embeddings) - value).max(),
        "product": np.abs(product - (features @ weights[0] + weights[1])).max() / 10,
        "regularizer": abs(penalty / (0.01 * np.square(weights[0]).sum()) - 1) / 10,
    }
    refused = ""
    try:
        kernel.enable_lora(2)
    except ValueError as error:
        refused = f"{type(error).__name__}: {error}"
    outer(IDS)
    deferred = [list(layer.get_weights()[0].shape) for layer in inner]
    for split in strategy.split_variables:
        split.put_together()
    variables = [table, kernel, *others]
    line = partitions.whole_variables(
        strategy.layer_partitioner,
        keras_compat.as_tensorflow([v for layer in others for v in layer.variables]),
    )
    return {
        "parts": {
            layer.name: sum(len(weight.shape) == 2 for weight in layer.trainable_variables)
            for layer in variables
        },
        "differences": {name: float(value) for name, value in differences.items()},
        "refused": refused,
        "deferred": deferred,
        "line": line,
    }


def main(directory: Path) -> None:
    if KERAS_3:
        from tfdist.strategies.parameter_server.steps import keras3
        from tfdist.strategies.parameter_server.variables import split_layers

        keras3.apply()
        split_layers.apply()
    result = {optimizer: run(optimizer, directory) for optimizer in ("adam", "momentum")}
    if KERAS_3:
        result["layers"] = layers()
    (directory / "result.json").write_text(json.dumps(result))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
