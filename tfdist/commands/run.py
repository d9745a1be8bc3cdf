"""`tfdist run`: a job on this machine, or this machine's task of a job."""

from __future__ import annotations

import argparse
import os
import sys
from dataclasses import fields

from tfdist.cluster.discovery import ClusterConfig, ClusterFlags, from_flags, from_tf_config
from tfdist.commands.arguments import (
    Commands,
    cluster_flags,
    count,
    flag,
    read_cluster_flags,
    seconds,
)
from tfdist.errors import EXIT_OK, UsageError
from tfdist.launch import local
from tfdist.launch.elastic import Elasticity
from tfdist.launch.host_discovery import FLAG as HOST_DISCOVERY
from tfdist.launch.spec import JobSpec, command_of, plan, plan_one
from tfdist.launch.starting import modules_of
from tfdist.launch.supervisor import Supervision
from tfdist.runtime import environment as runtime
from tfdist.strategies import table


def add_to(commands: Commands) -> None:
    """Adds the command to the parser's."""
    run = commands.add_parser(
        "run",
        help="run a training script as a job of several processes on this machine",
        description="Runs SCRIPT as a job of several processes on this machine; or, where flags "
        "or TF_CONFIG give a cluster, the one task of it that belongs to this machine. The first "
        "task that fails ends the others; its exit code is that of the command.",
        usage="%(prog)s [options] SCRIPT [ARGS ...]",
        allow_abbrev=False,
    )
    flag(
        run,
        "strategy",
        default="auto",
        metavar="NAME",
        help=f"auto (default), {', '.join(table.TABLE)}; auto is parameter_server with ps, "
        "multi_worker_mirrored with several tasks that train, else one_device",
    )
    flag(run, "ps", type=int, metavar="N", help="parameter servers (default 0)")
    flag(run, "workers", type=int, metavar="N", help="workers (default 1)")
    flag(
        run,
        "chief",
        action="store_true",
        help="a chief beside the workers: under parameter_server it coordinates, elsewhere it is "
        "one more task that trains; without it worker 0 leads",
    )
    flag(
        run,
        "evaluator",
        action="store_true",
        help="one more task, which evaluates the checkpoints",
    )
    cluster_flags(run)
    flag(
        run,
        "grace_period",
        type=seconds,
        default=Supervision.grace_period,
        metavar="S",
        help="seconds that the tasks have to save and leave when this command is told to end, "
        "before they are killed (default 30); when a task has failed, at most 5",
    )
    flag(
        run,
        "max_restarts",
        type=count,
        default=0,
        metavar="N",
        help="how many times, over the whole job, tasks that failed are started again, with the "
        "others where these cannot go on without them (default 0)",
    )
    flag(
        run,
        "restart_delay",
        type=seconds,
        default=1.0,
        metavar="S",
        help="seconds before the first restart; twice as many before each next one, at most 60 "
        "(default 1)",
    )
    flag(
        run,
        "start_method",
        choices=("fork", "spawn"),
        default="fork",
        help="fork (the default): TensorFlow is imported once, in a process that the tasks are "
        "copies of; spawn: each task is a new process, as one that is never restarted always is",
    )
    flag(
        run,
        "cores",
        choices=("divide", "share"),
        default="divide",
        help="divide (the default): each task that trains keeps to its own cores; share: all tasks "
        "run wherever there is place",
    )
    flag(
        run,
        "onednn",
        choices=("auto", "on", "off"),
        default="auto",
        help="auto (the default): TensorFlow uses oneDNN where that is faster on this CPU, unless "
        f"{runtime.ONEDNN_VARIABLE} says otherwise",
    )
    flag(
        run,
        "dry_run",
        action="store_true",
        help="print each task's environment and command, and start nothing",
    )
    _elastic_flags(run)
    run.add_argument("-m", dest="module", action="store_true", help="SCRIPT is a module's name")
    run.add_argument("script", metavar="SCRIPT", help="the training script")
    run.add_argument(
        "args", metavar="ARGS", nargs=argparse.REMAINDER, help="what the script is given, untouched"
    )
    run.set_defaults(run=_run)


