"""Trains, evaluates and exports an Estimator; every task of a job makes the same calls.

metrics = train_and_evaluate(estimator, train_spec, eval_spec)
export(estimator, serving_input_receiver_fn)
"""

from __future__ import annotations

import contextlib
import functools
import os
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import tensorflow as tf

from tfdist.errors import EXIT_PREEMPTED, UsageError, log
from tfdist.estimator import input_functions
from tfdist.estimator.estimator_job import EstimatorJob
from tfdist.estimator.evaluation import Evaluation, EvaluationListener, Progress, global_step
from tfdist.estimator.hooks import PreemptionHook
from tfdist.estimator.progress_hook import ProgressHook
from tfdist.estimator.run_config import RunConfig
from tfdist.storage import files as checkpoint_files
from tfdist.storage import lock, output_directory
from tfdist.storage.checkpointer import mark_done
from tfdist.storage.output_directory import OutputDirectory, writing
from tfdist.storage.training_watch import TrainingWatch
from tfdist.training.records import events
from tfdist.training.records.trackers import Trackers
from tfdist.training.summaries import facts_of

# The default of RunConfig.log_step_count_steps, which a script may set to None.
_LOG_STEPS = 100


def train_and_evaluate(
    estimator: tf.estimator.Estimator,
    train_spec: tf.estimator.TrainSpec,
    eval_spec: tf.estimator.EvalSpec,
) -> dict[str, Any] | None:
    """Trains and evaluates; call it in every task, including ps and evaluator.

    A ps serves until all training tasks have exited. If the cluster has a `chief`, the task
    `evaluator` evaluates each checkpoint. Otherwise a `master`, worker 0, or Horovod's rank 0
    evaluates after the checkpoints that it saves; under `multi_worker_mirrored` worker 0 evaluates
    only at the end.

    Returns:
      The metrics of the last checkpoint in the task that evaluates; None in all others.

    Raises:
      UsageError: the input function cannot be sharded; see `inputs.sharded`.
      RuntimeError: the model's optimizer was not passed to `job.wrap_optimizer`.
      OutputError: another job writes in the directory, no checkpoint is intact, or one could not
        be written.
    """
    job = _job_of(estimator)
    evaluation = Evaluation(estimator, eval_spec, train_spec.max_steps)
    if job.evaluates:
        evaluation.follow(job.sessions.role.flags.startup_timeout)
        return evaluation.metrics
    listeners = list(train_spec.saving_listeners)
    if _evaluates(job) and not job.sessions.is_coordinated:
        listeners.append(EvaluationListener(evaluation, job.sessions.strategy.preemption))
    train(
        estimator,
        train_spec.input_fn,
        max_steps=train_spec.max_steps,
        hooks=train_spec.hooks,
        saving_listeners=listeners,
    )
    if not _evaluates(job):
        return None
    evaluation.newest(final=True)
    return evaluation.metrics


