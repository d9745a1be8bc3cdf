"""The output directory that all tasks of a job share, and the checkpoints in it.

    output = OutputDirectory("/shared/run1")
    output.checkpoints    # ckpt-3.index, ckpt-3.data-…, checkpoint: written by the chief
    output.logs           # TensorBoard: train, validation, eval
    output.metrics        # metrics.jsonl: a JSON object an epoch
    output.saved_model    # the model when training is complete
    output.done           # done.json: there once training is complete

A checkpoint is named after the epoch that it ends. What is written here is written beside and
renamed; a task other than the chief writes nothing here.
"""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf
from absl import logging


@dataclass(frozen=True)
class OutputDirectory:
    """The places in an output directory; nothing is made before something is written."""

    path: Path

    def __init__(self, path: str | os.PathLike[str]) -> None:
        object.__setattr__(self, "path", Path(path))

    @property
    def checkpoints(self) -> Path:
        return self.path / "checkpoints"

    @property
    def logs(self) -> Path:
        return self.path / "logs"

    @property
    def metrics(self) -> Path:
        return self.path / "metrics.jsonl"

    @property
    def eval_metrics(self) -> Path:
        return self.path / "eval_metrics.jsonl"

    @property
    def saved_model(self) -> Path:
        return self.path / "saved_model"

    @property
    def done(self) -> Path:
        return self.path / "done.json"


class _Progress(tf.train.experimental.PythonState):
    """The number of finished epochs, as part of a checkpoint."""

    epoch = 0

    def serialize(self) -> str:
        return json.dumps({"epoch": self.epoch})

    def deserialize(self, string_value: bytes) -> None:
        self.epoch = json.loads(string_value)["epoch"]


class Checkpointer:
    """Saves and restores a model, its optimizer and the number of finished epochs.

    Args:
      model: a `tf.keras.Model`, with its optimizer where it is compiled.
      directory: where the checkpoints are.
      writes: whether this task writes there. Where saving is collective every task saves, the
        others into a temporary directory that `close` removes.
      keep: how many checkpoints are kept; None for all.
      io_device: the device whose machine reads and writes; None for each variable's own.
    """

    def __init__(
        self,
        model: tf.keras.Model,
        directory: Path,
        *,
        writes: bool = False,
        keep: int | None = None,
        io_device: str | None = None,
    ) -> None:
        self._progress = _Progress()
        self._checkpoint = tf.train.Checkpoint(model=model, progress=self._progress)
        self._directory = directory
        self._writes = writes
        self._keep = keep
        self._options = tf.train.CheckpointOptions(experimental_io_device=io_device)
        self._manager: tf.train.CheckpointManager | None = None
        self._temporary: tempfile.TemporaryDirectory[str] | None = None

    def restore(self, path: str | None = None) -> int:
        """Restores `path`, by default the newest checkpoint; returns its number of epochs.

        Returns 0, and leaves everything as it is, where there is none. A checkpoint that the
        directory's state names and that is not there is passed over with a warning.
        """
        path = path or self._newest()
        if path is None:
            return 0
        self._checkpoint.restore(path, options=self._options).expect_partial()
        return self._progress.epoch

    def save(self, epoch: int) -> None:
        """Saves the state after `epoch` finished epochs."""
        if self._manager is None:
            self._manager = self._make_manager()
        self._progress.epoch = epoch
        with _no_warnings():
            self._manager.save(checkpoint_number=epoch, options=self._options)

    def close(self) -> None:
        """Removes what this task has written and nobody will read."""
        if self._temporary is not None:
            self._temporary.cleanup()

    def _make_manager(self) -> tf.train.CheckpointManager:
        directory = str(self._directory)
        if not self._writes:
            self._temporary = tempfile.TemporaryDirectory(prefix="tfdist-checkpoints-")
            directory = self._temporary.name
        return tf.train.CheckpointManager(
            self._checkpoint, directory, max_to_keep=self._keep, checkpoint_name="ckpt"
        )

    def _newest(self) -> str | None:
        for path in reversed(saved(self._directory)):
            if Path(f"{path}.index").exists():
                return path
            logging.warning("%s is not whole and is passed over: it has no .index file", path)
        return None


def saved(directory: Path) -> list[str]:
    """The paths of the checkpoints that the directory's state names, oldest first."""
    state = tf.train.get_checkpoint_state(str(directory))
    return list(state.all_model_checkpoint_paths) if state else []


