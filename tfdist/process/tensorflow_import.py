"""What a process does before, while and after it imports TensorFlow, wherever that is first.

    tensorflow_import.watch(after=record_first_use)     # at `import tfdist`

Before it, checks which Keras it will be: without it, TensorFlow fails at the first use of
`tf.keras` with thousands of lines. While it, filters the messages of its C++ code.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, MutableMapping, Sequence
from importlib.abc import Loader
from importlib.machinery import ModuleSpec, PathFinder
from importlib.util import find_spec
from types import ModuleType

from tfdist.errors import UsageError, exit_on_usage_error
from tfdist.process import gpus, log_level
from tfdist.process.packages import installed

_BACKEND, _TENSORFLOW = "KERAS_BACKEND", "tensorflow"
_LEGACY = "TF_USE_LEGACY_KERAS"


def watch(after: Callable[[], object]) -> None:
    """Watches the import of TensorFlow, unless it is imported already.

    Args:
      after: called when it is imported.
    """
    if _TENSORFLOW not in sys.modules:
        sys.meta_path.insert(0, _Finder(after))


def is_legacy(environ: MutableMapping[str, str]) -> bool:
    """Whether `tf.keras` is Keras 2 although Keras 3 is installed, by TensorFlow's own rule."""
    return environ.get(_LEGACY, "") in ("1", "true", "True")


def check_keras(environ: MutableMapping[str, str]) -> None:
    """Checks that `tf.keras` can be imported, and computes with TensorFlow.

    Keras 3 gets the backend TensorFlow if the environment has none: the file
    `~/.keras/keras.json` may name another one.

    Raises:
      UsageError: an environment variable selects a Keras that cannot train here.
    """
    if installed().get("keras", "2").startswith("2"):
        return
    if is_legacy(environ):
        if find_spec("tf_keras") is None:
            raise UsageError(
                _LEGACY,
                received=environ[_LEGACY],
                accepted="1 where tf_keras is installed, which is Keras 2",
                remedy="Install tf_keras in the version of TensorFlow, or unset the variable.",
            )
    elif environ.setdefault(_BACKEND, _TENSORFLOW) != _TENSORFLOW:
        raise UsageError(
            _BACKEND,
            received=environ[_BACKEND],
            accepted=f"{_TENSORFLOW}, which tfdist distributes",
            remedy=f"Unset the variable, or set {_BACKEND}={_TENSORFLOW}.",
        )


class _Finder:
    """An import finder that wraps the execution of the module `tensorflow`."""

    def __init__(self, after: Callable[[], object]) -> None:
        self._after = after

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if name != _TENSORFLOW:
            return None
        spec = PathFinder.find_spec(name, path, target)
        if spec and spec.loader:
            self._wrap_execution(spec.loader)
        return spec

    def _wrap_execution(self, loader: Loader) -> None:
        execute = loader.exec_module

        def exec_module(module: ModuleType) -> None:
            loader.exec_module = execute  # type: ignore[method-assign]
            with exit_on_usage_error():
                check_keras(os.environ)
            release = log_level.hold()
            try:
                execute(module)
                if not gpus.may_be_used():
                    # At first, TensorFlow looks for a driver, and logs an error without one.
                    module.config.list_physical_devices()
            finally:
                release()
            self._after()

        loader.exec_module = exec_module  # type: ignore[method-assign]
