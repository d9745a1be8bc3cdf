"""The flags of synchronous training with parameter servers."""

from __future__ import annotations

import pytest

from tfdist.errors import UsageError
from tfdist.flags import JobFlags
from tfdist.strategies import table
from tfdist.strategies.parameter_server.strategy import _replicas_to_aggregate


@pytest.mark.parametrize(
    ("options", "replicas"),
    [
        (JobFlags(), None),
        (JobFlags(sync=False), None),
        (JobFlags(sync=True), 3),
        (JobFlags(sync=True, replicas_to_aggregate=1), 1),
        (JobFlags(sync=True, replicas_to_aggregate=3), 3),
    ],
)
def test_the_number_of_gradients_per_update(options: JobFlags, replicas: int | None) -> None:
    assert _replicas_to_aggregate(options, workers=3) == replicas


@pytest.mark.parametrize(
    ("options", "received"),
    [
        (JobFlags(sync=True, replicas_to_aggregate=4), "4"),
        (JobFlags(sync=True, replicas_to_aggregate=0), "0"),
        (JobFlags(replicas_to_aggregate=2), "'2 without --sync'"),
    ],
)
def test_an_impossible_number_is_refused(options: JobFlags, received: str) -> None:
    with pytest.raises(
        UsageError, match=rf"--replicas_to_aggregate: received {received}; accepted: 1 to 3 with"
    ):
        _replicas_to_aggregate(options, workers=3)


@pytest.mark.parametrize("name", sorted(set(table.TABLE) - {"parameter_server"}))
def test_other_strategies_refuse_the_flag(name: str) -> None:
    with pytest.raises(UsageError, match="--sync: received True; accepted: not supported with"):
        table.check_flags(table.row(name), JobFlags(sync=True))
