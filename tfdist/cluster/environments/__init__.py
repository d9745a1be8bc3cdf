"""The engines that start the tasks of a job, in the order in which tfdist looks for them.

    for environment in TABLE:
        environment(os.environ, flags).config()

To support another engine, add a module with a class, and the class to the table.
"""

from __future__ import annotations

from tfdist.cluster.environments.base import Environment
from tfdist.cluster.environments.horovodrun import Horovodrun
from tfdist.cluster.environments.host_flags import Flags
from tfdist.cluster.environments.jobset import JobSet
from tfdist.cluster.environments.lsf import LSF
from tfdist.cluster.environments.mpi import MPICH, OpenMPI
from tfdist.cluster.environments.pbs import PBS
from tfdist.cluster.environments.sagemaker import SageMaker
from tfdist.cluster.environments.skypilot import SkyPilot
from tfdist.cluster.environments.slurm import Slurm
from tfdist.cluster.environments.tf_config import TFConfig

#: The environments; the first one that is present is used.
TABLE: tuple[type[Environment], ...] = (
    Flags,
    TFConfig,
    Horovodrun,
    OpenMPI,
    MPICH,
    Slurm,
    JobSet,
    SageMaker,
    SkyPilot,
    LSF,
    PBS,
)


def marks() -> tuple[str, ...]:
    """The variables that show an engine to a task."""
    return tuple(dict.fromkeys(name for environment in TABLE for name in environment.marks))
