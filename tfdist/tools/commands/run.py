"""`tfdist run`: runs a job on this machine, or this machine's task of a job on several machines."""

from __future__ import annotations

import argparse
import os
import shlex
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from tfdist.cluster import Cluster, task_types
from tfdist.cluster.config import ClusterConfig, ClusterFlags
from tfdist.cluster.environments.host_flags import from_flags
from tfdist.cluster.environments.tf_config import from_tf_config
from tfdist.cluster.task_counts import TaskCounts
from tfdist.cluster.task_types import WORKER
from tfdist.config.flags import JobFlags
from tfdist.config.strategies import table
from tfdist.errors import EXIT_OK, UsageError, log
from tfdist.process import gpus
from tfdist.process import setup as runtime
from tfdist.process.cores import given_cores
from tfdist.process.resources import check_temporary_directory
from tfdist.tools.commands.arguments import (
    Commands,
    check_script,
    cluster_flags,
    count,
    flag,
    number_flags,
    option_flags,
    read_cluster_flags,
    read_numbers,
    read_option_flags,
    script_arguments,
    seconds,
)
from tfdist.tools.commands.elastic import elastic_flags, elasticity_of
from tfdist.tools.launch import local
from tfdist.tools.launch.isolation import isolate
from tfdist.tools.launch.job_spec import (
    CLUSTER_AS,
    JobSpec,
    TaskSpec,
    check_cluster_as,
    check_options,
    command_of,
    task_specs,
)
from tfdist.tools.launch.output import is_terminal
from tfdist.tools.launch.own_task import own_task_spec
from tfdist.tools.launch.remote.hosts import hosts_in, hosts_of
from tfdist.tools.launch.remote.launch import run_on_hosts
from tfdist.tools.launch.supervision import Supervision
from tfdist.tools.launch.task_log import make_directory


def add_to(commands: Commands) -> None:
    """Adds the command to the parser."""
    run = commands.add_parser(
        "run",
        help="run a training script as a job of several processes on this machine",
        description="Runs SCRIPT as a job of several processes on this machine. If flags or "
        "TF_CONFIG describe a cluster, runs only the task of this machine. When a task fails, the "
        "command stops the other tasks and exits with the exit code of the failed task.",
        usage="%(prog)s [options] [-m] SCRIPT [ARGS ...]",
        allow_abbrev=False,
    )
    flag(
        run,
        "strategy",
        default="auto",
        values=table.rows(),
        metavar="NAME",
        help=f"auto (default), {', '.join(table.rows())}; auto selects parameter_server with ps, "
        "multi_worker_mirrored with several training tasks, and one_device otherwise",
    )
    number_flags(run, task_types.by_flag())
    cluster_flags(run)
    flag(
        run,
        "cluster_as",
        choices=CLUSTER_AS,
        default="tf_config",
        help="how SCRIPT learns the cluster and its task. tf_config (the default): from the "
        "environment variable TF_CONFIG; master: the same in its older dialect, with the chief as "
        "master; flags: from --job_name, --task_index, --ps_hosts and --worker_hosts after ARGS, "
        "as scripts for TensorFlow 1 do; horovodrun: from the variables of horovodrun, for scripts "
        "that call hvd.init themselves. On one machine, --strategy=horovod sets them",
    )
    flag(
        run,
        "grace_period",
        type=seconds,
        default=Supervision.grace_period,
        metavar="S",
        help="seconds that the tasks have to save and exit when this command receives SIGTERM, "
        "before they are killed (default 30); at most 5 after a task has failed",
    )
    flag(
        run,
        "max_restarts",
        type=count,
        default=0,
        metavar="N",
        help="how many times the job may restart failed tasks, together with the tasks that cannot "
        "continue without them (default 0)",
    )
    flag(
        run,
        "restart_delay",
        type=seconds,
        default=1.0,
        metavar="S",
        help="seconds before the first restart, doubled before each further one, at most 60 "
        "(default 1)",
    )
    flag(
        run,
        "start_method",
        choices=("fork", "spawn"),
        default="spawn" if gpus.exist() else "fork",
        help="fork (the default on a machine without NVIDIA GPUs): a fork server imports "
        "TensorFlow once, and the tasks are copies of it; spawn: each task is a new process. A job "
        "of one task that is never restarted always uses spawn",
    )
    flag(
        run,
        "cores",
        choices=("divide", "share"),
        default="divide",
        help="divide (the default): each training task is pinned to its own cores; share: every "
        "task may use all cores",
    )
    flag(
        run,
        "onednn",
        choices=("auto", "on", "off"),
        default="auto",
        help="auto (the default): TensorFlow uses oneDNN if that is faster on this CPU, unless "
        f"{runtime.ONEDNN_VARIABLE} is set",
    )
    flag(
        run,
        "isolate",
        action="store_true",
        help="run the job in its own network namespace: other users and machines cannot connect to "
        "its tasks, and the tasks cannot connect to other machines",
    )
    flag(
        run,
        "plain",
        action="store_true",
        help="print lines alone; without it, a panel of the tasks is shown where the output is a "
        "terminal",
    )
    flag(
        run,
        "log_dir",
        metavar="DIR",
        help="add each task's whole output to a file in this directory, such as worker-0.log",
    )
    flag(
        run,
        "dry_run",
        action="store_true",
        help="print each task's environment and command without starting it; with a strategy that "
        "divides a model, such as in_graph, also what it makes of the script's model",
    )
    flag(
        run,
        "tls",
        action="store_true",
        help="with --hosts or --hostfile: the tasks connect to each other alone, over mutual TLS; "
        "see tfdist exec --help",
    )
    elastic_flags(run)
    _host_flags(run)
    option_flags(run)
    script_arguments(run)
    run.set_defaults(run=_run)
    run.examples = (
        "tfdist run --workers=2 train.py --epochs=3",
        "tfdist run --strategy=horovod --workers=4 --max_restarts=3 train.py",
        "tfdist run --ps=1 --workers=2 --sync -m mypackage.train --output_dir=/shared/run1",
        "tfdist run --hosts=node1:2,node2:2 train.py",
        "tfdist run --dry_run --workers=2 train.py",
    )


