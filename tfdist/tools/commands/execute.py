"""`tfdist exec`: tells a script its place in the job, and replaces itself with the script.

srun tfdist exec train.py              # TF_CONFIG for a script that does not use tfdist
mpirun -np 4 tfdist exec --cluster_as=flags --num_ps=1 train.py
"""

from __future__ import annotations

import argparse
import os
import sys
from dataclasses import dataclass, replace

from tfdist.cluster import task_types
from tfdist.cluster.discovery import discover
from tfdist.config.flags import AUTO
from tfdist.config.launch_options import CLUSTER_AS, HOROVODRUN, TF_CONFIG
from tfdist.config.options import Options, option
from tfdist.config.strategies import table
from tfdist.coordination.seal import token_of
from tfdist.errors import EXIT_FAILED, log
from tfdist.tools.commands.arguments import (
    Commands,
    add_options,
    check_script,
    cluster_flags,
    number_flags,
    read_cluster_flags,
    read_numbers,
    read_options,
    script_arguments,
    strategy_flag,
)
from tfdist.tools.launch.job_spec import check_job
from tfdist.tools.launch.ranks import wait_for_ranks
from tfdist.tools.launch.task_plan import ScriptSpec, own_place, task_plan
from tfdist.tools.launch.tunnel.enter import enter


@dataclass(frozen=True)
class ExecOptions(Options):
    """The flags of the command, except those that describe the job and this task."""

    cluster_as: str | None = option(
        None,
        "how SCRIPT learns the cluster and its task; see tfdist run --help (default: horovodrun "
        "with --strategy=horovod, else tf_config)",
        choices=CLUSTER_AS,
    )
    startup_timeout: float = option(
        300.0, "seconds that the ranks of Horovod wait for each other", above=0.0
    )
    tls: bool = option(
        False,
        "run SCRIPT in its own network namespace, which has connections to the other tasks of the "
        "job alone, over mutual TLS; all tasks need the flag, and the same TFDIST_JOB_TOKEN",
    )


def add_to(commands: Commands) -> None:
    """Adds the command to the parser."""
    parser = commands.add_parser(
        "exec",
        help="run one task of a job that an engine such as Slurm or mpirun has started",
        description="Finds this task's place in the job, from the variables of Slurm, mpirun and "
        "others, TF_CONFIG or flags; sets what SCRIPT reads; and replaces itself by SCRIPT. A "
        "script that uses tfdist does not need this command.",
        usage="%(prog)s [options] [-m] SCRIPT [ARGS ...]",
    )
    strategy_flag(parser, "horovod for a script that calls hvd.init; else the default will do")
    cluster_flags(parser)
    number_flags(parser, task_types.by_rank_flag())
    add_options(parser, ExecOptions.defined())
    script_arguments(parser)
    parser.set_defaults(run=_exec)
    parser.examples = (
        "srun tfdist exec train.py",
        "mpirun -np 4 tfdist exec train.py",
        "tfdist exec --job_name=worker --task_index=0 --worker_hosts=node1:2222 train.py",
    )


def _exec(arguments: argparse.Namespace) -> int:
    check_script(arguments)
    options = ExecOptions(**read_options(arguments, ExecOptions.defined()))
    counts, token = read_numbers(arguments, task_types.by_rank_flag()), token_of(os.environ)
    config = discover(read_cluster_flags(arguments), os.environ, counts)
    row = table.named(arguments.strategy, os.environ, config.cluster, config.source)
    cluster_as = options.cluster_as or (HOROVODRUN if row.rendezvous else TF_CONFIG)
    job = ScriptSpec(
        python=sys.executable,
        script=arguments.script,
        args=arguments.args,
        module=arguments.module,
        strategy=row.name,
        is_auto=arguments.strategy == AUTO,
        # A process alone needs no cluster.
        cluster_as=cluster_as if config.cluster else TF_CONFIG,
    )
    check_job(job, config.cluster, config.source)
    log(str(config))
    machines = config.cluster
    if options.tls:
        try:
            config = enter(config, token)
        except OSError as error:
            log(f"error: {error}")
            return EXIT_FAILED
        log("this task has connections to the tasks of its job alone, over TLS (--tls)")
    if not config.cluster:
        os.execv(sys.executable, job.command())
    place = replace(own_place(job, config, os.environ), machines=machines)
    task = task_plan(job, config.cluster, config.task, place)
    if place.rendezvous and not wait_for_ranks(
        place.rendezvous, config, options.startup_timeout, token
    ):
        return EXIT_FAILED
    os.execve(sys.executable, task.command, task.environ(os.environ))
