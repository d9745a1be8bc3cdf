"""What `strategies/parameter_server/` assumes about variables and their parts.

A test fails when a private name is gone, or when upstream has fixed what tfdist works around.
"""

from __future__ import annotations

import inspect
from pathlib import Path

import pytest
import tensorflow as tf
from tensorflow.python.distribute.parameter_server_strategy_v2 import (
    ParameterServerStrategyV2Extended,
)

import tfdist  # noqa: F401
from tfdist.strategies.parameter_server.variables.checkpoint_layout import ShardedVariable

pytestmark = pytest.mark.stacks("2.15", "2.21")


def test_a_strategy_places_variables_in_turn() -> None:
    """`placement.Placement.scope`"""
    source = inspect.getsource(ParameterServerStrategyV2Extended._create_variable_round_robin)
    assert "self._variable_count % self._num_ps" in source
    parameters = inspect.signature(tf.distribute.ParameterServerStrategy.__init__).parameters
    assert list(parameters) == ["self", "cluster_resolver", "variable_partitioner"]


def test_an_optimizer_saves_the_slots_of_parts_one_by_one(tmp_path: Path) -> None:
    """`checkpoint_layout.WholeLayout`; tf_keras saves them whole."""
    parts = [tf.Variable(tf.zeros([rows, 3])) for rows in (2, 1)]
    whole = ShardedVariable(parts)
    assert all(part._sharded_container() is whole for part in parts)
    optimizer = tf.keras.optimizers.SGD(momentum=0.9)
    optimizer.build(parts)
    checkpoint = tf.train.Checkpoint(whole=whole, optimizer=optimizer)
    path = checkpoint.write(str(tmp_path / "checkpoint"))
    shapes = [tuple(shape) for name, shape in tf.train.list_variables(path) if "/_var" in name]
    assert {(2, 3), (1, 3)} <= set(shapes)
    assert (3, 3) not in shapes
    assert (3, 3) in [tuple(shape) for _, shape in tf.train.list_variables(path)]
    assert callable(optimizer._trackable_children)
