"""The absl flags that tfdist adds to a training script.

    tfdist.define_flags()
    app.run(main, flags_parser=tfdist.parse_flags)

Flag names accept dashes and underscores: `--task-index=1` is `--task_index=1`.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any

from absl import flags

from tfdist.cluster.discovery import ClusterFlags
from tfdist.errors import EXIT_USAGE, UsageError, exit_on_usage_error, log

AUTO = "auto"
#: Default seconds that the tasks of a job wait for each other.
STARTUP_TIMEOUT = 300.0
#: Default seconds without a heartbeat after which a task is considered lost.
HEARTBEAT_TIMEOUT = 30.0

_CLUSTER_FLAGS = {
    "job_name": "The type of this task: chief, worker, ps or evaluator.",
    "task_index": "The index of this task among the tasks of its type, from 0.",
    "chief_hosts": "The chief's host:port. Without a chief, worker 0 is the chief.",
    "worker_hosts": "The workers' host:port, separated by commas.",
    "ps_hosts": "The parameter servers' host:port, separated by commas.",
}
_OTHER_FLAGS = (
    "strategy",
    "all_reduce",
    "gradient_dtype",
    "startup_timeout",
    "heartbeat_timeout",
    "sync_period",
    "outer_learning_rate",
    "outer_momentum",
    "pack_transfers",
    "sync",
    "replicas_to_aggregate",
    "stages",
    "microbatches",
    "balance",
)
_INTEGER_FLAGS = {
    "num_gpus": "The number of GPUs that a task uses; 0 trains on the CPU. Default: all visible "
    "GPUs, and none for a ps.",
    "num_cpu_devices": "mirrored, central_storage: the number of logical CPU devices to replicate "
    "over on a machine without a GPU (default 1).",
    "variable_partitions": "parameter_server: the maximum number of partitions of a large "
    "variable over the ps.",
    "partition_bytes": "parameter_server: split variables larger than this number of bytes into "
    "partitions of at most this size over the ps.",
    "num_intra_threads": "Threads within one TensorFlow operation; 0 uses all cores.",
    "num_inter_threads": "TensorFlow operations that run in parallel; 0 uses all cores.",
}
# The values that users write after a boolean flag, including the ones that absl accepts.
_BOOLEANS = {
    **dict.fromkeys(("true", "t", "yes", "y", "on", "1"), True),
    **dict.fromkeys(("false", "f", "no", "n", "off", "0"), False),
}


@dataclass(frozen=True)
class JobFlags:
    """The values of this module's flags; None for a flag that was not given."""

    cluster: ClusterFlags = field(default_factory=ClusterFlags)
    strategy: str = AUTO
    all_reduce: str | None = None
    gradient_dtype: str | None = None
    num_gpus: int | None = None
    num_cpu_devices: int | None = None
    variable_partitions: int | None = None
    partition_bytes: int | None = None
    num_intra_threads: int | None = None
    num_inter_threads: int | None = None
    sync: bool | None = None
    replicas_to_aggregate: int | None = None
    stages: int | None = None
    microbatches: int | None = None
    balance: str | None = None
    startup_timeout: float = STARTUP_TIMEOUT
    heartbeat_timeout: float | None = None
    sync_period: int | None = None
    outer_learning_rate: float | None = None
    outer_momentum: float | None = None
    pack_transfers: bool | None = None
    extra: Mapping[str, Any] = field(default_factory=dict)

    def value(self, flag: str) -> Any:
        """The value of a flag of this module or of `register`; None if it was not given."""
        return self.extra[flag] if flag in self.extra else getattr(self, flag, None)

    def without(self, names: Iterable[str]) -> JobFlags:
        """A copy without the values of the flags `names`."""
        dropped = set(names)
        own: dict[str, Any] = dict.fromkeys(dropped - set(self.extra))
        extra = {name: value for name, value in self.extra.items() if name not in dropped}
        return replace(self, extra=extra, **own)


# The flags of user-defined strategies: name -> (DEFINE function, help text).
_registered: dict[str, tuple[Callable[..., Any], str]] = {}


def register(name: str, define: Callable[..., Any], meaning: str) -> None:
    """Adds the flag of a user-defined strategy; name it in the strategy's row of the table.

    Call this before `define_flags`. The value is `options.extra[name]`.

    Args:
      name: the flag, with underscores.
      define: an absl function, such as `absl.flags.DEFINE_integer`.
      meaning: the help text.
    """
    _registered[name] = define, meaning


