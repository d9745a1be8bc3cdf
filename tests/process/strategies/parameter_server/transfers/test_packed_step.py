"""Packing the transfers between workers and ps does not change the results of a step."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import tensorflow as tf

from tests.support.processes import ROOT, launch
from tfdist.strategies.parameter_server.steps import worker_functions

pytestmark = [pytest.mark.stacks("2.15"), pytest.mark.timeout(180)]

PROGRAM = str(ROOT / "tests" / "support" / "transfers_program.py")


def test_packed_steps_give_the_same_results_with_fewer_transfers(tmp_path: Path) -> None:
    ended = launch(
        tmp_path,
        "--strategy=parameter_server",
        "--ps=2",
        "--workers=1",
        PROGRAM,
        "--nopack_transfers",
        deadline=150,
    )
    assert ended.code == 0, ended.output
    found = re.findall(r"transfers (\d+) (\d+)", ended.output)
    unpacked, packed = zip(*((int(before), int(after)) for before, after in found), strict=True)
    assert len(found) == 10
    assert "under a lock" in ended.output
    assert "packs False" in ended.output
    assert sum(packed) < 0.7 * sum(unpacked)


@pytest.mark.parametrize("packs", [True, False])
def test_packing_can_be_turned_off(packs: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    used = []

    @contextmanager
    def record() -> Iterator[None]:
        used.append(True)
        yield

    monkeypatch.setattr(worker_functions, "packed_transfers", record)
    dataset = tf.data.Dataset.range(7, 8)
    run = worker_functions.Execution(
        tf.distribute.get_strategy(),
        lambda iterator: {"loss": next(iterator)},
        tf.data.IteratorSpec(dataset.element_spec),
        None,
        packs=packs,
    )

    made, (_, logs) = run.make(iter(dataset), 1, 0)

    assert made == 1
    assert int(logs["loss"]) == 7
    assert bool(used) == packs
