"""The start of a task: finds the cluster, chooses the strategy, builds the job.

job = tfdist.init()
"""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from absl import logging

from tfdist import preflight, runtime, strategies
from tfdist.console import say
from tfdist.discovery import Discovery, discover
from tfdist.errors import EXIT_FAILED, UsageError, exit_on_usage_error
from tfdist.farewell import SUPERVISED_VARIABLE
from tfdist.flags import JobFlags, read_flags
from tfdist.uncaught import ERROR_FILE_VARIABLE, end_on_uncaught

if TYPE_CHECKING:
    from tfdist.strategies.base import Job


def init() -> Job:
    """This process's part in the job that flags, TF_CONFIG or `horovodrun` describe.

    Reads tfdist's flags if the script has defined and parsed them, and the environment once.
    Prints one line that says what was found. A mistake in either is printed as one line and ends
    the process with exit code 2, as argparse does.

    Returns when every task of the cluster has called it and reaches every other one. Where they do
    not meet within `--startup_timeout` seconds, or contradict each other, the task at fault is
    named and the process ends with exit code 1, before TensorFlow could wait for it for ever.
    """
    return _init(estimator=False)


def init_estimator() -> Job:
    """`init` for Estimators and session code; public as `tfdist.estimator.init`.

    TF_CONFIG is then what TensorFlow is to read for this job: absent where it has no use for it.
    """
    return _init(estimator=True)


def _init(estimator: bool) -> Job:
    if runtime.ONEDNN_VARIABLE in runtime.environment().keys() - os.environ.keys():
        say(
            "TensorFlow was imported first and may run without oneDNN, at half the speed. "
            "Import tfdist before it."
        )
    runtime.take_cores()
    end_on_uncaught(os.environ.get(ERROR_FILE_VARIABLE))
    with exit_on_usage_error():
        job = create(read_flags(), os.environ, estimator=estimator, meets=True)
    job.preemption.listen(has_nothing_to_save=job.evaluates)
    if estimator:
        # Estimators know of no other way to learn what their cluster is.
        os.environ.pop("TF_CONFIG", None)
        os.environ.update(job.session_environment)
    # TensorFlow's modules stay to the end, and to search them when Python ends takes a second.
    gc.freeze()
    return job


def create(
    options: JobFlags,
    environ: Mapping[str, str],
    *,
    estimator: bool = False,
    meets: bool = False,
) -> Job:
    """`init` with its inputs as arguments.

    Args:
      options: the flags.
      environ: the environment.
      estimator: whether the job is for Estimators and sessions.
      meets: whether the tasks of the cluster divide their machine's cores, and meet first.

    Raises:
      UsageError: a flag or a variable cannot be used as it is; the error names it.
      SystemExit: the tasks of the cluster have not met (code 1).
    """
    found = discover(options.cluster, environ)
    name = strategies.named(
        options.strategy, environ, found.cluster, found.source, options.num_gpus
    )
    strategies.check(name, found.cluster, found.source)
    strategies.check_flags(name, options)
    try:
        job_class = strategies.load(
            name, estimator=estimator, periodic=options.sync_period is not None
        )
    except ImportError as error:
        raise UsageError(
            "--strategy",
            received=name,
            accepted="a strategy whose packages are installed",
            remedy=str(error),
        ) from None
    leader_evaluates = found.has_master or not found.cluster.chief or name == "horovod"
    if found.task.type == "evaluator":
        if estimator and leader_evaluates and found.cluster:
            raise UsageError(
                "task.type",
                received=f"evaluator, with {found.cluster} under {name}",
                accepted="an evaluator of a job with a chief",
                remedy="Leave the evaluator out, because the task that leads evaluates by itself "
                "(a master, worker 0, rank 0 of Horovod), or add a chief.",
            )
        # Outside the cluster, so a strategy that spans it has no place for this task.
        job_class = strategies.load("one_device")
        options = replace(
            options,
            all_reduce=None,
            gradient_dtype=None,
            num_cpu_devices=None,
            variable_partitions=None,
        )
    elif found.cluster:
        preflight.check_port(found.cluster, found.task)
        preflight.check_addresses(found.cluster)
    if meets:
        _divide_cores(found, name, environ)
    _set_up_tensorflow(options)
    say(f"{found.task} of {found.cluster} ({found.source}), {name}; {runtime.description(environ)}")
    if meets and found.task in found.cluster.tasks():
        _meet_the_others(found, name, options, environ, estimator)
    return job_class(
        found.cluster,
        found.task,
        options,
        for_estimators=estimator,
        leader_evaluates=leader_evaluates,
        is_supervised=SUPERVISED_VARIABLE in environ,
        model_dir=found.model_dir,
    )


def _divide_cores(found: Discovery, name: str, environ: Mapping[str, str]) -> None:
    place, tasks = 0, 1
    if found.source == "horovodrun":
        place = int(environ.get("HOROVOD_LOCAL_RANK", place))
        tasks = int(environ.get("HOROVOD_LOCAL_SIZE", tasks))
    computing = strategies.computing(name, found.cluster)
    if found.task in computing:
        place, tasks = found.cluster.place_on_host(found.task, computing)
    runtime.divide_cores(place, tasks)


def _set_up_tensorflow(options: JobFlags) -> None:
    import tensorflow as tf

    # `absl.app` turns on a level at which TensorFlow reports every collective that it traces. Its
    # own logger and absl's both have a say in it, and would print what is left twice.
    tf.get_logger().setLevel("WARNING")
    tf.get_logger().propagate = False
    if logging.get_verbosity() == logging.INFO:
        logging.set_verbosity(logging.WARNING)
    if options.num_intra_threads is not None:
        tf.config.threading.set_intra_op_parallelism_threads(options.num_intra_threads)
    if options.num_inter_threads is not None:
        tf.config.threading.set_inter_op_parallelism_threads(options.num_inter_threads)


def _meet_the_others(
    found: Discovery, name: str, options: JobFlags, environ: Mapping[str, str], estimator: bool
) -> None:
    if len(found.cluster.tasks()) == 1:
        return
    # Tasks that do not meet after the same steps wait for each other for ever.
    periodic = [
        f"--{flag}={value}"
        for flag in strategies.PERIODIC_FLAGS
        if (value := getattr(options, flag)) is not None
    ]
    party = preflight.Party(
        cluster=found.cluster,
        task=found.task,
        strategy=" ".join([name, *(["for Estimators"] if estimator else []), *periodic]),
        timeout=options.startup_timeout,
        token=environ.get(preflight.TOKEN_VARIABLE, ""),
        # A worker that was lost is replaced while the others train.
        joins=strategies.TABLE[name].uses_ps,
    )
    outcome = preflight.meet(party)
    if outcome.verdict:
        say(f"error: {outcome}")
        sys.exit(EXIT_FAILED)
