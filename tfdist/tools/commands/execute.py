"""`tfdist exec`: gives a script its place in the job, and becomes the script.

srun tfdist exec train.py              # TF_CONFIG for a script that does not use tfdist
mpirun -np 4 tfdist exec --cluster_as=flags --num_ps=1 train.py
"""

from __future__ import annotations

import argparse
import os
import sys

from tfdist.cluster import task_types
from tfdist.cluster.discovery import discover
from tfdist.config.strategies import table
from tfdist.coordination.seal import token_of
from tfdist.errors import EXIT_FAILED, log
from tfdist.tools.commands.arguments import (
    Commands,
    check_script,
    cluster_flags,
    flag,
    number_flags,
    read_cluster_flags,
    read_numbers,
    script_arguments,
    some_seconds,
)
from tfdist.tools.launch.become import become, wait_for_ranks
from tfdist.tools.launch.job_spec import CLUSTER_AS, check_cluster_as, command_of
from tfdist.tools.launch.own_task import own_task_spec
from tfdist.tools.launch.tunnel.enter import enter


def add_to(commands: Commands) -> None:
    """Adds the command to the parser."""
    parser = commands.add_parser(
        "exec",
        help="run one task of a job that an engine such as Slurm or mpirun has started",
        description="Finds this task's place in the job, from the variables of Slurm, mpirun and "
        "others, TF_CONFIG or flags; sets what SCRIPT reads; and replaces itself by SCRIPT. A "
        "script that uses tfdist does not need this command.",
        usage="%(prog)s [options] [-m] SCRIPT [ARGS ...]",
        allow_abbrev=False,
    )
    flag(
        parser,
        "strategy",
        default="auto",
        values=table.rows(),
        metavar="NAME",
        help="horovod for a script that calls hvd.init; else the default will do",
    )
    cluster_flags(parser)
    number_flags(parser, task_types.by_rank_flag())
    flag(
        parser,
        "cluster_as",
        choices=CLUSTER_AS,
        help="how SCRIPT learns the cluster and its task; see tfdist run --help (default: "
        "horovodrun with --strategy=horovod, else tf_config)",
    )
    flag(
        parser,
        "startup_timeout",
        type=some_seconds,
        default=300.0,
        metavar="S",
        help="seconds that the ranks of Horovod wait for each other (default 300)",
    )
    flag(
        parser,
        "tls",
        action="store_true",
        help="run SCRIPT in its own network namespace, which has connections to the other tasks of "
        "the job alone, over mutual TLS; all tasks need the flag, and the same TFDIST_JOB_TOKEN",
    )
    script_arguments(parser)
    parser.set_defaults(run=_exec)
    parser.examples = (
        "srun tfdist exec train.py",
        "mpirun -np 4 tfdist exec train.py",
        "tfdist exec --job_name=worker --task_index=0 --worker_hosts=node1:2222 train.py",
    )


def _exec(arguments: argparse.Namespace) -> int:
    check_script(arguments)
    config = discover(
        read_cluster_flags(arguments),
        os.environ,
        read_numbers(arguments, task_types.by_rank_flag()),
    )
    row = table.named(arguments.strategy, os.environ, config.cluster, config.source)
    table.check_cluster(row, config.cluster, config.source)
    command = command_of(sys.executable, arguments.script, arguments.args, module=arguments.module)
    log(str(config))
    if arguments.tls:
        try:
            config = enter(config, token_of(os.environ))
        except OSError as error:
            log(f"error: {error}")
            return EXIT_FAILED
        log("this task has connections to the tasks of its job alone, over TLS (--tls)")
    if not config.cluster:
        become(command, os.environ)
    cluster_as = arguments.cluster_as or ("horovodrun" if row.rendezvous else "tf_config")
    check_cluster_as(cluster_as, row, has_chief=bool(config.cluster.chief))
    task = own_task_spec(config, command, arguments.strategy, cluster_as=cluster_as, restarts=False)
    if task.rendezvous_port is not None and not wait_for_ranks(
        config, task, arguments.startup_timeout, token_of(os.environ)
    ):
        return EXIT_FAILED
    kept = {name: value for name, value in os.environ.items() if name not in task.removed}
    become(task.command, {**kept, **task.environment})
