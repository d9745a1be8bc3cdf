"""The types of the public names, as mypy shows them to a user of the installed package."""

from __future__ import annotations

import ast
import importlib
import inspect
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import tfdist
import tfdist.estimator
from tests.support.processes import ROOT

pytestmark = [pytest.mark.stacks("2.15"), pytest.mark.timeout(600)]

# Without the modules of libraries that no public name needs, mypy takes a third of the time.
CONFIG = """
[mypy]
strict = true
[mypy-absl.*,cryptography.*,mlflow.*,numpy.*,psutil.*,rich.*,wandb.*]
follow_imports = skip
"""

# TensorFlow ships no types. These stand for a package of them, such as types-tensorflow.
TENSORFLOW = """
class Operation: ...
class Tensor: ...
class data:
    class Dataset: ...
class distribute:
    class InputContext: ...
    class Strategy: ...
class keras:
    class Model: ...
    class optimizers:
        class Adam: ...
    class callbacks:
        class Callback: ...
        class History:
            model: keras.Model
class estimator:
    class Estimator: ...
    class EvalSpec: ...
    class RunConfig: ...
    class TrainSpec: ...
class compat:
    class v1:
        class ConfigProto: ...
        class train:
            class CheckpointSaverListener: ...
            class MonitoredSession: ...
            class SessionRunArgs: ...
            class SessionRunContext: ...
            class SessionRunHook: ...
            class SessionRunValues: ...
"""

SCRIPT = """
import tfdist
import tensorflow as tf
import tfdist.estimator


def build_model(job: tfdist.Job) -> tf.keras.Model:
    with job.scope(), tfdist.stage(0):
        return tf.keras.Model()


def train_input(context: tf.distribute.InputContext) -> tf.data.Dataset:
    return tf.data.Dataset()


class Batches:
    def __len__(self) -> int:
        return 2

    def __getitem__(self, index: int) -> tuple[float, float]:
        return 1.0, 2.0


@tfdist.main
def main(job: tfdist.Job) -> None:
    job.fit(build_model, train_input, epochs=1, output_dir="run")
    job.fit(tf.keras.Model, Batches(), epochs=1, output_dir="run", validation=([1.0], [2.0]))


@tfdist.estimator.main
def estimator_main(job: tfdist.estimator.EstimatorJob) -> None:
    config = tfdist.estimator.RunConfig(job, "run", save_checkpoints_steps=5)
    assert config.job is job
    tfdist.estimator.train(tf.estimator.Estimator(), train_input, max_steps=5)


@tfdist.exit_on_usage_error()
def other(argv: list[str]) -> None:
    tfdist.define_flags()


job = tfdist.init()
model = tf.keras.Model()
estimator = tf.estimator.Estimator()
train_spec, eval_spec = tf.estimator.TrainSpec(), tf.estimator.EvalSpec()
"""

#: Expressions, and their types.
REVEALED = {
    "main": "def (list[str])",
    "estimator_main": "def (list[str])",
    "other": "def (argv: list[str])",
    "tfdist.run(main)": "None",
    "job": "tfdist.job.Job",
    "job.fit(build_model, train_input, epochs=1)": "tensorflow.keras.callbacks.History",
    "job.dataset(Batches())": "tensorflow.data.Dataset",
    "job.eval_dataset(train_input)": "tensorflow.data.Dataset",
    "job.callbacks('run')": "list[tensorflow.keras.callbacks.Callback]",
    "job.scope()": "contextlib.AbstractContextManager[object, bool | None]",
    "job.strategy": "tensorflow.distribute.Strategy",
    "job.wrap_optimizer(tf.keras.optimizers.Adam())": "tensorflow.keras.optimizers.Adam",
    "job.evaluate(model, train_input)": "dict[str, float]",
    "job.scaled_lr(0.1)": "float",
    "job.task.index": "int",
    "tfdist.parse_flags(['script'])": "list[str]",
    "tfdist.stage(0)": "contextlib._GeneratorContextManager[None, None, None]",
    "tfdist.Cluster(worker=('a:1',)).ps": "tuple[str, ...]",
    "tfdist.__version__": "str",
    "tfdist.estimator.init().device_setter()": "(def (tensorflow.Operation) -> str) | None",
    "tfdist.estimator.export(estimator, tf.keras.Model)": "pathlib.Path | None",
}

