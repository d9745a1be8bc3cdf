"""Lets Keras 3 sum the gradients of replicas if some variables have none.

Keras would warn of these variables, but passes their names as the category of the warning, which is
a TypeError. It has warned of them before, in `Optimizer.apply`.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterable
from typing import Any

from tfdist.upstream.wrapping import apply_wrapper


def apply() -> None:
    """Leaves the variables without a gradient out of the sum; of no gradient at all Keras tells."""
    optimizers: Any = importlib.import_module("keras.src.backend.tensorflow.optimizer")

    def without_warning(check: Callable[[Any], Any], pairs: Iterable[tuple[Any, Any]]) -> Any:
        pairs = list(pairs)
        return check([pair for pair in pairs if pair[0] is not None] or pairs)

    apply_wrapper(optimizers, "filter_empty_gradients", without_warning)
