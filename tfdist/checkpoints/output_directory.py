"""The output directory that all tasks of a job share, and how its files are written.

    output = OutputDirectory("/shared/run1")
    output.checkpoints    # ckpt-3.index, ckpt-3.data-…, checkpoint: written by the chief
    output.logs           # TensorBoard: train, validation, eval
    output.metrics        # metrics.jsonl: a JSON object an epoch
    output.saved_model    # the model when training is complete
    output.done           # done.json: there once training is complete

What is written here is written beside and renamed; a task other than the chief writes nothing here,
except for the evaluator, which adds what is its own.
"""

from __future__ import annotations

import errno
import json
import os
import re
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from tfdist.errors import OutputError, UsageError

# What is to be done where a file cannot be written.
_REMEDIES = {
    errno.ENOSPC: "Make room on its disk and start the job again, or keep fewer checkpoints.",
    errno.EDQUOT: "Make room in its quota and start the job again, or keep fewer checkpoints.",
    errno.EFBIG: "Raise the limit on the size of a file (ulimit -f) and start the job again.",
    errno.EIO: "Check its disk, and start the job again.",
    errno.ESTALE: "Mount its file system anew, and start the job again.",
    **dict.fromkeys(
        (errno.EACCES, errno.EPERM, errno.EROFS),
        "Let this task write there, or choose another directory, and start the job again.",
    ),
    **dict.fromkeys(
        (errno.ENOENT, errno.ENOTDIR, errno.EISDIR),
        "Do not move or delete it while the job is running; start the job again.",
    ),
}

# What a task that was killed leaves of what it was writing, by the names that TensorFlow and this
# module give it.
_LEFT_BY_THE_CHIEF = re.compile(
    r"(ckpt|model\.ckpt)-\d+_temp|workertemp_\d+|tmp_(chief|worker)_\d+"
    r"|(checkpoint|graph\.pbtxt|model\.ckpt-\d+\.meta)\.tmp[0-9a-f]{32}"
    r"|\.(metrics\.jsonl|done\.json|checkpoint|writable)-[0-9a-f]{16}"
    r"|\.saved_model-[a-z0-9_]{8}"
)
_LEFT_BY_THE_EVALUATION = re.compile(r"\.eval_metrics\.jsonl-[0-9a-f]{16}")


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


def check_writable(*directories: Path) -> None:
    """Tries to write in each of the directories, before there is a result to be lost.

    In the nearest directory that is there, so that a mistake that is found later leaves no new one.

    Raises:
      UsageError: one of them cannot be written.
    """
    for directory in directories:
        there = next(place for place in (directory, *directory.parents) if place.exists())
        try:
            with _beside(there / "writable", rename=False) as probe:
                probe.write_text("\n")
        except OSError as error:
            raise UsageError(
                "output_dir",
                received=str(directory),
                accepted=f"a directory that this task can write ({os.strerror(error.errno or 0)})",
                remedy="Let this task write there, make room, or choose another directory.",
            ) from None


@contextmanager
def writing(path: Path, *, named: bool = False) -> Iterator[None]:
    """Makes an OutputError of a failure to write at `path`, in whatever class it comes.

    TensorFlow's OutOfRangeError for a file that is too large is one that Keras and Estimators take
    for the end of the data: they would return as if all were well.

    Args:
      path: what is written.
      named: whether to heed only those errors that name `path`, because more is done than writing.

    Raises:
      OutputError: it could not be written.
    """
    try:
        yield
    except OutputError:
        raise
    except Exception as error:
        number = write_error(error)
        if number is None or (named and str(path) not in str(error)):
            raise
        raise OutputError(
            path,
            problem=f"could not be written: {os.strerror(number)}",
            remedy=_REMEDIES[number],
        ) from None


def write_error(error: BaseException) -> int | None:
    """The number of the operating system's error behind `error`; None where it is another one."""
    if isinstance(error, OSError):
        return error.errno if error.errno in _REMEDIES else None
    # TensorFlow makes a class of the number, and keeps the words.
    return next((number for number in _REMEDIES if os.strerror(number) in str(error)), None)


def remove_leftovers(directory: Path, *, of_evaluation: bool = False) -> None:
    """Removes what killed processes left of what they were writing; call it before writing there.

    Nothing is removed but what TensorFlow and this package put beside its place: the names say so.

    Args:
      directory: where to look; not below it.
      of_evaluation: whether to look for what the evaluation left, in place of what the chief did.
    """
    pattern = _LEFT_BY_THE_EVALUATION if of_evaluation else _LEFT_BY_THE_CHIEF
    saved_model = OutputDirectory(directory).saved_model
    for path in list(directory.iterdir()) if directory.is_dir() else ():
        if not pattern.fullmatch(path.name):
            continue
        if path.is_dir() and not path.is_symlink():
            if (path / "before").exists() and not saved_model.exists():
                # Killed between the two renames of `replacing_directory`.
                os.replace(path / saved_model.name, saved_model)
            shutil.rmtree(path)
        else:
            path.unlink()


@contextmanager
def replacing_directory(target: Path, *, writes: bool = True) -> Iterator[Path]:
    """Gives a temporary directory; what is `target.name` in it becomes `target` at the end.

    Args:
      target: a directory, which may exist.
      writes: False to throw away what was written.

    Raises:
      OutputError: it could not be written; `target` is then as it was.
    """
    with (
        writing(target if writes else Path(tempfile.gettempdir())),
        tempfile.TemporaryDirectory(
            prefix=f".{target.name}-", dir=target.parent if writes else None
        ) as temporary,
    ):
        beside = Path(temporary)
        yield beside
        if writes:
            if target.exists():
                os.replace(target, beside / "before")
            os.replace(beside / target.name, target)


def write_text(path: Path, text: str) -> None:
    """Writes a file whole: beside its place, and renamed.

    Raises:
      OutputError: it could not be written; the file is then as it was.
    """
    with writing(path), _beside(path) as temporary:
        temporary.write_text(text)


def append_json_line(path: Path, record: dict[str, Any]) -> None:
    """Adds one JSON object to a file of lines.

    Raises:
      OutputError: it could not be written; the file is then as it was.
    """
    with writing(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        size = path.stat().st_size if path.exists() else 0
        try:
            with path.open("a") as file:
                file.write(json.dumps(record) + "\n")
        except OSError:
            if path.exists():
                os.truncate(path, size)
            raise


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


def as_json(value: Any) -> Any:
    """A metric's value, a number or an array, as JSON has it: null where it is not finite."""
    array = np.asarray(value, dtype=float)
    if array.ndim:
        return [as_json(element) for element in array]
    return float(array) if np.isfinite(array) else None


@contextmanager
def _beside(path: Path, *, rename: bool = True) -> Iterator[Path]:
    path.parent.mkdir(parents=True, exist_ok=True)
    # Not by `tempfile`, whose files nobody but their owner may read.
    temporary = path.with_name(f".{path.name}-{os.urandom(8).hex()}")
    try:
        yield temporary
        if rename:
            os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)
