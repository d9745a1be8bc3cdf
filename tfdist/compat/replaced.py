"""Replaces methods of Keras's and TensorFlow's objects, and restores them afterwards.

    with fitting():
        replace(model, "train_step", step)          # until the block ends
        with replaced(optimizer, "apply", record):  # until this block ends
            …

No other module of tfdist sets a method of an object that is not its own. Outside of `fitting`, such
as in a custom loop, what `replace` has done stays until the process ends.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from functools import partial
from typing import Any

_fits: list[Fitting] = []
_MISSING = object()


class Fitting(ExitStack):
    """A training or an evaluation; its end restores what was replaced since it began.

    It can be nested. The end of an outer one also ends the inner ones that an exception left open.
    """

    def __exit__(self, *details: Any) -> bool | None:
        if self in _fits:
            while (inner := _fits.pop()) is not self:
                inner.close()
        return super().__exit__(*details)


def fitting() -> Fitting:
    """Begins a training or an evaluation, which ends with the block or with `close`."""
    _fits.append(Fitting())
    return _fits[-1]


def at_end(call: Callable[[], Any]) -> None:
    """Calls a function when the innermost training or evaluation ends; never outside of them."""
    if _fits:
        _fits[-1].callback(call)


def replace(owner: Any, name: str, value: Any) -> None:
    """Replaces an attribute of an object until the innermost training or evaluation ends.

    Args:
      owner: the object, or a class.
      name: the name of the attribute.
      value: a function, for an object without the parameter `self`, or any other value.
    """
    at_end(_set(owner, name, value))


def replaced(owner: Any, name: str, value: Any) -> AbstractContextManager[None]:
    """Replaces an attribute of an object within the block; the arguments are those of `replace`."""
    return all_replaced([(owner, name, value)])


@contextmanager
def all_replaced(changes: Iterable[tuple[Any, str, Any]]) -> Iterator[None]:
    """Replaces attributes within the block.

    Args:
      changes: the arguments of `replace` for each attribute.
    """
    with ExitStack() as stack:
        for change in changes:
            stack.callback(_set(*change))
        yield


def _set(owner: Any, name: str, value: Any) -> Callable[[], None]:
    before = vars(owner).get(name, _MISSING)
    is_class = isinstance(owner, type)
    # Keras would track the attribute of an assignment, or take it as a hyperparameter.
    assign = partial(setattr, owner, name) if is_class else partial(vars(owner).__setitem__, name)
    remove = partial(delattr, owner, name) if is_class else partial(vars(owner).pop, name, None)
    assign(value)
    return remove if before is _MISSING else partial(assign, before)
