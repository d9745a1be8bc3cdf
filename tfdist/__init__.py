"""Distributed TensorFlow training: one script, every way of distributing it.

    import tfdist          # before TensorFlow: it sets what TensorFlow reads at its import

    tfdist.define_flags()

    @tfdist.exit_on_usage_error()
    def main(_):
        job = tfdist.init()
        if job.serves:
            return job.serve()
        with job.scope():
            model = build()
            model.compile(optimizer=job.optimizer(SGD(job.scaled_lr(0.1))), loss=...)
        if job.evaluates:
            return job.evaluate(model, eval_input, output_dir)
        model.fit(job.dataset(train_input), epochs=..., callbacks=job.callbacks(output_dir))

Names are loaded when they are first used, so that importing the package imports no TensorFlow.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from tfdist.runtime.environment import set_environment as _set_environment
from tfdist.version import __version__

if TYPE_CHECKING:
    from tfdist.cluster import Cluster, Task
    from tfdist.errors import UsageError, exit_on_usage_error
    from tfdist.flags import define_flags, parse_flags, parse_only_flags
    from tfdist.job import init
    from tfdist.strategies.base import Job

__all__ = [
    "Cluster",
    "Job",
    "Task",
    "UsageError",
    "__version__",
    "define_flags",
    "exit_on_usage_error",
    "init",
    "parse_flags",
    "parse_only_flags",
]

_MODULES = {
    "Cluster": "tfdist.cluster.spec",
    "Job": "tfdist.strategies.base",
    "Task": "tfdist.cluster.spec",
    "UsageError": "tfdist.errors",
    "define_flags": "tfdist.flags",
    "exit_on_usage_error": "tfdist.errors",
    "init": "tfdist.job",
    "parse_flags": "tfdist.flags",
    "parse_only_flags": "tfdist.flags",
}

_set_environment()


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module 'tfdist' has no attribute {name!r}")
    return getattr(importlib.import_module(_MODULES[name]), name)