def _host_flags(run: argparse.ArgumentParser) -> None:
    flag(
        run,
        "hosts",
        metavar="HOST[:SLOTS],...",
        help="start the job on these hosts by ssh, with this Python and in this directory; the "
        "workers are as many as the slots, unless --workers says less",
    )
    flag(
        run,
        "hostfile",
        metavar="FILE",
        help="the same from a file: a line for each host, host, host:N or host slots=N",
    )
    flag(
        run,
        "ssh",
        default="ssh",
        metavar="COMMAND",
        help="the command of ssh, with its arguments (default ssh); hosts must be known and must "
        "not ask for a password",
    )


def _run(arguments: argparse.Namespace) -> int:
    check_script(arguments)
    check_temporary_directory()
    if arguments.onednn != "auto":
        os.environ[runtime.ONEDNN_VARIABLE] = "1" if arguments.onednn == "on" else "0"
    supervision = Supervision(
        grace_period=arguments.grace_period,
        max_restarts=arguments.max_restarts,
        restart_delay=arguments.restart_delay,
        preload=_modules_of(arguments.strategy) if arguments.start_method == "fork" else (),
        log_dir=make_directory(arguments.log_dir) if arguments.log_dir is not None else None,
    )
    has_panel = not arguments.plain and is_terminal(os.environ.get("TERM"))
    elasticity = elasticity_of(arguments)
    _check_isolate(arguments)
    given = read_option_flags(arguments)
    if arguments.hosts is not None or arguments.hostfile is not None:
        return _run_on_hosts(arguments, given, supervision, has_panel)
    if has_panel:
        from tfdist.tools.launch.screen import Screen  # It imports rich.

        supervision = replace(supervision, make_printer=Screen)
    if arguments.tls:
        raise UsageError(
            "--tls",
            received="no --hosts and no --hostfile",
            accepted="with one of them",
            remedy="Use --isolate for a job on this machine, and tfdist exec --tls for a task that "
            "you start yourself.",
        )
    cluster_config = None if elasticity else _one_task(arguments, given)
    if cluster_config is not None:
        if arguments.isolate:
            raise _not_isolated(f"a task of {cluster_config.cluster} ({cluster_config.source})")
        command = command_of(
            sys.executable, arguments.script, arguments.args, module=arguments.module
        )
        task = own_task_spec(
            cluster_config,
            command,
            arguments.strategy,
            flags=given,
            cluster_as=arguments.cluster_as,
            divides_cores=arguments.cores == "divide",
        )
        if arguments.dry_run:
            return _dry_run([task], arguments.strategy, cluster_config.cluster)
        return local.run_one(
            cluster_config,
            task,
            environ=os.environ,
            supervision=supervision,
            startup_timeout=JobFlags.of(**given).startup_timeout,
        )
    job = _job(arguments, given, default_workers=1)
    if elasticity:
        return local.run_elastic(job, elasticity, environ=os.environ, supervision=supervision)
    if not arguments.dry_run:
        if arguments.isolate:
            isolate("--isolate")
            log("the job has its own network (--isolate): no connections to or from others")
        elif job.counts.in_cluster > 1:
            log("other users and machines can connect to the tasks; --isolate prevents it")
        return local.launch(job, environ=os.environ, supervision=supervision)
    with local.hold_ports(job.num_ports) as ports:
        tasks = task_specs(job, ports=ports, cores=given_cores(os.environ), environ=os.environ)
    return _dry_run(tasks, job.strategy, job.cluster(ports))