def export(
    model: tf.keras.Model, output: OutputDirectory, *, writes: bool, io_device: str | None = None
) -> None:
    """Writes the model for serving and for `tf.keras.models.load_model`, without its optimizer.

    `writes` and `io_device` are those of `Checkpointer`.
    """
    with replacing_directory(output.saved_model, writes=writes) as beside:
        if getattr(model, "inputs", None) and getattr(model, "outputs", None):
            # Saving a compiled model that has not yet been run builds its metrics for targets of
            # the outputs' shape, and `accuracy` then counts something else.
            model = tf.keras.Model(model.inputs, model.outputs, name=model.name)
        with _no_warnings():
            model.save(
                str(beside / output.saved_model.name),
                save_format="tf",
                include_optimizer=False,
                options=tf.saved_model.SaveOptions(experimental_io_device=io_device),
            )


@contextmanager
def replacing_directory(target: Path, *, writes: bool = True) -> Iterator[Path]:
    """Gives a temporary directory; what is `target.name` in it becomes `target` at the end.

    Args:
      target: a directory, which may exist.
      writes: False to throw away what was written.
    """
    with tempfile.TemporaryDirectory(
        prefix=f".{target.name}-", dir=target.parent if writes else None
    ) as temporary:
        beside = Path(temporary)
        yield beside
        if writes:
            if target.exists():
                os.replace(target, beside / "before")
            os.replace(beside / target.name, target)


def mark_done(output: OutputDirectory, finished: int, epochs: int) -> None:
    """Says that a training that was to run for `epochs` is complete after `finished` of them."""
    # Each mark differs from the one before, so that an evaluator can tell a new one.
    record = {"finished": finished, "epochs": epochs, "run": os.urandom(8).hex()}
    write_text(output.done, json.dumps(record) + "\n")


def is_complete(output: OutputDirectory, finished: int, epochs: int) -> bool:
    """Whether a training of `epochs`, of which a checkpoint has `finished`, has nothing left to do.

    It may have been stopped early; the mark says so, if it is of that checkpoint.
    """
    if finished >= epochs:
        return True
    if not finished or not output.done.exists():
        return False
    done = json.loads(output.done.read_text())
    return bool(done["finished"] == finished and done["epochs"] >= epochs)


def as_json(value: Any) -> Any:
    """A metric's value, a number or an array, as JSON has it: null where it is not finite."""
    array = np.asarray(value, dtype=float)
    if array.ndim:
        return [as_json(element) for element in array]
    return float(array) if np.isfinite(array) else None


def build(model: tf.keras.Model, element_spec: Any) -> None:
    """Makes the model's and the optimizer's variables now, where Keras would at the first step.

    Args:
      model: the compiled model.
      element_spec: what it is to be trained on, as a `tf.data.Dataset` says it; None if unknown.
    """
    inputs, _, _ = tf.keras.utils.unpack_x_y_sample_weight(element_spec)
    specs = tf.nest.flatten(inputs)
    if not model.built and all(isinstance(spec, tf.TensorSpec) and spec.shape for spec in specs):

        def example(spec: tf.TensorSpec) -> tf.Tensor:
            return tf.zeros([size or 1 for size in spec.shape], spec.dtype)

        model(tf.nest.map_structure(example, inputs))
    if model.built and hasattr(model.optimizer, "build"):
        model.optimizer.build(model.trainable_variables)


def write_text(path: Path, text: str) -> None:
    """Writes a file whole: beside its place, and renamed."""
    with _beside(path) as temporary:
        temporary.write_text(text)


def append_json_line(path: Path, record: dict[str, Any]) -> None:
    """Adds one JSON object to a file of lines."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a") as file:
        file.write(json.dumps(record) + "\n")


def cut_json_lines(path: Path, keep: Callable[[dict[str, Any]], bool]) -> None:
    """Takes out of a file of lines what was written after the state that a job goes on from.

    A last line whose writing was cut off goes too.
    """
    kept = []
    if path.exists():
        for line in path.read_text().splitlines(keepends=True):
            try:
                if keep(json.loads(line)):
                    kept.append(line.rstrip("\n") + "\n")
            except json.JSONDecodeError:
                continue
        write_text(path, "".join(kept))


@contextmanager
def _no_warnings() -> Iterator[None]:
    """Keeps back TensorFlow's advice on how its own saving traces functions."""
    logger = tf.get_logger()
    level = logger.level
    logger.setLevel("ERROR")
    try:
        yield
    finally:
        logger.setLevel(level)


@contextmanager
def _beside(path: Path) -> Iterator[Path]:
    path.parent.mkdir(parents=True, exist_ok=True)
    # Not by `tempfile`, whose files nobody but their owner may read.
    temporary = path.with_name(f".{path.name}-{os.urandom(8).hex()}")
    try:
        yield temporary
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)
