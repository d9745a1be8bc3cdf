"""The tables of docs/plan.md are what the code computes."""

from __future__ import annotations

import re

import pytest

from tests.support.pages import ROOT
from tfdist.planner import quantities
from tfdist.planner.choice import choose
from tfdist.planner.costs import Candidate, Training, candidates
from tfdist.planner.model import FLOAT_BYTES, Model

pytestmark = pytest.mark.stacks("2.15", "newest")

PAGE = (ROOT / "docs" / "plan.md").read_text()
_CELLS = r" \| ".join([r"([\w -]+)", r"([\d.]+[kMB])", *[r"(.*)"] * 5])
MODELS = re.findall(rf"^\| {_CELLS} \|$", PAGE, re.MULTILINE)
MEASURED = re.findall(r"^\| `[^`]+` \| (\d+) \| (.*) \|$", PAGE, re.MULTILINE)


def name_of(split: Candidate) -> str:
    if split.stages > 1:
        return f"{split.stages} stages"
    return "one device" if split.replicas == 1 else "all-reduce"


@pytest.mark.parametrize("row", MODELS, ids=lambda row: row[0])
def test_the_choice_for_typical_models(row: tuple[str, ...]) -> None:
    _, parameters, activation, seconds, *cells = row
    sizes = (quantities.count("", text) * FLOAT_BYTES for text in (parameters, activation))
    splits = candidates(Training(Model.even(*sizes), workers=8, ps=2))
    for text, cell in zip(("1Gbit", "10Gbit", "100Gbit"), cells, strict=True):
        bandwidth, step = quantities.bandwidth("", text), float(seconds)
        found = choose(
            splits, bandwidth=bandwidth, batch_size=32, memory=16e9, replica_seconds=step
        ).split
        assert found is not None
        rate = found.replicas * 32 / found.step_seconds(bandwidth, step)
        assert cell == f"{name_of(found)}, {rate:,.0f}"


def test_the_models_are_found() -> None:
    assert len(MODELS) == 4


@pytest.mark.parametrize("cells", [cells for _, cells in MEASURED])
def test_measured_and_computed_bytes_are_near(cells: str) -> None:
    numbers = [float(cell.replace(",", "")) for cell in cells.split(" | ")]
    for measured, computed, ratio in zip(numbers[::3], numbers[1::3], numbers[2::3], strict=True):
        assert ratio == pytest.approx(measured / computed, abs=0.0051)
        assert 0.8 <= ratio <= 1.2
