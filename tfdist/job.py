"""The start of a task: finds the cluster, chooses the strategy, builds the job.

job = tfdist.init()
"""

from __future__ import annotations

import errno
import os
import socket
import sys
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from absl import logging

from tfdist import runtime, strategies
from tfdist.cluster import host_and_port
from tfdist.discovery import Discovery, discover
from tfdist.errors import UsageError, exit_on_usage_error
from tfdist.flags import AUTO, JobFlags, read_flags
from tfdist.uncaught import ERROR_FILE_VARIABLE, end_on_uncaught

if TYPE_CHECKING:
    from tfdist.strategies.base import Job


def init() -> Job:
    """This process's part in the job that flags, TF_CONFIG or `horovodrun` describe.

    Reads tfdist's flags if the script has defined and parsed them, and the environment once.
    Prints one line that says what was found. A mistake in either is printed as one line and ends
    the process with exit code 2, as argparse does.
    """
    return _init(estimator=False)


def init_estimator() -> Job:
    """`init` for Estimators and session code; public as `tfdist.estimator.init`.

    TF_CONFIG is then what TensorFlow is to read for this job: absent where it has no use for it.
    """
    return _init(estimator=True)


def _init(estimator: bool) -> Job:
    if runtime.ONEDNN_VARIABLE not in os.environ:
        print(
            "tfdist: TensorFlow was imported first and may run without oneDNN, at half the speed. "
            "Import tfdist before it.",
            file=sys.stderr,
        )
    end_on_uncaught(os.environ.get(ERROR_FILE_VARIABLE))
    with exit_on_usage_error():
        job = create(read_flags(), os.environ, estimator=estimator)
    if estimator:
        # Estimators know of no other way to learn what their cluster is.
        os.environ.pop("TF_CONFIG", None)
        os.environ.update(job.session_environment)
    return job


def create(options: JobFlags, environ: Mapping[str, str], *, estimator: bool = False) -> Job:
    """`init` with its inputs as arguments.

    Args:
      options: the flags.
      environ: the environment.
      estimator: whether the job is for Estimators and sessions.

    Raises:
      UsageError: a flag or a variable cannot be used as it is; the error names it.
    """
    found = discover(options.cluster, environ)
    name = options.strategy
    if name == AUTO:
        name = environ.get(strategies.STRATEGY_VARIABLE) or AUTO
    if name == AUTO:
        name = strategies.choose(found.cluster, found.source)
    strategies.check(name, found.cluster, found.source)
    strategies.check_flags(name, options)
    try:
        job_class = strategies.load(name, estimator=estimator)
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
        options = replace(options, all_reduce=None, num_cpu_devices=None, variable_partitions=None)
    elif job_class.binds_address(found.cluster, found.task):
        _check_port_is_free(found)
    _set_up_tensorflow(options)
    print(f"tfdist: {found.task} of {found.cluster} ({found.source}), {name}", file=sys.stderr)
    return job_class(
        found.cluster,
        found.task,
        options,
        for_estimators=estimator,
        leader_evaluates=leader_evaluates,
    )


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


def _check_port_is_free(found: Discovery) -> None:
    """Refuses a port that another process listens on; TensorFlow says so on stderr alone."""
    address = found.cluster.address(found.task)
    _, port = host_and_port(address)
    with socket.socket() as probe:
        # As gRPC does, so that a port which is only held for this task counts as free.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("", port))
        except OSError as error:
            if error.errno not in (errno.EADDRINUSE, errno.EACCES):
                raise
            raise UsageError(
                f"address of {found.task}",
                received=address,
                accepted="a port that this process may bind",
                remedy=f"{error.strerror}: choose another port, or end the process that has it.",
            ) from None