def define_flags() -> None:
    """Defines tfdist's flags with absl, and makes every flag accept dashes.

    `tfdist.main` calls this. A script without `tfdist.main`, or with aliases of these flags, calls
    it at its top level. absl accepts only one spelling of a flag, so this function rewrites the
    flag names in `sys.argv` with underscores. A second call does nothing.
    """
    if "strategy" in flags.FLAGS:
        return
    sys.argv[1:] = with_underscores(sys.argv[1:])
    flags.DEFINE_string(
        "strategy", AUTO, "How to distribute the training: auto, or the name of a strategy."
    )
    flags.DEFINE_string(
        "all_reduce", None, "multi_worker_mirrored: the all-reduce; auto, ring or nccl."
    )
    flags.DEFINE_string(
        "gradient_dtype",
        None,
        "multi_worker_mirrored, horovod: the dtype for sending and summing gradients; float16, or "
        "under multi_worker_mirrored bfloat16 (default: the gradients' own dtype).",
    )
    for name, meaning in _CLUSTER_FLAGS.items():
        # Strings, so that the same check as for TF_CONFIG reports an invalid value.
        flags.DEFINE_string(name, None, meaning)
    flags.DEFINE_float(
        "startup_timeout",
        STARTUP_TIMEOUT,
        "Seconds that the tasks of a job wait for each other before training.",
    )
    flags.DEFINE_float(
        "heartbeat_timeout",
        None,
        "multi_worker_mirrored, horovod, parameter_server, in_graph: seconds without a heartbeat "
        f"after which a task is considered lost (default {HEARTBEAT_TIMEOUT:g}).",
    )
    flags.DEFINE_integer(
        "sync_period",
        None,
        "multi_worker_mirrored, horovod: local SGD for slow networks; the steps that each task "
        "makes independently before all tasks average their weights.",
        lower_bound=1,
    )
    flags.DEFINE_float(
        "outer_learning_rate",
        None,
        "With --sync_period: the factor of the averaged weight change (default 1, or 0.7 with "
        "--outer_momentum).",
        lower_bound=0.0,
    )
    flags.DEFINE_float(
        "outer_momentum",
        None,
        "With --sync_period: Nesterov momentum over the averaged weight changes, as in DiLoCo, "
        "which uses 0.9 (default 0).",
        lower_bound=0.0,
        upper_bound=1.0,
    )
    flags.DEFINE_bool(
        "pack_transfers",
        None,
        "parameter_server: send the small tensors of a step together (the default).",
    )
    flags.DEFINE_bool(
        "sync",
        None,
        "parameter_server: update synchronously, as all other strategies always do.",
    )
    flags.DEFINE_integer(
        "replicas_to_aggregate",
        None,
        "parameter_server with --sync: gradients per update. Workers beyond that number are "
        "backups (default: the number of workers).",
        lower_bound=1,
    )
    flags.DEFINE_integer(
        "stages",
        None,
        "in_graph: cut the model by layers into this number of stages, each on its own worker "
        "(default 1).",
        lower_bound=1,
    )
    flags.DEFINE_integer(
        "microbatches",
        None,
        "in_graph: divide the batch of a replica into this number of parts, so that its stages "
        "work at the same time (default 1).",
        lower_bound=1,
    )
    flags.DEFINE_string(
        "balance",
        None,
        "in_graph with --stages: what the stages have an equal share of; parameters (the default), "
        "or time, which is measured.",
    )
    for name in ("startup_timeout", "heartbeat_timeout"):
        flags.register_validator(
            name,
            lambda seconds: seconds is None or 0 < seconds < math.inf,
            message="must be a number of seconds above 0",
        )
    for name, meaning in _INTEGER_FLAGS.items():
        flags.DEFINE_integer(name, None, meaning, lower_bound=0)
    for name, (define, meaning) in _registered.items():
        define(name, None, meaning)


def read_flags(values: flags.FlagValues = flags.FLAGS) -> JobFlags:
    """The flags' values; the defaults in a program that did not define them."""
    if "strategy" not in values or not values.is_parsed():
        return JobFlags()
    given: dict[str, Any] = {
        name: getattr(values, name) for name in (*_OTHER_FLAGS, *_INTEGER_FLAGS)
    }
    cluster = {name: getattr(values, name) for name in _CLUSTER_FLAGS}
    extra = {
        name: value
        for name in _registered
        if name in values and (value := getattr(values, name)) is not None
    }
    return JobFlags(cluster=ClusterFlags(**cluster), extra=extra, **given)


def parse_flags(argv: Sequence[str]) -> list[str]:
    """A `flags_parser` for `absl.app.run` that exits with code 2 on a usage error.

    absl's parser exits with 1, which launchers interpret as a failed training. absl also reads
    `--flag False` as `--flag` and a positional argument `False`; this parser rejects it.
    """
    with exit_on_usage_error():
        _check_booleans(argv)
    try:
        return flags.FLAGS(list(argv))
    except flags.Error as error:
        log(f"error: {error}")
        print("Run with --help for the flags of this script.", file=sys.stderr, flush=True)
        sys.exit(EXIT_USAGE)


def parse_only_flags(argv: Sequence[str]) -> list[str]:
    """`parse_flags` for a script without positional arguments; rejects any."""
    program, *words = parse_flags(argv)
    with exit_on_usage_error():
        if words:
            raise UsageError(
                "command line",
                received=words[0],
                accepted="only flags",
                remedy="Leave it out, or write it as the value of a flag: --flag=value.",
            )
    return [program]


def _check_booleans(argv: Sequence[str]) -> None:
    for argument, word in pairwise(argv):
        if argument == "--":
            break
        name = argument.lstrip("-")
        is_boolean = argument != name and name in flags.FLAGS and flags.FLAGS[name].boolean
        if is_boolean and word.lower() in _BOOLEANS:
            raise UsageError(
                f"--{name}",
                received=f"{argument} {word}",
                accepted=f"--{name}, --no{name}, --{name}=True and --{name}=False",
                remedy=f"Write --{name}={_BOOLEANS[word.lower()]}.",
            )


def with_underscores(arguments: Sequence[str]) -> list[str]:
    """Rewrites `--train-batch-size=16` as `--train_batch_size=16`, up to an argument `--`."""
    result = list(arguments)
    for position, argument in enumerate(result):
        if argument == "--":
            break
        if argument.startswith("--"):
            name, equals, value = argument[2:].partition("=")
            result[position] = "--" + name.replace("-", "_") + equals + value
    return result
