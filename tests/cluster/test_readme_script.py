"""The unchanged script of the README trains under every strategy."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from tests.support.pages import readme_script
from tests.support.processes import launch
from tfdist.config.strategies import table

pytestmark = [pytest.mark.stacks("newest", horovod=("newest",)), pytest.mark.timeout(200)]

FLAGS = {
    "one_device": [],
    "mirrored": [],
    "central_storage": [],
    "multi_worker_mirrored": ["--workers=2", "--evaluator"],
    "horovod": ["--workers=2"],
    "in_graph": ["--workers=2"],
    "parameter_server": ["--ps=1", "--workers=2", "--chief", "--evaluator"],
}
#: Flags of the launcher that some strategies are run with.
MIXED = {
    "multi_worker_mirrored": ["--precision=auto"],
    "horovod": ["--precision=auto"],
    "parameter_server": ["--precision=mixed_bfloat16"],
}
OWN_FLAGS = {"mirrored": ["--num_cpu_devices=2"], "central_storage": ["--num_cpu_devices=2"]}


def run(directory: Path, strategy: str) -> str:
    """Runs the script to its end; returns what was printed."""
    path = directory / "train.py"
    path.write_text(readme_script())
    ended = launch(
        directory,
        f"--strategy={strategy}",
        *FLAGS[strategy],
        *MIXED.get(strategy, []),
        str(path),
        f"--output_dir={directory / 'output'}",
        *OWN_FLAGS.get(strategy, []),
        deadline=150,
    )
    assert ended.code == 0, ended.output
    return ended.output


@pytest.mark.parametrize("strategy", list(table.rows()))
def test_the_readme_script_trains(tmp_path: Path, strategy: str) -> None:
    printed_by_job = run(tmp_path, strategy)
    output = tmp_path / "output"
    losses = [json.loads(line)["loss"] for line in (output / "metrics.jsonl").open()]
    assert len(losses) == 3
    assert losses[-1] < losses[0] / 2
    chosen = re.findall(r"^\[worker:\S+\] tfdist: precision: (\S+)", printed_by_job, re.MULTILINE)
    assert len(chosen) == 2 * (MIXED.get(strategy) == ["--precision=auto"])
    assert len({*chosen}) <= 1, "the tasks agree"
    # Tasks that serve and the evaluator never reach the end of `main`.
    printed = re.findall(r"^\[(\S+)\] loss ", printed_by_job, re.MULTILINE)
    tasks = {"multi_worker_mirrored": 2, "horovod": 2}.get(strategy, 1)
    assert len(printed) == tasks, printed_by_job
    assert not {name for name in printed if name.startswith(("ps", "evaluator"))}
    if "--evaluator" in FLAGS[strategy]:
        assert len((output / "eval_metrics.jsonl").read_text().splitlines()) >= 1
    assert (output / "saved_model").exists()
    assert (output / "done.json").exists()
    if strategy == "horovod":
        again = re.findall(r"^\[\S+\] loss .*", run(tmp_path, strategy), re.MULTILINE)
        first = re.findall(r"^\[\S+\] loss .*", printed_by_job, re.MULTILINE)
        assert sorted(again) == sorted(first), "a complete training has its history"
