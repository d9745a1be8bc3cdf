"""Finds the intact checkpoints in a directory, and repairs what killed processes have left.

    path = newest_intact(directory)    # in every task: the checkpoint to resume from
    repair_state(directory, path)      # in the writing task
    remove_leftovers(directory)

This module does not rely on TensorFlow's `checkpoint` file. The file may be damaged, it may name a
damaged or missing checkpoint, and it does not name the newest one if the process was killed before
updating it. `newest_intact` depends only on files that `repair_state` does not change, so all tasks
find the same checkpoint, in any order.
"""

from __future__ import annotations

import functools
import os
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import tensorflow as tf
from absl import logging

from tfdist.errors import OutputError
from tfdist.storage.output_directory import write_text

Fingerprint = tuple[tuple[str, int, int, int], ...]

_STATE = "checkpoint"

# A file of a checkpoint of Keras, or of an Estimator; the group is the checkpoint's name.
_FILE = re.compile(r"((?:model\.)?ckpt-\d+)\.(?:index|data-\d{5}-of-\d{5})")

# The names of temporary files, from TensorFlow and from this module, that a killed task leaves.
_LEFT_BY_THE_CHIEF = re.compile(
    r"(ckpt|model\.ckpt)-\d+_temp|workertemp_\d+|tmp_(chief|worker)_\d+"
    r"|ckpt-\d+\.(index|data-\d{5}-of-\d{5})\.tempstate\d+"
    r"|(checkpoint|graph\.pbtxt|model\.ckpt-\d+\.meta)\.tmp[0-9a-f]{32}"
    r"|\.(metrics\.jsonl|done\.json|trackers\.json|checkpoint|writable|hang_report\.txt)-[0-9a-f]{16}"
    r"|\.(saved_model|shared|\d+)-[a-z0-9_]{8}"
)
_LEFT_BY_THE_EVALUATION = re.compile(r"\.eval_metrics\.jsonl-[0-9a-f]{16}")


@contextmanager
def quiet_tensorflow() -> Iterator[None]:
    """Suppresses TensorFlow's warnings, such as those about functions that it traces to save."""
    logger = tf.get_logger()
    level = logger.level
    logger.setLevel("ERROR")
    try:
        yield
    finally:
        logger.setLevel(level)


def number(path: str | None) -> int:
    """The number in a checkpoint's name, an epoch or a step; 0 for None."""
    return int(path.rpartition("-")[2]) if path else 0


def saved(directory: Path) -> list[str]:
    """The paths of the checkpoints in the directory's `checkpoint` file, oldest first."""
    return _named(directory) or []


def newest_intact(directory: Path, *, warn: bool = True) -> str | None:
    """The path of the newest intact checkpoint; None if there is no checkpoint.

    Args:
      directory: the directory of the checkpoints.
      warn: whether to log the checkpoints that are skipped; set it in only one task.

    Raises:
      OutputError: there are checkpoints, but all are damaged.
    """
    while True:
        paths = _all_checkpoints(directory)
        for path in paths:
            reason = damage(path)
            if reason is None:
                return path
            if warn:
                warn_once(path, reason)
        if not paths or _is_first_save(directory, paths):
            return None
        # The writing task may have replaced or completed them in the meantime.
        if paths == _all_checkpoints(directory) and all(map(damage, paths)):
            raise OutputError(
                directory,
                problem=f"has no intact checkpoint: {Path(paths[0]).name} {damage(paths[0])}",
                remedy="Restore one from a backup, or train from the beginning in another "
                "directory.",
            )


def newest_saved(directory: Path) -> str | None:
    """The newest intact checkpoint in the `checkpoint` file, for a task that does not write it.

    Logs the damaged ones after it.
    """
    for path in reversed(saved(directory)):
        if damage(path) is None:
            return path
        warn_if_damaged(path)
    return None


def warn_if_damaged(path: str) -> None:
    """Logs once if a checkpoint in the `checkpoint` file is damaged, but not if it was removed.

    A checkpoint is removed when a newer one is in the `checkpoint` file, and first its index. So
    without its index, only the newest checkpoint is damaged.
    """
    reason = damage(path)
    has_index, newest = Path(f"{path}.index").exists(), saved(Path(path).parent)[-1:]
    if reason is not None and (has_index or path in newest):
        warn_once(path, reason)


def damage(path: str) -> str | None:
    """What is wrong with a checkpoint; None if every tensor can be read and is unchanged.

    The result is cached until the checkpoint's files change.
    """
    return _damage(path, fingerprint(path))


def fingerprint(path: str) -> Fingerprint:
    """A key that changes when another checkpoint is saved at the same path."""
    stats = []
    for file in _files(path):
        with suppress(FileNotFoundError):
            stats.append((file.name, file.stat()))
    return tuple((name, at.st_ino, at.st_size, at.st_mtime_ns) for name, at in stats)


@functools.cache
def warn_once(path: str | Path, reason: str) -> None:
    """Logs once per file that it is skipped."""
    logging.warning("%s %s and is skipped", path, reason)


def repair_state(directory: Path, newest: str | None) -> None:
    """Repairs the `checkpoint` file, so that its last entry is the newest intact checkpoint.

    TensorFlow uses this file to remove the oldest checkpoints when it saves. Also removes the files
    that an interrupted save left without an index; other damaged checkpoints stay.
    """
    if newest is None:
        return
    named = _named(directory)
    paths = _all_checkpoints(directory)
    if named is not None:
        for path in paths:
            if path not in named and not Path(f"{path}.index").exists():
                _remove(path)
    # Without a `checkpoint` file keep all, because TensorFlow may have been told to keep them.
    kept = [path for path in named or reversed(paths) if number(path) < number(newest)]
    kept = [path for path in kept if Path(f"{path}.index").exists()] + [newest]
    if named == kept:
        return
    if named is None or newest != named[-1]:
        was = "was missing or damaged" if named is None else f"named {Path(named[-1]).name}"
        logging.warning("%s %s; it now names %s", directory / _STATE, was, Path(newest).name)
    _write_state(directory, kept)


