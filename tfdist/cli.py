"""The `tfdist` command: its arguments and what it prints.

    tfdist run --ps=1 --workers=2 train.py --epochs=3     # a job on this machine
    tfdist render --worker_hosts=a:2222,b:2222            # what to start on which machine
    tfdist check --job_name=worker --task_index=0 --worker_hosts=a:2222,b:2222   # do they meet?
    tfdist data cifar10 --data_dir=/tmp/data              # the data set of the examples

A mistake is answered in one line on stderr, with exit code 2.
"""

from __future__ import annotations

import argparse
import math
import os
import shlex
import signal
import sys
from collections.abc import Sequence
from dataclasses import fields
from typing import Any, NoReturn

from tfdist import strategies
from tfdist.cluster import Cluster, Task
from tfdist.discovery import ClusterFlags, Discovery, discover, from_flags, from_tf_config
from tfdist.errors import EXIT_FAILED, EXIT_OK, EXIT_USAGE, UsageError, exit_on_usage_error
from tfdist.launch import local
from tfdist.launch.spec import JobSpec, command_of, plan, plan_one
from tfdist.launch.supervisor import Supervision
from tfdist.version import __version__


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command and returns its exit code.

    Args:
      argv: the arguments after the command's name; by default those of this process.

    Raises:
      SystemExit: the arguments cannot be used (code 2), or `--help` or `--version` was given.
    """
    try:
        with exit_on_usage_error():
            arguments = _parser().parse_args(argv)
            code: int = arguments.run(arguments)
            sys.stdout.flush()
            return code
    except BrokenPipeError:
        # Python flushes stdout once more at its end, which must not fail again.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 128 + signal.SIGPIPE


def _run(arguments: argparse.Namespace) -> int:
    if not arguments.module and not os.path.isfile(arguments.script):
        raise UsageError(
            "SCRIPT",
            received=arguments.script,
            accepted="the path of a Python script, or -m and the name of a module",
            remedy="Correct the path: there is no such file.",
        )
    supervision = Supervision(
        grace_period=arguments.grace_period,
        max_restarts=arguments.max_restarts,
        restart_delay=arguments.restart_delay,
    )
    found = _one_task(arguments)
    if found is not None:
        command = command_of(
            sys.executable, arguments.script, arguments.args, module=arguments.module
        )
        task = plan_one(found, command, arguments.strategy)
        if arguments.dry_run:
            print(f"[{task.name}] {task.shell()}")
            return EXIT_OK
        return local.run_one(found, task, environ=os.environ, supervision=supervision)
    job = JobSpec(
        python=sys.executable,
        script=arguments.script,
        args=tuple(arguments.args),
        module=arguments.module,
        strategy=arguments.strategy,
        ps=arguments.ps or 0,
        workers=1 if arguments.workers is None else arguments.workers,
        chief=arguments.chief,
        evaluator=arguments.evaluator,
    )
    if not arguments.dry_run:
        return local.launch(job, environ=os.environ, supervision=supervision)
    with local.hold_ports(job.num_ports) as ports:
        tasks = plan(job, ports=ports, cores=local.available_cores(), environ=os.environ)
    for task in tasks:
        print(f"[{task.name}] {task.shell()}")
    return EXIT_OK


def _one_task(arguments: argparse.Namespace) -> Discovery | None:
    """The task to run on this machine, of a job that spans machines; None for a whole job here."""
    numbers = ("ps", "workers", "chief", "evaluator")
    given = [f"--{name}" for name in numbers if getattr(arguments, name) not in (None, False)]
    found = from_flags(_read_cluster_flags(arguments))
    if found is not None and given:
        raise UsageError(
            given[0],
            received=f"it and --job_name={found.task.type}",
            accepted="either the tasks of a whole job, or one task of a cluster",
            remedy="Leave one of them out.",
        )
    if found is None and not given:
        found = from_tf_config(os.environ)
    if found is not None:
        name = strategies.named(arguments.strategy, os.environ, found.cluster, found.source)
        strategies.check(name, found.cluster, found.source)
    return found


def _render(arguments: argparse.Namespace) -> int:
    # As an evaluator, which fits any cluster, so that only the hosts are checked.
    flags = ClusterFlags(
        job_name="evaluator",
        task_index="0",
        chief_hosts=arguments.chief_hosts,
        worker_hosts=arguments.worker_hosts,
        ps_hosts=arguments.ps_hosts,
    )
    found = from_flags(flags)
    cluster = found.cluster if found else Cluster()
    if not cluster:
        raise UsageError(
            "--worker_hosts",
            received=arguments.worker_hosts,
            accepted="host:port of each worker, separated by commas",
            remedy="Name the machines that train.",
        )
    evaluators = (Task("evaluator", 0),) if arguments.evaluator else ()
    for task in (*cluster.tasks(), *evaluators):
        if arguments.format == "flags":
            print(f"[{task}] {shlex.join(cluster.flags(task))}")
        else:
            print(f"[{task}] export TF_CONFIG={shlex.quote(cluster.tf_config(task))}")
    return EXIT_OK


def _check(arguments: argparse.Namespace) -> int:
    # Here, because it takes longer to load than all else.
    from tfdist import preflight

    found = discover(_read_cluster_flags(arguments), os.environ)
    cluster, task = found.cluster, found.task
    name = strategies.named(arguments.strategy, os.environ, cluster, found.source)
    strategies.check(name, cluster, found.source)
    tasks = cluster.tasks()
    if task not in tasks:
        print(f"tfdist: {task} of {cluster} ({found.source}) has no other task to meet.")
        return EXIT_OK
    preflight.check_port(cluster, task)
    preflight.check_addresses(cluster)
    party = preflight.Party(
        cluster=cluster,
        task=task,
        strategy=name,
        timeout=arguments.startup_timeout,
        purpose="check",
        token=os.environ.get(preflight.TOKEN_VARIABLE, ""),
    )
    outcome = preflight.meet(party)
    if outcome.verdict:
        print(f"tfdist: error: {outcome}")
        return EXIT_FAILED
    print(f"tfdist: all {len(tasks)} tasks reach each other ({outcome.seconds:.2f} s)\n{outcome}")
    return EXIT_OK


def _data(arguments: argparse.Namespace) -> int:
    from tfdist.data import cifar10

    try:
        print(cifar10.write(arguments.data_dir, arguments.source))
    except ImportError as error:
        raise UsageError(
            "--source",
            received=arguments.source,
            accepted="a source whose package is installed",
            remedy=str(error),
        ) from error
    return EXIT_OK


class _Parser(argparse.ArgumentParser):
    """Answers a mistake in one line, as the rest of tfdist does."""

    def error(self, message: str) -> NoReturn:
        print(f"tfdist: error: {message} (see {self.prog} --help)", file=sys.stderr, flush=True)
        sys.exit(EXIT_USAGE)


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(
        prog="tfdist",
        description="Distributed TensorFlow training: one script, every way of distributing it.",
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="version", version=f"tfdist {__version__}")
    commands = parser.add_subparsers(metavar="COMMAND", required=True)

    run = commands.add_parser(
        "run",
        help="run a training script as a job of several processes on this machine",
        description="Runs SCRIPT as a job of several processes on this machine; or, where flags "
        "or TF_CONFIG give a cluster, the one task of it that belongs to this machine. The first "
        "task that fails ends the others; its exit code is that of the command.",
        usage="%(prog)s [options] SCRIPT [ARGS ...]",
        allow_abbrev=False,
    )
    _flag(
        run,
        "strategy",
        default="auto",
        metavar="NAME",
        help=f"auto (default), {', '.join(strategies.NAMES)}; auto is parameter_server with ps, "
        "multi_worker_mirrored with several tasks that train, else one_device",
    )
    _flag(run, "ps", type=int, metavar="N", help="parameter servers (default 0)")
    _flag(run, "workers", type=int, metavar="N", help="workers (default 1)")
    _flag(
        run,
        "chief",
        action="store_true",
        help="a chief beside the workers: under parameter_server it coordinates, elsewhere it is "
        "one more task that trains; without it worker 0 leads",
    )
    _flag(
        run,
        "evaluator",
        action="store_true",
        help="one more task, which evaluates the checkpoints",
    )
    _cluster_flags(run)
    _flag(
        run,
        "grace_period",
        type=_seconds,
        default=Supervision.grace_period,
        metavar="S",
        help="seconds that the tasks have to save and leave when this command is told to end, "
        "before they are killed (default 30); when a task has failed, at most 5",
    )
    _flag(
        run,
        "max_restarts",
        type=_count,
        default=0,
        metavar="N",
        help="how many times, over the whole job, tasks that failed are started again, with the "
        "others where these cannot go on without them (default 0)",
    )
    _flag(
        run,
        "restart_delay",
        type=_seconds,
        default=1.0,
        metavar="S",
        help="seconds before the first restart; twice as many before each next one, at most 60 "
        "(default 1)",
    )
    _flag(
        run,
        "dry_run",
        action="store_true",
        help="print each task's environment and command, and start nothing",
    )
    run.add_argument("-m", dest="module", action="store_true", help="SCRIPT is a module's name")
    run.add_argument("script", metavar="SCRIPT", help="the training script")
    run.add_argument(
        "args", metavar="ARGS", nargs=argparse.REMAINDER, help="what the script is given, untouched"
    )
    run.set_defaults(run=_run)

    render = commands.add_parser(
        "render",
        help="print what to start on which machine",
        description="Prints a line for each task of a job that is started by hand on several "
        "machines.",
        allow_abbrev=False,
    )
    for name in ("worker", "chief", "ps"):
        _flag(
            render,
            f"{name}_hosts",
            metavar="HOST:PORT,...",
            help=f"the addresses of the job {name!r}, separated by commas",
        )
    _flag(
        render,
        "evaluator",
        action="store_true",
        help="one more task, which evaluates the checkpoints",
    )
    _flag(
        render,
        "format",
        choices=("tf_config", "flags"),
        default="tf_config",
        help="what to export (tf_config, the default), or what to give the script (flags)",
    )
    render.set_defaults(run=_render)

    check = commands.add_parser(
        "check",
        help="find out whether the tasks of a job can meet",
        description="Checks the configuration of one task, in place of its training, and meets the "
        "other tasks, where the same command runs; prints who reaches whom, and who is at fault. "
        "The task is told who it is by flags, or by TF_CONFIG. Exit code 0: all is well, 1: the "
        "tasks do not meet, 2: the configuration cannot be used.",
        allow_abbrev=False,
    )
    _cluster_flags(check)
    _flag(check, "strategy", default="auto", metavar="NAME", help="the strategy to train under")
    _flag(
        check,
        "startup_timeout",
        type=_some_seconds,
        default=60.0,
        metavar="S",
        help="seconds that the tasks wait for each other (default 60)",
    )
    check.set_defaults(run=_check)

    data = commands.add_parser(
        "data",
        help="write a data set as TFRecord files",
        description="Writes a data set as TFRecord files.",
        allow_abbrev=False,
    )
    data.add_argument("dataset", choices=("cifar10",), help="the data set")
    _flag(
        data,
        "data_dir",
        required=True,
        metavar="DIR",
        help="the directory to write to",
    )
    _flag(
        data,
        "source",
        default="digits",
        metavar="SOURCE",
        help="digits (default; scikit-learn's, needs no network), download, or the path of a copy",
    )
    data.set_defaults(run=_data)
    return parser


def _read_cluster_flags(arguments: argparse.Namespace) -> ClusterFlags:
    names = [item.name for item in fields(ClusterFlags)]
    return ClusterFlags(**{name: getattr(arguments, name) for name in names})


def _cluster_flags(parser: argparse.ArgumentParser) -> None:
    _flag(parser, "job_name", metavar="NAME", help="the job that this task belongs to")
    _flag(parser, "task_index", metavar="N", help="the index of this task within its job, from 0")
    for name in ("worker", "chief", "ps"):
        _flag(
            parser,
            f"{name}_hosts",
            metavar="HOST:PORT,...",
            help=f"the addresses of the job {name!r}, separated by commas",
        )


def _flag(parser: argparse.ArgumentParser, name: str, **options: Any) -> None:
    """Adds a flag that may be typed with underscores or dashes, as those of the scripts may."""
    spellings = dict.fromkeys([f"--{name}", f"--{name.replace('_', '-')}"])
    parser.add_argument(*spellings, dest=name, **options)


def _count(text: str) -> int:
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"received {text!r}; accepted: a number from 0")
    return int(text)


def _seconds(text: str) -> float:
    value = float(text)
    if not 0 <= value < math.inf:
        raise argparse.ArgumentTypeError(f"received {text!r}; accepted: seconds from 0")
    return value


def _some_seconds(text: str) -> float:
    value = float(text)
    if not 0 < value < math.inf:
        raise argparse.ArgumentTypeError(f"received {text!r}; accepted: seconds above 0")
    return value


if __name__ == "__main__":
    sys.exit(main())
