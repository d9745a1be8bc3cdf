"""The wheel works without the checkout: read-only, for a user who can write only to his home."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from importlib import metadata
from pathlib import Path

import numpy as np
import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests.support.pages import ROOT, readme_script
from tfdist.tools.launch.local import hold_ports

pytestmark = [
    pytest.mark.stacks("newest"),
    pytest.mark.timeout(900),
    pytest.mark.skipif(os.geteuid() != 0, reason="becomes another user"),
]

# Arguments: a directory, where it is mounted, and a command.
MOUNT = 'mount --bind "$1" "$2"; shift 2; exec "$@"'
# Arguments: the directory of Python, its closed parent, a command. Root's own Python, in a home
# that is closed to others, becomes readable for this command alone.
BECOME_USER = """
if [ "$2" ]; then
    mount --bind "$1" /mnt
    mount -t tmpfs -o mode=755 tmpfs "$2"
    mkdir -p "$1"
    mount --move /mnt "$1"
fi
shift 2
exec setpriv --reuid=65534 --regid=65534 --clear-groups "$@"
"""
USER_ID = 65534
PACKAGES = Path(np.__file__).parents[1]


def run(command: Sequence[str | Path], cwd: Path, **options: object) -> str:
    """Runs a command, which must succeed; returns what it printed."""
    ended = subprocess.run(
        list(map(str, command)),
        cwd=cwd,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=600,
        check=False,
        **options,  # type: ignore[call-overload]
    )
    assert ended.returncode == 0, ended.stdout
    return str(ended.stdout)


@pytest.fixture
def directory() -> Iterator[Path]:
    """A directory that other users may read; pytest closes its own to them."""
    with tempfile.TemporaryDirectory() as path:
        Path(path).chmod(0o755)
        yield Path(path)


def parts_of_required(distribution: str) -> set[str]:
    """The names in `PACKAGES` of what a distribution requires, without its own."""
    names, found = [distribution], set[str]()
    while names:
        for requirement in map(Requirement, metadata.requires(names.pop()) or ()):
            name, marker = canonicalize_name(requirement.name), requirement.marker
            if name not in found and (marker is None or marker.evaluate({"extra": ""})):
                found.add(name)
                names.append(name)
    return {
        file.parts[0]
        for name in found
        for file in metadata.files(name) or ()
        if file.parts[0] != ".."  # Programs.
    }


def mounting(directory: Path) -> list[str | Path]:
    """Runs a command that sees the packages of this environment in a directory that users read."""
    (directory / "packages").mkdir(exist_ok=True)
    return ["unshare", "--mount", "sh", "-ec", MOUNT, "sh", PACKAGES, directory / "packages"]


@pytest.fixture
def installation(directory: Path) -> Path:
    """The programs of an environment with nothing but the wheel and what it requires."""
    # The wheel is built from the sdist, so that both are complete.
    # -I: PYTHONPATH may name the checkout.
    run([sys.executable, "-I", "-m", "build", "--outdir", directory, ROOT], directory)
    (wheel,) = directory.glob("tfdist-*.whl")
    run([sys.executable, "-m", "venv", directory / "venv"], directory)
    python = directory / "venv" / "bin" / "python"
    (packages,) = directory.glob("venv/lib/python*/site-packages")
    # pip finds TensorFlow and the like, which take as long to install as all that follows.
    for name in parts_of_required("tfdist"):
        (packages / name).symlink_to(directory / "packages" / name)
    constraints = ROOT / "constraints" / "tf-2.21.txt"
    # Most of the modules are never imported.
    install = ("-I", "-m", "pip", "install", "--quiet", "--no-compile", "--constraint", constraints)
    run([*mounting(directory), python, *install, f"{wheel}[digits]"], directory)
    return python.parent


def test_the_wheel_trains_for_a_user_without_rights(installation: Path, directory: Path) -> None:
    home = directory / "home"
    home.mkdir()
    (home / "train.py").write_text(readme_script())
    os.chown(home, USER_ID, USER_ID)
    environ = {"HOME": str(home), "PATH": f"{installation}:/usr/sbin:/usr/bin:/sbin:/bin"}
    python = Path(sys.base_prefix)
    closed = [str(path) for path in python.parents if not path.stat().st_mode & 0o001]
    parts = [str(python), *(closed[-1:] or [""])]
    becoming = [*mounting(directory), "unshare", "--mount", "sh", "-ec", BECOME_USER, "sh", *parts]

    def as_user(*command: str) -> str:
        return run([*becoming, *command], home, env=environ)

    assert "tfdist 0." in as_user("tfdist", "--version")
    assert "Permission denied" in as_user("sh", "-c", f"! touch {installation}/file")
    imported = as_user("python", "-c", "import tfdist; print(tfdist.__file__)")
    assert str(installation.parent) in imported
    (package,) = installation.parent.glob("lib/python*/site-packages/tfdist")
    assert (package / "py.typed").is_file()
    assert not (package.parent / "estimators").exists()
    assert "train.tfrecords" in as_user("tfdist", "data", "cifar10", "--data_dir=data")
    with hold_ports(2) as ports:
        hosts = ",".join(f"127.0.0.1:{port}" for port in ports)
        check = ["tfdist", "check", "--job_name=worker", f"--worker_hosts={hosts}"]
        script = " & ".join(" ".join([*check, f"--task_index={task}"]) for task in (0, 1))
        assert "all 2 tasks reach each other" in as_user("sh", "-c", f"{script}; wait")
    printed = as_user(
        *("tfdist", "run", "--strategy=multi_worker_mirrored", "--workers=2"),
        *("train.py", "--output_dir=run1"),
    )
    assert "[worker:0] loss 0." in printed
    assert (home / "run1" / "done.json").exists()
