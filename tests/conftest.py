"""What several tests share: TF_CONFIG as text, and a training small enough to run in a moment."""

from __future__ import annotations

import json
import os
import resource
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import tfdist  # noqa: F401  (before TensorFlow, whichever test is collected first)
from tests.launchers import start, tfdist_run  # noqa: F401

if TYPE_CHECKING:
    import tensorflow as tf

    from tfdist.strategies.base import Job


def tf_config(task_type: str, index: Any, **jobs: Any) -> str:
    """TF_CONFIG of the task `task_type:index` in a cluster of `jobs`."""
    return json.dumps({"cluster": jobs, "task": {"type": task_type, "index": index}})


class TinyTraining:
    """Three classes of 24 points, and a linear model trained in 5 steps an epoch."""

    batch_size = 5
    steps = 5

    def __init__(self) -> None:
        import numpy as np

        self.points = np.random.default_rng(3).normal(size=(24, 4)).astype("float32")
        self.classes = (self.points @ np.arange(12).reshape(4, 3) % 3).argmax(axis=1)

    def job(self, environ: dict[str, str] | None = None) -> Job:
        """The job of this process alone, or whatever `environ` describes."""
        import tfdist.job
        from tfdist.flags import JobFlags

        return tfdist.job.create(JobFlags(), environ or {})

    def model(self, seed: int = 1, layers: tuple[Any, ...] = ()) -> tf.keras.Model:
        """A compiled model with initial weights that `seed` determines; momentum is its slot."""
        import tensorflow as tf

        initial = tf.keras.initializers.GlorotUniform(seed=seed)
        inputs = tf.keras.Input((4,))
        hidden = inputs
        for layer in layers:
            hidden = layer(hidden)
        outputs = tf.keras.layers.Dense(3, kernel_initializer=initial)(hidden)
        model = tf.keras.Model(inputs, outputs)
        model.compile(
            optimizer=tf.keras.optimizers.SGD(0.1, momentum=0.9),
            loss=tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True),
            metrics=["accuracy"],
        )
        return model

    def train_input(self, context: tf.distribute.InputContext) -> tf.data.Dataset:
        import tensorflow as tf

        examples = tf.data.Dataset.from_tensor_slices((self.points, self.classes))
        return examples.shuffle(24, seed=7, reshuffle_each_iteration=True).batch(self.batch_size)

    def eval_input(self, context: tf.distribute.InputContext) -> tf.data.Dataset:
        import tensorflow as tf

        return tf.data.Dataset.from_tensor_slices((self.points, self.classes)).batch(8)


@pytest.fixture
def tiny() -> TinyTraining:
    return TinyTraining()


@pytest.fixture
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[], list[str]]:
    """Lists what lies in the directory that `tempfile` uses, empty at the start of the test."""
    place = tmp_path / "temporary"
    place.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(place))
    return lambda: sorted(os.listdir(place))


@contextmanager
def file_size_limit(size: int) -> Iterator[None]:
    """Lets this process write no file beyond `size` bytes, as `ulimit -f` does."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
