"""A table that does not fit into the memory of one ps trains over two, and stays there."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from scripts.benchmarks.table_jobs import TableJob, TableResult, run

pytestmark = [
    pytest.mark.stacks("2.15", "newest"),
    pytest.mark.timeout(600),
    pytest.mark.skipif(os.geteuid() != 0, reason="a network namespace needs root"),
]

# Memory that TensorFlow gives to the tensors of a ps.
MEGABYTES = 200
LARGE, SMALL = 1_000_000, 250_000


def trained(path: Path, users: int, **options: int) -> TableResult:
    path.mkdir()
    return run(TableJob(users, steps=40, epochs=2, **options), path, copies=True)


@pytest.mark.stacks("2.15")
def test_a_table_larger_than_a_ps_trains_over_two(tmp_path: Path) -> None:
    assert TableJob(LARGE).table_megabytes > MEGABYTES

    alone = trained(tmp_path / "alone", LARGE, batch_size=128, ps=1, ps_megabytes=MEGABYTES)
    assert "OOM when allocating tensor" in alone.failure, alone
    assert "/job:ps/replica:0/task:0" in alone.failure

    large = trained(tmp_path / "large", LARGE, batch_size=128, ps_megabytes=MEGABYTES)
    assert not large.failure
    lines = (tmp_path / "large" / "output" / "metrics.jsonl").read_text().splitlines()
    losses = [json.loads(line)["loss"] for line in lines]
    assert losses[1] < losses[0]

    # Only the rows of a batch are sent.
    small = trained(tmp_path / "small", SMALL, batch_size=128, ps_megabytes=MEGABYTES)
    assert large.bytes_per_step < 1.2 * small.bytes_per_step
    assert large.bytes_per_step < 0.01 * 1e6 * TableJob(LARGE).table_megabytes
    # The table is not in the chief's memory, not even while it is saved and exported.
    table = TableJob(LARGE).table_megabytes - TableJob(SMALL).table_megabytes
    chief = [result.peak_megabytes["chief:0"] for result in (large, small)]
    assert chief[0] - chief[1] < 0.5 * table, chief


@pytest.mark.stacks("newest")
def test_only_the_rows_of_a_batch_are_sent_of_a_table_in_one_part(tmp_path: Path) -> None:
    small, large = (
        trained(tmp_path / str(users), users, ps=1, partitions=1) for users in (10_000, 200_000)
    )
    assert not small.failure and not large.failure
    assert large.bytes_per_step < 1.2 * small.bytes_per_step
