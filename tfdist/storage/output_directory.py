"""The layout of the output directory that all tasks share, and atomic writes to it.

    output = OutputDirectory("/shared/run1")
    output.checkpoints    # ckpt-3.index, ckpt-3.data-…, checkpoint: written by the chief
    output.final          # see `tfdist.training.final_weights`
    output.logs           # TensorBoard: train, validation, eval
    output.metrics        # metrics.jsonl: one JSON object per epoch
    output.saved_model    # the trained model
    output.exports        # by step, the model while it trains; see `tfdist.training.exports`
    output.deltas         # by step, the rows of tables that have changed
    output.done           # done.json: the completion marker
    output.trackers       # trackers.json: see `tfdist.training.records.trackers`
    output.lock           # lock.json: see `tfdist.storage.lock`

Files are written under a temporary name in the same directory and then renamed. Only the chief
writes here, except for the evaluator, which writes its own files.
"""

from __future__ import annotations

import errno
import json
import os
import re
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np

from tfdist.coordination.liveness import hang_report
from tfdist.errors import OutputError, UsageError
from tfdist.process.atomic_file import replacing
from tfdist.process.paths import local_path
from tfdist.storage.trust import open_own

# Remedies for write errors.
_REMEDIES = {
    errno.ENOSPC: "Make room on its disk and start the job again, or keep fewer checkpoints.",
    errno.EDQUOT: "Make room in its quota and start the job again, or keep fewer checkpoints.",
    errno.EFBIG: "Raise the limit on the size of a file (ulimit -f) and start the job again.",
    errno.EIO: "Check its disk, and start the job again.",
    errno.ELOOP: "Remove the symbolic link, and start the job again.",
    errno.ESTALE: "Remount its file system, and start the job again.",
    **dict.fromkeys(
        (errno.EACCES, errno.EPERM, errno.EROFS),
        "Give this task write permission, or choose another directory; start the job again.",
    ),
    **dict.fromkeys(
        (errno.ENOENT, errno.ENOTDIR, errno.EISDIR),
        "Do not move or delete it while the job is running; start the job again.",
    ),
}

# A later start may succeed.
_TRANSIENT = (errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.ESTALE)

#: The fields of a line in a metrics log that are no metrics.
NO_METRICS = ("epoch", "step", "global_step", "time", "steps_by_worker")

_CHECKPOINT = re.compile(r"((?:model\.)?ckpt-(\d+))\.index")

# Of TensorFlow's patterns; "]" means something only after "[".
_PATTERN_CHARACTERS = "*?[\\"


class OutputDirectory:
    """An output directory and the paths in it; creating this object creates no directory.

    Raises:
      UsageError: see `output_path`.
    """

    def __init__(self, path: str | os.PathLike[str] | None) -> None:
        self.path = output_path("output_dir", path)
        self.checkpoints = self.path / "checkpoints"
        self.final = self.path / "final"
        self.logs = self.path / "logs"
        self.metrics = self.path / "metrics.jsonl"
        self.eval_metrics = self.path / "eval_metrics.jsonl"
        self.events = self.path / "events.jsonl"
        self.saved_model = self.path / "saved_model"
        self.exports = self.path / "export"
        self.deltas = self.path / "deltas"
        self.done = self.path / "done.json"
        self.trackers = self.path / "trackers.json"
        self.lock = self.path / "lock.json"
        self.eval_lock = self.path / "eval_lock.json"
        self.hang_report = self.path / hang_report.FILE_NAME

    @property
    def is_complete(self) -> bool:
        """Whether the training is complete."""
        return self.done.exists()

    @property
    def has_model(self) -> bool:
        """Whether there is an exported model."""
        return self.saved_model.is_dir()

    def has_model_since(self, time: float) -> bool:
        """Whether the model was exported after a time, in seconds since 1970."""
        return self.has_model and self.saved_model.stat().st_mtime >= time

    def reopen(self) -> None:
        """Removes what only a complete training has, because the training goes on."""
        self.done.unlink(missing_ok=True)
        remove_directory(self.final)


