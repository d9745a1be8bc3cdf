"""Hints for errors of TensorFlow and Keras that scripts often cause.

hint_for(process.last_lines)      # a sentence, or None
"""

from __future__ import annotations

import re
from collections.abc import Iterable

_TF_KERAS = (
    "install tf_keras in the version of TensorFlow and set TF_USE_LEGACY_KERAS=1, or train with "
    "tfdist's job.fit (docs/keras3.md)"
)
# The error, and what to do.
_HINTS = (
    (
        r"distribute\.values\.PerReplica'>\) to a Tensor",
        f"Keras 3 does not train under MultiWorkerMirroredStrategy: {_TF_KERAS}",
    ),
    (
        r"ClusterCoordinator\.create_per_worker_dataset",
        f"Keras 3 does not train under ParameterServerStrategy: {_TF_KERAS}",
    ),
    (
        # TensorFlow before 2.19 has the second error.
        r"lazy_loader\.py(.|\n)*(Keras cannot be imported|RecursionError)",
        "TF_USE_LEGACY_KERAS=1 needs tf_keras in the version of TensorFlow: install it, or leave "
        "the variable out",
    ),
    (
        r"Loss scaling is not supported with",
        "Keras 2 scales the loss under mirrored, multi_worker_mirrored, horovod and in_graph: "
        "choose one of these, or train without LossScaleOptimizer",
    ),
    (
        r"Currently BackupAndRestore callback",
        "leave BackupAndRestore out: job.fit and job.callbacks save and resume the training",
    ),
)


def hint_for(lines: Iterable[str]) -> str | None:
    """A hint for the error in the last lines of a task's output; None if it is unknown."""
    text = "\n".join(lines)
    return next((hint for error, hint in _HINTS if re.search(error, text)), None)
