"""What the tasks agree on when they start."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from tfdist.strategies.base import Strategy

pytestmark = pytest.mark.stacks("2.15", "newest")


class Store:
    """A key-value store in memory that never waits."""

    def __init__(self) -> None:
        self._values: dict[str, str] = {}

    def put(self, key: str, value: str) -> None:
        assert key not in self._values
        self._values[key] = value

    def get(self, key: str, seconds: float) -> str | None:
        return self._values.get(key)


def policy(store: Store, own: str, *, is_chief: bool) -> str:
    topology = SimpleNamespace(is_chief=is_chief)
    settings = SimpleNamespace(startup_timeout=1.0)
    strategy: Any = SimpleNamespace(kv_store=store, topology=topology, settings=settings)
    return Strategy.value_of_chief(strategy, "precision", lambda: own)


def test_all_tasks_take_the_precision_of_the_chief() -> None:
    store = Store()
    with pytest.raises(TimeoutError, match="The chief has not said"):
        policy(store, "float32", is_chief=False)
    assert policy(store, "mixed_bfloat16", is_chief=True) == "mixed_bfloat16"
    assert policy(store, "float32", is_chief=False) == "mixed_bfloat16"
    # A chief that was started again may measure something else.
    assert policy(store, "float32", is_chief=True) == "mixed_bfloat16"
