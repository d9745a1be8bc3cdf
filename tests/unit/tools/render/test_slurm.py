"""The batch script of a job.

python -m tests.unit.tools.render.test_slurm     # writes the golden files again
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.support.job_specs import job_spec
from tfdist.errors import UsageError
from tfdist.tools.commands import cli
from tfdist.tools.render import slurm
from tfdist.tools.render.rendered_job import RenderedJob

pytestmark = pytest.mark.stacks("newest")

GOLDEN = Path(__file__).parent / "golden"
JOBS: dict[str, dict[str, Any]] = {
    "workers": {"strategy": "multi_worker_mirrored", "workers": 4},
    "parameter_server": {
        **{"strategy": "parameter_server", "ps": 2, "workers": 4},
        **{"chief": True, "evaluator": True},
    },
}


def job(name: str, **options: Any) -> RenderedJob:
    spec = job_spec(args=("--epochs=3",), **JOBS[name])
    return RenderedJob(spec=spec, name="train", **options)


@pytest.mark.parametrize("name", JOBS)
def test_the_golden_files(name: str) -> None:
    assert f"{slurm.script(job(name))}\n" == (GOLDEN / f"slurm_{name}.sh").read_text()


def test_a_script_that_does_not_use_tfdist_is_started_by_exec() -> None:
    printed = slurm.script(job("parameter_server", foreign=True))
    own = "--strategy=parameter_server --num_ps=2 --evaluator train.py --epochs=3"
    assert f"task python -m tfdist exec {own}\n" in printed


def test_the_command_prints_it(capsys: pytest.CaptureFixture[str]) -> None:
    flags = ["--strategy=parameter_server", "--ps=2", "--workers=4", "--evaluator"]
    assert cli.main(["render", "slurm", *flags, "train.py", "--epochs=3"]) == 0
    assert capsys.readouterr().out == (GOLDEN / "slurm_parameter_server.sh").read_text()


def test_a_mistake_is_found_before_anything_is_printed(
    capsys: pytest.CaptureFixture[str],
) -> None:
    for flags, message in (
        (["--strategy=mirrored", "--workers=2"], "--strategy: received 'mirrored with 2 worker'"),
        (["--name=My_Job"], "--name: received 'My_Job'"),
    ):
        with pytest.raises(SystemExit):
            cli.main(["render", "slurm", *flags, "train.py"])
        printed = capsys.readouterr()
        assert printed.out == ""
        assert message in printed.err


def test_a_name_is_checked() -> None:
    with pytest.raises(UsageError, match="--name"):
        RenderedJob(spec=job("workers").spec, name="a" * 64)


if __name__ == "__main__":
    for each in JOBS:
        (GOLDEN / f"slurm_{each}.sh").write_text(f"{slurm.script(job(each))}\n")
