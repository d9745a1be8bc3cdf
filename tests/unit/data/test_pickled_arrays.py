"""Pickles of plain values and of arrays of bytes are read, and nothing in a pickle is executed."""

from __future__ import annotations

import contextlib
import os
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tfdist.data.pickled_arrays import loads

pytestmark = pytest.mark.stacks("2.15", "newest")

# As Python 2 pickles an array of NumPy 1, with a string of bytes.
PYTHON_2 = (
    b"\x80\x02}q\x01U\x04dataq\x02cnumpy.core.multiarray\n_reconstruct\nq\x03cnumpy\nndarray\nq\x04"
    b"K\x00\x85U\x01b\x87Rq\x05(K\x01K\x02K\x03\x86cnumpy\ndtype\nq\x06U\x02u1K\x00K\x01\x87Rq\x07"
    b"(K\x03U\x01|NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tb\x89U\x06abcdeftbs."
)


def test_an_array_of_python_2_is_read() -> None:
    array = np.frombuffer(b"abcdef", np.uint8).reshape(2, 3)
    np.testing.assert_array_equal(loads(PYTHON_2)[b"data"], array)


@pytest.mark.parametrize("order", ["C", "F"])
def test_values_and_arrays_are_read(order: Any) -> None:
    array = np.arange(6, dtype=np.uint8).reshape(2, 3).copy(order)
    values: dict[bytes, Any] = {
        b"data": array,
        b"labels": [1, 2],
        b"name": b"batch",
        b"pair": ("text", 0.5, None),
    }
    found = loads(pickle.dumps(values, 2))
    np.testing.assert_array_equal(found.pop(b"data"), values.pop(b"data"))
    assert found == values


class Attack:
    def __init__(self, *call: Any) -> None:
        self._call = call

    def __reduce__(self) -> Any:
        return self._call[0], self._call[1:]


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_nothing_is_executed(protocol: int, tmp_path: Path) -> None:
    for attack in (
        Attack(os.mkdir, str(tmp_path / "attacked")),
        Attack(eval, f"__import__('os').mkdir({str(tmp_path / 'attacked')!r})"),
        Attack(getattr, "text", "format"),
        Attack(np.load, str(tmp_path)),
        np.array([Attack(os.mkdir, str(tmp_path / "attacked"))]),
        np.arange(3.0),
        np.uint8,
    ):
        with pytest.raises(pickle.UnpicklingError):
            loads(pickle.dumps({b"data": attack}, protocol))
    assert list(tmp_path.iterdir()) == []


@settings(deadline=None)
@given(st.data())
def test_a_damaged_pickle_is_an_error_or_a_value(data: st.DataObject) -> None:
    content = bytearray(PYTHON_2)
    for _ in range(data.draw(st.integers(1, 3))):
        content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    # A memo with a large number, which such a change can make, takes much memory.
    for changed in (bytes(content), data.draw(st.binary(max_size=8)) + PYTHON_2[20:]):
        if b"r" not in changed and b"\x94" not in changed:
            with contextlib.suppress(pickle.UnpicklingError):
                loads(changed)
