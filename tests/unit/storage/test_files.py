"""Damaged checkpoints are detected, logged and skipped, and the `checkpoint` file is repaired."""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from unittest import mock

import pytest
import tensorflow as tf

from tfdist.errors import OutputError
from tfdist.storage import files as checkpoint_files
from tfdist.storage.files import damage, newest_intact, newest_saved, repair_state

pytestmark = pytest.mark.stacks("2.15", "newest")


Damage = Callable[[Path], None]


def _cut(suffix: str, size: float) -> Damage:
    def cut(path: Path) -> None:
        file = Path(f"{path}.{suffix}")
        os.truncate(file, int(file.stat().st_size * size))

    return cut


def _flip(suffix: str, position: float) -> Damage:
    def flip(path: Path) -> None:
        file = Path(f"{path}.{suffix}")
        content = bytearray(file.read_bytes())
        content[int(len(content) * position)] ^= 1
        file.write_bytes(content)

    return flip


def _remove(suffix: str) -> Damage:
    return lambda path: Path(f"{path}.{suffix}").unlink()


DATA = "data-00000-of-00001"
DAMAGES: dict[str, tuple[Damage, str]] = {
    "truncated_data": (_cut(DATA, 0.5), "Read less bytes than requested"),
    "empty_data": (_cut(DATA, 0), "Read less bytes than requested"),
    "flipped_bit_in_data": (_flip(DATA, 0.4), "Checksum does not match"),
    "missing_data": (_remove(DATA), "No such file or directory"),
    "truncated_index": (_cut("index", 0.5), "not an sstable"),
    "empty_index": (_cut("index", 0), "too short to be an sstable"),
    "flipped_bit_in_index": (_flip("index", 0.3), "cannot be read"),
    "missing_index": (_remove("index"), "has no .index file"),
}
damages = pytest.mark.parametrize("kind", DAMAGES)

STATES: dict[str, Callable[[Path], object]] = {
    "truncated": lambda path: path.write_text(path.read_text()[:40]),
    "empty": lambda path: path.write_text(""),
    "missing": lambda path: path.unlink(),
    "names_another": lambda path: path.write_text('model_checkpoint_path: "ckpt-9"\n'),
}
states = pytest.mark.parametrize("state", STATES)


