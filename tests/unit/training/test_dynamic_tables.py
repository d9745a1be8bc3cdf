"""What is refused about dynamic tables before the first step."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import tensorflow as tf

from tfdist.coordination.liveness.activity import Activity
from tfdist.errors import UsageError
from tfdist.layers import DynamicEmbedding
from tfdist.training import dynamic_tables

pytestmark = pytest.mark.stacks("2.15")


def strategy(**facts: Any) -> Any:
    known = {"joins_batches": False, "averages_weights": False, "num_replicas": 1, **facts}
    return SimpleNamespace(name="mine", topology=SimpleNamespace(**known))


def test_deltas_need_a_dynamic_table() -> None:
    model = tf.keras.Sequential([tf.keras.layers.Dense(1)])
    with pytest.raises(UsageError, match="--delta_steps: received 3; accepted: with a model that"):
        dynamic_tables.distribute(
            model, strategy(), is_shared=False, is_loop=False, given={"delta_steps": 3}
        )


def test_only_replicas_with_copies_gather_ids() -> None:
    table = DynamicEmbedding(4, 10, name="users")
    model = tf.keras.Sequential([table])
    for replicas, is_shared, gathers in ((1, False, False), (2, True, False), (2, False, True)):
        own = strategy(num_replicas=replicas)
        dynamic_tables.distribute(model, own, is_shared=is_shared, is_loop=False, given={})
        assert (table.gather is not None) == gathers
    with pytest.raises(
        UsageError, match="the layer users: received 'a DynamicEmbedding under mine'"
    ):
        dynamic_tables.distribute(
            model, strategy(joins_batches=True), is_shared=False, is_loop=False, given={}
        )


def test_two_tables_need_two_names_and_no_table_is_compiled_or_averaged() -> None:
    """Deltas, metrics and the states of optimizers are found by the name."""
    tables = [DynamicEmbedding(4, 10, name="users") for _ in range(2)]
    inputs = tf.keras.Input([1], dtype="int64")
    towers = [tf.keras.Sequential([each], name=f"tower_{n}") for n, each in enumerate(tables)]
    model = tf.keras.Model(inputs, [tower(inputs) for tower in towers])
    with pytest.raises(UsageError, match="the layer users: received 'two dynamic tables of this"):
        dynamic_tables.distribute(model, strategy(), is_shared=False, is_loop=False, given={})
    model = tf.keras.Sequential([tables[0]])
    model.compile("sgd", "mse", jit_compile=True)
    with pytest.raises(UsageError, match="received 'a DynamicEmbedding with jit_compile'"):
        dynamic_tables.distribute(model, strategy(), is_shared=False, is_loop=False, given={})
    optimizers = tf.keras.optimizers
    for optimizer, known in (
        (optimizers.SGD(use_ema=True), "an optimizer that has use_ema"),
        (optimizers.Adafactor(), "Adafactor"),
    ):
        model.compile(optimizer, "mse")
        with pytest.raises(UsageError, match=f"received 'a DynamicEmbedding with {known}'"):
            dynamic_tables.distribute(model, strategy(), is_shared=False, is_loop=False, given={})


def test_a_table_that_no_step_trains_is_told_once(capfd: pytest.CaptureFixture[str]) -> None:
    model = tf.keras.Sequential([tf.keras.Input([1], dtype="int64"), DynamicEmbedding(4, 10)])
    facts = dynamic_tables.TableFacts(Activity("worker:0"), is_chief=True)
    facts.set_model(model)
    for epoch in range(2):
        facts.on_epoch_end(epoch, {})
    assert capfd.readouterr().err.count("has met no id in training") == 1
