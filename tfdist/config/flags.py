"""The absl flags that tfdist adds to a training script.

    tfdist.define_flags()
    app.run(main, flags_parser=tfdist.parse_flags)

Flag names accept dashes and underscores: `--task-index=1` is `--task_index=1`.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from itertools import pairwise
from typing import Any

from absl import flags

from tfdist.cluster import task_types
from tfdist.cluster.config import ClusterFlags
from tfdist.cluster.task_counts import TaskCounts
from tfdist.cluster.task_types import TaskType
from tfdist.config.launch_options import LaunchOptions
from tfdist.config.options import Option, Options, option
from tfdist.config.strategies import table
from tfdist.errors import EXIT_OK, EXIT_USAGE, UsageError, exit_on_usage_error, log, refuse
from tfdist.process import precision

AUTO = "auto"
#: Default seconds without a heartbeat after which a task is considered lost.
HEARTBEAT_TIMEOUT = 30.0

#: The environment variable in which `tfdist run` passes the flags before the script to its tasks,
#: as a JSON object. The script's own flags take precedence.
FLAGS_VARIABLE = "TFDIST_FLAGS"

_DEFINE = {
    bool: flags.DEFINE_bool,
    int: flags.DEFINE_integer,
    float: flags.DEFINE_float,
    str: flags.DEFINE_string,
}
#: The values of --tracker.
TRACKERS = ("mlflow", "wandb")
# The values that users write after a boolean flag, including the ones that absl accepts.
_BOOLEANS = {
    **dict.fromkeys(("true", "t", "yes", "y", "on", "1"), True),
    **dict.fromkeys(("false", "f", "no", "n", "off", "0"), False),
}


@dataclass(frozen=True)
class JobFlags(Options):
    """The flags of every job.

    Attributes:
      cluster: the flags that describe the cluster and this task.
      counts: how many ranks are ps and the like, where an engine numbers the tasks.
      of_strategy: the flags of strategies that were given, by name.
    """

    strategy: str = option(AUTO, "how to distribute the training: auto, or the name of a strategy")
    num_gpus: int | None = option(
        None,
        "the number of GPUs that a task uses; 0 for none; at most 1 where a task trains on one "
        "device (default: all visible GPUs, and none for a ps)",
        least=0,
    )
    startup_timeout: float = option(
        300.0, "seconds that the tasks wait for each other before training", above=0.0
    )
    heartbeat_timeout: float | None = option(
        None,
        "seconds without a heartbeat after which another task is considered lost (default "
        f"{HEARTBEAT_TIMEOUT:g}); only where several tasks train together",
        above=0.0,
    )
    step_timeout: float | None = option(
        None,
        "seconds that a step may take before the task fails with a hang report; 0 for no limit "
        "(default: ten times the slowest step so far, and at least 60)",
        least=0.0,
    )
    precision: str = option(
        precision.FLOAT32,
        "the dtype in which the layers of a Keras model compute; the weights stay float32; auto "
        "takes mixed_bfloat16 where a short measurement finds it faster",
        choices=precision.CHOICES,
        same_in_all_tasks=True,
    )
    jit_compile: bool = option(
        False,
        "let XLA compile the steps of a Keras model under one_device, as model.compile(jit_compile="
        "True) does; horovod and in_graph turn it off, the other strategies refuse it",
        same_in_all_tasks=True,
    )
    resume_hyperparameters: str = option(
        "checkpoint",
        "whose learning rate a training resumes with, if the script now sets another one than "
        "before; for a legacy optimizer of Keras 2, also its momentum and others",
        choices=("checkpoint", "script"),
        same_in_all_tasks=True,
    )
    profile_steps: str | None = option(
        None,
        "FIRST:LAST, such as 100:110: profiles the steps between these numbers of updates in all "
        "tasks, for TensorBoard",
    )
    export_steps: int | None = option(
        None,
        "exports the model to export/STEP in the output directory at the first checkpoint after "
        "this many updates, again and again, for TensorFlow Serving",
        least=1,
        same_in_all_tasks=True,
    )
    export_best: str | None = option(
        None,
        "max:METRIC or min:METRIC, such as max:val_auc: exports the model after each epoch in "
        "which the metric is the best so far; this export stays",
        same_in_all_tasks=True,
    )
    export_keep: int = option(
        5, "with --export_steps or --export_best: how many exports are kept", least=1
    )
    delta_steps: int | None = option(
        None,
        "writes the rows of dynamic tables that have changed to deltas/STEP in the output "
        "directory at the first checkpoint after this many updates, again and again",
        least=1,
        same_in_all_tasks=True,
    )
    prometheus_port: int | None = option(
        None,
        "the port where the chief serves its metrics to Prometheus (default: none)",
        least=1,
        most=65535,
    )
    prometheus_host: str = option(
        "127.0.0.1",
        "with --prometheus_port: the address of the chief's machine where it serves; 0.0.0.0 lets "
        "every machine read the metrics",
    )
    tracker: str = option(
        "",
        f"where the chief sends the metrics: {' or '.join(TRACKERS)}, or both with a comma",
    )
    num_intra_threads: int | None = option(
        None, "threads within one TensorFlow operation; 0 uses all cores", least=0
    )
    num_inter_threads: int | None = option(
        None, "TensorFlow operations that run in parallel; 0 uses all cores", least=0
    )
    cluster: ClusterFlags = field(default_factory=ClusterFlags)
    counts: TaskCounts = field(default_factory=TaskCounts)
    of_strategy: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.prometheus_port is None:
            own = self.given("prometheus_host")
            refuse(own, "with --prometheus_port", "Add the port, or leave it out.")
        for name in self.trackers:
            if name not in TRACKERS:
                raise UsageError.choice("--tracker", name, TRACKERS)
        if self.best_metric is None:
            refuse(self.given("export_best"), "max:METRIC or min:METRIC", "Correct it.")
        if self.export_steps is None and self.export_best is None:
            refuse(
                self.given("export_keep"),
                "with --export_steps or --export_best",
                "Add one of them, or leave it out.",
            )
        if self.profiled_steps is None:
            accepted = "two numbers of updates from 0, the first one less: 100:110"
            refuse(self.given("profile_steps"), accepted, "Correct it.")

    @property
    def trackers(self) -> list[str]:
        """The names in `tracker`, without repetitions."""
        names = (name.strip() for name in self.tracker.split(","))
        return list(dict.fromkeys(filter(None, names)))

    @property
    def best_metric(self) -> tuple[int, str] | None:
        """Of `export_best`: 1 or -1 if more or less is better, and the metric; None without."""
        match = re.fullmatch("(max|min):(.+)", self.export_best or "")
        return ((1 if match[1] == "max" else -1), match[2]) if match else None

    @property
    def profiled_steps(self) -> tuple[int, int] | None:
        """The numbers of `profile_steps`; None if it is not such a text."""
        match = re.fullmatch(r"(\d{1,12}):(\d{1,12})", self.profile_steps or "", re.ASCII)
        steps = (int(match[1]), int(match[2])) if match else (0, 0)
        return steps if steps[0] < steps[1] else None

    @classmethod
    def of(cls, **given: Any) -> JobFlags:
        """Creates the flags of a job from flags of jobs and of strategies together.

        Args:
          **given: the flags that were given, and `cluster` and `counts`; None for one that was not.

        Raises:
          UsageError: a value is out of its bounds.
        """
        given = {name: value for name, value in sorted(given.items()) if value is not None}
        own = {each.name: given.pop(each.name) for each in fields(cls) if each.name in given}
        return cls(of_strategy=given, **own)


def option_flags() -> dict[str, Option]:
    """The flags of jobs and of all strategies, by name, except those of the cluster.

    The help of a strategy's flag names the strategies that have it.
    """
    result = dict(JobFlags.defined())
    for name, by_strategy in table.options_by_flag().items():
        first, *others = by_strategy.values()
        choices = tuple(dict.fromkeys(c for each in (first, *others) for c in each.choices))
        help = f"{', '.join(by_strategy)}: {first.help}"
        result[name] = replace(first, help=help, choices=choices)
    return result


def _rank_help(kind: TaskType) -> str:
    what = "whether one rank is" if kind.most == 1 else "the number of ranks that are"
    return f"{what} {kind.name}, where an engine such as Slurm numbers the tasks"


def define_flags() -> None:
    """Defines tfdist's flags with absl, and makes every flag accept dashes.

    `tfdist.main` calls this. A script without `tfdist.main`, or with aliases of these flags, calls
    it at its top level. absl accepts only one spelling of a flag, so this function rewrites the
    flag names in `sys.argv` with underscores. A second call does nothing.
    """
    if "strategy" in flags.FLAGS:
        return
    sys.argv[1:] = with_underscores(sys.argv[1:])
    for name, meaning in ClusterFlags.defined().items():
        # Strings, so that the same check as for TF_CONFIG reports an invalid value.
        flags.DEFINE_string(name, None, meaning)
    by_rank = task_types.by_rank_flag()
    for name, kind in by_rank.items():
        if name in flags.FLAGS:
            continue  # A script may have a flag of this name already; it is not tfdist's.
        if kind.most == 1:
            flags.DEFINE_bool(name, False, _rank_help(kind))
        else:
            flags.DEFINE_integer(name, 0, _rank_help(kind), lower_bound=0)
    for name, defined in option_flags().items():
        # None tells that a flag was not given. `Options` checks the values.
        _DEFINE[defined.type](name, None, defined.full_help)
    for name in (*ClusterFlags.defined(), *by_rank, *option_flags()):
        # `--help` shows the flags of the script's own module only.
        flags.FLAGS.register_key_flag_for_module(sys.argv[0], flags.FLAGS[name])


def read_flags(environ: Mapping[str, str] | None = None) -> JobFlags:
    """The flags' values; the defaults in a program that did not define them.

    Args:
      environ: the environment, in which `tfdist run` passes the flags before the script.

    Raises:
      UsageError: a value is out of its bounds, or the environment variable is invalid.
    """
    values = flags.FLAGS
    given = flags_of_environment(environ or {})
    if "strategy" in values and values.is_parsed():
        cluster = {name: getattr(values, name) for name in ClusterFlags.defined()}
        counts = {
            kind.name: getattr(values, name)
            for name, kind in task_types.by_rank_flag().items()
            if name in values and values[name].help == _rank_help(kind)
        }
        given |= {"cluster": ClusterFlags(**cluster), "counts": TaskCounts(**counts)}
        for name in option_flags():
            if name in values and (value := getattr(values, name)) is not None:
                given[name] = value
    return JobFlags.of(**given)


def flags_of_environment(environ: Mapping[str, str]) -> dict[str, Any]:
    """The flags in `FLAGS_VARIABLE`, by name.

    Raises:
      UsageError: it is not a JSON object of flags of their types.
    """
    text = environ.get(FLAGS_VARIABLE)
    if not text:
        return {}
    try:
        given: dict[str, Any] = json.loads(text)
        known = option_flags()
        if all(type(value) is known[name].type for name, value in given.items()):
            return given
    except (json.JSONDecodeError, AttributeError, KeyError):
        pass
    raise UsageError(
        FLAGS_VARIABLE,
        received=text,
        accepted="a JSON object of flags, as tfdist run sets it",
        remedy="Unset it, and pass the flags to tfdist run or to the script.",
    )


def parse_flags(argv: Sequence[str]) -> list[str]:
    """A `flags_parser` for `absl.app.run` that exits with code 2 on a usage error.

    absl's parser exits with 1, which launchers interpret as a failed training, even after `--help`.
    absl also reads `--flag False` as `--flag` and a positional argument `False`; this parser
    rejects it.
    """
    with exit_on_usage_error():
        _check_booleans(argv)
    try:
        return flags.FLAGS(list(argv))
    except SystemExit:
        sys.exit(EXIT_OK)  # absl has printed the help.
    except flags.Error as error:
        name = getattr(error, "flagname", None)
        if name in {**LaunchOptions.defined(), **task_types.by_flag()}:
            log(f"error: --{name} is a flag of tfdist run. Write it before the script")
        else:
            hint = f". {_own_parser(argv[0])}" if name else ""
            log(f"error: {error}{hint}")
        print("Run with --help for the flags of this script.", file=sys.stderr, flush=True)
        sys.exit(EXIT_USAGE)


def _own_parser(program: str) -> str:
    """What a script does whose arguments are not absl's."""
    if "ipykernel" in program or "colab_kernel" in program:
        return "In a notebook, call job = tfdist.init([]) in place of tfdist.run."
    return "A script that parses its flags with argparse calls tfdist.init (docs/flags.md)."


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
            accepted = f"--{name}, --no{name}, --{name}=True and --{name}=False"
            remedy = f"Write --{name}={_BOOLEANS[word.lower()]}."
            refuse({name: f"{argument} {word}"}, accepted, remedy)


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
