"""A script for TensorFlow 1 with parameter servers: flags describe the cluster and the task."""

from __future__ import annotations

import time

import tensorflow.compat.v1 as tf

FLAGS = tf.flags.FLAGS
tf.flags.DEFINE_string("job_name", None, "worker or ps")
tf.flags.DEFINE_integer("task_index", None, "the index of this task")
tf.flags.DEFINE_string("ps_hosts", None, "the addresses of the ps")
tf.flags.DEFINE_string("worker_hosts", None, "the addresses of the workers")
tf.flags.DEFINE_boolean("issync", False, "aggregate the gradients of all workers")
tf.flags.DEFINE_integer("steps", None, "the last global step")


def main(_: list[str]) -> None:
    workers = FLAGS.worker_hosts.split(",")
    cluster = tf.train.ClusterSpec({"ps": FLAGS.ps_hosts.split(","), "worker": workers})
    server = tf.train.Server(cluster, job_name=FLAGS.job_name, task_index=FLAGS.task_index)
    if FLAGS.job_name == "ps":
        server.join()
    is_chief = FLAGS.task_index == 0
    device = f"/job:worker/task:{FLAGS.task_index}"
    with tf.device(tf.train.replica_device_setter(worker_device=device, cluster=cluster)):
        step = tf.train.get_or_create_global_step()
        weight = tf.get_variable("weight", [], initializer=tf.zeros_initializer())
        loss = tf.square(weight - 3.0)
        optimizer = tf.train.GradientDescentOptimizer(0.1)
        hooks = [tf.train.StopAtStepHook(last_step=FLAGS.steps)]
        if FLAGS.issync:
            optimizer = tf.train.SyncReplicasOptimizer(
                optimizer, replicas_to_aggregate=len(workers), total_num_replicas=len(workers)
            )
            hooks.append(optimizer.make_session_run_hook(is_chief, num_tokens=0))
        train = optimizer.minimize(loss, global_step=step)
    config = tf.ConfigProto(device_filters=["/job:ps", device])
    if not is_chief:
        # MonitoredTrainingSession would only look again after 30 seconds.
        missing = tf.report_uninitialized_variables(tf.global_variables())
        with tf.Session(server.target, config=config) as session:
            while session.run(missing).size:
                time.sleep(0.1)
    with tf.train.MonitoredTrainingSession(
        server.target,
        is_chief,
        hooks=hooks,
        config=config,
        # The chief of SyncReplicasOptimizer has a thread that does not stop.
        stop_grace_period_secs=1,
    ) as session:
        while not session.should_stop():
            value, _ = session.run([loss, train])
    print(f"{FLAGS.job_name}:{FLAGS.task_index} has trained to a loss of {value:.2f}")


if __name__ == "__main__":
    tf.disable_v2_behavior()
    tf.app.run(main)
