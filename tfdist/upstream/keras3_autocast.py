"""In a call in mixed precision, Keras 3 gives a variable's value in 16 bits, but no `tf.Variable`.

`Variable.value` is cast there, also for a layer that writes into its variable. `add_weight` has an
argument `autocast`, but the layers of Keras do not pass it on, such as `Embedding`.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any


def keep_dtype(variables: Iterable[Any]) -> None:
    """Lets variables of Keras 3 have their own dtype in every call."""
    for variable in variables:
        variable._autocast = False
