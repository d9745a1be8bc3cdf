"""Models whose train steps do what public scripts do, by the name of a case.

A case is right if N replicas give the weights of one process.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import tensorflow as tf

EXAMPLES, GLOBAL_BATCH, EPOCHS = 64, 16, 2
FEATURES = 4

POINTS = np.random.default_rng(0).normal(size=[EXAMPLES, FEATURES]).astype("float32")
TARGETS = POINTS.sum(1, keepdims=True)


class Model(tf.keras.Model):
    """Two layers whose train step makes one update; cases override `after` and others."""

    def __init__(self) -> None:
        super().__init__()
        self.a = tf.keras.layers.Dense(3, use_bias=False)
        self.b = tf.keras.layers.Dense(1, use_bias=False)
        self.state()

    def state(self) -> None:
        """Creates the variables of the case."""

    def call(self, inputs: Any, training: bool = False) -> Any:
        return self.b(self.a(inputs))

    def losses_of(self, inputs: Any, targets: Any) -> Any:
        """The loss of each example; shape [batch]."""
        return tf.reduce_sum((self(inputs, training=True) - targets) ** 2, 1)

    def gradients(self, inputs: Any, targets: Any, weights: Any) -> Any:
        with tf.GradientTape() as tape:
            loss = tf.nn.compute_average_loss(self.losses_of(inputs, targets))
        return zip(tape.gradient(loss, weights), weights, strict=True)

    def train_step(self, data: Any) -> dict[str, Any]:
        inputs, targets = data
        self.before(inputs, targets)
        self.update(inputs, targets)
        self.after(inputs, targets)
        return {"mean": tf.reduce_mean(inputs)}

    def before(self, inputs: Any, targets: Any) -> None:
        """What the case does before the update."""

    def update(self, inputs: Any, targets: Any) -> None:
        weights = [*self.a.trainable_variables, *self.b.trainable_variables]
        self.optimizer.apply_gradients(self.gradients(inputs, targets, weights))

    def after(self, inputs: Any, targets: Any) -> None:
        """What the case does after the update."""


class OtherOptimizers(Model):
    """Its optimizers are an attribute and in a list; all gradients come before the updates."""

    def update(self, inputs: Any, targets: Any) -> None:
        first = self.gradients(inputs, targets, self.a.trainable_variables)
        second = self.gradients(inputs, targets, self.b.trainable_variables)
        self.own.apply_gradients(first)
        self.many[0].apply_gradients(second)


class InTurn(OtherOptimizers):
    """The second network's gradients come after the first one's update, as in a GAN."""

    def update(self, inputs: Any, targets: Any) -> None:
        self.own.apply_gradients(self.gradients(inputs, targets, self.a.trainable_variables))
        self.many[0].apply_gradients(self.gradients(inputs, targets, self.b.trainable_variables))


class Teacher(Model):
    """An average of the weights, taken after the update, as of a mean teacher."""

    def state(self) -> None:
        self.teacher = self.add_weight(
            name="teacher", shape=[FEATURES, 3], initializer="zeros", trainable=False
        )

    def average(self) -> None:
        self.teacher.assign(0.5 * self.teacher + 0.5 * self.a.trainable_variables[0])

    def after(self, inputs: Any, targets: Any) -> None:
        self.average()


class TeacherBefore(Teacher):
    """The same before the update; the loss then reads it."""

    def before(self, inputs: Any, targets: Any) -> None:
        self.average()

    def after(self, inputs: Any, targets: Any) -> None:
        pass

    def losses_of(self, inputs: Any, targets: Any) -> Any:
        taught = tf.reduce_sum(tf.matmul(inputs, tf.stop_gradient(self.teacher)), 1, keepdims=True)
        return super().losses_of(inputs, targets - 0.1 * taught)


class Target(Model):
    """The weights of another network, which is trainable, follow those of the first."""

    def state(self) -> None:
        self.target = tf.keras.layers.Dense(3, use_bias=False)

    def before(self, inputs: Any, targets: Any) -> None:
        (followed,), (own,) = self.target.trainable_variables, self.a.trainable_variables
        followed.assign(0.9 * followed + 0.1 * own)

    def call(self, inputs: Any, training: bool = False) -> Any:
        return super().call(inputs, training) + 0.0 * tf.reduce_sum(self.target(inputs))


class Clip(Model):
    """Clips the weights after the update, as a Wasserstein GAN does."""

    def after(self, inputs: Any, targets: Any) -> None:
        for weight in self.a.trainable_variables:
            weight.assign(tf.clip_by_value(weight, -0.3, 0.3))


class Counter(Model):
    """Counts its steps, and the loss depends on the count."""

    def state(self) -> None:
        self.steps = self.add_weight(
            name="steps", shape=[], dtype="int32", initializer="zeros", trainable=False
        )

    def before(self, inputs: Any, targets: Any) -> None:
        self.steps.assign_add(1)

    def losses_of(self, inputs: Any, targets: Any) -> Any:
        return super().losses_of(inputs, targets) / tf.cast(self.steps, tf.float32)


CASES: dict[str, type[Model]] = {
    "one_update": Model,
    "other_optimizers": OtherOptimizers,
    "in_turn": InTurn,
    "teacher": Teacher,
    "teacher_before": TeacherBefore,
    "target": Target,
    "clip": Clip,
    "counter": Counter,
}


def compiled(case: str) -> Model:
    """A model of a case, built and compiled."""
    tf.keras.utils.set_random_seed(1)
    model = CASES[case]()
    model.compile(tf.keras.optimizers.SGD(0.1))
    if isinstance(model, OtherOptimizers):
        model.own = tf.keras.optimizers.Adam(0.05)
        model.many = [tf.keras.optimizers.SGD(0.1, momentum=0.9)]
    model(tf.zeros([1, FEATURES]))
    return model


def dataset(context: Any, batch_size: int) -> tf.data.Dataset:
    """A shard of the examples."""
    examples = tf.data.Dataset.from_tensor_slices((POINTS, TARGETS))
    shard = examples.shard(context.num_input_pipelines, context.input_pipeline_id)
    return shard.batch(batch_size)
