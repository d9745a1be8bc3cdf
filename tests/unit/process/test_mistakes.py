"""What tfdist says of errors that scripts often cause."""

from __future__ import annotations

import pytest

from tfdist.process.mistakes import remedy_for

pytestmark = pytest.mark.stacks("newest")

PER_REPLICA = (
    "})",
    "ValueError: Attempt to convert a value with an unsupported type (<class 'tensorflow.python."
    "distribute.values.PerReplica'>) to a Tensor.",
)
PER_WORKER = (
    '    raise ValueError("To use this dataset, you need to pass this dataset to "',
    "ValueError: To use this dataset, you need to pass this dataset to ClusterCoordinator."
    "create_per_worker_dataset.",
)
LOSS_SCALE = (
    "ValueError: Loss scaling is not supported with the tf.distribute.Strategy: "
    "CentralStorageStrategy. Try using a different Strategy",
)
BACKUP = (
    "NotImplementedError: <class 'CentralStorageStrategy'> is not supported yet. Currently "
    "BackupAndRestore callback only supports empty strategy, MirroredStrategy",
)
MERGE_CALL = (
    "RuntimeError: `merge_call` called while defining a new graph or a tf.function. This can often "
    "happen if the function `fn` passed to `strategy.run()` contains a nested `@tf.function`",
)
LAZY = '  File "tensorflow/python/util/lazy_loader.py", line 173, in _initialize'
SERVER = (
    "E tensorflow/core/distributed_runtime/rpc/grpc_server_lib.cc:608] UNKNOWN: "
    "Could not start gRPC server"
)
CREATOR = (
    "    model.fit(tf.keras.utils.experimental.DatasetCreator(dataset_fn), epochs=1)",
    "AttributeError: module 'keras.utils' has no attribute 'experimental'",
)
MULTI_OPTIMIZER = (
    "AttributeError: module 'keras.api._v2.keras.optimizers' has no attribute 'MultiOptimizer'"
)
HOROVOD_KERAS_3 = (
    '  File "horovod/_keras/callbacks.py", line 147, in _adjust_learning_rate',
    "    old_lr = self.backend.get_value(self.model.optimizer.lr)",
    "AttributeError: module 'keras.backend' has no attribute 'get_value'",
)
HOROVOD_KERAS_2 = (
    '  File "horovod/_keras/callbacks.py", line 154, in _adjust_learning_rate',
    "    self.backend.set_value(self.model.optimizer.momentum,",
    "AttributeError: 'float' object has no attribute 'dtype'",
)
FLAG = (
    "absl.flags._exceptions.DuplicateFlagError: The flag 'log_dir' is defined twice. First from "
    "absl.logging, second from train.py."
)
SESSION = (
    "TypeError: EstimatorJob.monitored_session() takes from 1 to 2 positional arguments but 4 were "
    "given"
)


@pytest.mark.parametrize(
    ("lines", "words"),
    [
        (PER_REPLICA, "does not train under MultiWorkerMirroredStrategy"),
        (PER_WORKER, "does not train under ParameterServerStrategy"),
        ((LAZY, "ImportError: Keras cannot be imported. Check that it is installed."), "tf_keras"),
        ((LAZY, "RecursionError: maximum recursion depth exceeded"), "tf_keras"),
        (LOSS_SCALE, "under mirrored, multi_worker_mirrored, horovod and in_graph"),
        (BACKUP, "leave BackupAndRestore out"),
        (MERGE_CALL, "outside of tf.cond"),
        ((SERVER,), "makes a ParameterServerStrategy: only the chief may"),
        (CREATOR, "Keras 3 has no DatasetCreator"),
        ((MULTI_OPTIMIZER,), "train with Keras 3.15 or newer"),
        (HOROVOD_KERAS_3, "need Keras 2"),
        (HOROVOD_KERAS_2, "momentum_correction=False"),
        ((FLAG,), "give the script's flag another name"),
        ((SESSION,), "job.monitored_session(directory)"),
    ],
    ids=[
        "per_replica",
        "per_worker",
        "lacks_tf_keras",
        "recursion",
        "loss_scale",
        "backup",
        "merge_call",
        "server",
        "creator",
        "multi_optimizer",
        "horovod_keras_3",
        "horovod_keras_2",
        "flag",
        "session",
    ],
)
def test_a_known_error_has_a_remedy(lines: tuple[str, ...], words: str) -> None:
    assert words in (remedy_for("\n".join(lines)) or "")


def test_other_errors_have_none() -> None:
    assert remedy_for("RecursionError: maximum recursion depth exceeded") is None
    assert remedy_for("") is None
