"""The table and the jobs of scripts/benchmarks/measure_chief.py."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from scripts.benchmarks import measure_chief
from scripts.benchmarks.jobs import Job, Size
from scripts.benchmarks.runs import Result

pytestmark = pytest.mark.stacks("2.15")


def result(rates: list[float], cpu: list[float]) -> Result:
    return Result(rates, 1e6, 1, 1.0, 1.0, cpu)


FOUND = {
    "by hand": result([320.0, 640.0, 960.0], [0.004, 0.002, 0.003]),
    "by hand, steps_per_execution=10": result([3200.0, 6400.0, 3200.0], [0.0004, 0.0004, 0.0005]),
    "tfdist": result([6400.0, 9600.0, 3200.0], [0.00025, 0.00035, 0.0002]),
}


def test_the_table_compares_with_the_best_job_by_hand_turn_by_turn() -> None:
    rows = [row.strip("| ").split(" | ") for row in measure_chief.rows(4, FOUND, 32)]
    assert rows == [
        ["4", "by hand", "20.0 (10.0 to 30.0)", "0.10 (0.10 to 0.30)", "3.000 (2.000 to 4.000)"],
        [
            "4",
            "by hand, steps_per_execution=10",
            "100.0 (100.0 to 200.0)",
            "1.00 (1.00 to 1.00)",
            "0.400 (0.400 to 0.500)",
        ],
        ["4", "tfdist", "200.0 (100.0 to 300.0)", "1.50 (1.00 to 2.00)", "0.250 (0.200 to 0.350)"],
    ]
    assert len(measure_chief.HEADER) == len(rows[0])


def test_without_a_job_by_hand_there_is_no_ratio() -> None:
    (row,) = measure_chief.rows(1, {"tfdist": FOUND["tfdist"]}, 32)
    assert row == "| 1 | tfdist | 200.0 (100.0 to 300.0) |  | 0.250 (0.200 to 0.350) |"


def test_a_job_that_fails_is_left_out_and_the_exit_code_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    compared: list[tuple[str, int, tuple[str, ...]]] = []

    def run_in_turn(jobs: dict[str, Job], directory: Path, size: Size) -> dict[str, Result]:
        compared.extend((job.way, job.processes, job.training_flags) for job in jobs.values())
        return {name: FOUND[name] for name in jobs if name in FOUND and job_works(jobs[name])}

    def job_works(job: Job) -> bool:
        return job.processes == 1

    picture = tmp_path / "chief.png"
    monkeypatch.setattr(measure_chief, "run_in_turn", run_in_turn)
    flags = ["--workers", "1", "2", "--by_hand", "1", "10", f"--plot={picture}"]
    monkeypatch.setattr(sys, "argv", ["measure_chief.py", *flags, "--flags", "nopack_transfers"])
    with pytest.raises(SystemExit) as ended:
        measure_chief.main()
    assert ended.value.code == 1
    assert compared[:3] == [
        ("plain", 1, ("--model=mlp", "--steps_per_execution=1")),
        ("plain", 1, ("--model=mlp", "--steps_per_execution=10")),
        ("tfdist", 1, ("--model=mlp", "--steps_per_execution=1", "--nopack_transfers")),
    ]
    assert len(compared) == 6
    assert capsys.readouterr().out.count("\n| 1 |") == 3
    assert picture.stat().st_size > 0


def test_steps_that_an_execution_does_not_divide_are_refused(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["measure_chief.py", "--steps=250"])
    with pytest.raises(SystemExit):
        measure_chief.main()
    assert "--steps: received 250; accepted: a multiple of 100" in capsys.readouterr().err