def output_path(field: str, path: str | os.PathLike[str] | None) -> Path:
    """Like `local_path`, but refuses characters that TensorFlow interprets as a pattern.

    TensorFlow looks for the files of a checkpoint with `tf.io.gfile.glob`, to restore it and to
    delete it. With `run[12]`, it would not find its own files, and would delete those of `run1`.
    Only the characters in the path as given count, not those of the working directory.

    Args:
      field: the name of the path for the error.
      path: the path as the user gives it.

    Raises:
      UsageError: there is no path, or it has such a character, or `local_path` refuses it.
    """
    if not path:
        raise UsageError(
            field,
            received=path,
            accepted="the directory that all tasks share",
            remedy="Pass it in every task.",
        )
    local = local_path(field, path)
    if any(character in str(local) for character in _PATTERN_CHARACTERS):
        raise UsageError(
            field,
            received=os.fspath(path),
            accepted=f"a path without the characters {' '.join(_PATTERN_CHARACTERS)}, which "
            "TensorFlow interprets: it would delete checkpoints in other directories",
            remedy="Choose another path, or rename the directory.",
        )
    return local


def check_writable(*directories: Path) -> None:
    """Checks that this task can write in each directory.

    Writes a file in the nearest existing parent, so that the check creates no directory.

    Raises:
      UsageError: a directory is not writable.
      OutputError: its disk is full, or fails.
    """
    for directory in directories:
        existing = next(path for path in (directory, *directory.parents) if path.exists())
        try:
            with tempfile.TemporaryFile(dir=existing) as probe:
                probe.write(b"\n")
        except OSError as error:
            raise not_writable(directory, error) from None


def not_writable(directory: Path, error: OSError) -> UsageError | OutputError:
    """The error for a directory in which this task cannot write.

    It is no usage error if the job may be able to write when it is started again.
    """
    if error.errno in _TRANSIENT:
        return _not_written(directory, error.errno)
    return UsageError(
        "output_dir",
        received=str(directory),
        accepted=f"a directory that this task can write ({os.strerror(error.errno or 0)})",
        remedy="Give this task write permission, make room, or choose another directory.",
    )


@contextmanager
def writing(path: Path, *, named: bool = False) -> Iterator[None]:
    """Converts any exception for a failed write at `path` to an OutputError.

    For a file that is too large, TensorFlow raises OutOfRangeError. Keras and Estimators interpret
    that as the end of the data and return as if training had succeeded.

    Args:
      path: the file or directory to write.
      named: whether to convert only errors that contain `path`; set this if the context does more
        than writing.

    Raises:
      OutputError: `path` could not be written.
    """
    try:
        yield
    except OutputError:
        raise
    except Exception as error:
        number = write_error(error)
        if number is None or (named and str(path) not in str(error)):
            raise
        raise _not_written(path, number) from None


def _not_written(path: Path, number: int) -> OutputError:
    problem = f"could not be written: {os.strerror(number)}"
    return OutputError(path, problem=problem, remedy=_REMEDIES[number])


def write_error(error: BaseException) -> int | None:
    """The errno of the operating system's error behind `error`; None for other errors."""
    if isinstance(error, OSError):
        return error.errno if error.errno in _REMEDIES else None
    # TensorFlow maps the errno to an exception class, but keeps its text.
    return next((number for number in _REMEDIES if os.strerror(number) in str(error)), None)


def remove_directory(path: Path) -> None:
    """Removes a directory and what is in it, as far as this task may."""
    shutil.rmtree(path, ignore_errors=True)


@contextmanager
def replacing_directory(target: Path, *, writes: bool = True) -> Iterator[Path]:
    """Yields a temporary directory; at the end, moves `target.name` in it to `target`.

    Args:
      target: a directory, which may exist.
      writes: False discards the result instead.

    Raises:
      OutputError: `target` could not be written; an existing directory is unchanged.
    """
    if writes:
        target.parent.mkdir(parents=True, exist_ok=True)
    with (
        writing(target if writes else Path(tempfile.gettempdir())),
        tempfile.TemporaryDirectory(
            prefix=f".{target.name}-", dir=target.parent if writes else None
        ) as temporary,
    ):
        directory = Path(temporary)
        yield directory
        if writes:
            if target.exists():
                os.replace(target, directory / "before")
            os.replace(directory / target.name, target)


