"""The command of docs/strategies/mirrored.md trains a ResNet-18 on digits with two devices."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

import pytest

from tests.support.pages import example
from tests.support.processes import run_by_hand

pytestmark = [pytest.mark.stacks("2.15"), pytest.mark.timeout(240)]

EPOCHS = 2
SHORTER = [f"--epochs={EPOCHS}", "--warmup_epochs=1"]


def test_the_example_learns_digits_with_two_devices(tmp_path: Path) -> None:
    output = tmp_path / "output"
    words = [
        sys.executable,
        *example("strategies/mirrored.md", "fashion_mnist_mirrored.py")[1:],
        *SHORTER,
    ]
    words.append(f"--output_dir={output}")
    ended = run_by_hand(tmp_path, {"example": (words, {})}, deadline=200)["example"]

    assert ended.code == 0, ended.output
    pattern = r"^epoch (\d+): \d+\.\d s, learning rate (\S+), test accuracy (\S+)$"
    printed = re.findall(pattern, ended.output, re.M)
    assert [int(epoch) for epoch, _, _ in printed] == [1, 2]
    # The warm-up ends at the rate of two devices; then a cosine with one epoch falls to 0.
    rates = [float(rate) for _, rate, _ in printed]
    # With Keras 2 they are those of the last step of an epoch.
    assert rates == pytest.approx([0.04, 0], abs=2e-3)
    # The complete command reaches 0.98.
    assert float(printed[-1][2]) >= 0.5, ended.output
    lines = [json.loads(line) for line in (output / "metrics.jsonl").read_text().splitlines()]
    assert [f"{line['val_accuracy']:.4f}" for line in lines] == [text for _, _, text in printed]
    # 1437 images in steps of two batches of 32.
    assert lines[-1]["step"] == EPOCHS * 23
    assert (output / "learning_curves.png").read_bytes().startswith(b"\x89PNG")
