"""Which functions of the user get the argument that tfdist offers."""

from __future__ import annotations

import functools
from typing import Any

import pytest

from tfdist.data.signature import takes_argument

pytestmark = pytest.mark.stacks("newest")


def with_size(context: Any, size: int) -> None:
    """An input function with an argument of the user."""


@pytest.mark.parametrize(
    ("function", "expected"),
    [
        (lambda context: None, True),
        (lambda *args: None, True),
        (lambda context=None: None, True),
        (functools.partial(with_size, size=3), True),
        (len, True),
        (lambda: None, False),
        (lambda batch_size=32: None, False),
        (lambda *, batch_size: None, False),
        (functools.partial(with_size, None, 3), False),
    ],
)
def test_a_parameter_without_a_default_or_of_that_name_gets_it(
    function: Any, expected: bool
) -> None:
    assert takes_argument(function, "context") is expected
