"""Finds the input signature of a subclassed Keras 3 model; Keras has no public API for this.

`model.export` finds the signature, but does not accept SavedModel options. `ExportArchive` accepts
the options, but does not find the signature.
"""

from __future__ import annotations

import importlib
from typing import Any


def signature_of(model: Any) -> Any:
    """The signature of the inputs that a Keras 3 model was built with, for `add_endpoint`; None for
    a model that was never called."""
    utils = importlib.import_module("keras.src.export.export_utils")
    return utils.get_input_signature(model) if model._called else None
