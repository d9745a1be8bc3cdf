"""`tfdist run`: runs a job on this machine, or this machine's task of a job on several machines."""

from __future__ import annotations

import argparse
import os
import shlex
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from tfdist.cluster import Cluster, task_types
from tfdist.cluster.config import ClusterConfig
from tfdist.cluster.environments.host_flags import from_flags
from tfdist.cluster.environments.tf_config import from_tf_config
from tfdist.cluster.task_counts import TaskCounts
from tfdist.config.flags import AUTO
from tfdist.config.launch_options import (
    NOT_ISOLATED,
    RANKED,
    ElasticOptions,
    HostsOptions,
    LaunchOptions,
)
from tfdist.config.strategies import table
from tfdist.errors import EXIT_OK, UsageError, log, refuse
from tfdist.process import gpus
from tfdist.process import setup as runtime
from tfdist.process.cores import given_cores
from tfdist.process.resources import check_temporary_directory
from tfdist.tools.commands.arguments import (
    Commands,
    add_options,
    check_script,
    cluster_flags,
    job_flags,
    number_flags,
    read_cluster_flags,
    read_job_flags,
    read_numbers,
    read_options,
    script_arguments,
    strategy_flag,
)
from tfdist.tools.launch import local
from tfdist.tools.launch.isolation import isolate
from tfdist.tools.launch.job_spec import JobSpec, check_job, task_specs
from tfdist.tools.launch.remote.hosts import hosts_in, hosts_of
from tfdist.tools.launch.remote.launch import run_on_hosts
from tfdist.tools.launch.supervision import Supervision
from tfdist.tools.launch.task_log import make_directory
from tfdist.tools.launch.task_plan import ScriptSpec, TaskSpec, own_place, task_plan

# The help has these flags first.
_COMMON = ("max_restarts", "log_dir", "plain", "dry_run")


def add_to(commands: Commands) -> None:
    """Adds the command to the parser."""
    run = commands.add_parser(
        "run",
        help="run a training script as a job of several processes on this machine",
        description="Runs SCRIPT as a job of several processes on this machine. If flags or "
        "TF_CONFIG describe a cluster, runs only the task of this machine. When a task fails, the "
        "command stops the other tasks and exits with the exit code of the failed task.",
        usage="%(prog)s [options] [-m] SCRIPT [ARGS ...]",
    )
    strategy_flag(
        run,
        f"auto (default), {', '.join(table.rows())}; auto selects parameter_server with ps, "
        "multi_worker_mirrored with several training tasks, and one_device otherwise",
    )
    # Tasks of which there are several come first.
    kinds = sorted(task_types.by_flag().items(), key=lambda item: item[1].most == 1)
    number_flags(run, dict(kinds))
    options = LaunchOptions.defined()
    add_options(run, {name: options[name] for name in _COMMON})
    hosts = run.add_argument_group("several machines, by ssh")
    add_options(hosts, HostsOptions.defined())
    cluster_flags(run.add_argument_group("one task of several machines, started by hand"))
    elastic = run.add_argument_group("an elastic job")
    add_options(elastic, ElasticOptions.defined())
    shown = {*_COMMON, *HostsOptions.defined(), *ElasticOptions.defined()}
    others = run.add_argument_group("how the tasks run")
    add_options(others, {name: options[name] for name in options if name not in shown})
    job_flags(run)
    script_arguments(run)
    run.set_defaults(run=_run)
    run.examples = (
        "tfdist run --workers=2 train.py --epochs=3",
        "tfdist run --strategy=horovod --workers=4 --max_restarts=3 train.py",
        "tfdist run --ps=1 --workers=2 --sync -m mypackage.train --output_dir=/shared/run1",
        "tfdist run --hosts=node1:2,node2:2 train.py",
        "tfdist run --dry_run --workers=2 train.py",
    )


def _run(arguments: argparse.Namespace) -> int:
    check_script(arguments)
    check_temporary_directory()
    options = LaunchOptions(**read_options(arguments, LaunchOptions.defined()))
    if options.onednn != "auto":
        os.environ[runtime.ONEDNN_VARIABLE] = "1" if options.onednn == "on" else "0"
    if options.has_hosts:
        return _run_on_hosts(arguments, options)
    if options.host_discovery_script is not None:
        return _run_elastic(arguments, options)
    config = _own_config(arguments)
    if config is not None:
        return _run_one(arguments, options, config)
    return _run_here(arguments, options)


def _script(arguments: argparse.Namespace, options: LaunchOptions) -> dict[str, Any]:
    """The fields of a `ScriptSpec`."""
    return {
        "python": sys.executable,
        "script": arguments.script,
        "args": tuple(arguments.args),
        "module": arguments.module,
        "strategy": arguments.strategy,
        "flags": read_job_flags(arguments),
        "cluster_as": options.cluster_as,
        "divides_cores": options.cores == "divide",
    }


def _supervision(arguments: argparse.Namespace, options: LaunchOptions) -> Supervision:
    supervision = Supervision(
        grace_period=options.grace_period,
        max_restarts=options.max_restarts,
        restart_delay=options.restart_delay,
        preload=_preload(options, arguments.strategy),
        log_dir=make_directory(options.log_dir) if options.log_dir is not None else None,
    )
    if not _has_panel(options):
        return supervision
    from tfdist.tools.launch.screen import Screen  # It imports rich.

    return replace(supervision, make_printer=Screen)


