"""`tfdist report`: the page about a training, also in a real browser."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tfdist.tools.commands import cli
from tfdist.tools.watch.html_report import page_of
from tfdist.tools.watch.training_log import Run

pytestmark = [pytest.mark.stacks("newest"), pytest.mark.timeout(150)]

HOSTILE = "<script>console.error('ran')</script>"
# The page in a phone's width; its numbers are in the document that the browser prints.
FRAME = """<!DOCTYPE html><meta charset="utf-8"><body>
<iframe style="width:375px;height:800px;border:0" src="report.html"></iframe>
<script>
window.onload = () => {
  const page = document.querySelector("iframe").contentDocument;
  const sizes = [...page.querySelectorAll("svg")].map(each => each.getBoundingClientRect().width);
  const found = document.createElement("pre");
  found.textContent = JSON.stringify({
    content: page.documentElement.scrollWidth,
    screen: page.documentElement.clientWidth,
    font: parseFloat(getComputedStyle(page.querySelector("td")).fontSize),
    pictures: sizes,
    requests: page.defaultView.performance.getEntriesByType("resource").length,
  });
  document.body.appendChild(found);
};
</script></body>
"""


def write(path: Path, *records: dict[str, Any]) -> None:
    path.write_text("".join(json.dumps(record) + "\n" for record in records))


@pytest.fixture
def output(tmp_path: Path) -> Path:
    """The output directory of a training with all kinds of trouble."""
    output = tmp_path / "run"
    (output / "checkpoints").mkdir(parents=True)
    write(
        output / "metrics.jsonl",
        *(
            {
                "epoch": epoch,
                "step": 10 * epoch,
                "time": 1.7e9 + 60 * epoch,
                "loss": 1 / epoch if epoch != 3 else None,
                "val_loss": 2 / epoch,
                f"metric_with_a_long_name_{HOSTILE}": 0.125,
                "f1": [0.5, 0.25],
                "examples_per_second": 1234.5,
            }
            for epoch in range(1, 15)
        ),
    )
    write(output / "eval_metrics.jsonl", {"epoch": 14, "time": 1.7e9 + 900, "loss": 0.5})
    start = {
        "event": "start",
        "strategy": "horovod",
        "command": f"train.py --name={HOSTILE} {'x' * 300}",
        "versions": "TensorFlow 2.21.0",
        "tasks": {"worker:0": "10.0.0.1:2222", "worker:1": "10.0.0.2:2222"},
        "flags": {"precision": "auto"},
    }
    write(
        output / "events.jsonl",
        {**start, "epoch": 0, "step": 0, "time": 1.7e9},
        {"event": "preempted", "epoch": 2, "step": 25, "time": 1.7e9 + 150},
        {**start, "epoch": 2, "step": 25, "time": 1.7e9 + 160},
    )
    (output / "hang_report.txt").write_text(f"no step for 62 s\n{HOSTILE}\n{'y' * 300}\n")
    for name in ("ckpt-130.index", "ckpt-140.index", "ckpt-140.data-00000-of-00001"):
        (output / "checkpoints" / name).write_bytes(b"\0" * 1_000_000)
    return output


def test_the_page_has_everything_and_runs_nothing(output: Path) -> None:
    page = page_of(Run.of(output))
    for expected in (
        "not complete",
        "<td>14</td>",
        "started again 1 time.",
        "Not finite in epoch 3: loss.",
        "see the hang report below",
        "1,234 in the fastest epoch",
        "<th>loss (evaluator)</th><td>0.5</td>",
        "<td>horovod</td>",
        "<td>--precision=auto</td>",
        "<th>worker:1</th><td>10.0.0.2:2222</td>",
        "<td>preempted</td>",
        "<td>140</td><td>2.0 MB</td>",
        "no step for 62 s",
    ):
        assert expected in page, expected
    assert page.count("<svg") == 3, "the loss, another metric, the speed"
    assert "<script" not in page and 'src="' not in page


def test_a_browser_shows_it_on_a_phone(output: Path, tmp_path: Path) -> None:
    browser = shutil.which("chromium")
    if browser is None:
        pytest.skip("chromium is not installed, and scripts/test may not install it")
    page = tmp_path / "report.html"
    assert cli.main(["report", str(output), f"--output={page}"]) == 0
    (tmp_path / "frame.html").write_text(FRAME)
    done = subprocess.run(
        [
            *(browser, "--headless=new", "--no-sandbox", "--disable-gpu", "--dump-dom"),
            *("--allow-file-access-from-files", "--enable-logging=stderr"),
            *(f"--user-data-dir={tmp_path}/browser", "--virtual-time-budget=10000"),
            f"file://{tmp_path}/frame.html",
        ],
        capture_output=True,
        text=True,
        timeout=100,
    )
    assert "CONSOLE" not in done.stderr, done.stderr
    match = re.search("<pre>(.*?)</pre>", done.stdout)
    assert match, done.stdout + done.stderr
    found = json.loads(match[1])
    assert found["content"] <= found["screen"], "the page would scroll sideways"
    assert found["font"] >= 16 and min(found["pictures"]) > 300
    assert found["requests"] == 0


def test_without_matplotlib_the_page_has_no_curves(
    output: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    page = page_of(Run.of(output))
    assert "Curves" not in page and "Checkpoints" in page
    assert capfd.readouterr().err.count("pip install 'tfdist[plot]'") == 1


def test_a_run_of_an_estimator_has_evaluations_alone(tmp_path: Path) -> None:
    write(tmp_path / "eval_metrics.jsonl", {"global_step": 7, "time": 1.7e9, "auc": 0.75})
    (tmp_path / "model.ckpt-7.index").touch()
    page = page_of(Run.of(tmp_path))
    assert "<th>steps</th><td>7</td>" in page and "<th>auc (evaluator)</th><td>0.75</td>" in page
    assert "model.ckpt-7" in page and page.count("<svg") == 1


def test_a_page_that_cannot_be_written_is_a_usage_error(
    output: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        cli.main(["report", str(output), "--output=/no/report.html"])
    assert ended.value.code == 2
    assert "--output: received '/no/report.html'" in capfd.readouterr().err
