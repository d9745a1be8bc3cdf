"""Starts a task: turns flags and environment into a `Job` that is ready to train.

@main                  # tfdist.main
def train(job): ...

run(train)             # tfdist.run: parses the flags, starts the job, calls `train`

job = init()           # tfdist.init, for scripts in the long form
"""

from __future__ import annotations

import atexit
import functools
import gc
import os
import re
import sys
import threading
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

from absl import app, flags, logging
from absl.logging import converter

from tfdist.config.flags import (
    JobFlags,
    define_flags,
    parse_only_flags,
    read_flags,
    with_underscores,
)
from tfdist.config.role import TaskRole, find_role
from tfdist.config.strategies import table
from tfdist.coordination import startup
from tfdist.coordination.liveness.reporter import Reporter
from tfdist.coordination.preemption import Preemption
from tfdist.errors import (
    ERROR_FILE_VARIABLE,
    EXIT_FAILED,
    UsageError,
    exit_on_usage_error,
    log,
)
from tfdist.job import Job
from tfdist.process import excepthook, precision, proxies, setup, thread_stacks, user_code
from tfdist.process.cores import divide_cores, set_threads, take_cores
from tfdist.process.excepthook import end_on_uncaught
from tfdist.storage.output_directory import read_text, write_text

if TYPE_CHECKING:
    from tfdist.strategies.base import Strategy
    from tfdist.training.state import TrainingState

# Warnings about what TensorFlow and Keras themselves do, by their first words.
_NOISE = (
    # Keras 3.15, about every dataset of `fit`.
    "`shuffle=True` was passed, but will be ignored",
    # TensorFlow, about its own MirroredStrategy in an Estimator.
    "To make it possible to preserve tf.data options",
)

# Where this process has started a task of a job with several tasks.
_calls: list[str] = []
# The main function of the script, until it is called.
_waiting: list[str] = []

AnyJob = TypeVar("AnyJob", bound=Job)
Main = Callable[[list[str]], None]


def init(argv: Sequence[str] | None = None) -> Job:
    """Starts this task of the job that flags, TF_CONFIG or `horovodrun` describe.

    Reads tfdist's flags, if the script has defined and parsed them, and the environment. Logs one
    line with the cluster, the task and the strategy.

    Returns when all tasks of the cluster have started and reach each other.

    Args:
      argv: tfdist's flags on the command line of a script that parses its own with argparse: the
        second result of `parse_known_args`. Default: the flags that absl has parsed.

    Raises:
      SystemExit: a flag or TF_CONFIG is invalid (code 2); or the tasks do not reach each other
        within `--startup_timeout` seconds, or contradict each other (code 1). The error is logged
        as one line and names the flag or the task at fault.
    """
    if argv is not None:
        define_flags()
        parse_only_flags([sys.argv[0], *with_underscores(argv)])
    return start(Job, os.environ)


def main(function: Callable[[Job], object]) -> Main:
    """Decorator for the body of a training script, a function that takes the `Job`; see `run`.

    Defines tfdist's absl flags. A task that only serves others does not call the body. A UsageError
    in the body is printed as one line and exits with code 2.

    Returns:
      A function of the command line's arguments, as `absl.app.run` calls it.
    """
    define_flags()
    return main_of(function, init)


def run(main: Main) -> None:
    """Parses the command line and runs a function decorated with `main`; does not return.

    Raises:
      SystemExit: always; with code 0 after the function has returned.
    """
    if not hasattr(main, "__wrapped__"):
        with exit_on_usage_error():
            raise UsageError(
                "tfdist.run",
                received=getattr(main, "__name__", type(main).__name__),
                accepted="a function with the decorator @tfdist.main",
                remedy="Write @tfdist.main above the function.",
            )
    _waiting.clear()
    app.run(main, flags_parser=parse_only_flags)


def main_of(function: Callable[[AnyJob], object], init: Callable[[], AnyJob]) -> Main:
    """Implements `main` for one class of jobs, whose flags are already defined.

    Args:
      function: the body of the script.
      init: starts the job.
    """

    @functools.wraps(function)
    @exit_on_usage_error()
    def call(argv: list[str] | None = None) -> None:
        _waiting.clear()
        if argv is None:
            run(call)  # A script that calls its main function itself has not parsed the flags.
        job = init()
        if job.serves:
            job.serve()
        else:
            function(job)

    if function.__module__ == "__main__":
        _waiting.append(function.__name__)
        atexit.register(_warn_if_waiting)
    return call


