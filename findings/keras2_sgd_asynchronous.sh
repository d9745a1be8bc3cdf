#!/usr/bin/env bash
# TensorFlow 2.15.1 with its Keras 2.15.0, and tf_keras 2.21.0 with TensorFlow 2.21.0, under
# ParameterServerStrategy with two workers: SGD without momentum loses updates and makes others twice.
# It writes each update to a momentum, which is not used without momentum, and adds that to the
# variable. Both workers share it. Each batch has rows of its own, and trains them twice by a gradient
# of -1, so each row should be 2. The legacy SGD, and SGD of Keras 3, have no momentum without momentum.
# Output seen (the numbers differ from run to run):
#   keras 2.15.0 SGD: 35 of 80 batches are not trained twice; legacy SGD: 0
#   tf_keras 2.21.0 SGD: 33 of 80 batches are not trained twice; legacy SGD: 0
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cat > "$folder/seen.py" <<'PROGRAM'
import json
import socket
import subprocess
import sys

import tensorflow as tf

keras = tf.keras
package = sys.modules[keras.Model.__module__.partition(".")[0]]
BATCHES, ROWS = 80, 50

if len(sys.argv) > 1:
    cluster, job, index = json.loads(sys.argv[1]), sys.argv[2], int(sys.argv[3])
    tf.distribute.Server(cluster, job_name=job, task_index=index, protocol="grpc").join()


def address():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return "127.0.0.1:%d" % free.getsockname()[1]


cluster = {"ps": [address()], "worker": [address(), address()]}
servers = [
    subprocess.Popen([sys.executable, __file__, json.dumps(cluster), job, str(index)])
    for job, addresses in cluster.items()
    for index in range(len(addresses))
]
try:
    resolver = tf.distribute.cluster_resolver.SimpleClusterResolver(
        tf.train.ClusterSpec(cluster), rpc_layer="grpc"
    )
    strategy = tf.distribute.ParameterServerStrategy(resolver)
    coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)

    def wrong(make_optimizer):
        """The number of batches whose rows are not 2."""
        with strategy.scope():
            table = tf.Variable(tf.zeros([BATCHES * ROWS, 1]))
            optimizer = make_optimizer()
            if hasattr(optimizer, "build"):
                optimizer.build([table])

        @tf.function
        def step(rows):
            def replica(rows):
                gradient = tf.IndexedSlices(-tf.ones([ROWS, 1]), rows, tf.constant([BATCHES * ROWS, 1]))
                optimizer.apply_gradients([(gradient, table)])

            strategy.run(replica, args=(rows,))

        for _ in range(2):
            for batch in range(BATCHES):
                coordinator.schedule(step, args=(tf.range(batch * ROWS, (batch + 1) * ROWS),))
            coordinator.join()
        return int((table.numpy().reshape([BATCHES, ROWS])[:, 0] != 2).sum())

    lost = wrong(lambda: keras.optimizers.SGD(1.0))
    of_legacy = wrong(lambda: keras.optimizers.legacy.SGD(1.0))
    print(
        f"{package.__name__} {package.__version__} SGD: {lost} of {BATCHES} batches are not trained "
        f"twice; legacy SGD: {of_legacy}"
    )
    assert lost > 0 and of_legacy == 0
finally:
    for server in servers:
        server.kill()
PROGRAM
for stack in "0 python3.11 tensorflow-cpu==2.15.1" \
    "1 python3.13 tensorflow-cpu==2.21.0 tf_keras==2.21.0"; do
    read -r legacy python packages <<< "$stack"
    "$python" -m venv "$folder/$python"
    # shellcheck disable=SC2086
    "$folder/$python/bin/python" -m pip install --quiet $packages
    TF_USE_LEGACY_KERAS=$legacy CUDA_VISIBLE_DEVICES="" TF_CPP_MIN_LOG_LEVEL=3 \
        "$folder/$python/bin/python" "$folder/seen.py" 2> "$folder/errors" || { cat "$folder/errors"; exit 1; }
done