def _has_panel(options: LaunchOptions) -> bool:
    kind = os.environ.get("TERM", "dumb")
    return not options.plain and sys.stdout.isatty() and kind not in ("", "dumb", "unknown")


def _run_here(arguments: argparse.Namespace, options: LaunchOptions) -> int:
    """Runs a whole job on this machine."""
    counts = read_numbers(arguments, task_types.by_flag(), workers=1)
    job = JobSpec(counts=counts, **_script(arguments, options))
    if options.dry_run:
        with local.hold_ports(job.num_ports) as ports:
            cores = given_cores(os.environ)
            tasks = task_specs(job, ports=ports, cores=cores, environ=os.environ)
        return _dry_run(tasks, job, job.cluster(ports))
    supervision = _supervision(arguments, options)
    if options.isolate:
        isolate("--isolate")
        log("the job has its own network (--isolate): no connections to or from others")
    return local.launch(job, environ=os.environ, supervision=supervision)


def _run_on_hosts(arguments: argparse.Namespace, options: LaunchOptions) -> int:
    accepted = "not together with --hosts or --hostfile, which place the tasks"
    refuse(read_cluster_flags(arguments), accepted)
    hosts = hosts_in(options.hostfile) if options.hostfile else hosts_of(options.hosts or "")
    slots = sum(host.slots for host in hosts)
    workers = max(1, slots - arguments.chief)
    counts = read_numbers(arguments, task_types.by_flag(), workers=workers)
    return run_on_hosts(
        JobSpec(counts=counts, **_script(arguments, options)),
        hosts,
        shlex.split(options.ssh),
        environ=os.environ,
        supervision=_supervision(arguments, options),
        tls=options.tls,
        has_panel=_has_panel(options),
    )


def _run_elastic(arguments: argparse.Namespace, options: LaunchOptions) -> int:
    accepted = "not supported with --host_discovery_script, which sets the number of workers"
    numbers, script = _number_flags(arguments), _script(arguments, options)
    workers = {name: number for name, number in numbers.items() if name == "workers"}
    refuse({**workers, **read_cluster_flags(arguments)}, accepted)
    elastic = {row.name: row for row in table.rows().values() if row.elastic}
    if arguments.strategy not in elastic:
        raise UsageError.choice("--strategy", arguments.strategy, elastic)
    counts = TaskCounts(worker=1)
    if elastic[arguments.strategy].workers_may_rejoin:
        counts = read_numbers(arguments, task_types.by_flag(), workers=options.max_workers or 1)
        counts = counts.with_chief()
        script["flags"]["min_workers"] = options.min_workers
    else:
        refuse(numbers, accepted)
    job = JobSpec(counts=counts, **script)
    supervision = _supervision(arguments, options)
    return local.run_elastic(job, options, environ=os.environ, supervision=supervision)


def _run_one(arguments: argparse.Namespace, options: LaunchOptions, config: ClusterConfig) -> int:
    """Runs this machine's task of a job on several machines."""
    script = ScriptSpec(**_script(arguments, options))
    row = table.named(script.strategy, os.environ, config.cluster, config.source)
    job = replace(script, strategy=row.name, is_auto=script.strategy == AUTO)
    check_job(job, config.cluster, config.source)
    if options.isolate:
        refuse({"isolate": f"a task of {config.cluster} ({config.source})"}, NOT_ISOLATED)
    place = own_place(job, config, os.environ, restarts=True)
    task = task_plan(job, config.cluster, config.task, place)
    if options.dry_run:
        return _dry_run([task], job, config.cluster)
    supervision = _supervision(arguments, options)
    return local.run_one(config, task, environ=os.environ, supervision=supervision)


def _dry_run(tasks: Sequence[TaskSpec], job: ScriptSpec, cluster: Cluster) -> int:
    """Prints the tasks, and has the chief describe its model; returns the exit code."""
    for task in tasks:
        print(f"[{task.name}] {task.shell()}", flush=True)
    chief = next((task for task in tasks if task.name == str(cluster.chief_task)), None)
    if not job.row.describes_model or chief is None or job.cluster_as in RANKED:
        return EXIT_OK
    environ = {**chief.environ(os.environ), runtime.DRY_RUN_VARIABLE: "1"}
    return subprocess.run(chief.command, env=environ).returncode


def _preload(options: LaunchOptions, strategy: str) -> tuple[str, ...]:
    """The modules that all tasks of a strategy, or of `auto`, import; none if tasks are spawned, or
    without TensorFlow."""
    method = options.start_method or ("spawn" if gpus.exist() else "fork")
    if method == "spawn" or options.cluster_as in RANKED:
        return ()
    row = table.rows().get(strategy)
    own = (row.strategy.partition(":")[0],) if row else ()
    return ("tensorflow", "tfdist.entry", "tfdist.training.callbacks", *own)


def _number_flags(arguments: argparse.Namespace) -> dict[str, Any]:
    """The flags for numbers of tasks that were given, by name."""
    values = {name: getattr(arguments, name) for name in task_types.by_flag()}
    return {name: value for name, value in values.items() if value not in (None, False)}


def _own_config(arguments: argparse.Namespace) -> ClusterConfig | None:
    """This machine's task of a job on several machines; None if the whole job runs here."""
    numbers, config = _number_flags(arguments), from_flags(read_cluster_flags(arguments))
    if config is None:
        return None if numbers else from_tf_config(os.environ)
    refuse(
        {name: f"--{name} with --job_name={config.task.type}" for name in numbers},
        "either the numbers of tasks of a whole job, or one task of a cluster",
    )
    return config