def _warn_if_waiting() -> None:
    if _waiting and not hasattr(sys, "last_value"):  # An error of the script is enough.
        log(f"warning: {_waiting.pop()} was never called: end the script with tfdist.run(…)")


def start(job_class: type[AnyJob], environ: Mapping[str, str]) -> AnyJob:
    """Starts this task: waits for its peers, and handles signals and uncaught exceptions.

    Args:
      job_class: the class of the job.
      environ: the environment of this process.

    Raises:
      SystemExit: a usage error (code 2), or the tasks do not reach each other (code 1).
    """
    if setup.ONEDNN_VARIABLE in setup.environment().keys() - environ.keys():
        log(
            "TensorFlow was imported first and may run without oneDNN, at half the speed. "
            "Import tfdist before it."
        )
    take_cores()
    end_on_uncaught(environ.get(ERROR_FILE_VARIABLE))
    with exit_on_usage_error():
        _check_call()
        job = create_of(job_class, read_flags(environ), environ, waits_for_peers=True)
    atexit.register(job._state.warn_if_unsaved)
    # Otherwise Python's garbage collector walks all of TensorFlow's modules at exit, for 0.7 s.
    gc.freeze()
    return job


def _check_call() -> None:
    thread = threading.current_thread()
    if thread is not threading.main_thread():
        raise UsageError(
            "tfdist.init",
            received=f"a call in {thread.name}",
            accepted="a call in the main thread, which receives the signals",
            remedy="Call it at the top of the script; fit may run in a thread.",
        )
    if _calls:
        raise UsageError(
            "tfdist.init",
            received=f"a second call, in {user_code.calling_line()}",
            accepted=f"one in a job of several tasks; the first is in {_calls[0]}",
            remedy="Use the job that the first call has returned.",
        )


def create(job_flags: JobFlags, environ: Mapping[str, str]) -> Job:
    """Creates a job from explicit inputs; see `create_of`."""
    return create_of(Job, job_flags, environ)


def create_of(
    job_class: type[AnyJob],
    job_flags: JobFlags,
    environ: Mapping[str, str],
    *,
    waits_for_peers: bool = False,
) -> AnyJob:
    """Creates a job of a class from explicit inputs.

    Args:
      job_class: the class of the job.
      job_flags: the flags.
      environ: the environment.
      waits_for_peers: whether this task divides its machine's cores with other tasks, waits for
        its peers at the startup barrier, and handles signals.

    Raises:
      UsageError: a flag or an environment variable is invalid; the error names it.
      SystemExit: the tasks of the cluster do not reach each other (code 1).
    """
    # The class of the jobs of Estimators is the only other one.
    role = find_role(job_flags, environ, for_estimators=job_class is not Job)
    reporter = Reporter(
        str(role.task), job=role.job_id, token=role.token, write=write_text, read=read_text
    )
    if role.task.kind.function is not None and waits_for_peers:
        _serve_function(role, reporter)
    # All usage errors that need no TensorFlow are found by now. TensorFlow is imported before the
    # barrier, so that the tasks that have passed it need about the same time to their first step.
    try:
        strategy_class = table.load(role.strategy_path)
    except ImportError as error:
        raise UsageError(
            "--strategy",
            received=role.own_spec.name,
            accepted="a strategy whose packages are installed",
            remedy=str(error),
        ) from None
    os.environ.update(proxies.exempted(role.cluster.hosts, environ))
    if waits_for_peers:
        _divide_cores(role, environ)
    from tfdist.compat import checks
    from tfdist.upstream import first_use

    with first_use.explained():
        _set_up_tensorflow(job_flags)
    checks.check_precision(job_flags.precision, role.spec)
    log(f"{role.config}, {role.spec.name}; {setup.description(environ)}")
    if waits_for_peers:
        thread_stacks.answer_signal()
        excepthook.hooks.report_loss = reporter.report_loss
        if role.waits_for_peers:
            _wait_for_peers(role, reporter)
    from tfdist.training.state import TrainingState
    from tfdist.upstream import server_messages

    preemption = Preemption()
    release = server_messages.hold()
    try:
        with first_use.explained():
            strategy = strategy_class(role.settings, preemption)
    finally:
        if not role.serves:  # A server logs again when its chief connects.
            release()
    if waits_for_peers:
        if not role.cluster and role.token and (store := strategy.kv_store) is not None:
            reporter.meet(store, environ["HOROVOD_HOSTNAME"], strategy.topology.peers)
        # TensorFlow replaces the handlers that are set before its strategy is built.
        preemption.listen(has_nothing_to_save=role.evaluates)
    if not role.serves:
        _use_precision(job_flags, strategy)
    state = TrainingState(role, strategy, preemption, reporter)
    if not role.serves and not role.evaluates and not role.is_dry_run and state.is_chief:
        _set_up_monitoring(job_flags, state)
    if waits_for_peers and (role.cluster or role.config.ranks):
        _calls.append(user_code.calling_line())
    return job_class(role, state)