def add(path: str, earlier: list[str], *, keep: int | None) -> list[str]:
    """Makes a new checkpoint the newest one in the `checkpoint` file, and removes the oldest ones.

    Args:
      path: the checkpoint, whose files are whole.
      earlier: the checkpoints in the `checkpoint` file, oldest first.
      keep: the number of checkpoints to keep; None for all.

    Returns:
      The checkpoints that are now in the file.
    """
    paths = [each for each in earlier if each != path and Path(f"{each}.index").exists()] + [path]
    kept = paths[-keep:] if keep else paths
    _write_state(Path(path).parent, paths)
    if kept != paths:
        # The old ones are still in the file, or they would stay forever if this task is killed.
        for old in paths[: -len(kept)]:
            _remove(old)
        _write_state(Path(path).parent, kept)
    return kept


def remove_leftovers(directory: Path, *, of_evaluation: bool = False) -> None:
    """Removes the temporary files of killed processes; call this before writing there.

    Removes only files whose names match the temporary names of TensorFlow and this package.

    Args:
      directory: the directory; its subdirectories are not searched.
      of_evaluation: True removes the evaluator's files, False the chief's.
    """
    pattern = _LEFT_BY_THE_EVALUATION if of_evaluation else _LEFT_BY_THE_CHIEF
    for path in list(directory.iterdir()) if directory.is_dir() else ():
        if not pattern.fullmatch(path.name):
            continue
        if path.is_dir() and not path.is_symlink():
            target = directory / path.name[1:].rpartition("-")[0]
            if (path / "before").exists() and not target.exists():
                # The process was killed between the two renames of `replacing_directory`.
                os.replace(path / target.name, target)
            shutil.rmtree(path)
        else:
            path.unlink()


def discard(path: str) -> None:
    """Removes the files of a failed save at `path`, unless the checkpoint is intact."""
    if damage(path) is not None:
        _remove(path)


def _remove(path: str) -> None:
    # First the index, without which the rest is no checkpoint.
    for file in reversed(_files(path)):
        file.unlink(missing_ok=True)


def _all_checkpoints(directory: Path) -> list[str]:
    """All checkpoints that have a file or are in the `checkpoint` file, newest first."""
    names = {Path(path).name for path in saved(directory)}
    if directory.is_dir():
        matches = (_FILE.fullmatch(path.name) for path in directory.iterdir())
        names |= {match[1] for match in matches if match}
    return sorted((str(directory / name) for name in names), key=number, reverse=True)


def _files(path: str) -> list[Path]:
    """The index and data files of a checkpoint."""
    directory, name = Path(path).parent, Path(path).name
    files = directory.iterdir() if directory.is_dir() else ()
    return sorted(
        file for file in files if (match := _FILE.fullmatch(file.name)) and match[1] == name
    )


def _is_first_save(directory: Path, paths: list[str]) -> bool:
    """Whether the only checkpoint is from an interrupted first save."""
    sizes = {name: size for name, _, size, _ in fingerprint(paths[0])}
    is_unfinished = not sizes.get(f"{Path(paths[0]).name}.index")
    return len(paths) == 1 and is_unfinished and not (directory / _STATE).exists()


def _named(directory: Path) -> list[str] | None:
    """The checkpoints in the `checkpoint` file, oldest first; None if it is missing or damaged."""
    try:
        with quiet_tensorflow():
            state = tf.train.get_checkpoint_state(str(directory))
    except ValueError:
        return None  # The file is empty.
    if state is None:
        return None
    # Use only the file names, because the directory may have been moved.
    last = state.model_checkpoint_path
    paths = [path for path in state.all_model_checkpoint_paths if path != last] + [last]
    names = [Path(path).name for path in paths]
    return [str(directory / name) for name in names if re.fullmatch(r".*-\d+", name)]


def _write_state(directory: Path, paths: list[str]) -> None:
    """Writes the `checkpoint` file, with the paths of the checkpoints, oldest first."""
    names = [Path(path).name for path in paths]
    state = tf.compat.v1.train.generate_checkpoint_state_proto(
        "/",  # Otherwise TensorFlow would take the names as paths in the working directory.
        names[-1],
        names,
        [Path(f"{path}.index").stat().st_mtime for path in paths],
        # TensorFlow removes only checkpoints that are newer than this.
        last_preserved_timestamp=0.0,
    )
    write_text(directory / _STATE, str(state))


@functools.lru_cache(maxsize=64)
def _damage(path: str, files: Fingerprint) -> str | None:
    if not any(name == f"{Path(path).name}.index" for name, *_ in files):
        return "has no .index file"
    try:
        reader = tf.train.load_checkpoint(path)
        for name in reader.get_variable_to_shape_map():
            _read(reader, name)
    except (tf.errors.OpError, IndexError, RuntimeError, ValueError) as error:
        return f"cannot be read ({str(error).strip().splitlines()[0]})"
    return None


def _read(reader: tf.train.CheckpointReader, name: str) -> None:
    try:
        reader.get_tensor(name)
    except tf.errors.InternalError as error:
        # Reading worked, but NumPy has no such dtype: the state of a dataset.
        if "not convertible to numpy" not in str(error):
            raise
