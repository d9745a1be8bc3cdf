"""The unchanged script of the README trains under every strategy."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from tests.support.pages import readme_script
from tests.support.processes import launch
from tfdist.strategy_table import table

pytestmark = [pytest.mark.stacks("newest", horovod=("2.18",)), pytest.mark.timeout(200)]

FLAGS = {
    "one_device": [],
    "mirrored": [],
    "central_storage": [],
    "multi_worker_mirrored": ["--workers=2", "--evaluator"],
    "horovod": ["--workers=2"],
    "in_graph": ["--workers=2"],
    "parameter_server": ["--ps=1", "--workers=2", "--chief", "--evaluator"],
}
OWN_FLAGS = {"mirrored": ["--num_cpu_devices=2"], "central_storage": ["--num_cpu_devices=2"]}


@pytest.mark.parametrize("strategy", list(table.rows()))
def test_the_readme_script_trains(tmp_path: Path, strategy: str) -> None:
    path = tmp_path / "train.py"
    path.write_text(readme_script())
    output = tmp_path / "output"
    ended = launch(
        tmp_path,
        f"--strategy={strategy}",
        *FLAGS[strategy],
        str(path),
        f"--output_dir={output}",
        *OWN_FLAGS.get(strategy, []),
        deadline=150,
    )
    assert ended.code == 0, ended.output
    losses = [json.loads(line)["loss"] for line in (output / "metrics.jsonl").open()]
    assert len(losses) == 3
    assert losses[-1] < losses[0] / 2
    # Tasks that serve and the evaluator never reach the end of `main`.
    printed = re.findall(r"^\[(\S+)\] loss ", ended.output, re.MULTILINE)
    tasks = {"multi_worker_mirrored": 2, "horovod": 2}.get(strategy, 1)
    assert len(printed) == tasks, ended.output
    assert not {name for name in printed if name.startswith(("ps", "evaluator"))}
    if "--evaluator" in FLAGS[strategy]:
        assert len((output / "eval_metrics.jsonl").read_text().splitlines()) >= 1
    assert (output / "saved_model").exists()
    assert (output / "done.json").exists()
