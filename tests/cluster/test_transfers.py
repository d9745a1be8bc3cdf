"""The bytes that the tasks of a training send are those that `tfdist plan` computes."""

from __future__ import annotations

import pytest

from scripts.benchmarks.measure_transfers import Training, compared, measure

pytestmark = [pytest.mark.stacks("2.15"), pytest.mark.timeout(120)]


@pytest.mark.parametrize(
    "training",
    [
        Training("multi_worker_mirrored", workers=3),
        Training("parameter_server", workers=2, ps=1),
    ],
    ids=lambda training: training.split,
)
def test_a_step_sends_what_the_formula_says(training: Training) -> None:
    for measured, computed in compared(training.planned(), measure(training)):
        assert measured == pytest.approx(computed, rel=0.2)
