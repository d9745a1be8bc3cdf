"""The configuration of an Estimator that is one task of a job.

config = RunConfig(job, "/shared/run1", save_checkpoints_steps=500)
"""

from __future__ import annotations

import os
import tempfile
import time
from typing import Any

import tensorflow as tf

from tfdist.checkpoints.output_directory import write_error
from tfdist.errors import UsageError, log
from tfdist.estimator.job import EstimatorJob
from tfdist.estimator.optimizers import undistributed
from tfdist.upstream import (
    keras_estimator_first_checkpoint,
    monitored_session_write_errors,
)


class RunConfig(tf.estimator.RunConfig):
    """`tf.estimator.RunConfig` of this task.

    Args:
      job: what `tfdist.estimator.init` returned; `config.job` in a model function.
      model_dir: the output directory that all tasks share; None for the one that TF_CONFIG names.
        Ranks of Horovod other than 0 read and write a temporary one in its place, and have their
        variables from rank 0.
      session_config: merged into what the job's flags say of threads and GPUs; what is set in it
        goes first.
      **options: the other arguments of `tf.estimator.RunConfig`, but for the strategy of training,
        which is the job's.

    Raises:
      UsageError: an argument that the strategy cannot have; or there is no `model_dir`, or another
        one in TF_CONFIG.
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
        monitored_session_write_errors.apply(write_failed)
        self.job = job
        model_dir = _agreed_model_dir(model_dir, job.model_dir)
        options = _without_strategy(options, job)
        # The order in which workers start is theirs; none needs to wait for the others' sake.
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
        copied = RunConfig.__new__(RunConfig)
        # What it refers to (a job, a strategy, a directory) is this task's own, of which there is
        # one; the properties themselves are replaced and never changed.
        copied.__dict__.update(self.__dict__)
        return copied


def _agreed_model_dir(given: str | os.PathLike[str] | None, in_tf_config: str | None) -> str:
    """The directory that the script and TF_CONFIG name, of which either may name none."""
    found = in_tf_config if given is None else os.fspath(given)
    if not found:
        raise UsageError(
            "RunConfig model_dir",
            received=given,
            accepted="the directory that all tasks share",
            remedy="Give it to RunConfig, or name it in TF_CONFIG.",
        )
    if in_tf_config is not None and os.path.abspath(found) != os.path.abspath(in_tf_config):
        raise UsageError(
            "RunConfig model_dir",
            received=found,
            accepted=f"that of TF_CONFIG, {in_tf_config!r}",
            remedy="Name one directory in both places, or leave one of them out.",
        )
    return found


def _without_strategy(options: dict[str, Any], job: EstimatorJob) -> dict[str, Any]:
    """The options without the arguments by which old scripts hand over their strategy."""
    for name in ("train_distribute", "experimental_distribute"):
        if options.get(name) is not None:
            raise UsageError(
                f"RunConfig {name}",
                received=type(options[name]).__name__,
                accepted="none, because the job has the strategy",
                remedy=f"Leave it out and choose with --strategy, which is {job.name} now.",
            )
    return {name: value for name, value in options.items() if name != "train_distribute"}


def save_first_checkpoint(
    save: Any, keras_model: Any, custom_objects: Any, config: Any, save_object_ckpt: bool
) -> Any:
    """Writes a Keras model's first weights in the chief alone; the others wait for them."""
    job = getattr(config, "job", None)
    place = os.path.join(config.model_dir, "keras")
    if job is not None and not job.is_chief and not job.sessions.has_private_model_dir:
        if not tf.train.latest_checkpoint(place):
            log(f"{job.task} waits for the chief's {place}")
        while not (latest := tf.train.latest_checkpoint(place)):
            time.sleep(0.5)
        return latest
    with undistributed():
        return save(keras_model, custom_objects, config, save_object_ckpt)


def write_failed(error: BaseException) -> bool:
    """Whether an exception means that a file could not be written."""
    return write_error(error) is not None