def _check_isolate(arguments: argparse.Namespace) -> None:
    for name in ("hosts", "hostfile", "host_discovery_script"):
        if arguments.isolate and getattr(arguments, name) is not None:
            raise _not_isolated(f"--{name}={getattr(arguments, name)}")


def _not_isolated(received: str) -> UsageError:
    return UsageError(
        "--isolate",
        received=received,
        accepted="a job that is on this machine alone",
        remedy="Leave the flag out; docs/security.md says what protects jobs on several machines.",
    )


def _run_on_hosts(
    arguments: argparse.Namespace,
    given: Mapping[str, Any],
    supervision: Supervision,
    has_panel: bool,
) -> int:
    names = ["host_discovery_script", "dry_run", *ClusterFlags.defined()]
    if arguments.hosts is not None:
        names.append("hostfile")
    for name in names:
        if getattr(arguments, name) not in (None, False):
            raise UsageError(
                f"--{name}",
                received=getattr(arguments, name),
                accepted="not together with --hosts or --hostfile, which place the tasks",
                remedy="Leave one of them out.",
            )
    if arguments.hosts is not None:
        hosts = hosts_of(arguments.hosts)
    else:
        hosts = hosts_in(arguments.hostfile)
    slots = sum(host.slots for host in hosts)
    job = _job(arguments, given, default_workers=max(1, slots - arguments.chief))
    return run_on_hosts(
        job,
        hosts,
        shlex.split(arguments.ssh),
        environ=os.environ,
        supervision=supervision,
        tls=arguments.tls,
        has_panel=has_panel,
    )


def _job(
    arguments: argparse.Namespace, given: Mapping[str, Any], *, default_workers: int
) -> JobSpec:
    counts = read_numbers(arguments, task_types.by_flag())
    if arguments.workers is None:
        counts = TaskCounts(**{**counts, WORKER: default_workers})
    return JobSpec(
        python=sys.executable,
        script=arguments.script,
        args=tuple(arguments.args),
        module=arguments.module,
        strategy=arguments.strategy,
        flags=given,
        counts=counts,
        cluster_as=arguments.cluster_as,
        divides_cores=arguments.cores == "divide",
    )


def _dry_run(tasks: Sequence[TaskSpec], strategy: str, cluster: Cluster) -> int:
    """Prints the tasks, and has the chief describe its model; the exit code."""
    for task in tasks:
        print(f"[{task.name}] {task.shell()}", flush=True)
    row = table.rows().get(strategy)
    chief = next((task for task in tasks if task.name == str(cluster.chief_task)), None)
    if row is None or not row.describes_model or chief is None:
        return EXIT_OK
    return local.describe_model(chief, os.environ)


def _modules_of(strategy: str) -> tuple[str, ...]:
    """The modules that every task of a strategy, or of `auto`, imports."""
    row = table.rows().get(strategy)
    own = (row.strategy.partition(":")[0],) if row else ()
    return ("tensorflow", "tfdist.entry", "tfdist.training.callbacks", *own)


def _one_task(arguments: argparse.Namespace, options: Mapping[str, Any]) -> ClusterConfig | None:
    """This machine's task of a job on several machines; None if the whole job runs here."""
    numbers = task_types.by_flag()
    given = [f"--{name}" for name in numbers if getattr(arguments, name) not in (None, False)]
    config = from_flags(read_cluster_flags(arguments))
    if config is not None and given:
        raise UsageError(
            given[0],
            received=f"{given[0]} with --job_name={config.task.type}",
            accepted="either the numbers of tasks of a whole job, or one task of a cluster",
            remedy="Leave one of them out.",
        )
    if config is None and not given:
        config = from_tf_config(os.environ)
    if config is not None:
        row = table.named(arguments.strategy, os.environ, config.cluster, config.source)
        table.check_cluster(row, config.cluster, config.source)
        check_options(row, options, config.cluster)
        check_cluster_as(arguments.cluster_as, row, has_chief=bool(config.cluster.chief))
    return config
