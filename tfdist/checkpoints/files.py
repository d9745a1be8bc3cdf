"""The checkpoints in a directory, and which of them are whole.

    path = newest_intact(directory, "ckpt")    # in every task: to go on from
    repair_state(directory, "ckpt", path)     # in the one that writes there

TensorFlow's `checkpoint` file is not asked: it may be damaged, a checkpoint that it names may be
damaged or gone, and a kill between the two leaves a newer checkpoint that it does not name. So the
answer is made of files that `repair_state` leaves alone, and is the same in every task, whichever
comes first.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

import tensorflow as tf
from absl import logging

from tfdist.checkpoints.output_directory import write_text
from tfdist.errors import OutputError

Fingerprint = tuple[tuple[str, int, int, int], ...]

_STATE = "checkpoint"


def number(path: str | None) -> int:
    """The epoch or the step in a checkpoint's name; 0 for None."""
    return int(path.rpartition("-")[2]) if path else 0


def saved(directory: Path) -> list[str]:
    """The paths of the checkpoints that the directory's state names, oldest first."""
    return _named(directory) or []


def newest_intact(directory: Path, prefix: str, *, warn: bool = True) -> str | None:
    """The path of the newest checkpoint that can be restored; None where there is none at all.

    Args:
      directory: where the checkpoints are.
      prefix: what comes before their numbers, such as `ckpt`.
      warn: whether to name those that are passed over; several tasks may ask.

    Raises:
      OutputError: there are checkpoints, and each is damaged.
    """
    paths = _found(directory, prefix)
    whole = first_intact(paths, warn=warn)
    if whole is None and paths and not _is_first_save(directory, paths):
        raise OutputError(
            directory,
            problem=f"has no checkpoint that is whole: {Path(paths[0]).name} {damage(paths[0])}",
            remedy="Bring one back, or choose another directory to train from the beginning.",
        )
    return whole


def first_intact(paths: Iterable[str], *, warn: bool = True) -> str | None:
    """The first of the paths that is one of a whole checkpoint; the others before it are named."""
    for path in paths:
        reason = damage(path)
        if reason is None:
            return path
        if warn:
            warn_once(path, reason)
    return None


def damage(path: str) -> str | None:
    """What is wrong with a checkpoint; None where every tensor can be read and is as it was saved.

    It is read once, and again only when its files have changed.
    """
    return _damage(path, fingerprint(path))


def fingerprint(path: str) -> Fingerprint:
    """What tells a checkpoint from one that was saved at the same place later."""
    found = []
    for file in _files(path):
        with suppress(FileNotFoundError):
            found.append((file.name, file.stat()))
    return tuple((name, at.st_ino, at.st_size, at.st_mtime_ns) for name, at in found)


@functools.cache
def warn_once(path: str | Path, reason: str) -> None:
    """Logs once per file that it is skipped."""
    logging.warning("%s %s and is passed over", path, reason)


def repair_state(directory: Path, prefix: str, newest: str | None) -> None:
    """Makes the `checkpoint` file name the newest whole checkpoint, and none after it.

    TensorFlow goes on from there: it removes the oldest of those that are named as it saves. What
    an interrupted save left without an index goes; all else that is damaged stays.
    """
    if newest is None:
        return
    named = _named(directory)
    paths = _found(directory, prefix)
    if named is not None:
        for path in paths:
            if path not in named and not Path(f"{path}.index").exists():
                for file in _files(path):
                    file.unlink()
    # Without a state, all that are there; else one that TensorFlow was asked to keep would go.
    kept = [path for path in named or reversed(paths) if number(path) < number(newest)]
    kept = [path for path in kept if Path(f"{path}.index").exists()] + [newest]
    if named == kept:
        return
    if named is None or newest != named[-1]:
        was = "was missing or damaged" if named is None else f"named {Path(named[-1]).name}"
        logging.warning("%s %s: it names %s now", directory / _STATE, was, Path(newest).name)
    lines = [f'model_checkpoint_path: "{Path(newest).name}"']
    for path in kept:
        lines.append(f'all_model_checkpoint_paths: "{Path(path).name}"')
        lines.append(f"all_model_checkpoint_timestamps: {Path(f'{path}.index').stat().st_mtime}")
    # TensorFlow removes only checkpoints that are newer than this.
    lines.append("last_preserved_timestamp: 0.0")
    write_text(directory / _STATE, "".join(f"{line}\n" for line in lines))


def discard(path: str) -> None:
    """Removes what a failed save left at `path`, unless there is a whole checkpoint."""
    if damage(path) is not None:
        for file in _files(path):
            file.unlink(missing_ok=True)


def _found(directory: Path, prefix: str) -> list[str]:
    """The paths of all checkpoints that have left a file or a name in the state, newest first."""
    pattern = re.compile(rf"({re.escape(prefix)}-\d+)\.(index|data-\d{{5}}-of-\d{{5}})")
    names = {Path(path).name for path in saved(directory)}
    if directory.is_dir():
        matches = (pattern.fullmatch(path.name) for path in directory.iterdir())
        names |= {match[1] for match in matches if match}
    return sorted((str(directory / name) for name in names), key=number, reverse=True)


def _files(path: str) -> list[Path]:
    """The index and the data of a checkpoint."""
    name = Path(path).name
    pattern = re.compile(rf"{re.escape(name)}\.(index|data-\d{{5}}-of-\d{{5}})")
    directory = Path(path).parent
    files = directory.iterdir() if directory.is_dir() else ()
    return sorted(file for file in files if pattern.fullmatch(file.name))


def _is_first_save(directory: Path, paths: list[str]) -> bool:
    """Whether the only checkpoint is one whose save, the first of all, was interrupted."""
    index = Path(f"{paths[0]}.index")
    is_unfinished = not index.exists() or index.stat().st_size == 0
    return len(paths) == 1 and is_unfinished and not (directory / _STATE).exists()


def _named(directory: Path) -> list[str] | None:
    """What the state names, oldest first; None where it is missing or damaged."""
    logger = tf.get_logger()
    level = logger.level
    logger.setLevel("ERROR")
    try:
        state = tf.train.get_checkpoint_state(str(directory))
    except ValueError:
        return None  # It is empty.
    finally:
        logger.setLevel(level)
    if state is None:
        return None
    # By their names, because the directory may have been moved.
    last = state.model_checkpoint_path
    paths = [path for path in state.all_model_checkpoint_paths if path != last] + [last]
    names = [Path(path).name for path in paths]
    return [str(directory / name) for name in names if re.fullmatch(r".*-\d+", name)]


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
        # It was read, and is of a type that NumPy does not have: a dataset's state.
        if "not convertible to numpy" not in str(error):
            raise
