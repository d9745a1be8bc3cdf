"""Each device reads and writes its own variables only if all of them have the directory."""

from __future__ import annotations

from pathlib import Path

import pytest

from tfdist.storage import io_device

pytestmark = pytest.mark.stacks("2.15", "newest")

CLIENT, OWN = "/job:client/device:CPU:0", "/device:CPU:0"


def test_without_owners_the_given_device_does_it(tmp_path: Path) -> None:
    assert io_device.choose(tmp_path / "new", CLIENT, []) == CLIENT
    assert io_device.choose(tmp_path / "new", None, []) is None
    assert not (tmp_path / "new").exists()


def test_owners_that_have_the_directory_do_it_themselves(tmp_path: Path) -> None:
    directory = tmp_path / "new [1]"
    assert io_device.choose(directory, CLIENT, [OWN, OWN]) is None
    assert list(directory.iterdir()) == []


def test_one_owner_without_the_directory_leaves_it_to_the_given_device(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Like a machine with another file system.
    answers = iter([True, False])
    monkeypatch.setattr(io_device, "_writes", lambda *_: next(answers))
    assert io_device.choose(tmp_path, CLIENT, [OWN, OWN]) == CLIENT


def test_an_owner_must_find_the_file_and_write_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mark, no_file = tmp_path / "mark [1]", tmp_path / "directory"
    mark.touch()
    no_file.mkdir()
    assert io_device._writes(OWN, mark)
    assert mark.read_text() == OWN
    assert not io_device._writes(OWN, tmp_path / "missing")
    assert not (tmp_path / "missing").exists()
    assert not io_device._writes(OWN, no_file)
    # Like a machine that has another file of this name.
    monkeypatch.setattr(io_device.tf.io, "write_file", lambda *_: None)
    mark.write_text("")
    assert not io_device._writes(OWN, mark)
