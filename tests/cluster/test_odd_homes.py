"""Jobs on machines that lack what other machines have."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.pages import readme_script
from tests.support.processes import ROOT

pytestmark = [pytest.mark.stacks("2.21"), pytest.mark.timeout(200)]

#: Commands that take a usual part away, in namespaces of their own.
WITHOUT = {
    "writable files in /dev/shm": "mount -t tmpfs -o ro none /dev/shm",
    "IPv6": "sysctl -qw net.ipv6.conf.all.disable_ipv6=1",
    "localhost": 'echo "10.1.2.3 elsewhere" > hosts && mount --bind hosts /etc/hosts',
    "temporary files": "mount -o bind,ro /tmp /tmp; mount -o bind,ro /var/tmp /var/tmp; cd /proc",
    "many open files": "ulimit -n 64",
    "some open files": "ulimit -n 31",
}
_RUN = ["-P", "-m", "tfdist", "run"]


def run(
    directory: Path, without: list[str], *arguments: str, **environ: str
) -> subprocess.CompletedProcess[str]:
    """Runs Python in a shell, after the commands in `WITHOUT`."""
    commands = ["ip link set lo up", *(WITHOUT[name] for name in without), 'exec "$@"']
    shell = ["unshare", "--mount", "--net", "bash", "-ec", "\n".join(commands), "bash"]
    inherited = {name: value for name, value in os.environ.items() if name != "HOME"}
    return subprocess.run(
        [*shell, sys.executable, *arguments],
        cwd=directory,
        env={**inherited, "PYTHONPATH": str(ROOT), **environ},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=150,
        check=False,
    )


@pytest.fixture
def script(tmp_path: Path) -> Path:
    """The script of the README, at a path with a space and a newline."""
    directory = tmp_path / "a directory\nof two lines"
    directory.mkdir()
    path = directory / "my train.py"
    path.write_text(readme_script())
    return path


def test_a_job_needs_little(script: Path) -> None:
    """All these are missing at once, and HOME and a writable TMPDIR as well."""
    without = ["writable files in /dev/shm", "IPv6", "localhost", "many open files"]
    cluster = ["--strategy=parameter_server", "--ps=1", "--workers=2", "--chief", "--evaluator"]
    script_and_flags = [script.name, "--output_dir=my run"]
    ended = run(script.parent, without, *_RUN, *cluster, *script_and_flags, TMPDIR="/proc/tty")

    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert (script.parent / "my run" / "done.json").exists()


@pytest.mark.parametrize(
    ("without", "launcher", "field"),
    [
        ("writable files in /dev/shm", [], "/dev/shm: received 'Read-only file system'"),
        ("temporary files", _RUN, 'TMPDIR: received "No usable temporary directory'),
        ("some open files", _RUN, "ulimit -n: received 31"),
    ],
)
def test_an_error_names_what_a_job_needs(
    script: Path, without: str, launcher: list[str], field: str
) -> None:
    strategy = "--strategy=multi_worker_mirrored"
    options = [*launcher, strategy, "--workers=2"] if launcher else []
    flags = [f"--output_dir={script.parent}", strategy]
    ended = run(script.parent, [without], *options, str(script), *flags)

    assert ended.returncode == 2
    printed = ended.stdout + ended.stderr
    assert f"tfdist: error: {field}" in printed
    assert "Traceback" not in printed
