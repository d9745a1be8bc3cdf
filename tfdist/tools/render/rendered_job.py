"""`RenderedJob`: a script, its tasks and its restarts, described for every engine."""

from __future__ import annotations

import re
from dataclasses import dataclass

from tfdist.cluster import task_types
from tfdist.config.launch_options import CLUSTER_AS
from tfdist.config.options import Options, option
from tfdist.coordination.seal import TOKEN_VARIABLE
from tfdist.errors import refuse
from tfdist.tools.launch.job_spec import JobSpec

#: Gives the tasks of a job a new token; a line of a shell.
EXPORT_TOKEN = f"export {TOKEN_VARIABLE}=$(od -An -N16 -tx1 /dev/urandom | tr -d ' \\n')"

# RFC 1123, as Slurm's file names and Kubernetes's names allow it.
_NAME = re.compile(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?")


@dataclass(frozen=True, kw_only=True)
class RenderedJob(Options):
    """A job for an engine.

    Attributes:
      spec: the script, the strategy and the tasks.
      name: the job's name.

    Raises:
      UsageError: the name is invalid.
    """

    spec: JobSpec
    name: str
    max_restarts: int = option(
        3,
        "how many times a job that failed starts again; never after a usage error",
        least=0,
    )
    grace_period: int = option(
        60, "seconds that the tasks have to save before they are ended", least=0
    )
    foreign: bool = option(False, "SCRIPT does not use tfdist: start it with tfdist exec")
    cluster_as: str | None = option(
        None,
        "as --foreign, and how SCRIPT learns the cluster and its task; see tfdist run --help",
        choices=CLUSTER_AS,
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if not _NAME.fullmatch(self.name):
            accepted = "lower-case letters, digits and dashes, at most 63"
            refuse({"name": self.name}, accepted, "Correct the name.")

    @property
    def counts(self) -> dict[str, int]:
        """The numbers of tasks by type, in the order of the ranks: ps, evaluator, chief, workers.

        A job with ps or an evaluator has a chief.
        """
        return self.spec.counts.with_chief().in_order_of_ranks()

    def command(self, *, by_rank: bool = False) -> tuple[str, ...]:
        """The command of each task.

        Args:
          by_rank: whether the engine numbers the tasks, and flags give the ranks their types.
        """
        spec = self.spec
        options = [f"--strategy={spec.strategy}"]
        for flag, count in spec.counts.rank_flags().items() if by_rank else ():
            options.append(f"--{flag}" if flag in task_types.rows() else f"--{flag}={count}")
        if self.foreign or self.cluster_as:
            options += [f"--cluster_as={self.cluster_as}"] if self.cluster_as else []
            return spec.command(executes=options)
        # The engine's machines may have tfdist in another place.
        module = ["-m"] * spec.module
        return (spec.python, *module, spec.script, *spec.args, *options)
