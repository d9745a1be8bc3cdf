"""Before training: is the configuration sound, is every task there, and do they reach each other?

    startup.check_addresses(cluster)
    startup.check_port(cluster, task)
    outcome = startup.meet(Party(cluster=cluster, task=task, strategy=name, timeout=300.0))

`tfdist check` is this alone; `tfdist.init()` does it before TensorFlow could wait for a task that
never comes. Nothing here imports TensorFlow.
"""

from tfdist.coordination.startup.addresses import check_addresses, check_port
from tfdist.coordination.startup.barrier import TOKEN_VARIABLE, Outcome, Party, meet

__all__ = ["TOKEN_VARIABLE", "Outcome", "Party", "check_addresses", "check_port", "meet"]
