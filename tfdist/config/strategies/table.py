"""The table of strategies: finds a row, and checks flags and a cluster against it.

    row = named("auto", environ, cluster, source="TF_CONFIG")
    check_cluster(row, cluster, source="TF_CONFIG")
    options = options_of(row, {"sync": True}, cluster)
    strategy_class = load(row.strategy_path(options))

The rows are those of this package, those of installed packages with an entry point in the group
`tfdist.strategies`, and those that a script registers.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import Any

from tfdist.cluster import Cluster
from tfdist.config.options import Option, Options
from tfdist.config.strategies.rows import ROWS
from tfdist.config.strategies.spec import StrategySpec
from tfdist.errors import UsageError, refuse
from tfdist.process.plugins import Registry

#: The environment variable in which `tfdist run` passes the strategy to its tasks. The script's own
#: `--strategy` takes precedence.
STRATEGY_VARIABLE = "TFDIST_STRATEGY"

#: The group of entry points by which an installed package adds a strategy. Each one names a
#: `StrategySpec` in a module that does not import TensorFlow.
ENTRY_POINTS = "tfdist.strategies"

_table = Registry("strategy", ENTRY_POINTS, ROWS)
register, rows = _table.register, _table.rows


def row(name: str) -> StrategySpec:
    """The row of a strategy.

    Raises:
      UsageError: the table has no strategy of that name.
    """
    found = rows().get(name)
    if found is None:
        raise UsageError.choice("--strategy", name, ["auto", *rows()])
    return found


def choose(cluster: Cluster, source: str, num_gpus: int | None = None) -> str:
    """The default strategy for a cluster and the number of GPUs per task."""
    for spec in rows().values():
        if spec.source == source:
            return spec.name
    if cluster.ps:
        return "parameter_server"
    if len(cluster.training_tasks) > 1:
        return "multi_worker_mirrored"
    return "mirrored" if num_gpus is not None and num_gpus > 1 else "one_device"


def named(
    name: str,
    environ: Mapping[str, str],
    cluster: Cluster,
    source: str,
    num_gpus: int | None = None,
) -> StrategySpec:
    """The row for `--strategy=name`; `auto` chooses from the cluster.

    Raises:
      UsageError: the table has no strategy of that name.
    """
    if name == "auto":
        name = environ.get(STRATEGY_VARIABLE) or "auto"
    return row(choose(cluster, source, num_gpus) if name == "auto" else name)


def options_by_flag() -> dict[str, dict[str, Option]]:
    """The definitions of each flag: by flag, then by the name of the strategy that has it."""
    found: dict[str, dict[str, Option]] = {}
    for spec in rows().values():
        classes = [spec.options, *([spec.estimator.options] if spec.estimator else [])]
        for options in classes:
            for flag, defined in options.defined().items():
                found.setdefault(flag, {}).setdefault(spec.name, defined)
    return found


def check_cluster(spec: StrategySpec, cluster: Cluster, source: str) -> None:
    """Checks that a strategy can train on a cluster.

    Raises:
      UsageError: the cluster has tasks that the strategy cannot use, lacks tasks that it needs, or
        comes from a source for another strategy.
    """
    owners = [other.name for other in rows().values() if other.source == source]
    if owners and spec.name not in owners:
        raise UsageError.choice("--strategy", f"{spec.name} under {source}", owners)
    if spec.uses_ps and not cluster.ps:
        accepted, remedy = "at least one worker and one ps", "Add ps to the cluster"
    elif cluster.ps and not spec.uses_ps:
        accepted, remedy = "no ps", "Remove the ps from the cluster"
    elif len(cluster.training_tasks) > 1 and not spec.spans_tasks:
        accepted, remedy = "one task that trains", "Start one worker alone"
    else:
        return
    given = {"strategy": f"{spec.name} with {cluster}"}
    refuse(given, f"{spec.name} with {accepted}", f"{remedy}, or choose another strategy.")


def options_of(
    spec: StrategySpec,
    given: Mapping[str, Any],
    cluster: Cluster,
    *,
    for_estimators: bool = False,
) -> Options:
    """The options of a strategy, checked.

    Args:
      spec: the strategy.
      given: the flags of strategies that were given, by name.
      cluster: the job's tasks.
      for_estimators: whether the job is for Estimators and sessions.

    Raises:
      UsageError: the strategy does not support Estimators, a flag, its value, or it with these
        tasks.
    """
    if for_estimators and spec.estimator is None:
        names = [other.name for other in rows().values() if other.estimator]
        raise UsageError.choice("--strategy", f"{spec.name} for an Estimator", names)
    options_class = spec.way(for_estimators).options
    for flag in sorted(given.keys() - options_class.defined().keys()):
        owners = " or ".join(f"--strategy={name}" for name in options_by_flag().get(flag, ()))
        accepted = f"not supported with --strategy={spec.name}"
        other = f"choose {owners or 'another strategy'}"
        if flag in spec.options.defined():
            accepted, other = "not supported for Estimators", "train a Keras model"
        refuse({flag: given[flag]}, accepted, f"Leave it out, or {other}.")
    options = options_class(**given)
    options.check(cluster)
    return options


def check_flags(
    spec: StrategySpec, given: Mapping[str, Any], num_gpus: int | None, cluster: Cluster
) -> None:
    """Checks flags in a launcher, which does not know whether the script has an Estimator.

    Raises:
      UsageError: they fit neither to a Keras model nor to an Estimator.
    """
    try:
        spec.check_num_gpus(num_gpus)
        options_of(spec, given, cluster)
    except UsageError as error:
        if spec.estimator is None:
            raise
        try:
            spec.check_num_gpus(num_gpus, for_estimators=True)
            options_of(spec, given, cluster, for_estimators=True)
        except UsageError:
            raise error from None


def load(path: str) -> Any:
    """Imports the object that `module:name` names.

    Raises:
      ImportError: a required package is not installed; the message has the remedy.
    """
    module, _, name = path.partition(":")
    return getattr(importlib.import_module(module), name)
