"""A healthy job prints nothing of TensorFlow's C++ code; its errors are printed."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.pages import readme_script
from tests.support.processes import ROOT, launch

pytestmark = [
    pytest.mark.stacks(
        "2.15",
        "newest",
        horovod=("2.15", "newest"),
    ),
    pytest.mark.timeout(200),
]

CPP = re.compile(
    r"^(?:\[\S+\] )?(?:\d{4}-\d\d-\d\d [\d:.]+: [IWEF] |[IWEF]\d{4} [\d:.]+ |WARNING: All log )",
    re.MULTILINE,
)
# Whether its processes are copies of one, which is faster but does not show what the import prints.
JOBS = {
    "horovod": (False, ["--strategy=horovod", "--workers=2", "--start_method=spawn"]),
    "parameter_server": (True, ["--ps=1", "--workers=1", "--chief"]),
}


@pytest.mark.parametrize(("copies", "options"), JOBS.values(), ids=JOBS)
def test_a_healthy_job_prints_nothing_of_cpp(
    tmp_path: Path, copies: bool, options: list[str]
) -> None:
    (tmp_path / "train.py").write_text(readme_script())
    command = [*options, str(tmp_path / "train.py"), f"--output_dir={tmp_path / 'output'}"]
    ended = launch(tmp_path, *command, deadline=150, copies=copies)
    assert ended.code == 0, ended.output
    assert "Epoch 3/3" in ended.output
    assert CPP.findall(ended.output) == [], ended.output
    assert "Warning:" not in ended.output  # Of Python.


def start_tensorflow(
    tmp_path: Path, *arguments: str, **environ: str
) -> subprocess.CompletedProcess[str]:
    """Imports TensorFlow and lists its devices, in a process without the variables of this one."""
    script = "import tfdist, tensorflow; from absl import app; app.run(lambda _: None)"
    return subprocess.run(
        [sys.executable, "-c", script, *arguments],
        env={"PYTHONPATH": str(ROOT), "CUDA_VISIBLE_DEVICES": "", **environ},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=100,
    )


def test_verbosity_shows_what_tensorflow_prints(tmp_path: Path) -> None:
    ended = start_tensorflow(tmp_path, "--verbosity=0")
    assert ended.returncode == 0
    assert len(CPP.findall(ended.stderr)) >= 2, ended.stderr


def test_a_fatal_error_of_tensorflow_is_printed(tmp_path: Path) -> None:
    ended = start_tensorflow(tmp_path, TF_XLA_FLAGS="--no_such_flag")
    assert ended.returncode != 0
    assert re.search(r"\bF.* Unknown flags? in TF_XLA_FLAGS: --no_such_flag", ended.stderr)
    assert len(CPP.findall(ended.stderr)) == 1, ended.stderr