def _elastic_flags(run: argparse.ArgumentParser) -> None:
    flag(
        run,
        "host_discovery_script",
        metavar="PROGRAM",
        help="makes the job elastic: a program that prints host:slots for each machine that it may "
        "use now; when that changes, all workers save and start again in the new number",
    )
    flag(run, "min_workers", type=int, metavar="N", help="wait while there are fewer (default 1)")
    flag(run, "max_workers", type=int, metavar="N", help="leave slots beyond these free")
    flag(
        run,
        "elastic_timeout",
        type=seconds,
        metavar="S",
        help="seconds to wait for --min_workers, or for this machine to be listed (default 600)",
    )
    flag(
        run,
        "host",
        metavar="HOST",
        help="the name under which this machine is listed (default: the one with its address)",
    )
    flag(
        run,
        "port",
        type=int,
        metavar="PORT",
        help="the first port of each host's workers; needed where several machines are listed",
    )


def _run(arguments: argparse.Namespace) -> int:
    if not arguments.module and not os.path.isfile(arguments.script):
        raise UsageError(
            "SCRIPT",
            received=arguments.script,
            accepted="the path of a Python script, or -m and the name of a module",
            remedy="Correct the path: there is no such file.",
        )
    if arguments.onednn != "auto":
        os.environ[runtime.ONEDNN_VARIABLE] = "1" if arguments.onednn == "on" else "0"
    supervision = Supervision(
        grace_period=arguments.grace_period,
        max_restarts=arguments.max_restarts,
        restart_delay=arguments.restart_delay,
        preload=modules_of(arguments.strategy) if arguments.start_method == "fork" else (),
    )
    elasticity = _elasticity(arguments)
    found = None if elasticity else _one_task(arguments)
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
        divides_cores=arguments.cores == "divide",
    )
    if elasticity:
        return local.run_elastic(job, elasticity, environ=os.environ, supervision=supervision)
    if not arguments.dry_run:
        return local.launch(job, environ=os.environ, supervision=supervision)
    with local.hold_ports(job.num_ports) as ports:
        tasks = plan(job, ports=ports, cores=local.available_cores(), environ=os.environ)
    for task in tasks:
        print(f"[{task.name}] {task.shell()}")
    return EXIT_OK


def _elasticity(arguments: argparse.Namespace) -> Elasticity | None:
    """How an elastic job follows its hosts; None for any other job."""
    names = ("min_workers", "max_workers", "elastic_timeout", "host", "port")
    given = {name: value for name in names if (value := getattr(arguments, name)) is not None}
    if arguments.host_discovery_script is None:
        for name, value in given.items():
            raise UsageError(
                f"--{name}",
                received=value,
                accepted=f"only together with {HOST_DISCOVERY}",
                remedy="Name the program that lists the hosts; or give --workers.",
            )
        return None
    cluster = [item.name for item in fields(ClusterFlags)]
    for name in ("ps", "workers", "chief", "evaluator", "dry_run", *cluster):
        if getattr(arguments, name) not in (None, False):
            raise UsageError(
                f"--{name}",
                received=getattr(arguments, name),
                accepted=f"not supported with {HOST_DISCOVERY}, whose workers come and go",
                remedy="Leave one of them out.",
            )
    elastic = [row.name for row in table.TABLE.values() if row.elastic]
    if arguments.strategy not in elastic:
        raise UsageError(
            "--strategy",
            received=arguments.strategy,
            accepted=f"{' or '.join(elastic)} with {HOST_DISCOVERY}",
            remedy="Choose one of these.",
        )
    if arguments.max_workers is None:
        raise UsageError(
            "--max_workers",
            received=None,
            accepted=f"a number with {HOST_DISCOVERY}",
            remedy="Say how many workers the hosts may lead to.",
        )
    given["timeout"] = given.pop("elastic_timeout", Elasticity.timeout)
    return Elasticity(script=arguments.host_discovery_script, **given)


def _one_task(arguments: argparse.Namespace) -> ClusterConfig | None:
    """The task to run on this machine, of a job that spans machines; None for a whole job here."""
    numbers = ("ps", "workers", "chief", "evaluator")
    given = [f"--{name}" for name in numbers if getattr(arguments, name) not in (None, False)]
    found = from_flags(read_cluster_flags(arguments))
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
        row = table.named(arguments.strategy, os.environ, found.cluster, found.source)
        table.check(row, found.cluster, found.source)
    return found
