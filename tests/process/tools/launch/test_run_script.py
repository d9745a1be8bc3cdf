"""The import path of a training script: the current directory comes last or not at all."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.launchers import DEADLINE, Start

pytestmark = [pytest.mark.stacks("newest"), pytest.mark.timeout(60)]

# The command imports `importlib` and `argparse` first, and the fork server `selectors`. The script
# is the first to import `sched`.
SHADOWED = ("importlib", "argparse", "json", "queue", "sched", "selectors")
SCRIPT = f"import {', '.join(SHADOWED)}; from neighbor import greeting; print(greeting)"


@pytest.fixture
def shared(tmp_path: Path) -> Path:
    """The current directory of the launcher, with modules that another user has left there."""
    for name in SHADOWED:
        (tmp_path / f"{name}.py").write_text("open('marker', 'a').write(__name__)\n")
    return tmp_path


def package_in(directory: Path) -> None:
    """A directory with a script, which is also a package with a module, and its neighbors."""
    (directory / "package").mkdir(parents=True)
    (directory / "package" / "train.py").write_text(SCRIPT)
    for place in (directory, directory / "package"):
        (place / "neighbor.py").write_text(f"greeting = 'from {place.name}'\n")


@pytest.mark.parametrize("program", ["script", "module"])
@pytest.mark.parametrize("method", ["spawn", "fork"])
def test_a_job_imports_nothing_from_a_shared_directory(
    start: Start, shared: Path, tmp_path_factory: pytest.TempPathFactory, method: str, program: str
) -> None:
    elsewhere = shared if program == "module" else tmp_path_factory.mktemp("elsewhere")
    package_in(elsewhere)
    script = [str(elsewhere / "package" / "train.py")]
    if program == "module":
        script = ["-m", "package.train"]
    launcher = start(["-m", "tfdist", "run", f"--start_method={method}", "--workers=2", *script])
    output, errors = launcher.communicate(timeout=DEADLINE)
    # The tasks do not join each other, which the launcher says if they are slow.
    told = [line for line in errors.splitlines() if "no task had joined" not in line]
    assert (launcher.returncode, told) == (0, [])
    place = shared.name if program == "module" else "package"
    assert sorted(output.splitlines()) == [f"[worker:{n}] from {place}" for n in (0, 1)]
    assert not (shared / "marker").exists()
