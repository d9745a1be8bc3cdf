"""Trained models, and what is compared of them and of their files."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import tensorflow as tf

from tests.conftest import TinyTraining


def state(model: tf.keras.Model) -> list[np.ndarray]:
    """The weights, and the optimizer's steps and slots."""
    return [variable.numpy() for variable in (*model.variables, *model.optimizer.variables)]


def assert_equal(one: list[np.ndarray], other: list[np.ndarray]) -> None:
    assert len(one) == len(other)
    for left, right in zip(one, other, strict=True):
        np.testing.assert_array_equal(left, right)


def files(directory: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(directory)): path.read_bytes()
        for path in directory.rglob("*")
        if path.is_file()
    }


def trained(tiny: TinyTraining, seed: int = 1) -> tf.keras.Model:
    model = tiny.model(seed)
    model.fit(tiny.train_input(tf.distribute.InputContext()), epochs=1, verbose=0)
    return model