#: Wrong uses, and what mypy says of them.
WRONG = {
    "tfdist.mian": "attr-defined",
    "tfdist.init(5)": "arg-type",
    "job.fit(build_model, train_input)": "call-arg",
    "job.fit(train_input, train_input, epochs=1)": "arg-type",
    "job.dataset(5)": "arg-type",
    "job.callbacks('run', keep='5')": "arg-type",
    "tfdist.main(train_input)": "arg-type",
    "tfdist.estimator.evaluate(estimator, train_input, step=5)": "call-arg",
}

#: What has no type: arguments that TensorFlow gets as they are, input functions, which may have any
#: arguments, and the values of an Estimator's metrics.
UNTYPED = {
    "tfdist.estimator.RunConfig": "**options: Any",
    "tfdist.estimator.EstimatorJob.monitored_session": "**options: Any",
    "tfdist.estimator.evaluate": "dict[str, Any]",
    "tfdist.estimator.train_and_evaluate": "dict[str, Any]",
}
INPUT_FUNCTION = "def (*Any, **Any) -> object"


def public_names() -> list[str]:
    """All names of the API, and the members of its classes."""
    names = []
    for module in (tfdist, tfdist.estimator):
        for name in module.__all__:
            value = getattr(module, name)
            names.append(f"{module.__name__}.{name}")
            if inspect.isclass(value) and value.__module__.startswith("tfdist"):
                members = [member for member in vars(value) if not member.startswith("_")]
                names += [f"{module.__name__}.{name}.{member}" for member in members]
    return names


def test_a_type_checker_sees_the_public_types(tmp_path: Path) -> None:
    (tmp_path / "stubs" / "tensorflow").mkdir(parents=True)
    (tmp_path / "stubs" / "tensorflow" / "__init__.pyi").write_text(TENSORFLOW)
    names = public_names()
    lines = [*SCRIPT.splitlines(), *(f"reveal_type({text})" for text in [*REVEALED, *names])]
    lines += WRONG
    (tmp_path / "script.py").write_text("\n".join(lines))
    (tmp_path / "mypy.ini").write_text(CONFIG)
    ended = subprocess.run(
        [sys.executable, "-m", "mypy", f"--cache-dir={os.devnull}", "script.py"],
        cwd=tmp_path,
        # mypy takes the types of a package in PYTHONPATH only if it has the file py.typed.
        env={**os.environ, "PYTHONPATH": str(ROOT), "MYPYPATH": "stubs"},
        capture_output=True,
        text=True,
        timeout=580,
    )
    print(ended.stdout)
    said = re.findall(r"^script\.py:(\d+): (error|note): (.*)$", ended.stdout, re.MULTILINE)
    errors = [(lines[int(number) - 1], text) for number, kind, text in said if kind == "error"]
    assert {use: text.rpartition("[")[2].rstrip("]") for use, text in errors} == WRONG
    types = re.findall(r': note: Revealed type is "(.*)"$', ended.stdout, re.MULTILINE)
    assert dict(zip(REVEALED, types, strict=False)) == REVEALED
    for name, revealed in zip(names, types[len(REVEALED) :], strict=True):
        assert UNTYPED.get(name, "") in revealed
        typed = revealed.replace(UNTYPED.get(name, INPUT_FUNCTION), "").replace(INPUT_FUNCTION, "")
        assert not re.search(r"\bAny\b", typed), f"{name}: {revealed}"


def test_the_names_that_type_checkers_see_are_those_that_are_loaded() -> None:
    tree = ast.parse(inspect.getsource(tfdist))
    (block,) = [
        node
        for node in tree.body
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"
    ]
    seen = set()
    for statement in block.body:
        assert isinstance(statement, ast.ImportFrom) and statement.module is not None
        for alias in statement.names:
            seen.add(alias.name)
            there = getattr(importlib.import_module(statement.module), alias.name)
            assert getattr(tfdist, alias.name) is there
    assert {*seen, "__version__"} == {*tfdist.__all__}
    with pytest.raises(AttributeError, match="module 'tfdist' has no attribute 'mian'"):
        tfdist.mian  # type: ignore[attr-defined]  # noqa: B018