class Saved:
    """Checkpoints 1 to 3 of one variable, and operations on their directory."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.value = tf.Variable(tf.random.normal([100]))
        self.save(1, 2, 3)

    def save(self, *numbers: int, keep: int | None = None) -> None:
        for number in numbers:
            path = tf.train.Checkpoint(value=self.value).write(str(self.at(number)))
            checkpoint_files.add(path, checkpoint_files.saved(self.path), keep=keep)

    def at(self, number: int) -> Path:
        return self.path / f"ckpt-{number}"

    def newest(self) -> int:
        """The checkpoint that a writing task resumes from."""
        path = newest_intact(self.path)
        repair_state(self.path, path)
        return checkpoint_files.number(path)

    def named(self) -> list[int]:
        return [checkpoint_files.number(path) for path in checkpoint_files.saved(self.path)]


@pytest.fixture
def saved(tmp_path: Path) -> Saved:
    # The directories of two tests may have the same name, one after the other.
    checkpoint_files.warn_once.cache_clear()
    return Saved(tmp_path / "checkpoints")


@damages
def test_a_damaged_checkpoint_is_skipped_and_logged(
    kind: str, saved: Saved, caplog: pytest.LogCaptureFixture
) -> None:
    do_damage, reason = DAMAGES[kind]
    assert damage(str(saved.at(3))) is None
    do_damage(saved.at(3))

    assert saved.newest() == 2

    skipped = [line for line in caplog.messages if "is skipped" in line]
    assert len(skipped) == 1
    assert str(saved.at(3)) in skipped[0]
    assert reason in skipped[0]
    assert saved.named() == [1, 2]
    latest = tf.train.latest_checkpoint(str(saved.path))
    assert latest == str(saved.at(2)), "TensorFlow should agree"


@damages
def test_a_damaged_checkpoint_can_be_saved_again(kind: str, saved: Saved) -> None:
    DAMAGES[kind][0](saved.at(3))
    assert saved.newest() == 2

    saved.save(3)

    assert damage(str(saved.at(3))) is None
    assert saved.newest() == 3
    assert saved.named() == [1, 2, 3]


@damages
def test_no_intact_checkpoint_is_an_error(kind: str, saved: Saved) -> None:
    for number in (1, 2, 3):
        DAMAGES[kind][0](saved.at(number))

    with pytest.raises(OutputError, match="has no intact checkpoint: ckpt-3") as raised:
        saved.newest()
    assert str(saved.path) in str(raised.value)


@states
def test_a_damaged_state_is_repaired_and_logged(
    state: str, saved: Saved, caplog: pytest.LogCaptureFixture
) -> None:
    STATES[state](saved.path / "checkpoint")

    assert saved.newest() == 3

    (repaired,) = [line for line in caplog.messages if "it now names ckpt-3" in line]
    assert str(saved.path / "checkpoint") in repaired
    assert tf.train.latest_checkpoint(str(saved.path)) == str(saved.at(3))
    caplog.clear()
    assert saved.newest() == 3
    assert not caplog.messages


def test_a_checkpoint_that_is_not_yet_in_the_state_is_used(saved: Saved) -> None:
    state = (saved.path / "checkpoint").read_text()
    saved.save(4)
    (saved.path / "checkpoint").write_text(state)
    assert saved.named() == [1, 2, 3]

    assert saved.newest() == 4
    assert saved.named() == [1, 2, 3, 4]


def test_checkpoints_are_ordered_by_number(saved: Saved) -> None:
    saved.save(9, 10, 11)
    (saved.path / "checkpoint").unlink()

    assert saved.newest() == 11
    assert saved.named() == [1, 2, 3, 9, 10, 11]


def test_the_newest_checkpoint_is_used_even_if_the_state_names_an_older_one(saved: Saved) -> None:
    """The state was edited by hand; TensorFlow and tfdist must resume from the same checkpoint."""
    state = saved.path / "checkpoint"
    state.write_text(state.read_text().replace("ckpt-3", "ckpt-2", 1))
    assert tf.train.latest_checkpoint(str(saved.path)) == str(saved.at(2))

    assert saved.newest() == 3
    assert tf.train.latest_checkpoint(str(saved.path)) == str(saved.at(3))


@pytest.mark.parametrize("state", [None, *STATES])
def test_damaged_checkpoints_do_not_count_towards_keep(state: str | None, saved: Saved) -> None:
    DAMAGES["truncated_data"][0](saved.at(3))
    if state:
        STATES[state](saved.path / "checkpoint")
    assert saved.newest() == 2

    saved.save(5, keep=2)
    assert saved.named() == [2, 5]


def test_a_removal_that_is_killed_leaves_no_file_forever(
    saved: Saved, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_state = checkpoint_files._write_state
    for number, functions in enumerate(
        ({"_files": [KeyboardInterrupt]}, {"_write_state": [mock.DEFAULT, KeyboardInterrupt]}), 4
    ):
        with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
            for name, effects in functions.items():
                killed = mock.Mock(wraps=write_state, side_effect=effects)
                patch.setattr(checkpoint_files, name, killed)
            saved.save(number, keep=2)
        assert saved.newest() == number
    saved.save(6, keep=2)
    assert saved.newest() == 6
    names = sorted(path.name for path in saved.path.glob("*.index"))
    assert names == ["ckpt-5.index", "ckpt-6.index"]
    assert len(list(saved.path.glob("*.data-*"))) == 2


def test_a_correct_state_is_not_rewritten(saved: Saved) -> None:
    before = (saved.path / "checkpoint").stat()

    assert saved.newest() == 3
    after = (saved.path / "checkpoint").stat()
    assert (after.st_ino, after.st_mtime_ns) == (before.st_ino, before.st_mtime_ns)


def test_files_of_an_interrupted_save_are_removed_but_not_those_of_a_missing_index(
    saved: Saved,
) -> None:
    (saved.path / f"ckpt-4.{DATA}").write_bytes(b"new")
    DAMAGES["missing_index"][0](saved.at(3))

    assert saved.newest() == 2
    assert not (saved.path / f"ckpt-4.{DATA}").exists()
    assert (saved.path / f"ckpt-3.{DATA}").exists()


def test_no_checkpoint_is_none(tmp_path: Path) -> None:
    assert newest_intact(tmp_path / "missing") is None
    assert newest_intact(tmp_path) is None
    (tmp_path / "ckpt-best.index").touch()
    (tmp_path / "other-3.index").touch()
    assert newest_intact(tmp_path) is None


def test_the_first_save_may_be_interrupted(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / f"ckpt-1.{DATA}").write_bytes(b"new")

    assert newest_intact(tmp_path) is None
    assert "ckpt-1 has no .index file" in caplog.text

    (tmp_path / f"ckpt-2.{DATA}").write_bytes(b"new")
    with pytest.raises(OutputError):
        newest_intact(tmp_path)


def test_a_state_without_its_checkpoints_is_an_error(saved: Saved) -> None:
    for path in saved.path.glob("ckpt-*"):
        path.unlink()

    with pytest.raises(OutputError, match="no intact checkpoint: ckpt-3 has no"):
        saved.newest()


def test_other_tasks_find_the_same_checkpoint_during_the_repair(
    saved: Saved, caplog: pytest.LogCaptureFixture
) -> None:
    DAMAGES["truncated_data"][0](saved.at(3))
    STATES["truncated"](saved.path / "checkpoint")

    before = newest_intact(saved.path, warn=False)
    assert not caplog.messages
    saved.newest()
    assert newest_intact(saved.path, warn=False) == before == str(saved.at(2))


def test_the_state_of_a_dataset_can_be_read(tmp_path: Path) -> None:
    iterator = iter(tf.data.Dataset.range(3))
    path = tf.train.Checkpoint(iterator=iterator).write(str(tmp_path / "ckpt-1"))

    assert damage(path) is None


def test_checkpoints_in_a_moved_directory_are_found(saved: Saved) -> None:
    state = saved.path / "checkpoint"
    state.write_text(state.read_text().replace("ckpt-", f"{saved.path}/ckpt-"))
    saved.path = saved.path.rename(saved.path.with_name("moved"))

    assert saved.named() == [1, 2, 3]
    assert saved.newest() == 3


# Another task removes checkpoints in the meantime.


def replace_all_after(
    name: str, saved: Saved, monkeypatch: pytest.MonkeyPatch
) -> Callable[[], bool]:
    """Saves checkpoint 4, which removes all others, after the first call of a function of `files`.

    Returns:
      A function that tells whether it was called.
    """
    original = getattr(checkpoint_files, name)
    calls: list[object] = []

    def call(*arguments: object) -> object:
        result = original(*arguments)
        if not calls:
            calls.append(result)
            saved.save(4, keep=1)
        return result

    monkeypatch.setattr(checkpoint_files, name, call)
    return lambda: bool(calls)


def test_a_list_that_is_out_of_date_is_read_again(
    saved: Saved, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    was_called = replace_all_after("_all_checkpoints", saved, monkeypatch)

    assert newest_intact(saved.path, warn=False) == str(saved.at(4))
    assert was_called()
    assert not caplog.messages


def test_a_removed_checkpoint_is_not_logged(
    saved: Saved, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    was_called = replace_all_after("saved", saved, monkeypatch)

    assert newest_saved(saved.path) is None
    assert was_called()
    assert newest_saved(saved.path) == str(saved.at(4))
    assert not caplog.messages


def test_a_checkpoint_that_was_incomplete_for_a_moment_is_found(
    saved: Saved, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks = iter(["its file is being written"])
    monkeypatch.setattr(checkpoint_files, "damage", lambda path: next(looks, None) or damage(path))
    saved.save(4, keep=1)
    newest = newest_intact(saved.path, warn=False)
    assert newest is not None and newest.endswith("-4")


def test_nothing_is_logged_while_another_task_saves(
    saved: Saved, caplog: pytest.LogCaptureFixture
) -> None:
    """TensorFlow changes the `checkpoint` file and the files in the order that tfdist assumes."""

    def save_and_remove() -> None:
        for number in range(4, 64):
            saved.save(number, keep=1)

    with ThreadPoolExecutor() as pool:
        task = pool.submit(save_and_remove)
        while not task.done():
            newest_saved(saved.path)
            assert newest_intact(saved.path, warn=False) is not None
        task.result()
    assert not caplog.messages


@damages
def test_the_damage_of_a_checkpoint_that_is_not_removed_is_logged(
    kind: str, saved: Saved, caplog: pytest.LogCaptureFixture
) -> None:
    DAMAGES[kind][0](saved.at(3))

    assert newest_saved(saved.path) == newest_saved(saved.path) == str(saved.at(2))

    (line,) = caplog.messages
    assert line.startswith(f"{saved.at(3)} ") and DAMAGES[kind][1] in line
