"""An example of a custom strategy: one module with its options, and one row; the script uses it.

The strategy trains in one process and multiplies the gradients by `--gradient_scale`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import tfdist  # isort: skip  (before TensorFlow)

import tensorflow as tf
from absl import flags

from tfdist.config.strategies import Options, StrategySpec, option, register
from tfdist.data.feed import Feed
from tfdist.strategies.base import Strategy, Topology


@dataclass(frozen=True)
class ScaledOptions(Options):
    gradient_scale: float = option(1.0, "the factor of the gradients", above=0.0)


class Scaled(Strategy[ScaledOptions]):
    name = "scaled"

    def set_up(self, options: ScaledOptions) -> None:
        self.scale = options.gradient_scale
        self.tf_strategy = tf.distribute.get_strategy()

    @property
    def topology(self) -> Topology:
        return Topology(str(self.task), (str(self.task),))

    def wrap_optimizer(self, optimizer: Any) -> Any:
        apply_gradients = optimizer.apply_gradients

        def scaled(pairs: Any, *arguments: Any, **options: Any) -> Any:
            pairs = [(gradient * self.scale, variable) for gradient, variable in pairs]
            return apply_gradients(pairs, *arguments, **options)

        optimizer.apply_gradients = scaled
        return optimizer

    def distribute(self, feed: Feed) -> tf.data.Dataset:
        return feed.local


register(StrategySpec(Scaled.name, f"{__name__}:Scaled", ScaledOptions, single_replica=True))

OUTPUT_DIR = flags.DEFINE_string("output_dir", None, "Output directory.", required=True)


def build_model(job: tfdist.Job) -> tf.keras.Model:
    layer = tf.keras.layers.Dense(1, kernel_initializer="zeros")
    model = tf.keras.Sequential([tf.keras.Input((4,)), layer])
    model.compile(tf.keras.optimizers.SGD(0.01), "mse")
    return model


def train_input(context: tf.distribute.InputContext) -> tf.data.Dataset:
    return tf.data.Dataset.from_tensors((tf.ones([8, 4]), tf.ones([8, 1])))


@tfdist.main
def main(job: tfdist.Job) -> None:
    history = job.fit(build_model, train_input, epochs=1, output_dir=OUTPUT_DIR.value, verbose=0)
    print(f"{job.name}: weight {history.model.get_weights()[0][0, 0]:.3f}")


if __name__ == "__main__":
    tfdist.run(main)
