"""`tfdist render`: prints what an engine needs to run a job.

tfdist render hosts --worker_hosts=10.0.0.1:2222,10.0.0.2:2222     # TF_CONFIG of each task
tfdist render slurm --workers=4 train.py --output_dir=/shared/run1 | sbatch
"""

from __future__ import annotations

import argparse
import os
import re
import shlex

from tfdist.cluster import Cluster, Task
from tfdist.cluster.config import ClusterFlags
from tfdist.cluster.environments.flags import from_flags
from tfdist.commands.arguments import (
    Commands,
    count,
    flag,
    hosts_flags,
    script_arguments,
)
from tfdist.errors import EXIT_OK, UsageError
from tfdist.launch.spec import JobSpec
from tfdist.render import slurm
from tfdist.render.job import RenderedJob
from tfdist.strategy_table import table


def add_to(commands: Commands) -> None:
    """Adds the command to the parser."""
    render = commands.add_parser(
        "render",
        help="print what an engine needs to run a job: a batch script, or each task's place",
        description="Prints what an engine needs to run a job.",
        allow_abbrev=False,
    )
    engines = render.add_subparsers(metavar="ENGINE", required=True)
    _add_hosts(engines)
    _add_slurm(engines)


def _add_hosts(engines: Commands) -> None:
    hosts = engines.add_parser(
        "hosts",
        help="the TF_CONFIG or the flags of each task",
        description="Prints the TF_CONFIG or the flags of each task, for a job that you start by "
        "hand on several machines.",
        allow_abbrev=False,
    )
    hosts_flags(hosts)
    flag(
        hosts,
        "evaluator",
        action="store_true",
        help="add a task that evaluates the checkpoints",
    )
    flag(
        hosts,
        "format",
        choices=("tf_config", "flags"),
        default="tf_config",
        help="tf_config (the default): an export command; flags: arguments for the script",
    )
    hosts.set_defaults(run=_render_hosts)


def _add_slurm(engines: Commands) -> None:
    parser = engines.add_parser(
        "slurm",
        help="a batch script for sbatch",
        description="Prints a batch script. A job that fails is requeued, and resumes. Flags of "
        "sbatch, such as --partition and --time, have precedence over the script's.",
        usage="%(prog)s [options] [-m] SCRIPT [ARGS ...]",
        allow_abbrev=False,
    )
    flag(
        parser,
        "strategy",
        default="auto",
        metavar="NAME",
        help=f"auto (default), {', '.join(table.rows())}",
    )
    flag(parser, "ps", type=count, default=0, metavar="N", help="number of ps (default 0)")
    flag(
        parser,
        "workers",
        type=count,
        default=1,
        metavar="N",
        help="number of workers (default 1); with ps or an evaluator there is a chief, too",
    )
    flag(parser, "evaluator", action="store_true", help="add a task that evaluates the checkpoints")
    flag(parser, "name", metavar="NAME", help="the job's name (default: that of SCRIPT)")
    flag(
        parser,
        "max_restarts",
        type=count,
        default=3,
        metavar="N",
        help="how many times a job that failed is requeued (default 3); never after a usage error",
    )
    flag(
        parser,
        "grace_period",
        type=count,
        default=60,
        metavar="S",
        help="seconds before the time limit at which the tasks save and exit (default 60)",
    )
    flag(
        parser,
        "foreign",
        action="store_true",
        help="SCRIPT does not use tfdist: start it with tfdist exec",
    )
    script_arguments(parser)
    parser.set_defaults(run=_render_slurm)


def _render_slurm(arguments: argparse.Namespace) -> int:
    print(slurm.script(_job(arguments)), end="")
    return EXIT_OK


def _job(arguments: argparse.Namespace) -> RenderedJob:
    spec = JobSpec(
        python="python",
        script=arguments.script,
        args=tuple(arguments.args),
        module=arguments.module,
        strategy=arguments.strategy,
        ps=arguments.ps,
        workers=arguments.workers,
        chief=bool(arguments.ps) or arguments.evaluator,
        evaluator=arguments.evaluator,
    )
    stem = os.path.splitext(os.path.basename(arguments.script))[0]
    name = arguments.name or re.sub(r"[^a-z0-9]+", "-", stem.lower()).strip("-") or "job"
    return RenderedJob(
        spec=spec,
        name=name,
        max_restarts=arguments.max_restarts,
        grace_period=arguments.grace_period,
        foreign=arguments.foreign,
    )


def _render_hosts(arguments: argparse.Namespace) -> int:
    # An evaluator is valid in any cluster, so this checks only the hosts.
    flags = ClusterFlags(
        job_name="evaluator",
        task_index="0",
        chief_hosts=arguments.chief_hosts,
        worker_hosts=arguments.worker_hosts,
        ps_hosts=arguments.ps_hosts,
    )
    cluster_config = from_flags(flags)
    cluster = cluster_config.cluster if cluster_config else Cluster()
    if not cluster:
        raise UsageError(
            "--worker_hosts",
            received=arguments.worker_hosts,
            accepted="host:port of each worker, separated by commas",
            remedy="Name the machines to train on.",
        )
    evaluators = (Task("evaluator", 0),) if arguments.evaluator else ()
    for task in (*cluster.tasks(), *evaluators):
        if arguments.format == "flags":
            print(f"[{task}] {shlex.join(cluster.flags(task))}")
        else:
            print(f"[{task}] export TF_CONFIG={shlex.quote(cluster.tf_config(task))}")
    return EXIT_OK