def write_text(path: Path, text: str) -> None:
    """Writes a file atomically: writes a temporary file and renames it.

    Raises:
      OutputError: the file could not be written; an existing file is unchanged.
    """
    with writing(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        with replacing(path) as temporary:
            temporary.write_text(text)


def copy_whole(source: Path, target: Path) -> None:
    """Copies a local file atomically, and creates the directories above it.

    Raises:
      OSError: the file could not be copied; an existing file is unchanged.
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    with replacing(target) as temporary:
        shutil.copyfile(source, temporary)


def read_text(path: Path, since: float = 0.0) -> str:
    """The text of a file, if it was written after a time in seconds since 1970; or empty."""
    with suppress(OSError):
        return path.read_text(errors="replace") if path.stat().st_mtime >= since else ""
    return ""


def saved_checkpoints(output: OutputDirectory) -> list[tuple[int, Path]]:
    """The number and the path of each checkpoint, also of an Estimator, the newest last.

    Their files may be damaged; `tfdist.storage.files` reads them, with TensorFlow.
    """
    return sorted(
        (int(match[2]), path.with_name(match[1]))
        for directory in (output.checkpoints, output.path)
        for path in directory.glob("*.index")
        if (match := _CHECKPOINT.fullmatch(path.name))
    )


def numbered(directory: Path) -> list[tuple[int, Path]]:
    """The directories in it whose name is a number, in that order."""
    found = directory.iterdir() if directory.is_dir() else ()
    return sorted((int(path.name), path) for path in found if path.name.isdecimal())


def size_and_time(checkpoint: Path) -> tuple[int, float]:
    """The size of a checkpoint in bytes, and when it was saved, in seconds since 1970.

    Raises:
      FileNotFoundError: the training has removed it meanwhile.
    """
    saved = checkpoint.with_name(f"{checkpoint.name}.index").stat().st_mtime
    files = checkpoint.parent.glob(f"{checkpoint.name}.*")
    return sum(file.stat().st_size for file in files), saved


def append_json_line(path: Path, record: dict[str, Any]) -> None:
    """Appends one JSON object as a line.

    Raises:
      OutputError: the line could not be written; the file is unchanged.
    """
    with writing(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        size = path.stat().st_size if path.exists() else 0
        try:
            with open_own(path, "a") as file:
                file.write(json.dumps(record) + "\n")
        except OSError:
            if path.exists():
                os.truncate(path, size)
            raise


def append_metrics(path: Path, metrics: Mapping[str, Any] | None, **place: Any) -> None:
    """Appends a line to a log of metrics.

    Args:
      path: the log.
      metrics: numbers and arrays, by name.
      place: when they were measured: `epoch` or `step`, and `time` in seconds since 1970; and what
        else the line has, as JSON.

    Raises:
      OutputError: the line could not be written; the file is unchanged.
    """
    values = {name: _as_json(value) for name, value in (metrics or {}).items()}
    append_json_line(path, {**place, **values})


def cut_json_lines(path: Path, keep: Callable[[dict[str, Any]], bool]) -> None:
    """Removes the lines of a JSON-lines file for which `keep` is false.

    A resumed job removes the lines after its checkpoint this way. Lines that are not valid JSON,
    such as an incomplete last line, are removed too.
    """
    if path.exists():
        kept = filter(keep, read_json_lines(path))
        write_text(path, "".join(json.dumps(record) + "\n" for record in kept))


def read_json_lines(path: Path) -> list[dict[str, Any]]:
    """The records of a JSON-lines file, without lines that are not JSON objects; none if it is not
    there."""
    records = []
    for line in path.read_text(errors="replace").splitlines() if path.exists() else ():
        with suppress(ValueError, RecursionError):
            record = json.loads(line)
            if isinstance(record, dict):
                records.append(record)
    return records


def last_json_line(path: Path) -> dict[str, Any]:
    """The last object of `read_json_lines`; empty if there is none, or if it cannot be read."""
    with suppress(OSError):
        return next(reversed(read_json_lines(path)), {})
    return {}


def _as_json(value: Any) -> Any:
    """A metric's value, a number or an array, for JSON: None (null) if it is not finite."""
    array = np.asarray(value, dtype=float)
    return np.where(np.isfinite(array), array, np.array(None)).tolist()
