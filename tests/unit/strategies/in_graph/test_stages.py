"""The layers of a model assigned to stages."""

from __future__ import annotations

from typing import Any

import pytest
import tensorflow as tf

from tfdist.errors import UsageError
from tfdist.layers.stage import stage
from tfdist.strategies.in_graph.stages import stages_of

pytestmark = pytest.mark.stacks("2.15", "newest")

Dense = tf.keras.layers.Dense


def sequential(*layers: Any) -> Any:
    return tf.keras.Sequential([tf.keras.Input([4]), *layers])


def names(model: Any, count: int, **options: Any) -> list[list[str]]:
    return [[layer.name for layer in one.layers] for one in stages_of(model, count, **options)]


def test_the_largest_stage_is_as_small_as_possible() -> None:
    model = sequential(Dense(8, name="a"), Dense(8, name="b"), Dense(8, name="c"))
    # 40, 72 and 72 parameters.
    assert names(model, 1) == [["a", "b", "c"]]
    assert names(model, 2) == [["a", "b"], ["c"]]
    assert names(model, 3) == [["a"], ["b"], ["c"]]


def test_layers_without_weights_stay_with_the_layer_before_them() -> None:
    model = sequential(
        tf.keras.layers.Flatten(name="flatten"),
        Dense(8, name="a"),
        tf.keras.layers.ReLU(name="relu"),
        tf.keras.layers.Dropout(0.1, name="dropout"),
        Dense(8, name="b"),
        tf.keras.layers.Softmax(name="softmax"),
    )
    assert names(model, 2) == [["flatten", "a", "relu", "dropout"], ["b", "softmax"]]


def test_the_layers_of_nested_models_count_one_by_one() -> None:
    inner = tf.keras.Sequential([tf.keras.Input([8]), Dense(8, name="b"), Dense(8, name="c")])
    model = sequential(Dense(8, name="a"), inner, Dense(8, name="d"))
    assert names(model, 4) == [["a"], ["b"], ["c"], ["d"]]


def test_a_subclassed_model_within_a_model_is_one_layer() -> None:
    class Block(tf.keras.Model):
        def __init__(self) -> None:
            super().__init__(name="block")
            self.one, self.two = Dense(8), Dense(8)

        def call(self, inputs: Any) -> Any:
            return self.two(self.one(inputs))

    model = sequential(Dense(8, name="a"), Block(), Dense(8, name="b"))
    model.build((None, 4))
    assert names(model, 3) == [["a"], ["block"], ["b"]]


def test_a_layer_used_twice_is_in_one_stage() -> None:
    shared = Dense(4, name="shared")
    inputs = tf.keras.Input([4])
    hidden = Dense(4, name="a")(shared(inputs))
    model = tf.keras.Model(inputs, Dense(4, name="b")(shared(hidden)))
    found = names(model, 3)
    assert sorted(name for one in found for name in one) == ["a", "b", "shared"]


def test_the_stages_of_the_script_are_used() -> None:
    with stage(1):
        last = Dense(2, name="last")
    with stage(0):
        first = Dense(2, name="first")
    model = sequential(first, Dense(64, name="large"), last, Dense(2, name="end"))
    assert names(model, 2) == [["first", "large"], ["last", "end"]]


def test_the_layers_of_a_nested_model_follow_its_stage() -> None:
    first = Dense(4, name="a")
    with stage(0):
        outer = Dense(4, name="b")
    with stage(1):
        inner = tf.keras.Sequential([tf.keras.Input([4]), Dense(4, name="c"), Dense(4, name="d")])
    assert names(sequential(first, outer, inner), 2) == [["a", "b"], ["c", "d"]]


def test_a_layer_in_the_models_of_two_stages_is_refused() -> None:
    shared = Dense(4, name="shared")
    models = []
    for index in range(2):
        with stage(index):
            models.append(tf.keras.Sequential([tf.keras.Input([4]), shared, Dense(4)]))
    with pytest.raises(UsageError, match="layer shared in models of different stages"):
        stages_of(sequential(*models), 2)
    assert names(sequential(*models), 1)[0].count("shared") == 1


def test_the_stages_of_the_script_are_ignored_with_one_stage() -> None:
    with stage(3):
        layer = Dense(2, name="a")
    assert names(sequential(layer), 1) == [["a"]]


@pytest.mark.parametrize("given", [[0, 2], [0, 1, 2], [1, 2], [-1, 0, 1]])
def test_stages_that_do_not_match_are_refused(given: list[int]) -> None:
    layers = []
    for index in given:
        with stage(index):
            layers.append(Dense(2))
    listed = ", ".join(map(str, given))
    with pytest.raises(UsageError, match=rf"stages {listed} with --stages=2"):
        stages_of(sequential(*layers), 2)


def test_more_stages_than_layers_with_weights_are_refused() -> None:
    model = sequential(Dense(2), tf.keras.layers.ReLU(), Dense(2))
    with pytest.raises(UsageError, match=r"3 for model .*, of 2 layers with weights") as error:
        stages_of(model, 3)
    assert "1 to 2" in str(error.value)


def test_the_plan_of_a_stage_names_its_layers_and_parameters() -> None:
    model = sequential(*(Dense(4, name=name) for name in "abcde"))
    first, last = stages_of(model, 2)
    assert str(last) == "c, d, e: 60 parameters, 0.2 kB"
    assert str(first) == "a, b: 40 parameters, 0.2 kB"
    (everything,) = stages_of(model, 1)
    assert str(everything).startswith("a, …, e: 100 parameters")