def _set_up_monitoring(flags: JobFlags, state: TrainingState) -> None:
    from tfdist.training.records import prometheus, trackers, trainjob_status

    trackers.check_installed(flags.trackers)
    if flags.prometheus_port is not None:
        activity, peers = state.reporter.activity, len(state.strategy.topology.peers)
        prometheus.serve(flags.prometheus_host, flags.prometheus_port, activity, peers)
    trainjob_status.report(os.environ, state.reporter.activity)


def _divide_cores(role: TaskRole, environ: Mapping[str, str]) -> None:
    place, tasks = 0, 1
    if role.config.source == "horovodrun":
        place = int(environ.get("HOROVOD_LOCAL_RANK", place))
        tasks = int(environ.get("HOROVOD_LOCAL_SIZE", tasks))
    compute_tasks = role.spec.compute_tasks(role.cluster)
    if role.task in compute_tasks:
        place, tasks = role.cluster.local_rank_of(role.task, compute_tasks)
    divide_cores(place, tasks)
    set_threads()


def _set_up_tensorflow(job_flags: JobFlags) -> None:
    import tensorflow as tf

    # At the log level of `absl.app`, TensorFlow reports every collective that it traces.
    if logging.get_verbosity() == logging.INFO and not flags.FLAGS["verbosity"].present:
        logging.set_verbosity(logging.WARNING)
    tf.get_logger().setLevel(converter.absl_to_standard(logging.get_verbosity()))
    # TensorFlow's logger and absl's both handle a message, which prints it twice.
    tf.get_logger().propagate = False
    tf.get_logger().addFilter(excepthook.is_no_loss)
    for warning in _NOISE:
        warnings.filterwarnings("ignore", re.escape(warning))
    if job_flags.num_intra_threads is not None:
        tf.config.threading.set_intra_op_parallelism_threads(job_flags.num_intra_threads)
    if job_flags.num_inter_threads is not None:
        tf.config.threading.set_inter_op_parallelism_threads(job_flags.num_inter_threads)


def _use_precision(job_flags: JobFlags, strategy: Strategy[Any]) -> None:
    # A measurement must wait for the strategy, which sets up the devices.
    chosen = precision.choose(job_flags.precision)
    if chosen.ratio is not None:
        policy = strategy.value_of_chief("precision", lambda: chosen.policy)
        chosen = replace(chosen, policy=policy)
    if job_flags.precision != precision.FLOAT32:
        log(f"precision: {chosen}")
    chosen.use()


def _serve_function(role: TaskRole, reporter: Reporter) -> NoReturn:
    """Runs a task whose type serves with its own function; see `TaskType.function`."""
    from tfdist.strategies.serving import run_function

    log(f"{role.config}, {role.spec.name}")
    thread_stacks.answer_signal()
    _wait_for_peers(role, reporter)
    run_function(role, reporter.endpoints[str(role.cluster.chief_task)])


def _wait_for_peers(role: TaskRole, reporter: Reporter) -> None:
    cluster = role.cluster
    reporter.listen(cluster.hosts)
    config = startup.BarrierConfig(
        startup.Hello(
            cluster=role.cluster,
            task=role.task,
            strategy=role.variant,
            versions=startup.versions(role.spec.packages, "" if role.serves else sys.argv[0]),
            report_port=reporter.port,
        ),
        timeout=role.flags.startup_timeout,
        token=role.token,
        joins=role.spec.workers_may_rejoin,
        min_workers=role.job_options.workers_at_start,
    )
    outcome = startup.wait_at_barrier(config)
    if outcome.verdict:
        log(f"error: {outcome}")
        sys.exit(EXIT_FAILED)
    reporter.endpoints = {
        str(task): outcome.endpoints[task] for task in cluster.tasks() if task in outcome.endpoints
    }
