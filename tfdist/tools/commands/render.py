"""`tfdist render`: prints what an engine needs to run a job.

tfdist render hosts --worker_hosts=10.0.0.1:2222,10.0.0.2:2222     # TF_CONFIG of each task
tfdist render slurm --workers=4 train.py --output_dir=/shared/run1 | sbatch
tfdist render jobset --workers=4 --image=IMAGE train.py … | kubectl apply -f -
"""

from __future__ import annotations

import argparse
import json
import os
import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

from tfdist.cluster import Cluster, task_types
from tfdist.cluster.config import ClusterFlags
from tfdist.cluster.environments.host_flags import from_flags
from tfdist.cluster.task_types import EVALUATOR, TaskType
from tfdist.config.launch_options import RANKED, TF_CONFIG
from tfdist.config.options import Options
from tfdist.config.strategies import table
from tfdist.errors import EXIT_OK, UsageError, refuse
from tfdist.tools.commands.arguments import (
    Commands,
    add_options,
    cluster_flags,
    flag,
    number_flags,
    read_cluster_flags,
    read_numbers,
    read_options,
    script_arguments,
    strategy_flag,
)
from tfdist.tools.launch.job_spec import JobSpec
from tfdist.tools.render import by_hand, jobset, mpirun, slurm, tfjob
from tfdist.tools.render.mpirun import SlotsOptions
from tfdist.tools.render.pods import Manifest, Pods, QueuedPods
from tfdist.tools.render.rendered_job import RenderedJob


@dataclass(frozen=True)
class _Engine:
    """What a subcommand prints.

    Attributes:
      what: what it is, as a phrase.
      make: makes it of a job and of the engine's options; a manifest is printed as JSON.
      options: the class of the engine's options.
      note: what else there is to say about it.
      example: the arguments of an example.
    """

    what: str
    make: Callable[[RenderedJob, Any], str | Manifest]
    options: type[Options] = Options
    note: str = ""
    example: str = "--workers=4 train.py"


_AGAIN = "A job that fails starts again, and resumes."
_APPLY = "--image=train:1 --workers=4 train.py | kubectl apply -f -"
_ENGINES = {
    "slurm": _Engine(
        "a batch script for sbatch",
        lambda job, _: slurm.script(job),
        note="A job that fails is requeued, and resumes. Flags of sbatch, such as --partition and "
        "--time, have precedence over the script's.",
        example="--workers=4 train.py > job.sh && sbatch job.sh",
    ),
    "jobset": _Engine("the manifest of a JobSet", jobset.manifest, QueuedPods, _AGAIN, _APPLY),
    "trainjob": _Engine(
        "the manifest of a TrainJob of Kubeflow Trainer v2",
        jobset.trainjob,
        QueuedPods,
        _AGAIN,
        _APPLY,
    ),
    "tfjob": _Engine(
        "the manifest of a TFJob of Kubeflow's older operator", tfjob.manifest, Pods, _AGAIN, _APPLY
    ),
    "mpirun": _Engine("the command for mpirun", mpirun.mpirun, SlotsOptions),
    "horovodrun": _Engine("the command for horovodrun", mpirun.horovodrun, SlotsOptions),
}


def add_to(commands: Commands) -> None:
    """Adds the command to the parser."""
    render = commands.add_parser(
        "render",
        help="print what an engine needs to run a job: a batch script, or each task's place",
        description="Prints what an engine needs to run a job.",
    )
    engines = render.add_subparsers(metavar="ENGINE", required=True)
    _add_hosts(engines)
    for name, engine in _ENGINES.items():
        parser = engines.add_parser(
            name,
            help=engine.what,
            description=f"Prints {engine.what}. {engine.note}",
            usage="%(prog)s [options] [-m] SCRIPT [ARGS ...]",
        )
        add_options(parser, engine.options.defined())
        strategy_flag(parser, f"auto (default), {', '.join(table.rows())}")
        number_flags(parser, _numbered())
        flag(parser, "name", metavar="NAME", help="the job's name (default: that of SCRIPT)")
        add_options(parser, RenderedJob.defined())
        script_arguments(parser)
        parser.set_defaults(run=partial(_render, engine))
        parser.examples = (f"tfdist render {name} {engine.example}",)


def _add_hosts(engines: Commands) -> None:
    parser = engines.add_parser(
        "hosts",
        help="what to type on each machine: TF_CONFIG, flags or whole commands",
        description="Prints the TF_CONFIG or the flags of each task, for a job that you start by "
        "hand on several machines; with SCRIPT, the command of each task.",
        usage="%(prog)s [options] [-m] [SCRIPT] [ARGS ...]",
    )
    cluster_flags(parser, with_task=False)
    number_flags(parser, _beside())
    flag(
        parser,
        "cluster_as",
        choices=by_hand.CLUSTER_AS,
        default="tf_config",
        help="tf_config (the default): TF_CONFIG; master: its older dialect, which calls the "
        "chief `master`; flags: arguments for the script; keras, torch: the variables of "
        "keras.distribution.initialize or of torch.distributed",
    )
    script_arguments(parser, required=False)
    parser.set_defaults(run=_render_hosts)
    parser.examples = ("tfdist render hosts --worker_hosts=node1:2222,node2:2222 train.py",)


def _numbered() -> dict[str, TaskType]:
    """The types whose numbers the user sets, by flag; a chief is added where one is needed."""
    return {name: kind for name, kind in task_types.by_flag().items() if not kind.leads}


def _beside() -> dict[str, TaskType]:
    return {name: kind for name, kind in task_types.by_flag().items() if not kind.in_cluster}


def _render(engine: _Engine, arguments: argparse.Namespace) -> int:
    counts = read_numbers(arguments, _numbered(), workers=1)
    own = read_options(arguments, RenderedJob.defined())
    spec = JobSpec(
        python="python",
        script=arguments.script,
        args=tuple(arguments.args),
        module=arguments.module,
        strategy=arguments.strategy,
        counts=counts.with_chief(),
        cluster_as=own.get("cluster_as", TF_CONFIG),
    )
    stem = os.path.splitext(os.path.basename(arguments.script))[0]
    name = arguments.name or re.sub(r"[^a-z0-9]+", "-", stem.lower()).strip("-") or "job"
    job = RenderedJob(spec=spec, name=name, **own)
    options = engine.options(**read_options(arguments, engine.options.defined()))
    made = engine.make(job, options)
    print(made if isinstance(made, str) else json.dumps(made, indent=2))
    return EXIT_OK


def _render_hosts(arguments: argparse.Namespace) -> int:
    given = read_cluster_flags(arguments)
    # An evaluator is valid in any cluster, so this checks only the hosts.
    config = from_flags(ClusterFlags(job_name=EVALUATOR, task_index="0", **given))
    cluster = config.cluster if config else Cluster()
    if not cluster:
        accepted = "host:port of each worker, separated by commas"
        refuse({"worker_hosts": arguments.worker_hosts}, accepted, "Name the machines to train on.")
    beside = read_numbers(arguments, _beside()).tasks()
    if arguments.cluster_as in RANKED and (beside or cluster.training_tasks != cluster.tasks()):
        raise UsageError.choice(
            "--cluster_as", f"{arguments.cluster_as} with {cluster}", by_hand.OF_TENSORFLOW
        )
    script = [*["-m"] * arguments.module, arguments.script, *arguments.args]
    words = ["python", *script] if arguments.script else []
    print(*by_hand.lines(cluster, beside, words, arguments.cluster_as), sep="\n")
    return EXIT_OK
