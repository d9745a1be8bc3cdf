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
from collections.abc import Callable, Sequence
from functools import partial

from tfdist.cluster import Cluster, task_types
from tfdist.cluster.config import ClusterFlags
from tfdist.cluster.environments.host_flags import from_flags
from tfdist.cluster.task_types import EVALUATOR, TaskType
from tfdist.config.options import Option
from tfdist.config.strategies import table
from tfdist.coordination.seal import new_token
from tfdist.errors import EXIT_OK, refuse
from tfdist.tools.commands.arguments import (
    Commands,
    add_options,
    flag,
    hosts_flags,
    number_flags,
    read_cluster_flags,
    read_numbers,
    read_options,
    script_arguments,
    strategy_flag,
)
from tfdist.tools.launch.job_spec import JobSpec
from tfdist.tools.render import by_hand, jobset, mpirun, slurm, tfjob
from tfdist.tools.render.pods import Manifest, Pods
from tfdist.tools.render.rendered_job import RenderedJob

_KINDS = {
    "jobset": "JobSet",
    "trainjob": "TrainJob of Kubeflow Trainer v2",
    "tfjob": "TFJob of Kubeflow's older operator",
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
    _add_slurm(engines)
    _add_kubernetes(engines)
    _add_mpi(engines)


def _add_hosts(engines: Commands) -> None:
    parser = engines.add_parser(
        "hosts",
        help="what to type on each machine: TF_CONFIG, flags or whole commands",
        description="Prints the TF_CONFIG or the flags of each task, for a job that you start by "
        "hand on several machines; with SCRIPT, the command of each task.",
        usage="%(prog)s [options] [-m] [SCRIPT] [ARGS ...]",
    )
    hosts_flags(parser)
    flag(
        parser,
        "hosts",
        metavar="HOST,...",
        help=f"instead of addresses: a worker (port {by_hand.WORKER_PORT}) and a ps (port "
        f"{by_hand.PS_PORT}) on each host; the first worker is the chief",
    )
    number_flags(parser, _beside())
    flag(
        parser,
        "cluster_as",
        choices=by_hand.CLUSTER_AS,
        default="tf_config",
        help="tf_config (the default): TF_CONFIG; master: its older dialect, which calls the "
        "chief `master`; flags: arguments for the script",
    )
    script_arguments(parser, required=False)
    parser.set_defaults(run=_render_hosts)
    parser.examples = ("tfdist render hosts --worker_hosts=node1:2222,node2:2222 train.py",)


def _add_slurm(engines: Commands) -> None:
    parser = engines.add_parser(
        "slurm",
        help="a batch script for sbatch",
        description="Prints a batch script. A job that fails is requeued, and resumes. Flags of "
        "sbatch, such as --partition and --time, have precedence over the script's.",
        usage="%(prog)s [options] [-m] SCRIPT [ARGS ...]",
    )
    _job_flags(parser)
    parser.set_defaults(run=_render_slurm)
    parser.examples = ("tfdist render slurm --workers=4 train.py > job.sh && sbatch job.sh",)


def _add_kubernetes(engines: Commands) -> None:
    for name, makes in (
        ("jobset", jobset.manifest),
        ("trainjob", jobset.trainjob),
        ("tfjob", tfjob.manifest),
    ):
        parser = engines.add_parser(
            name,
            help=f"the manifest of a {_KINDS[name]}",
            description=f"Prints the manifest of a {_KINDS[name]} as JSON. A job that fails "
            "starts again, and resumes.",
            usage="%(prog)s [options] --image=IMAGE [-m] SCRIPT [ARGS ...]",
        )
        flag(parser, "image", required=True, help="the image of the containers")
        add_options(parser, _pod_options(name))
        _job_flags(parser)
        parser.set_defaults(run=partial(_render_kubernetes, name, makes))
        parser.examples = (
            f"tfdist render {name} --image=train:1 --workers=4 train.py | kubectl apply -f -",
        )


def _add_mpi(engines: Commands) -> None:
    for name, makes in (("mpirun", mpirun.mpirun), ("horovodrun", mpirun.horovodrun)):
        parser = engines.add_parser(
            name,
            help=f"the command for {name}",
            description=f"Prints the command for {name}.",
            usage="%(prog)s [options] [-m] SCRIPT [ARGS ...]",
        )
        flag(
            parser,
            "hosts",
            default="",
            metavar="HOST:SLOTS,...",
            help="the hosts, and the numbers of tasks on each (default: this machine)",
        )
        _job_flags(parser)
        parser.set_defaults(run=partial(_render_mpi, makes))
        parser.examples = (f"tfdist render {name} --workers=4 train.py",)


def _job_flags(parser: argparse.ArgumentParser) -> None:
    """Adds the flags of a `RenderedJob`, and the script."""
    strategy_flag(parser, f"auto (default), {', '.join(table.rows())}")
    number_flags(parser, _numbered())
    flag(parser, "name", metavar="NAME", help="the job's name (default: that of SCRIPT)")
    add_options(parser, RenderedJob.defined())
    script_arguments(parser)


def _numbered() -> dict[str, TaskType]:
    """The types whose numbers are given; a chief is added where one is needed."""
    return {name: kind for name, kind in task_types.by_flag().items() if not kind.leads}


def _beside() -> dict[str, TaskType]:
    return {name: kind for name, kind in task_types.by_flag().items() if not kind.in_cluster}


def _render_slurm(arguments: argparse.Namespace) -> int:
    print(slurm.script(_job(arguments)), end="")
    return EXIT_OK


def _pod_options(kind: str) -> dict[str, Option]:
    # Kueue deprecates TFJobs, and leaves them out by default.
    left_out = "queue" if kind == "tfjob" else ""
    return {name: each for name, each in Pods.defined().items() if name != left_out}


def _render_kubernetes(
    kind: str, makes: Callable[[RenderedJob, Pods], Manifest], arguments: argparse.Namespace
) -> int:
    pods = Pods(image=arguments.image, **read_options(arguments, _pod_options(kind)))
    print(json.dumps(makes(_job(arguments), pods), indent=2))
    return EXIT_OK


def _render_mpi(
    makes: Callable[[RenderedJob, Sequence[str]], str], arguments: argparse.Namespace
) -> int:
    slots = [host.strip() for host in arguments.hosts.split(",") if host.strip()]
    print(makes(_job(arguments), slots))
    return EXIT_OK


def _job(arguments: argparse.Namespace) -> RenderedJob:
    counts = read_numbers(arguments, _numbered(), workers=1)
    spec = JobSpec(
        python="python",
        script=arguments.script,
        args=tuple(arguments.args),
        module=arguments.module,
        strategy=arguments.strategy,
        counts=counts.with_chief(),
    )
    stem = os.path.splitext(os.path.basename(arguments.script))[0]
    name = arguments.name or re.sub(r"[^a-z0-9]+", "-", stem.lower()).strip("-") or "job"
    return RenderedJob(
        spec=spec,
        name=name,
        **read_options(arguments, RenderedJob.defined()),
    )


def _render_hosts(arguments: argparse.Namespace) -> int:
    cluster = _cluster(arguments)
    beside, cluster_as = read_numbers(arguments, _beside()).tasks(), arguments.cluster_as
    if arguments.script is None:
        lines = by_hand.places(cluster, beside, cluster_as=cluster_as)
    else:
        module = ["-m"] if arguments.module else []
        words = ["python", *module, arguments.script, *arguments.args]
        lines = by_hand.commands(cluster, words, new_token(), beside, cluster_as=cluster_as)
    for line in lines:
        print(line)
    return EXIT_OK


def _cluster(arguments: argparse.Namespace) -> Cluster:
    given = read_cluster_flags(arguments)
    if arguments.hosts is not None:
        both = {"hosts": f"{arguments.hosts}, and addresses"} if given else {}
        refuse(both, "either --hosts, or --worker_hosts and the like")
        return by_hand.on_each([host.strip() for host in arguments.hosts.split(",")])
    # An evaluator is valid in any cluster, so this checks only the hosts.
    cluster_config = from_flags(ClusterFlags(job_name=EVALUATOR, task_index="0", **given))
    cluster = cluster_config.cluster if cluster_config else Cluster()
    if not cluster:
        accepted = "host:port of each worker, separated by commas"
        refuse({"worker_hosts": arguments.worker_hosts}, accepted, "Name the machines to train on.")
    return cluster
