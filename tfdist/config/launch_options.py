"""The flags that only `tfdist run` has; a script does not know them."""

from __future__ import annotations

from dataclasses import dataclass

from tfdist.config.options import Options, option
from tfdist.errors import UsageError, refuse

#: How a task gets the cluster: in TF_CONFIG, in its older dialect, as flags of the script, or in
#: the variables of `horovodrun`, of `keras.distribution.initialize`, or of `torch.distributed`.
TF_CONFIG = "tf_config"
OLDER = "master"
FLAGS = "flags"
HOROVODRUN = "horovodrun"
KERAS = "keras"
TORCH = "torch"
#: Those of libraries other than TensorFlow, which number the training tasks of all machines.
RANKED = (KERAS, TORCH)
CLUSTER_AS = (TF_CONFIG, OLDER, FLAGS, HOROVODRUN, *RANKED)

#: What is accepted where the job is not on this machine alone.
NOT_ISOLATED = "only without --isolate, which is for a job on this machine alone (docs/security.md)"

_PLACED = "not together with --hosts or --hostfile, which place the tasks"
_ELASTIC = "host_discovery_script"


@dataclass(frozen=True)
class ElasticOptions(Options):
    """The flags of elastic jobs, which follow a list of hosts."""

    host_discovery_script: str | None = option(
        None,
        "makes the job elastic: this program prints host:slots for each machine that is available; "
        "when its output changes, all workers save and restart with the new number of workers",
    )
    max_workers: int | None = option(None, "start at most this many workers", least=1)
    min_workers: int = option(1, "wait for this many workers", least=1)
    elastic_timeout: float = option(
        600.0, "seconds to wait for --min_workers, and for this machine in the list", least=0.0
    )
    host: str | None = option(
        None,
        "this machine's name in the list (default: the entry with this machine's address)",
    )
    port: int | None = option(
        None,
        "the first port of each host's workers; required if several machines are listed",
        least=1,
        most=65535,
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.host_discovery_script is None:
            others = self.given("max_workers", "min_workers", "elastic_timeout", "host", "port")
            refuse(
                others,
                f"only together with --{_ELASTIC}",
                "Pass the program that lists the hosts, or use --workers.",
            )
            return
        if self.max_workers is None or self.max_workers < self.min_workers:
            raise UsageError(
                "--max_workers",
                received=self.max_workers,
                accepted=f"a number from {self.min_workers} (--min_workers) with --{_ELASTIC}",
                remedy="Pass the maximum number of workers.",
            )
        if self.port is not None and self.port > 65536 - self.max_workers:
            accepted = f"a number from 1 to {65536 - self.max_workers}"
            remedy = "Choose a lower port: each host uses one port per task, from this one on."
            refuse({"port": self.port}, accepted, remedy)


@dataclass(frozen=True)
class HostsOptions(Options):
    """The flags of jobs on hosts that are reached by ssh."""

    hosts: str | None = option(
        None,
        "HOST[:SLOTS],...: start the job on these hosts by ssh, with this Python and in this "
        "directory; the workers are as many as the slots, unless --workers says less",
    )
    hostfile: str | None = option(
        None, "the same from a file: a line for each host, host, host:N or host slots=N"
    )
    ssh: str = option(
        "ssh",
        "the command of ssh, with its arguments; hosts must be known and must not ask for a "
        "password",
    )
    tls: bool = option(
        False,
        "with --hosts or --hostfile: the tasks connect to each other alone, over mutual TLS; see "
        "tfdist exec --help",
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.hosts is not None:
            refuse(self.given("hostfile"), _PLACED)
        if not self.has_hosts:
            refuse(
                self.given("tls"),
                "with --hosts or --hostfile",
                "Use --isolate on this machine, or start the tasks with tfdist exec --tls.",
            )

    @property
    def has_hosts(self) -> bool:
        """Whether the job runs on hosts that are reached by ssh."""
        return self.hosts is not None or self.hostfile is not None


@dataclass(frozen=True)
class LaunchOptions(ElasticOptions, HostsOptions):
    """All flags of `tfdist run`, except the numbers of tasks and the flags of the job."""

    cluster_as: str = option(
        TF_CONFIG,
        "how SCRIPT learns the cluster and its task. tf_config: from the environment variable "
        "TF_CONFIG; master: the same in its older dialect, with the chief as master; flags: from "
        "--job_name, --task_index, --ps_hosts and --worker_hosts after ARGS, as scripts for "
        "TensorFlow 1 do; horovodrun: from the variables of horovodrun, for scripts that call "
        "hvd.init themselves (on one machine, --strategy=horovod sets them); keras: from those of "
        "keras.distribution.initialize, for Keras on JAX; torch: from those of torch.distributed",
        choices=CLUSTER_AS,
    )
    grace_period: float = option(
        30.0,
        "seconds that the tasks have to save and exit when this command receives SIGTERM, before "
        "they are killed; at most 5 after a task has failed",
        least=0.0,
    )
    max_restarts: int = option(
        0,
        "how many times the job may restart failed tasks, together with the tasks that cannot "
        "continue without them",
        least=0,
    )
    restart_delay: float = option(
        1.0,
        "seconds before the second restart, doubled before each further one, at most 60; the first "
        "is not delayed, and neither is one that comes 30 s after the last one",
        least=0.0,
    )
    start_method: str | None = option(
        None,
        "fork (the default on a machine without NVIDIA GPUs): a fork server imports TensorFlow "
        "once, and the tasks are copies of it; spawn: each task is a new process. A job of one "
        "task that is never restarted always uses spawn",
        choices=("fork", "spawn"),
    )
    cores: str = option(
        "divide",
        "divide: each training task is pinned to its own cores; share: every task may use all "
        "cores",
        choices=("divide", "share"),
    )
    onednn: str = option(
        "auto",
        "auto: TensorFlow uses oneDNN if that is faster on this CPU, unless TF_ENABLE_ONEDNN_OPTS "
        "is set",
        choices=("auto", "on", "off"),
    )
    isolate: bool = option(
        False,
        "run the job in its own network namespace: other users and machines cannot connect to its "
        "tasks, and the tasks cannot connect to other machines",
    )
    plain: bool = option(
        False,
        "print lines alone; without it, a panel of the tasks is shown where the output is a "
        "terminal",
    )
    log_dir: str | None = option(
        None, "add each task's whole output to a file in this directory, such as worker-0.log"
    )
    dry_run: bool = option(
        False,
        "print each task's environment and command without starting it; with a strategy that "
        "divides a model, such as in_graph, also what it makes of the script's model",
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.isolate:
            refuse(self.given("hosts", "hostfile", _ELASTIC), NOT_ISOLATED)
        if self.has_hosts:
            refuse(self.given(_ELASTIC, "dry_run"), _PLACED)
        if self.host_discovery_script is not None:
            accepted = f"not supported with --{_ELASTIC}"
            refuse(self.given("dry_run", "cluster_as"), accepted)
