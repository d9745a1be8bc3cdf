"""`tfdist test`: proves that this installation can train, or says why it cannot."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tests.support.processes import ROOT
from tfdist.config.strategies import table
from tfdist.errors import UsageError
from tfdist.tools.commands import cli
from tfdist.tools.selftest import problem
from tfdist.tools.selftest.trial import compare

pytestmark = [pytest.mark.stacks("tf_keras"), pytest.mark.timeout(300)]


@pytest.mark.horovod
def test_every_strategy_trains(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["test"]) == 0
    _, *lines = capsys.readouterr().out.splitlines()
    for name in table.rows():
        of_strategy = [line for line in lines if f"--strategy={name}" in line]
        assert of_strategy, name
        assert all(line.startswith("ok") for line in of_strategy), lines
    agreed = [line for line in lines if "2 tasks agree, " in line]
    assert len(agreed) == 2, "horovod and multi_worker_mirrored have weights in each task"


def test_a_broken_library_is_shown(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "horovod.py").write_text("raise ImportError('no libmpi.so')")
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}:{ROOT}")
    assert cli.main(["test", "--strategy=horovod"]) == 1
    out, err = capsys.readouterr()
    assert "FAILED --strategy=horovod --workers=2: The job has failed with code" in out
    assert "no libmpi.so" in err


def test_a_job_that_does_not_end_is_ended(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["test", "--strategy=one_device", "--deadline=0.5"]) == 1
    assert "The job has not ended within 0.5 s." in capsys.readouterr().out


@pytest.mark.parametrize("flag", ["--workers=0", "--ps=0", "--workers=two"])
def test_a_number_that_is_not_positive_is_a_usage_error(
    flag: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        cli.main(["test", flag])
    assert ended.value.code == 2
    assert flag.partition("=")[0] in capsys.readouterr().err


def test_an_unknown_strategy_is_a_usage_error() -> None:
    with pytest.raises(UsageError, match="Did you mean horovod"):
        table.row("horovd")


def test_tasks_must_agree_with_each_other_and_with_numpy() -> None:
    solution = problem.solution(2)
    weights = {"worker:0": solution, "worker:1": solution}
    assert compare(weights, 2, 1e-5) == "2 tasks agree, 0e+00 from NumPy"
    assert compare({"worker:0": solution + 0.2}, 2, 0.5) == "2e-01 from NumPy"
    zeros = np.zeros([problem.FEATURES, 1])
    for found, tolerance, expected in (
        ({}, 0.5, "No task has written its weights."),
        ({**weights, "worker:1": solution + 1e-4}, 0.5, "worker:0 and worker:1 differ."),
        ({"worker:0": solution + 1e-4}, 1e-5, "differ from those of NumPy by 0.0001"),
        ({"worker:0": zeros}, 0.5, "differ from those of NumPy by 1"),
        ({"worker:0": zeros + np.nan}, 0.5, "differ from those of NumPy by nan"),
    ):
        with pytest.raises(ValueError, match=expected):
            compare(found, 2, tolerance)
