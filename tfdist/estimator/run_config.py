"""`RunConfig`: the configuration of an Estimator that is part of a job.

config = RunConfig(job, "/shared/run1", save_checkpoints_steps=500)
"""

from __future__ import annotations

import copy
import os
import tempfile
import time
from typing import Any

import tensorflow as tf

from tfdist.errors import UsageError, log
from tfdist.estimator.estimator_job import EstimatorJob
from tfdist.estimator.optimizers import undistributed
from tfdist.storage import lock
from tfdist.storage.output_directory import OutputDirectory, output_path, write_error
from tfdist.upstream import (
    keras_estimator_first_checkpoint,
    monitored_session_write_errors,
)


class RunConfig(tf.estimator.RunConfig):
    """The `tf.estimator.RunConfig` of this task.

    Args:
      job: the result of `tfdist.estimator.init`; a model function finds it as `config.job`.
      model_dir: the output directory that all tasks share; None to use TF_CONFIG's. Horovod's ranks
        other than 0 use a temporary directory instead, and get their variables from rank 0.
      session_config: merged over the thread and GPU settings of the job's flags.
      **options: the other arguments of `tf.estimator.RunConfig`, except the training strategy,
        which the job determines.

    Raises:
      UsageError: the strategy does not support an argument, or there is no `model_dir`, or
        TF_CONFIG has a different one, or it is a URL, or TensorFlow would interpret it as a
        pattern.
    """

    def __init__(
        self,
        job: EstimatorJob,
        model_dir: str | os.PathLike[str] | None = None,
        *,
        session_config: tf.compat.v1.ConfigProto | None = None,
        **options: Any,
    ) -> None:
        keras_estimator_first_checkpoint.apply(save_first_checkpoint)
        monitored_session_write_errors.apply(write_error)
        self.job = job
        model_dir = _agreed_model_dir(model_dir, job.sessions.role.config.model_dir)
        _check_has_no_strategy(options, job)
        options.pop("train_distribute", None)
        # Workers may start in any order, so none needs a delay.
        options.setdefault("experimental_max_worker_delay_secs", 0)
        sessions = job.sessions
        options = sessions.run_config_options(options)
        if sessions.has_private_model_dir and not job.is_chief:
            self._temporary = tempfile.TemporaryDirectory(prefix="tfdist-model-")
            model_dir = self._temporary.name
            nothing = {"save_checkpoints_secs": None, "save_checkpoints_steps": None}
            options |= {**nothing, "save_summary_steps": None, "log_step_count_steps": None}
        config = sessions.config
        if session_config is not None:
            config.MergeFrom(session_config)
        super().__init__(
            model_dir=model_dir,
            session_config=config,
            train_distribute=sessions.train_distribute,
            **options,
        )

    def __deepcopy__(self, memo: dict[int, Any]) -> RunConfig:
        # A task has only one job, one strategy and one directory. Attributes are replaced, never
        # mutated.
        return copy.copy(self)


def _agreed_model_dir(given: str | os.PathLike[str] | None, in_tf_config: str | None) -> str:
    """The directory from the script or from TF_CONFIG, which must agree if both are given."""
    model_dir = in_tf_config if given is None else os.fspath(given)
    if not model_dir:
        raise UsageError(
            "RunConfig model_dir",
            received=given,
            accepted="the directory that all tasks share",
            remedy="Pass it to RunConfig, or set it in TF_CONFIG.",
        )
    model_dir = str(output_path("RunConfig model_dir", model_dir))
    if in_tf_config is not None and os.path.abspath(model_dir) != os.path.abspath(in_tf_config):
        raise UsageError(
            "RunConfig model_dir",
            received=model_dir,
            accepted=f"the model_dir of TF_CONFIG, {in_tf_config!r}",
            remedy="Set the same directory in both places, or leave one of them out.",
        )
    return model_dir


def _check_has_no_strategy(options: dict[str, Any], job: EstimatorJob) -> None:
    for name in ("train_distribute", "experimental_distribute"):
        if options.get(name) is not None:
            raise UsageError(
                f"RunConfig {name}",
                received=type(options[name]).__name__,
                accepted="None, because --strategy chooses the strategy",
                remedy=f"Leave it out, and use --strategy, which is now {job.name}.",
            )


def save_first_checkpoint(
    save: Any, keras_model: Any, custom_objects: Any, config: Any, save_object_ckpt: bool
) -> Any:
    """Writes a Keras model's initial weights in the chief; the other tasks wait for them."""
    job = getattr(config, "job", None)
    directory = os.path.join(config.model_dir, "keras")
    if job is not None and job.is_chief and not tf.train.latest_checkpoint(directory):
        lock.hold(OutputDirectory(config.model_dir).lock)
    if job is not None and not job.is_chief and not job.sessions.has_private_model_dir:
        if not tf.train.latest_checkpoint(directory):
            log(f"{job.task} waits for the chief to write {directory}")
        while not (latest := tf.train.latest_checkpoint(directory)):
            time.sleep(0.5)
        return latest
    with undistributed():
        return save(keras_model, custom_objects, config, save_object_ckpt)
