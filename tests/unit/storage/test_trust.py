"""What other users could do in the output directory."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tfdist.data import cifar10
from tfdist.errors import OutputError, UsageError
from tfdist.storage import lock, output_directory
from tfdist.storage.output_directory import OutputDirectory
from tfdist.storage.trust import check_trusted

pytestmark = pytest.mark.stacks("newest")

NOBODY = 65534


@pytest.mark.parametrize("name", ["", "checkpoints"])
def test_a_directory_in_which_everyone_may_write_is_refused(tmp_path: Path, name: str) -> None:
    open_to_all = tmp_path / "output" / name
    open_to_all.mkdir(parents=True)
    open_to_all.chmod(0o777)
    with pytest.raises(UsageError, match=f"Run: chmod o-w {open_to_all}"):
        lock.hold(OutputDirectory(tmp_path / "output").lock)
    assert not (tmp_path / "output" / "lock.json").exists()
    open_to_all.chmod(0o1777)
    check_trusted(tmp_path / "output")


@pytest.mark.parametrize("mode", [0o1777, 0o775, 0o755, 0o700])
def test_a_directory_of_this_user_or_group_or_with_the_sticky_bit_is_not(
    tmp_path: Path, mode: int
) -> None:
    (tmp_path / "checkpoints").mkdir()
    (tmp_path / "checkpoints").chmod(mode)
    tmp_path.chmod(mode)
    check_trusted(tmp_path)
    check_trusted(tmp_path / "new")


@pytest.mark.skipif(os.geteuid() != 0, reason="gives a link to another user")
def test_a_link_of_another_user_is_refused(tmp_path: Path) -> None:
    (tmp_path / "own").symlink_to("/shared")
    check_trusted(tmp_path)
    (tmp_path / "logs").symlink_to("/etc")
    os.lchown(tmp_path / "logs", NOBODY, NOBODY)
    with pytest.raises(UsageError, match="without links of other users, such as logs"):
        check_trusted(tmp_path)


@pytest.mark.parametrize("name", ["metrics.jsonl", "lock.json"])
def test_a_link_in_place_of_a_file_is_not_followed(tmp_path: Path, name: str) -> None:
    victim = tmp_path / "victim"
    victim.write_text("precious\n")
    output = OutputDirectory(tmp_path / "output")
    output.path.mkdir()
    (output.path / name).symlink_to(victim)
    with pytest.raises((UsageError, OutputError), match="symbolic links"):
        if name == "lock.json":
            lock.hold(output.lock)
        else:
            output_directory.append_json_line(output.metrics, {"epoch": 1})
    assert victim.read_text() == "precious\n"


def test_a_path_that_is_no_utf_8_is_refused(tmp_path: Path) -> None:
    path = tmp_path / os.fsdecode(b"run\xff")
    with pytest.raises(UsageError, match=r"output_dir: .* a path that is valid UTF-8"):
        OutputDirectory(path)
    with pytest.raises(UsageError, match=r"--data_dir: .* a path that is valid UTF-8"):
        cifar10.num_examples(path, "train")


def test_a_link_in_place_of_a_file_that_is_replaced_is_removed(tmp_path: Path) -> None:
    victim, done = tmp_path / "victim", tmp_path / "done.json"
    victim.write_text("precious\n")
    done.symlink_to(victim)
    output_directory.write_text(done, "{}\n")
    assert victim.read_text() == "precious\n"
    assert not done.is_symlink() and done.read_text() == "{}\n"
