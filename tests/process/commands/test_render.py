"""What `tfdist render` prints is accepted by what reads it."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest

from tfdist.commands import cli
from tfdist.render.job import EXPORT_TOKEN

pytestmark = [pytest.mark.stacks("newest"), pytest.mark.timeout(60)]


@pytest.mark.parametrize(
    "flags",
    [
        ["--workers=2", "--strategy=multi_worker_mirrored"],
        ["--strategy=parameter_server", "--ps=1", "--evaluator", "--foreign"],
    ],
)
def test_a_shell_reads_the_batch_script(
    flags: Sequence[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["render", "slurm", *flags, "train.py", "--words=a 'b' $c"]) == 0
    printed = capsys.readouterr().out
    subprocess.run(["bash", "-n"], input=printed, text=True, check=True)
    assert """'--words=a '"'"'b'"'"' $c'""" in printed


@pytest.mark.parametrize(
    ("arguments", "command"),
    [
        (
            ["mpirun", "--strategy=parameter_server", "--ps=1", "--workers=2", "--hosts=a:2,b:2"],
            f"{EXPORT_TOKEN}\n"
            "mpirun -np 4 -x TFDIST_JOB_TOKEN --bind-to none --map-by slot --host a:2,b:2 "
            "python train.py -x "
            "--strategy=parameter_server --num_ps=1",
        ),
        (
            ["mpirun", "--strategy=horovod", "--workers=2", "--foreign"],
            f"{EXPORT_TOKEN}\n"
            "mpirun -np 2 -x TFDIST_JOB_TOKEN --bind-to none --map-by slot --oversubscribe "
            "python -m tfdist exec "
            "--strategy=horovod train.py -x",
        ),
        (
            ["horovodrun", "--strategy=horovod", "--workers=2"],
            "horovodrun --gloo -np 2 -H localhost:2 python train.py -x --strategy=horovod",
        ),
    ],
)
def test_commands(
    arguments: Sequence[str], command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["render", *arguments, "train.py", "-x"]) == 0
    assert capsys.readouterr().out == f"{command}\n"


def test_horovodrun_has_only_workers() -> None:
    with pytest.raises(SystemExit):
        cli.main(["render", "horovodrun", "--workers=2", "train.py"])


def test_a_manifest_is_checked(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    flags = ["--workers=2", "--strategy=multi_worker_mirrored", "--image=me/train:1"]
    assert cli.main(["render", "jobset", *flags, "train.py"]) == 0
    rendered, file = capsys.readouterr().out, tmp_path / "job.json"
    file.write_text(rendered)
    assert cli.main(["render", "check", str(file)]) == 0
    file.write_text(rendered.replace("backoffLimit", "backOffLimit"))
    assert cli.main(["render", "check", str(file)]) == 2
    assert "backOffLimit" in capsys.readouterr().err
    file.write_text("kind: JobSet")
    with pytest.raises(SystemExit):
        cli.main(["render", "check", str(file)])
    assert "FILE: received" in capsys.readouterr().err
