"""The absl flags that a training script adopts.

    tfdist.define_flags()
    app.run(main, flags_parser=tfdist.parse_flags)

A flag may be typed with dashes or underscores: `--task-index=1` is `--task_index=1`.
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
#: Seconds that the tasks of a job wait for each other, by default.
STARTUP_TIMEOUT = 300.0
#: Seconds without a sign of life after which a task counts as lost, by default.
HEARTBEAT_TIMEOUT = 30.0

_CLUSTER_FLAGS = {
    "job_name": "The job that this task belongs to: chief, worker, ps or evaluator.",
    "task_index": "The index of this task within its job, from 0.",
    "chief_hosts": "The chief's host:port; where there is none, worker 0 is the chief.",
    "worker_hosts": "The workers' host:port, separated by commas.",
    "ps_hosts": "The parameter servers' host:port, separated by commas.",
}
_ESTIMATOR_FLAGS = {
    "sync": "parameter_server: update synchronously, as all other strategies do in any case.",
    "replicas_to_aggregate": "parameter_server with --sync: gradients behind one update; workers "
    "beyond that number are backups (default: as many as workers).",
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
)
_INTEGER_FLAGS = {
    "num_gpus": "GPUs that a task uses; 0 trains on the CPU. By default all that are visible, "
    "and none for a ps.",
    "num_cpu_devices": "Logical CPU devices that mirrored and central_storage replicate over "
    "where there is no GPU (default 1).",
    "variable_partitions": "parameter_server: the most parts that a large variable is split "
    "into, over the ps.",
    "num_intra_threads": "Threads within one TensorFlow operation; 0 is all cores.",
    "num_inter_threads": "TensorFlow operations run at a time; 0 is all cores.",
}
# What people write after a boolean flag, absl's own words among them.
_BOOLEANS = {
    **dict.fromkeys(("true", "t", "yes", "y", "on", "1"), True),
    **dict.fromkeys(("false", "f", "no", "n", "off", "0"), False),
}


@dataclass(frozen=True)
class JobFlags:
    """The values of the flags of this module, None where a flag was not given."""

    cluster: ClusterFlags = field(default_factory=ClusterFlags)
    strategy: str = AUTO
    all_reduce: str | None = None
    gradient_dtype: str | None = None
    num_gpus: int | None = None
    num_cpu_devices: int | None = None
    variable_partitions: int | None = None
    num_intra_threads: int | None = None
    num_inter_threads: int | None = None
    sync: bool = False
    replicas_to_aggregate: int | None = None
    startup_timeout: float = STARTUP_TIMEOUT
    heartbeat_timeout: float | None = None
    sync_period: int | None = None
    outer_learning_rate: float | None = None
    outer_momentum: float | None = None
    extra: Mapping[str, Any] = field(default_factory=dict)

    def value(self, flag: str) -> Any:
        """The value of a flag of this module, or of `register`; None if it was not given."""
        return self.extra[flag] if flag in self.extra else getattr(self, flag, None)

    def without(self, names: Iterable[str]) -> JobFlags:
        """The same without the values of some flags."""
        dropped = set(names)
        own: dict[str, Any] = dict.fromkeys(dropped - set(self.extra))
        extra = {name: value for name, value in self.extra.items() if name not in dropped}
        return replace(self, extra=extra, **own)


# The flags of strategies of the user's own: what defines each, and its meaning.
_registered: dict[str, tuple[Callable[..., Any], str]] = {}


def register(name: str, define: Callable[..., Any], meaning: str) -> None:
    """Adds the flag of a strategy of your own, whose row in the table names it.

    Call it before `define_flags`. The value is `options.extra[name]`.

    Args:
      name: the flag, with underscores.
      define: a function of absl, such as `absl.flags.DEFINE_integer`.
      meaning: the help text.
    """
    _registered[name] = define, meaning


def define_flags() -> None:
    """Defines tfdist's flags with absl, and lets every flag be typed with dashes.

    `tfdist.main` calls it. A script without that, or with aliases of these flags, calls it at its
    top: absl knows flags by one spelling only, so the names in `sys.argv` are put into that
    spelling here. A second call does nothing.
    """
    if "strategy" in flags.FLAGS:
        return
    sys.argv[1:] = with_underscores(sys.argv[1:])
    flags.DEFINE_string(
        "strategy", AUTO, "How training is distributed: auto or a name of the strategy table."
    )
    flags.DEFINE_string(
        "all_reduce", None, "multi_worker_mirrored: the collective; auto, ring or nccl."
    )
    flags.DEFINE_string(
        "gradient_dtype",
        None,
        "multi_worker_mirrored, horovod: the type in which gradients are sent and summed; float16, "
        "or under multi_worker_mirrored bfloat16 (default: the type that they have).",
    )
    for name, meaning in _CLUSTER_FLAGS.items():
        # Text, so that a wrong value is answered by the same check as one from TF_CONFIG.
        flags.DEFINE_string(name, None, meaning)
    flags.DEFINE_float(
        "startup_timeout",
        STARTUP_TIMEOUT,
        "Seconds that the tasks of a job wait for each other before they train.",
    )
    flags.DEFINE_float(
        "heartbeat_timeout",
        None,
        "multi_worker_mirrored, horovod, parameter_server: seconds without a sign of life after "
        f"which a task counts as lost (default {HEARTBEAT_TIMEOUT:g}).",
    )
    flags.DEFINE_integer(
        "sync_period",
        None,
        "multi_worker_mirrored, horovod: for slow networks, steps that each task makes by itself "
        "before the weights are averaged.",
        lower_bound=1,
    )
    flags.DEFINE_float(
        "outer_learning_rate",
        None,
        "With --sync_period: what the average change is multiplied by (default 1, or 0.7 with "
        "--outer_momentum).",
        lower_bound=0.0,
    )
    flags.DEFINE_float(
        "outer_momentum",
        None,
        "With --sync_period: Nesterov's momentum over the average changes, as in DiLoCo "
        "(default 0; there 0.9).",
        lower_bound=0.0,
        upper_bound=1.0,
    )
    for name in ("startup_timeout", "heartbeat_timeout"):
        flags.register_validator(
            name,
            lambda seconds: seconds is None or 0 < seconds < math.inf,
            message="must be seconds above 0",
        )
    for name, meaning in _INTEGER_FLAGS.items():
        flags.DEFINE_integer(name, None, meaning, lower_bound=0)
    for name, (define, meaning) in _registered.items():
        define(name, None, meaning)


def define_estimator_flags() -> None:
    """`define_flags`, and the flags that only Estimators and sessions have a use for."""
    define_flags()
    if "sync" in flags.FLAGS:
        return
    flags.DEFINE_bool("sync", False, _ESTIMATOR_FLAGS["sync"])
    flags.DEFINE_integer(
        "replicas_to_aggregate", None, _ESTIMATOR_FLAGS["replicas_to_aggregate"], lower_bound=1
    )


def read_flags(values: flags.FlagValues = flags.FLAGS) -> JobFlags:
    """The flags' values; all at their defaults in a program that did not define them."""
    if "strategy" not in values or not values.is_parsed():
        return JobFlags()
    given: dict[str, Any] = {
        name: getattr(values, name) for name in (*_OTHER_FLAGS, *_INTEGER_FLAGS)
    }
    given |= {name: getattr(values, name) for name in _ESTIMATOR_FLAGS if name in values}
    cluster = {name: getattr(values, name) for name in _CLUSTER_FLAGS}
    extra = {
        name: value
        for name in _registered
        if name in values and (value := getattr(values, name)) is not None
    }
    return JobFlags(cluster=ClusterFlags(**cluster), extra=extra, **given)


def parse_flags(argv: Sequence[str]) -> list[str]:
    """A `flags_parser` for `absl.app.run` that answers a mistake with exit code 2.

    absl's own ends with 1, which launchers take for a failed training. It also reads `--flag False`
    as `--flag`, with a word of the script's own behind it; here that is a mistake.
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
    """`parse_flags` for a script that takes nothing but flags, and must not ignore other words."""
    program, *words = parse_flags(argv)
    with exit_on_usage_error():
        if words:
            raise UsageError(
                "command line",
                received=words[0],
                accepted="flags alone",
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
    """`--train-batch-size=16` as `--train_batch_size=16`; nothing after a lone `--` is changed."""
    result = list(arguments)
    for position, argument in enumerate(result):
        if argument == "--":
            break
        if argument.startswith("--"):
            name, equals, value = argument[2:].partition("=")
            result[position] = "--" + name.replace("-", "_") + equals + value
    return result
