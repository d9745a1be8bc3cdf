"""The startup barrier: checks the addresses, and waits until every task is there and reachable.

    startup.check_addresses(cluster)
    startup.check_port(cluster, task)
    outcome = startup.wait_at_barrier(startup.BarrierConfig(startup.Hello(...), ...))

`tfdist check` does only this. `tfdist.init()` does it before it sets up a strategy, because
TensorFlow would wait forever for a task that never starts. Nothing here imports TensorFlow.
"""

from tfdist.coordination.startup.addresses import check_addresses, check_port
from tfdist.coordination.startup.barrier import Outcome, wait_at_barrier
from tfdist.coordination.startup.participant import BarrierConfig
from tfdist.coordination.startup.protocol import Hello, versions

__all__ = [
    "BarrierConfig",
    "Hello",
    "Outcome",
    "check_addresses",
    "check_port",
    "versions",
    "wait_at_barrier",
]
