"""Shared fixtures and helpers, and the selection of tests for the installed TensorFlow."""

from __future__ import annotations

import ast
import functools
import gc
import json
import os
import resource
import signal
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest

STACKS = ("2.15", "2.21", "tf_keras", "newest")
#: The stacks with Horovod.
HOROVOD_STACKS = {"2.15", "tf_keras", "newest"}


def take_cores() -> None:
    """Pins each xdist worker to its own cores.

    Two jobs whose tasks wait for each other in every step take twice as long on shared cores.
    """
    name = os.environ.get("PYTEST_XDIST_WORKER", "")
    if name:
        cores = sorted(os.sched_getaffinity(0))
        count = min(len(cores), int(os.environ["PYTEST_XDIST_WORKER_COUNT"]))
        os.sched_setaffinity(0, cores[int(name.removeprefix("gw")) % count :: count])


def accept_interrupts() -> None:
    """Lets processes that tests start receive SIGINT, which a shell's background jobs ignore."""
    if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


accept_interrupts()
# tfdist and TensorFlow read the CPU affinity when they are imported.
take_cores()

import tfdist  # noqa: E402, F401  (before TensorFlow, whichever test is collected first)
from tests.support.launchers import start, tfdist_run  # noqa: E402, F401
from tests.support.patience import PATIENCE  # noqa: E402

if TYPE_CHECKING:
    import tensorflow as tf

    from tfdist.job import Job


def tensorflow_version() -> tuple[int, int]:
    """The version of the installed TensorFlow, without importing it."""
    major, minor = version("tensorflow").split(".")[:2]
    return int(major), int(minor)


def keras_is_3() -> bool:
    """Whether `tf.keras` is Keras 3, by the same rule as in TensorFlow."""
    is_legacy = os.environ.get("TF_USE_LEGACY_KERAS") in ("1", "true", "True")
    return tensorflow_version() >= (2, 16) and not is_legacy


def installed_stack() -> str:
    """The stack of this environment, as in `scripts/test --stack`."""
    release = tensorflow_version()
    if release >= (2, 16) and not keras_is_3():
        return "tf_keras"
    return "2.15" if release < (2, 16) else "2.21"


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--stack", default=installed_stack(), choices=STACKS, help="select the tests of a stack"
    )


class Stacks(NamedTuple):
    """The stacks that run a test, or a test file.

    Attributes:
      plain: those of tests that do not need Horovod.
      horovod: those of tests that need it.
    """

    plain: frozenset[str]
    horovod: frozenset[str]

    @classmethod
    def of(cls, *plain: str, horovod: Sequence[str] | None = None) -> Stacks:
        """What `pytest.mark.stacks` says with these arguments."""
        found = frozenset(plain) & HOROVOD_STACKS if horovod is None else frozenset(horovod)
        return cls(frozenset(plain), found)


@functools.cache
def stacks_of(path: Path) -> Stacks:
    """The stacks in the `pytest.mark.stacks` of a test file.

    Parses the source, because a file for another stack may fail to import here.
    """
    for node in ast.parse(path.read_text()).body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "pytestmark":
            for call in ast.walk(node.value):
                if isinstance(call, ast.Call) and ast.unparse(call.func) == "pytest.mark.stacks":
                    plain = [ast.literal_eval(argument) for argument in call.args]
                    named = {str(each.arg): ast.literal_eval(each.value) for each in call.keywords}
                    return Stacks.of(*plain, **named)
    raise pytest.UsageError(f"{path} has no pytestmark with pytest.mark.stacks(...).")


def needs_horovod(item: pytest.Item) -> bool:
    """Whether a test needs Horovod: it is marked so, or the id of its parameters names it."""
    parameters = getattr(item, "callspec", None)
    is_named = parameters is not None and "horovod" in parameters.id
    return is_named or item.get_closest_marker("horovod") is not None


class OtherStack(pytest.Module):
    """A test file for other stacks, which is not imported."""

    def collect(self) -> list[pytest.Item]:
        return []


def pytest_pycollect_makemodule(
    module_path: Path, parent: pytest.Collector
) -> pytest.Module | None:
    stacks = stacks_of(module_path)
    is_here = parent.config.getoption("--stack") in stacks.plain | stacks.horovod
    return None if is_here else OtherStack.from_parent(parent, path=module_path)


def pytest_collection_finish() -> None:
    gc.collect()
    gc.freeze()  # All modules are imported now.


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leaves out the tests of a file that run in other stacks, and puts groups first.

    The tests of a group run one after the other, so the last one to start would run alone. The
    timeout of a test is that of an idle machine times `PATIENCE`.
    """
    stack = config.getoption("--stack")
    parts: dict[bool, list[pytest.Item]] = {True: [], False: []}
    for item in items:
        # That of the test itself, or of its parameters, comes before that of its file.
        marker = item.get_closest_marker("stacks")
        stacks = Stacks.of(*marker.args, **marker.kwargs) if marker else stacks_of(item.path)
        parts[stack in (stacks.horovod if needs_horovod(item) else stacks.plain)].append(item)
    items[:] = sorted(parts[True], key=lambda item: item.get_closest_marker("xdist_group") is None)
    config.hook.pytest_deselected(items=parts[False])
    for item in items:
        timeout = item.get_closest_marker("timeout")
        seconds = timeout.args[0] if timeout else float(config.getini("timeout"))
        item.add_marker(pytest.mark.timeout(PATIENCE * seconds))


def tf_config(task_type: str, index: Any, **jobs: Any) -> str:
    """The TF_CONFIG of the task `task_type:index` in a cluster of `jobs`."""
    return json.dumps({"cluster": jobs, "task": {"type": task_type, "index": index}})


class TinyTraining:
    """24 points in three classes, and a linear model that trains on them in 5 steps per epoch."""

    batch_size = 5
    steps = 5

    def __init__(self) -> None:
        import numpy as np

        self.points = np.random.default_rng(3).normal(size=(24, 4)).astype("float32")
        self.classes = (self.points @ np.arange(12).reshape(4, 3) % 3).argmax(axis=1)

    def job(self, environ: dict[str, str] | None = None) -> Job:
        """The job that `environ` describes; default: a job with one process."""
        import tfdist.entry
        from tfdist.config.flags import JobFlags

        return tfdist.entry.create(JobFlags(), environ or {})

    def model(self, seed: int = 1, layers: tuple[Any, ...] = ()) -> tf.keras.Model:
        """A compiled model with momentum slots; `seed` determines the initial weights."""
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
def temporary_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[], list[str]]:
    """A function that lists the files tfdist left in the temporary directory."""
    directory = tmp_path / "temporary"
    directory.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(directory))

    def is_of_tfdist(name: str) -> bool:
        # TensorFlow's own files stay until the process exits.
        return "autograph" not in name and name != "__pycache__"

    return lambda: sorted(filter(is_of_tfdist, os.listdir(directory)))


@contextmanager
def file_size_limit(size: int) -> Iterator[None]:
    """Limits the size of the files that this process can write, like `ulimit -f`."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
