"""Trains the CIFAR-10 Estimator in one process, with parameter servers, or any other strategy.

    tfdist data cifar10 --data_dir=/tmp/digits --source=digits
    python examples/cifar10_estimator_main.py --data_dir=/tmp/digits --output_dir=/tmp/run

To train on a cluster, run the same command on every node, including ps and evaluator, with
TF_CONFIG or with `--job_name --task_index --ps_hosts --worker_hosts`. `--sync` makes training with
parameter servers synchronous. The flags are those of TensorFlow's CIFAR-10 Estimator tutorial.
"""

from __future__ import annotations

import sys
from pathlib import Path

import tfdist.estimator  # isort: skip  (before TensorFlow, which reads variables that it sets)

import tensorflow as tf
from absl import app, flags

# The directory of `estimators`, which is not in the package.
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from estimators import cifar10
from tfdist.data.cifar10 import num_examples

tfdist.estimator.define_flags()
UNUSED = "Unused. The platform passes it, but all output goes to --output_dir."

flags.FLAGS.set_default("num_gpus", min(1, len(tf.config.list_physical_devices("GPU"))))
flags.DEFINE_alias("num_gpu", "num_gpus")
flags.DEFINE_string("data_dir", None, "Directory of the TFRecords.", required=True)
flags.DEFINE_string("output_dir", None, "Directory that all tasks share.", required=True)
flags.DEFINE_alias("job_dir", "output_dir")
flags.DEFINE_string("work_dir", None, UNUSED)
flags.DEFINE_string("log_dir", None, UNUSED, allow_override=True)
flags.DEFINE_enum("variable_strategy", "CPU", ["CPU", "GPU"], "Device of a process's variables.")
flags.DEFINE_integer("num_layers", 44, "Layers of the ResNet, 6n+2.")
flags.DEFINE_integer("train_steps", 80_000, "Global steps to train for.", lower_bound=1)
flags.DEFINE_integer("train_batch_size", 128, "Training batch size of a task.", lower_bound=1)
flags.DEFINE_integer("eval_batch_size", 100, "Evaluation batch size.", lower_bound=1)
flags.DEFINE_integer("save_checkpoints_steps", 1_000, "Steps between checkpoints.", lower_bound=1)
flags.DEFINE_float("learning_rate", 0.1, "Rate before the first decay; not scaled with replicas.")
flags.DEFINE_list("decay_epochs", ["82", "123", "300"], "Epochs at which the rate decays.")
flags.DEFINE_float("momentum", 0.9, "Momentum of SGD.")
flags.DEFINE_float("weight_decay", 2e-4, "L2 regularization of all trainable variables.")
flags.DEFINE_float("batch_norm_decay", 0.997, "Momentum of the moving statistics.")
flags.DEFINE_float("batch_norm_epsilon", 1e-5, "Added to the variance.")
flags.DEFINE_string("data_format", None, "NHWC or NCHW (default: NCHW on a GPU, else NHWC).")
flags.DEFINE_bool("use_distortion_for_training", True, "Crop the training images randomly.")
flags.DEFINE_bool("use_flip_for_training", True, "Flip them randomly; wrong for digits.")
flags.DEFINE_bool("log_device_placement", False, "Print the device of each operation.")
flags.DEFINE_integer("seed", None, "Makes weights, order and distortions reproducible.")
FLAGS = flags.FLAGS

flags.register_validator(
    "decay_epochs", lambda epochs: all(map(str.isdigit, epochs)), "must be comma-separated integers"
)


def use_available_gpus() -> None:
    """Limits --num_gpus to the available GPUs, because the platform always passes 1."""
    requested, available = FLAGS.num_gpus, len(tf.config.list_physical_devices("GPU"))
    if requested > available:
        used = f"{available} GPUs; using all" if available else "no GPU; using the CPU"
        print(f"--num_gpus={requested}: TensorFlow sees {used}", file=sys.stderr)
        FLAGS.num_gpus = available


app.call_after_init(use_available_gpus)


def hyper_parameters(per_replica: int) -> cifar10.HyperParameters:
    return cifar10.HyperParameters(
        num_layers=FLAGS.num_layers,
        batch_size=per_replica,
        num_examples=num_examples(FLAGS.data_dir, "train"),
        learning_rate=FLAGS.learning_rate,
        decay_epochs=tuple(map(int, FLAGS.decay_epochs)),
        momentum=FLAGS.momentum,
        weight_decay=FLAGS.weight_decay,
        batch_norm_decay=FLAGS.batch_norm_decay,
        batch_norm_epsilon=FLAGS.batch_norm_epsilon,
        data_format=FLAGS.data_format,
        variable_strategy=FLAGS.variable_strategy,
    )


@tfdist.estimator.main
def main(job: tfdist.estimator.EstimatorJob) -> None:
    if FLAGS.seed is not None:
        tf.keras.utils.set_random_seed(FLAGS.seed)
    per_replica = job.per_replica_batch_size(FLAGS.train_batch_size)
    train_input = cifar10.train_input(
        FLAGS.data_dir,
        batch_size=per_replica,
        distort=FLAGS.use_distortion_for_training,
        flip=FLAGS.use_distortion_for_training and FLAGS.use_flip_for_training,
        seed=FLAGS.seed,
    )
    config = tfdist.estimator.RunConfig(
        job,
        FLAGS.output_dir,
        tf_random_seed=FLAGS.seed,
        save_checkpoints_steps=FLAGS.save_checkpoints_steps,
        session_config=tf.compat.v1.ConfigProto(log_device_placement=FLAGS.log_device_placement),
    )
    estimator = tf.estimator.Estimator(
        cifar10.model_fn, config=config, params=hyper_parameters(per_replica)
    )
    examples_per_second = tfdist.estimator.ExamplesPerSecondHook(job.global_batch_size(per_replica))
    tfdist.estimator.train_and_evaluate(
        estimator,
        tf.estimator.TrainSpec(train_input, FLAGS.train_steps, hooks=[examples_per_second]),
        tf.estimator.EvalSpec(
            cifar10.eval_input(FLAGS.data_dir, "validation", batch_size=FLAGS.eval_batch_size),
            steps=None,
            start_delay_secs=0,
            throttle_secs=0,
        ),
    )
    test_input = cifar10.eval_input(FLAGS.data_dir, batch_size=FLAGS.eval_batch_size)
    metrics = tfdist.estimator.evaluate(estimator, test_input, name="test")
    if metrics is not None:
        print(f"test accuracy {metrics['accuracy']:.4f}")
    tfdist.estimator.export(estimator, cifar10.serving_input_receiver_fn)


if __name__ == "__main__":
    tfdist.estimator.run(main)