def train(
    estimator: tf.estimator.Estimator,
    input_fn: input_functions.InputFunction,
    *,
    max_steps: int | None = None,
    hooks: Sequence[tf.compat.v1.train.SessionRunHook] = (),
    saving_listeners: Sequence[tf.compat.v1.train.CheckpointSaverListener] = (),
) -> None:
    """Trains; a ps serves, and an evaluator waits until the training is complete.

    Under `parameter_server` call it only once, because the other tasks exit after it.

    Args:
      estimator: an Estimator with a `RunConfig` of this package.
      input_fn: takes an `input_context` and returns its shard.
      max_steps: the global step of the cluster at which to stop; None to stop with the input.
      hooks: hooks of the training session. A hook with the attribute `chief_only = True` runs only
        in the chief.
      saving_listeners: listeners of the task that saves; not under `multi_worker_mirrored`.

    Raises:
      UsageError: the input function cannot be sharded, or is finite; see `inputs`.
      RuntimeError: the model's optimizer was not passed to `job.wrap_optimizer`; or this is the
        second call under `parameter_server`.
      OutputError: another job writes in the directory, there are checkpoints but none is intact,
        or one could not be written.
      SystemExit: the job was preempted and has saved (code EXIT_PREEMPTED).
    """
    job = _job_of(estimator)
    if job.evaluates:
        progress = Progress(estimator, max_steps)
        timeout = job.sessions.role.flags.startup_timeout
        watch = TrainingWatch(OutputDirectory(estimator.model_dir), timeout)
        while not progress.is_complete():
            watch.wait()
        return
    job.sessions.begin_training()
    output = OutputDirectory(estimator.model_dir)
    if job.serves:
        if max_steps is not None and _newest_step(output) >= max_steps:
            return  # The chief may have exited already.
        return job.serve()
    if saving_listeners and job.sessions.is_coordinated:
        raise UsageError(
            "saving_listeners",
            received=f"{len(saving_listeners)} listeners",
            accepted=f"none under {job.name}, because TensorFlow does not support them there",
            remedy="Use hooks instead, or choose another strategy.",
        )
    shard = input_functions.sharded(input_fn, job)
    input_functions.check_is_infinite(shard, estimator)
    _repair(output, job)
    step = job.sessions.agree(_newest_step(output))
    if max_steps is not None and step >= max_steps:
        if job.is_chief:
            log(f"training is complete, at step {step} of {max_steps}")
            if not output.is_complete:
                mark_done(output, global_step=step)
        return
    own = [hook for hook in hooks if job.is_chief or not getattr(hook, "chief_only", False)]
    preemption = job.sessions.strategy.preemption
    steps = PreemptionHook(preemption)
    add_line = trackers = None
    if job.is_chief:
        if step:
            log(f"resuming from step {step}")
        output.reopen()
        facts = facts_of(job.sessions.role)
        trackers = Trackers(job.sessions.role.flags.trackers, output, facts)
        output_directory.cut_json_lines(output.metrics, lambda line: line["step"] <= step)
        add_line = functools.partial(_add_line, output, trackers)
        events.add(output, events.START, step=step, goal=max_steps or 0, **facts)
    progress = ProgressHook(
        job.reporter.activity,
        preemption,
        max_steps=max_steps,
        add_line=add_line,
        every_n_steps=estimator.config.log_step_count_steps or _LOG_STEPS,
    )
    own += [*job.sessions.hooks(), progress, steps]
    listeners = saving_listeners if job.is_chief else ()
    spec = tf.estimator.TrainSpec(shard, max_steps, own, listeners)
    topology, kv_store = job.topology, job.sessions.strategy.kv_store
    watched = preemption.watched(topology.peer, topology.peers, kv_store)
    with watched, writing(output.path, named=True), contextlib.ExitStack() as stack:
        stack.callback(job.reporter.end_watch)
        job.reporter.watch(
            lambda: preemption.steps_begun,
            output.path,
            step_timeout=job.sessions.role.flags.step_timeout,
            is_chief=job.is_chief,
            is_in_step=lambda: steps.is_in_step,
        )
        _train(estimator, spec)
    if preemption.is_preempted:
        if job.is_chief:
            saved = global_step(estimator)
            log(f"saved at step {saved}, exiting with code {EXIT_PREEMPTED}")
            events.add(output, events.PREEMPTED, step=saved)
        sys.exit(EXIT_PREEMPTED)
    if trackers is not None:
        mark_done(output, global_step=global_step(estimator))
        events.add(output, events.COMPLETE, step=global_step(estimator))
        trackers.finish()


def _train(estimator: tf.estimator.Estimator, spec: tf.estimator.TrainSpec) -> None:
    job = _job_of(estimator)
    if job.sessions.is_coordinated:
        # Workers train in TensorFlow's coordinator, which does not use the EvalSpec.
        evaluation = tf.estimator.EvalSpec(spec.input_fn)
        tf.estimator.train_and_evaluate(estimator, spec, evaluation)
        if not job.is_chief:
            # Every worker saves, because saving is collective; only the chief's files are needed.
            unneeded = Path(estimator.model_dir, f"tmp_{job.task.type}_{job.task.index}")
            output_directory.remove_directory(unneeded)
    else:
        estimator.train(
            spec.input_fn,
            max_steps=spec.max_steps,
            hooks=spec.hooks,
            saving_listeners=spec.saving_listeners,
        )


def _add_line(
    output: OutputDirectory, trackers: Trackers, step: int, values: dict[str, float]
) -> None:
    """Adds a line to the metrics log, and sends the same values to the trackers."""
    output_directory.append_metrics(output.metrics, values, step=step, time=time.time())
    trackers.log(values, step)


