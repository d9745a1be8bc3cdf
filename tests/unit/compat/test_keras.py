"""Helpers that work with Keras 2 and Keras 3."""

from __future__ import annotations

from importlib.metadata import version
from typing import ClassVar

import pytest
import tensorflow as tf

from tests.conftest import TinyTraining, keras_is_3
from tfdist.compat import keras as keras_compat
from tfdist.upstream import keras_initial_epoch

pytestmark = pytest.mark.stacks("2.15", "tf_keras", "newest")


def test_the_keras_version_of_a_model_and_an_optimizer_is_detected(tiny: TinyTraining) -> None:
    model = tiny.model()
    package = keras_compat.keras_of(model).__name__

    assert package == ("keras" if tf.keras.Model.__module__.startswith("keras.") else "tf_keras")
    for keras_object in (model, model.optimizer, type(model)):
        assert keras_compat.keras_version(keras_object)[:2] == tuple(
            map(int, version(package).split(".")[:2])
        )
        assert keras_compat.is_keras_3(keras_object) == keras_is_3()


def test_other_objects_are_not_keras_objects() -> None:
    assert not keras_compat.is_keras_3(tf.Variable(1.0))
    with pytest.raises(TypeError, match="is not a Keras class"):
        keras_compat.keras_version(object())


def test_keras_variables_are_converted_to_tensorflow_variables(tiny: TinyTraining) -> None:
    model = tiny.model()
    kernel, bias = keras_compat.as_tensorflow(model.trainable_variables)

    assert isinstance(kernel, tf.Variable)
    assert isinstance(bias, tf.Variable)
    bias.assign([1.0, 2.0, 3.0])
    assert model.get_weights()[1].tolist() == [1.0, 2.0, 3.0]
    assert keras_compat.as_tensorflow([kernel])[0] is kernel


def test_the_learning_rate_is_a_variable_unless_it_is_a_schedule(tiny: TinyTraining) -> None:
    model = tiny.model()
    model.optimizer = tf.keras.optimizers.SGD(0.5)
    keras_compat.hyperparameters(model)["learning_rate"].assign(0.25)
    assert float(tf.convert_to_tensor(model.optimizer.learning_rate)) == 0.25

    schedule = tf.keras.optimizers.schedules.ExponentialDecay(0.5, 10, 0.9)
    model.optimizer = tf.keras.optimizers.SGD(schedule)
    assert "learning_rate" not in keras_compat.hyperparameters(model)


def test_optimizers_are_found_without_a_question_to_each_attribute(tiny: TinyTraining) -> None:
    """A distributed variable answers `getattr` by reading its value in all tasks."""

    class Answers:
        asked: ClassVar[list[str]] = []

        def __getattr__(self, name: str) -> object:
            self.asked.append(name)
            raise AttributeError(name)

    model = tiny.model()
    model.answers = [Answers()]
    assert keras_compat.optimizers_of(model) == [model.optimizer]
    assert "apply_gradients" not in Answers.asked


def test_a_model_may_have_tuples(tiny: TinyTraining) -> None:
    """TensorFlow wraps a tuple that contains layers, and adds a list to it as a tuple does."""
    model = tiny.model()
    model.parts = (tf.keras.layers.Dense(1), "a name")
    assert keras_compat.optimizers_of(model) == [model.optimizer]


def test_fit_starts_at_the_given_epoch_once(tiny: TinyTraining) -> None:
    model = tiny.model()

    class Starts(tf.keras.callbacks.Callback):
        def on_train_begin(self, logs: object = None) -> None:
            keras_initial_epoch.set_start(self.model, (2, 0))

        def on_train_end(self, logs: object = None) -> None:
            keras_initial_epoch.set_start(self.model, None)

    dataset = tiny.train_input(tf.distribute.InputContext())
    assert model.fit(dataset, epochs=3, callbacks=[Starts()], verbose=0).epoch == [2]
    assert model.fit(dataset, epochs=2, verbose=0).epoch == [0, 1]


class LastSteps(tf.keras.callbacks.Callback):
    def __init__(self) -> None:
        super().__init__()
        self.steps: list[int] = []

    def on_train_batch_end(self, batch: int, logs: object = None) -> None:
        self.steps.append(keras_compat.last_step(self.model, batch, self.params["steps"]))


def test_the_last_step_of_each_execution(tiny: TinyTraining) -> None:
    model, last = tiny.model(), LastSteps()
    model.compile("sgd", model.loss, steps_per_execution=2)
    examples = tf.data.Dataset.from_tensor_slices((tiny.points, tiny.classes)).batch(5)

    model.fit(examples, callbacks=[last], verbose=0)
    assert last.steps == [1, 3, 4]
