"""Reads pickles of plain values and arrays of bytes; nothing in them is executed.

    loads(content)[b"data"]      # a NumPy array, uint8

A pickle names the functions that build its objects. CIFAR-10's batches need NumPy's functions for
arrays; here, their names stand for classes of this module, and any other name is an error. See
"Restricting Globals" in Python's documentation of `pickle`.
"""

from __future__ import annotations

import io
import pickle
from typing import Any

import numpy as np

_BYTE = "u1"


def loads(content: bytes) -> Any:
    """The value of a pickle: dicts, lists, tuples, bytes, strings, numbers and uint8 arrays.

    Strings of Python 2 become bytes.

    Raises:
      pickle.UnpicklingError: it contains something else, or is damaged.
    """
    try:
        return _plain(_Unpickler(io.BytesIO(content), encoding="bytes").load())
    except pickle.UnpicklingError:
        raise
    # What a damaged pickle raises depends on where it is damaged.
    except Exception as error:
        raise pickle.UnpicklingError(f"damaged: {error!r}") from error


class _DType:
    """Stands for `numpy.dtype`."""

    def __init__(self, code: Any, *_: Any) -> None:
        if code not in (_BYTE, _BYTE.encode()):
            raise pickle.UnpicklingError(f"an array of {code!r}, and not of uint8")

    def __setstate__(self, state: Any) -> None:
        pass


class _Array:
    """Stands for `numpy.ndarray`, which is built without its values first."""

    def __init__(self, *_: Any) -> None:
        self.values = np.zeros(0, np.uint8)

    def __setstate__(self, state: tuple[Any, tuple[int, ...], _DType, bool, bytes]) -> None:
        _, shape, _, is_fortran, values = state
        flat = np.frombuffer(values, np.uint8)
        self.values = flat.reshape(shape, order="F" if is_fortran else "C")


def _encode(text: str, encoding: str) -> bytes:
    """Stands for `_codecs.encode`: how Python 3 pickles bytes for Python 2."""
    if encoding != "latin1":
        raise pickle.UnpicklingError(f"text in {encoding!r}")
    return text.encode("latin1")


_NAMES: dict[tuple[str, str], Any] = {
    ("_codecs", "encode"): _encode,
    ("numpy", "ndarray"): _Array,
    ("numpy", "dtype"): _DType,
    ("numpy.core.multiarray", "_reconstruct"): _Array,
    ("numpy._core.multiarray", "_reconstruct"): _Array,
}


class _Unpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        try:
            return _NAMES[module, name]
        except KeyError:
            raise pickle.UnpicklingError(f"it names {module}.{name}") from None


def _plain(value: Any) -> Any:
    """The value with arrays in place of `_Array`."""
    if isinstance(value, _Array):
        return value.values
    if isinstance(value, dict):
        return {_plain(key): _plain(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(map(_plain, value))
    return value
