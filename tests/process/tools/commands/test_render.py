"""What `tfdist render` prints is accepted by what reads it."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Sequence

import pytest

from tests.support.manifests import validate
from tfdist.tools.commands import cli
from tfdist.tools.render.rendered_job import EXPORT_TOKEN

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
            ["mpirun", "--workers=2", "--cluster_as=torch"],
            f"{EXPORT_TOKEN}\n"
            "mpirun -np 2 -x TFDIST_JOB_TOKEN --bind-to none --map-by slot --oversubscribe "
            "python -m tfdist exec "
            "--strategy=multi_worker_mirrored --cluster_as=torch train.py -x",
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


@pytest.mark.parametrize("kind", ["jobset", "trainjob", "tfjob"])
def test_kubernetes_accepts_the_manifest(kind: str, capsys: pytest.CaptureFixture[str]) -> None:
    flags = ["--workers=2", "--strategy=multi_worker_mirrored", "--image=me/train:1", "--gpus=1"]
    assert cli.main(["render", kind, *flags, "train.py"]) == 0
    validate(json.loads(capsys.readouterr().out))
