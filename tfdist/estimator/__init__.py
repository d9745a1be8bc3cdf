"""Trains `tf.estimator` Estimators and TF1 sessions on a cluster, under every strategy.

    import tfdist.estimator          # before TensorFlow

    @tfdist.estimator.main
    def main(job):
        config = tfdist.estimator.RunConfig(job, "/shared/run1", save_checkpoints_steps=500)
        classifier = tf.estimator.Estimator(model_fn, config=config)
        tfdist.estimator.train_and_evaluate(
            classifier,
            tf.estimator.TrainSpec(train_input, max_steps=10_000),
            tf.estimator.EvalSpec(eval_input, steps=None),
        )

    if __name__ == "__main__":
        tfdist.estimator.run(main)

Every task runs the same lines: ps serve, an evaluator evaluates, the others train. `model_fn`
passes its optimizer to `config.job.wrap_optimizer`. `train_input` takes an `input_context` (a
`tf.distribute.InputContext`) and returns its shard in batches of the per-replica size.
"""

from __future__ import annotations

import tfdist  # noqa: F401  (before TensorFlow)

import tensorflow as tf  # isort: skip

if not hasattr(tf, "estimator"):
    raise ImportError(
        f"TensorFlow {tf.__version__} has no Estimators; the last version with Estimators is 2.15. "
        "Install tensorflow==2.15.1, or train with Keras: tfdist.init()."
    )

from tfdist.config.flags import define_flags
from tfdist.entry import run
from tfdist.estimator.estimator_job import EstimatorJob, init, main
from tfdist.estimator.hooks import ExamplesPerSecondHook
from tfdist.estimator.run_config import RunConfig
from tfdist.estimator.training import evaluate, export, train, train_and_evaluate

__all__ = [
    "EstimatorJob",
    "ExamplesPerSecondHook",
    "RunConfig",
    "define_flags",
    "evaluate",
    "export",
    "init",
    "main",
    "run",
    "train",
    "train_and_evaluate",
]