def _newest_step(output: OutputDirectory) -> int:
    """The global step from which to resume, the same in every task."""
    return checkpoint_files.number(checkpoint_files.newest_intact(output.path, warn=False))


def _repair(output: OutputDirectory, job: EstimatorJob) -> None:
    """Repairs the `checkpoint` file in the chief, so that TensorFlow finds the newest intact
    checkpoint; waits for this in the other tasks."""
    if job.is_chief:
        lock.hold(output.lock)
        checkpoint_files.remove_leftovers(output.path)
        if _evaluates(job):
            lock.hold(output.eval_lock)
            checkpoint_files.remove_leftovers(output.path, of_evaluation=True)
        newest = checkpoint_files.newest_intact(output.path)
        checkpoint_files.repair_state(output.path, newest)
        return
    is_waiting = False
    # Read both again each time, because the chief may already be training and saving.
    while _newest_step(output) != checkpoint_files.number(
        next(reversed(checkpoint_files.saved(output.path)), None)
    ):
        if not is_waiting:
            log(
                f"{job.task} waits for the chief to name the newest intact checkpoint in "
                f"{output.path}"
            )
        is_waiting = True
        time.sleep(0.5)


def evaluate(
    estimator: tf.estimator.Estimator,
    input_fn: input_functions.InputFunction,
    *,
    steps: int | None = None,
    hooks: Sequence[tf.compat.v1.train.SessionRunHook] = (),
    checkpoint_path: str | None = None,
    name: str | None = None,
) -> dict[str, Any] | None:
    """Evaluates on all examples of `input_fn`, each counted once, in the task that evaluates.

    `train_and_evaluate` documents which task that is.

    Args:
      estimator: an Estimator with a `RunConfig` of this package.
      input_fn: an input function; its `input_context`, if any, has one pipeline.
      steps: the number of batches; None for all.
      hooks: hooks of the evaluation's session.
      checkpoint_path: the checkpoint; default: the newest one.
      name: as in `tf.estimator.Estimator.evaluate`.

    Returns:
      The metrics by name; None in all other tasks.

    Raises:
      UsageError: there is no checkpoint. (TensorFlow would evaluate an untrained model.)
    """
    if not _evaluates(_job_of(estimator)):
        return None
    checkpoint_path = checkpoint_path or checkpoint_files.newest_intact(Path(estimator.model_dir))
    if checkpoint_path is None:
        raise UsageError(
            "model_dir",
            received=estimator.model_dir,
            accepted="a directory with a checkpoint",
            remedy="Train first, or pass checkpoint_path.",
        )
    metrics: dict[str, Any] = estimator.evaluate(
        input_functions.unsharded(input_fn), steps, hooks, checkpoint_path, name
    )
    return metrics


def export(
    estimator: tf.estimator.Estimator, serving_input_receiver_fn: Callable[[], object]
) -> Path | None:
    """Exports the newest checkpoint as a SavedModel to `saved_model/`, atomically, in the chief.

    Args:
      estimator: an Estimator with a `RunConfig` of this package.
      serving_input_receiver_fn: as for `tf.estimator.Estimator.export_saved_model`.

    Returns:
      The directory in the chief; None in all other tasks.

    Raises:
      OutputError: another job writes in the directory, or the model could not be written.
    """
    if not _job_of(estimator).is_chief:
        return None
    output = OutputDirectory(estimator.model_dir)
    lock.hold(output.lock)
    with output_directory.replacing_directory(output.saved_model) as temporary:
        exported = estimator.export_saved_model(
            str(temporary),
            serving_input_receiver_fn,
            checkpoint_path=checkpoint_files.newest_intact(output.path),
        )
        os.replace(exported, temporary / output.saved_model.name)
    return output.saved_model


def _job_of(estimator: tf.estimator.Estimator) -> EstimatorJob:
    config = estimator.config
    if not isinstance(config, RunConfig):
        raise TypeError(
            f"estimator.config: received a {type(config).__module__}.{type(config).__name__}; "
            "accepted: a tfdist.estimator.RunConfig. Pass it to the Estimator as config."
        )
    return config.job


def _evaluates(job: EstimatorJob) -> bool:
    return job.evaluates or (job.is_chief and job.sessions.role.chief_evaluates)
