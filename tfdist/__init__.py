"""Distributed TensorFlow training: one script, every way of distributing it.

    import tfdist          # before TensorFlow: sets environment variables that TensorFlow reads

    def build_model(job): ...      # returns a compiled model
    def train_input(context): ...  # a tf.distribute.InputContext -> batches of the per-replica size

    @tfdist.main
    def main(job):
        job.fit(build_model, train_input, epochs=10, output_dir="/shared/run1")

    if __name__ == "__main__":
        tfdist.run(main)

Names are loaded on first use, so importing the package does not import TensorFlow.
"""

from __future__ import annotations

import sys

if sys.orig_argv[1:3] == ["-m", __name__] and not sys.flags.safe_path:
    # `python -m tfdist` would import any of the modules below from the current directory.
    del sys.path[0]

import importlib
from contextlib import suppress
from typing import TYPE_CHECKING

from tfdist.process import tensorflow_import as _tensorflow_import
from tfdist.process.setup import set_environment as _set_environment
from tfdist.process.version import __version__

if TYPE_CHECKING:
    from tfdist.cluster import Cluster, Task
    from tfdist.config.flags import define_flags, parse_flags, parse_only_flags
    from tfdist.entry import init, main, run
    from tfdist.errors import UsageError, exit_on_usage_error
    from tfdist.job import Job
    from tfdist.layers.stage import stage

__all__ = [
    "Cluster",
    "Job",
    "Task",
    "UsageError",
    "__version__",
    "define_flags",
    "exit_on_usage_error",
    "init",
    "main",
    "parse_flags",
    "parse_only_flags",
    "run",
    "stage",
]

_NAMES = {
    "tfdist.cluster": ("Cluster", "Task"),
    "tfdist.entry": ("init", "main", "run"),
    "tfdist.errors": ("UsageError", "exit_on_usage_error"),
    "tfdist.config.flags": ("define_flags", "parse_flags", "parse_only_flags"),
    "tfdist.job": ("Job",),
    "tfdist.layers.stage": ("stage",),
}


def _record_first_use() -> None:
    with suppress(ImportError):  # A TensorFlow without this module.
        from tfdist.upstream import first_use

        first_use.apply()


_set_environment()
_tensorflow_import.watch(after=_record_first_use)
# For a type checker, which reads the imports above, every name would exist.
if not TYPE_CHECKING:

    def __getattr__(name: str) -> object:
        for module, names in _NAMES.items():
            if name in names:
                return getattr(importlib.import_module(module), name)
        raise AttributeError(f"module 'tfdist' has no attribute {name!r}")
