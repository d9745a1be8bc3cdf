"""The per-node MNIST script of the classic TF1 tutorials, with parameter servers.

    tfdist run --ps=1 --workers=2 examples/mnist_replica.py --output_dir=/tmp/run --issync=1

or, on every node, with the node's --job_name and --task_index:

    python examples/mnist_replica.py --job_name=worker --task_index=0 --output_dir=/shared/run \\
        --ps_hosts=host1:2222 --worker_hosts=host2:2222,host3:2222

Comments with "was" mark the lines that differ from the original script. Worker 0 is the chief.
Without hosts the script trains in one process.
"""

from __future__ import annotations

import tfdist  # isort: skip  (before TensorFlow, which reads variables that tfdist sets)

import tensorflow.compat.v1 as tf  # was: import tensorflow as tf
from absl import app, flags

import tfdist.estimator
from tfdist.data import mnist

# Was: definitions of job_name, task_index, ps_hosts and worker_hosts, and later a check of each.
tfdist.estimator.define_flags()
flags.DEFINE_alias("sync_replicas", "sync")
flags.DEFINE_integer("issync", None, "1 for --sync, 0 for --nosync; overrides both.", 0, 1)
flags.DEFINE_string("data_source", "digits", "digits, mnist or fashion_mnist.")
flags.DEFINE_string("output_dir", None, "Directory that all tasks share.", required=True)
flags.DEFINE_integer("hidden_units", 100, "Units of the hidden layer.", lower_bound=1)
flags.DEFINE_integer("train_steps", 300, "Updates of the weights over all workers.", lower_bound=1)
flags.DEFINE_integer("batch_size", 100, "Batch size of a worker.", lower_bound=1)
flags.DEFINE_float("learning_rate", 0.01, "Learning rate of Adam.")
FLAGS = flags.FLAGS


def logits(images: tf.Tensor, units: int) -> tf.Tensor:
    """Maps images [batch, 28, 28, 1] to logits, float32 [batch, 10], with one hidden layer."""
    pixels = mnist.IMAGE_SIZE**2
    with tf.variable_scope("hidden", reuse=tf.AUTO_REUSE):
        weights = tf.get_variable(
            "weights", [pixels, units], initializer=tf.truncated_normal_initializer(0, pixels**-0.5)
        )
        biases = tf.get_variable("biases", [units], initializer=tf.zeros_initializer())
        hidden = tf.nn.relu(tf.nn.xw_plus_b(tf.reshape(images, [-1, pixels]), weights, biases))
    with tf.variable_scope("softmax", reuse=tf.AUTO_REUSE):
        weights = tf.get_variable(
            "weights",
            [units, mnist.NUM_CLASSES],
            initializer=tf.truncated_normal_initializer(0, units**-0.5),
        )
        biases = tf.get_variable("biases", [mnist.NUM_CLASSES], initializer=tf.zeros_initializer())
        return tf.nn.xw_plus_b(hidden, weights, biases)


def set_sync() -> None:
    if FLAGS.issync is not None:
        FLAGS.sync = bool(FLAGS.issync)


app.call_after_init(set_sync)


# Was: tf.train.ClusterSpec, tf.train.Server, and server.join() on a ps, which never returns.
@tfdist.estimator.main
def main(job: tfdist.estimator.EstimatorJob) -> None:
    with tf.Graph().as_default(), tf.device(job.device_setter()):  # was: replica_device_setter
        data = mnist.load(FLAGS.data_source)
        step = tf.train.get_or_create_global_step()
        # Was: placeholders and mnist.train.next_batch, which gave every worker all examples.
        train = mnist.dataset(
            *data["train"],
            job.input_context,
            batch_size=FLAGS.batch_size,
            shuffle=True,
            repeat=True,
        )
        images, labels = tf.data.make_one_shot_iterator(train).get_next()
        loss = tf.losses.sparse_softmax_cross_entropy(labels, logits(images, FLAGS.hidden_units))
        test = mnist.dataset(*data["test"], batch_size=len(data["test"].labels))
        images, labels = tf.data.make_one_shot_iterator(test).get_next()
        correct = tf.nn.in_top_k(logits(images, FLAGS.hidden_units), labels, 1)
        # Was: SyncReplicasOptimizer if issync, with its queue runners, tokens and init ops.
        optimizer = job.wrap_optimizer(tf.train.AdamOptimizer(FLAGS.learning_rate))
        train_op = optimizer.minimize(loss, global_step=step)

        hooks = [tf.train.StopAtStepHook(last_step=FLAGS.train_steps)]
        tested = tf.train.FinalOpsHook(tf.reduce_mean(tf.to_float(correct)))
        if job.is_chief:
            hooks.append(tested)
        # Was: tf.train.Supervisor, prepare_or_wait_for_session, and a loop that counted steps.
        with job.monitored_session(checkpoint_dir=FLAGS.output_dir, hooks=hooks) as session:
            while not session.should_stop():
                session.run(train_op)
    if job.is_chief:
        print(f"test accuracy {tested.final_ops_values:.4f}")


if __name__ == "__main__":
    tfdist.estimator.run(main)
