"""The contract of a strategy is small enough to be read at once."""

from __future__ import annotations

import importlib.util
import inspect

import pytest

from tests.conftest import tensorflow_version
from tfdist.config.strategies import table
from tfdist.strategies import base
from tfdist.strategies.base import Strategy

pytestmark = pytest.mark.stacks("2.15", "newest")

# What the base class provides: a strategy uses it, or sets it in `set_up`.
PROVIDED = {"agreement", "kv_store", "value_of_chief", "sum_of_step"}


def test_the_contract_has_four_abstract_members_and_eight_hooks() -> None:
    abstract = set(Strategy.__abstractmethods__)
    members = {name for name in vars(Strategy) if not name.startswith("_")} - PROVIDED
    assert len(abstract) == 4
    assert len(members - abstract) <= 8
    assert members == {name for name in members if f"`{name}`" in str(base.__doc__)}


def test_every_class_of_the_table_defines_what_is_abstract() -> None:
    for spec in table.rows().values():
        if all(importlib.util.find_spec(package) for package in spec.packages):
            paths = {spec.strategy}
            # TensorFlow 2.15 is the last version with Estimators.
            if spec.estimator and tensorflow_version() < (2, 16):
                paths.add(spec.estimator.strategy or spec.strategy)
            for path in paths:
                assert not inspect.isabstract(table.load(path)), path
