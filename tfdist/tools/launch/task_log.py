"""The file with the whole output of a task: `--log_dir`.

file = TaskLog(Path("/tmp/logs"), "worker:0")      # /tmp/logs/worker-0.log
file.write(b"...")
file.close()
"""

from __future__ import annotations

import os
from pathlib import Path

from tfdist.errors import log, os_error_is_usage_error
from tfdist.process.paths import local_path


class TaskLog:
    """Appends a task's output to its file, which keeps the output of earlier starts.

    Args:
      directory: where the file is; see `make_directory`.
      task: the name of the task.
    """

    def __init__(self, directory: Path, task: str) -> None:
        self._path = directory / f"{task.replace(':', '-')}.log"
        try:
            self._file = self._path.open("ab", buffering=0)
        except OSError as error:
            self._give_up(error)

    def write(self, data: bytes) -> None:
        """Adds what the task has printed; says once why it cannot."""
        try:
            self._file.write(data)
        except OSError as error:
            self._give_up(error)

    def close(self) -> None:
        """Closes the file."""
        self._file.close()

    def _give_up(self, error: OSError) -> None:
        log(f"warning: cannot write {self._path}: {error.strerror}; the training goes on")
        self._file = open(os.devnull, "ab", buffering=0)  # noqa: SIM115


def make_directory(path: str) -> Path:
    """Creates the directory of the files, if there is none.

    Raises:
      UsageError: this process cannot create it.
    """
    directory = local_path("--log_dir", path)
    with os_error_is_usage_error("--log_dir", path, "a directory that this process can create"):
        directory.mkdir(parents=True, exist_ok=True)
    return directory
