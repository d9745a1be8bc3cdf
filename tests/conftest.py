"""What several tests share: TF_CONFIG as text, and a training small enough to run in a moment.

Also, which of the tests there are with the TensorFlow that is installed.
"""

from __future__ import annotations

import ast
import json
import os
import resource
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest


def take_cores() -> None:
    """Gives each of xdist's workers cores of its own.

    Two jobs whose tasks wait for each other in every step take twice as long on the same cores.
    """
    name = os.environ.get("PYTEST_XDIST_WORKER", "")
    if name:
        cores = sorted(os.sched_getaffinity(0))
        count = min(len(cores), int(os.environ["PYTEST_XDIST_WORKER_COUNT"]))
        os.sched_setaffinity(0, cores[int(name.removeprefix("gw")) % count :: count])


# tfdist and TensorFlow look at the cores when they are imported.
take_cores()

import tfdist  # noqa: E402, F401  (before TensorFlow, whichever test is collected first)
from tests.support.launchers import start, tfdist_run  # noqa: E402, F401

if TYPE_CHECKING:
    import tensorflow as tf

    from tfdist.job import Job


def tensorflow_version() -> tuple[int, int]:
    """Of the TensorFlow that is installed, which is not imported for it."""
    major, minor = version("tensorflow").split(".")[:2]
    return int(major), int(minor)


def keras_is_3() -> bool:
    """Whether `tf.keras` is Keras 3, told as TensorFlow tells it."""
    is_legacy = os.environ.get("TF_USE_LEGACY_KERAS") in ("1", "true", "True")
    return tensorflow_version() >= (2, 16) and not is_legacy


def stack() -> str:
    """The stack of this environment, as `scripts/test --stack` names it."""
    release = tensorflow_version()
    if release >= (2, 16) and not keras_is_3():
        return "tf_keras"
    return "2.15" if release < (2, 16) else "2.21"


def stacks_of(path: Path) -> set[str]:
    """The stacks that run a file of tests: those of its `pytest.mark.stacks`, else 2.15 alone.

    Read from the source, because a file for another stack may fail to import here.
    """
    for node in ast.parse(path.read_text()).body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "pytestmark":
            for call in ast.walk(node.value):
                if isinstance(call, ast.Call) and ast.unparse(call.func) == "pytest.mark.stacks":
                    return {ast.literal_eval(argument) for argument in call.args}
    return {"2.15"}


class Elsewhere(pytest.Module):
    """A file of tests for other stacks, which is not imported."""

    def collect(self) -> list[pytest.Item]:
        return []


def pytest_pycollect_makemodule(
    module_path: Path, parent: pytest.Collector
) -> pytest.Module | None:
    is_here = stack() in stacks_of(module_path)
    return None if is_here else Elsewhere.from_parent(parent, path=module_path)


def pytest_itemcollected(item: pytest.Item) -> None:
    if "horovod" in item.nodeid:
        item.add_marker("horovod")


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
        import tfdist.start
        from tfdist.flags import JobFlags

        return tfdist.start.create(JobFlags(), environ or {})

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
    """Lists what tfdist leaves in the directory that `tempfile` uses, empty at the start."""
    place = tmp_path / "temporary"
    place.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(place))
    # TensorFlow's own are there until the process ends.
    return lambda: sorted(name for name in os.listdir(place) if "autograph" not in name)


@contextmanager
def file_size_limit(size: int) -> Iterator[None]:
    """Lets this process write no file beyond `size` bytes, as `ulimit -f` does."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
