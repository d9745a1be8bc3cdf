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
CREATOR = (
    "    data = tf.keras.utils.experimental.DatasetCreator(make)",
    "AttributeError: module 'keras._tf_keras.keras.utils' has no attribute 'experimental'",
)
WARM_UP = (
    "    lr = self.backend.get_value(self.model.optimizer.lr)",
    "AttributeError: module 'keras._tf_keras.keras.backend' has no attribute 'get_value'",
)
SERVER = ("tensorflow.python.framework.errors_impl.UnknownError: Could not start gRPC server",)
FLAG = ("absl.flags._exceptions.DuplicateFlagError: The flag 'log_dir' is defined twice.",)
LAZY = '  File "tensorflow/python/util/lazy_loader.py", line 173, in _initialize'


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
        (CREATOR, "Keras 3 has no DatasetCreator"),
        (WARM_UP, "Horovod's callbacks for the learning rate need Keras 2"),
        (SERVER, "only the chief may"),
        (FLAG, "another name"),
    ],
    ids=[
        *["per_replica", "per_worker", "lacks_tf_keras", "recursion", "loss_scale", "backup"],
        *["merge_call", "creator", "warm_up", "server", "flag"],
    ],
)
def test_a_known_error_has_a_remedy(lines: tuple[str, ...], words: str) -> None:
    assert words in (remedy_for("\n".join(lines)) or "")


def test_other_errors_have_none() -> None:
    assert remedy_for("RecursionError: maximum recursion depth exceeded") is None
    assert remedy_for("") is None
