"""What `tfdist render` prints is accepted by what reads it."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence

import pytest

from tfdist.commands import cli

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
