"""`job.gather`: where a step has the rows of all replicas, and where a sentence refuses it.

`tests/cluster/test_last_steps.py` compares the weights with those of one process: negatives.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import tensorflow as tf

from tfdist.errors import UsageError
from tfdist.strategies.base import Topology
from tfdist.training.global_batch import of_all_replicas

pytestmark = pytest.mark.stacks("newest")

ROWS = tf.constant([[1.0], [2.0]])


def strategy(*, sums: bool, **topology: Any) -> Any:
    """A strategy whose replicas can, or cannot, sum a tensor in a step."""
    found = Topology("worker:0", ("worker:0",), is_chief=True, **topology)
    return SimpleNamespace(name="it", topology=found, sum_of_step=tf.identity if sums else None)


@pytest.mark.parametrize(
    "others",
    [
        {"sums": False, "num_shards": 2, "is_synchronous": False},
        {"sums": True, "num_replicas": 2, "averages_weights": True},
        {"sums": False, "num_replicas": 2},
    ],
    ids=["asynchronous", "sync_period", "backup workers"],
)
def test_an_update_that_does_not_wait_for_all_is_refused(others: dict[str, Any]) -> None:
    with pytest.raises(UsageError) as refused:
        of_all_replicas(strategy(**others), ROWS)
    assert "job.gather: received 'it, whose updates do not wait for" in str(refused.value)


@pytest.mark.parametrize("replicas", [1, 2])
def test_one_replica_and_a_loop_of_ones_own_have_their_rows(replicas: int) -> None:
    assert of_all_replicas(strategy(sums=True, num_replicas=replicas), ROWS) is ROWS
