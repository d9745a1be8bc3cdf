"""The input signature of a subclassed model of Keras 3, which only Keras's own `export` is given.

`ExportArchive` takes the options of a SavedModel that `model.export` does not take, and does not
find the signature.
"""

from __future__ import annotations

import importlib
from typing import Any


def signature_of(model: Any) -> Any:
    """The `tf.TensorSpec`s of the inputs that a model of Keras 3 was built with.

    Raises:
      ValueError: the model has not been built.
    """
    return importlib.import_module("keras.src.export.export_utils").get_input_signature(model)
