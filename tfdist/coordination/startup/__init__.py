"""The startup barrier: checks the addresses, and waits until every task is there and reachable.

    startup.check_addresses(cluster)
    startup.check_port(cluster, task)
    config = startup.BarrierConfig(cluster=cluster, task=task, strategy=name, timeout=300.0)
    outcome = startup.wait_at_barrier(config)

`tfdist check` does this alone; `tfdist.init()` does it before TensorFlow could wait for a task that
never comes. Nothing here imports TensorFlow.
"""

from tfdist.coordination.startup.addresses import check_addresses, check_port
from tfdist.coordination.startup.barrier import (
    TOKEN_VARIABLE,
    BarrierConfig,
    Outcome,
    wait_at_barrier,
)

__all__ = [
    "TOKEN_VARIABLE",
    "BarrierConfig",
    "Outcome",
    "check_addresses",
    "check_port",
    "wait_at_barrier",
]
