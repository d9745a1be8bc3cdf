"""Which Keras an environment selects: refused before TensorFlow is imported, if it cannot train."""

from __future__ import annotations

import sys

import pytest

from tests.conftest import tensorflow_version
from tfdist.errors import UsageError
from tfdist.process.tensorflow_import import check_keras

pytestmark = pytest.mark.stacks("2.15", "newest")

HAS_KERAS_3 = tensorflow_version() >= (2, 16)
BACKEND, LEGACY = "KERAS_BACKEND", "TF_USE_LEGACY_KERAS"


def test_keras_3_computes_with_tensorflow_unless_it_is_not_used() -> None:
    """The file ~/.keras/keras.json may name another backend."""
    environ: dict[str, str] = {}
    check_keras(environ)
    assert environ == ({BACKEND: "tensorflow"} if HAS_KERAS_3 else {})
    check_keras(environ)


@pytest.mark.parametrize("backend", ["jax", "torch"])
def test_another_backend_is_refused_where_there_are_others(backend: str) -> None:
    environ = {BACKEND: backend}
    if HAS_KERAS_3:
        with pytest.raises(UsageError, match=f"{BACKEND}: received '{backend}'"):
            check_keras(environ)
        environ[LEGACY] = "1"  # Keras 2 has one backend.
    check_keras(environ)


def test_keras_2_must_be_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "tf_keras", None)
    if HAS_KERAS_3:
        with pytest.raises(UsageError, match=f"{LEGACY}: received 'True'.*Install tf_keras"):
            check_keras({LEGACY: "True"})
    else:
        check_keras({LEGACY: "True"})
    # TensorFlow does not obey other values.
    check_keras({LEGACY: "yes"})
