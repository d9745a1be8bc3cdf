"""The output directory: atomic writes, error messages with remedies, and no leftovers."""

from __future__ import annotations

import errno
import json
import os
import stat
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf

from tests.conftest import file_size_limit
from tfdist.errors import OutputError, UsageError
from tfdist.storage import lock, output_directory
from tfdist.storage.files import remove_leftovers
from tfdist.storage.output_directory import (
    OutputDirectory,
    check_writable,
    replacing_directory,
    writing,
)

pytestmark = pytest.mark.stacks("2.15", "newest")


def lines(*epochs: int) -> str:
    return "".join(json.dumps({"epoch": epoch}) + "\n" for epoch in epochs)


@pytest.mark.parametrize(
    ("text", "left"),
    [
        (lines(1, 2, 3, 4), lines(1, 2)),
        (lines(1, 2) + '{"epoch": ', lines(1, 2)),
        (lines(1) + '{"epoch": 2}', lines(1, 2)),
        (lines(3), ""),
        ("", ""),
    ],
    ids=["later", "incomplete", "without_newline", "all", "empty"],
)
def test_later_lines_and_an_incomplete_line_are_removed(
    text: str, left: str, tmp_path: Path
) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_text(text)

    output_directory.cut_json_lines(path, lambda record: record["epoch"] <= 2)

    assert path.read_text() == left


def test_cutting_a_missing_file_creates_no_file(tmp_path: Path) -> None:
    output_directory.cut_json_lines(tmp_path / "metrics.jsonl", lambda _: True)

    assert os.listdir(tmp_path) == []


def test_json_lines_are_appended(tmp_path: Path) -> None:
    path = tmp_path / "new" / "metrics.jsonl"

    output_directory.append_json_line(path, {"epoch": 1})
    output_directory.append_json_line(path, {"epoch": 2})

    assert path.read_text() == lines(1, 2)


def test_text_is_written_atomically(tmp_path: Path) -> None:
    path = tmp_path / "new" / "done.json"
    output_directory.write_text(path, "one\n")
    assert path.read_text() == "one\n"
    with path.open() as reader:
        output_directory.write_text(path, "two\n")
        assert reader.read() == "one\n"

    with pytest.raises(UnicodeEncodeError):
        output_directory.write_text(path, "no UTF-8 has \ud800\n")

    assert path.read_text() == "two\n"
    assert os.listdir(path.parent) == ["done.json"]


def test_a_file_that_is_written_atomically_has_the_default_permissions(tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.touch()

    output_directory.write_text(tmp_path / "done.json", "{}\n")

    mode = (tmp_path / "done.json").stat().st_mode
    assert stat.filemode(mode) == stat.filemode(other.stat().st_mode)


@pytest.mark.parametrize(
    ("value", "expected"),
    [(0.5, 0.5), (float("nan"), None), (float("inf"), None), ([1.0, float("nan")], [1.0, None])],
)
def test_metrics_are_converted_to_valid_json(value: object, expected: object) -> None:
    assert output_directory._as_json(np.asarray(value)) == expected


def test_the_error_for_a_failed_write_names_the_file(tmp_path: Path) -> None:
    path = tmp_path / "done.json"
    path.write_text("one\n")

    with file_size_limit(100), pytest.raises(OutputError) as raised:
        output_directory.write_text(path, "two" * 100)

    assert str(raised.value) == (
        f"{path} could not be written: File too large. Raise the limit on the size of a file "
        "(ulimit -f) and start the job again."
    )
    assert path.read_text() == "one\n"
    assert os.listdir(tmp_path) == ["done.json"]


def test_a_failed_append_leaves_the_file_unchanged(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    output_directory.append_json_line(path, {"epoch": 1})

    with file_size_limit(20), pytest.raises(OutputError, match="could not be written"):
        output_directory.append_json_line(path, {"epoch": 2})

    assert path.read_text() == lines(1)


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (OSError(errno.ENOSPC, "full"), "No space left on device. Make room on its disk"),
        (OSError(errno.EROFS, "read"), "Read-only file system. Give this task write"),
        (
            tf.errors.OutOfRangeError(None, None, "/a/part-0; File too large [Op:SaveV2]"),
            "File too large. Raise the limit",
        ),
        (
            tf.errors.ResourceExhaustedError(None, None, "/a/part-0; No space left on device"),
            "No space left on device. Make room",
        ),
        (IndexError("/a/events; File too large"), "File too large. Raise the limit"),
    ],
)
def test_every_exception_for_a_failed_write_becomes_an_output_error(
    error: Exception, words: str
) -> None:
    for named, path in ((False, "/b"), (True, "/a")):
        if named and isinstance(error, OSError):
            continue
        message = f"^{path} could not be written: {words}"
        with pytest.raises(OutputError, match=message), writing(Path(path), named=named):
            raise error


@pytest.mark.parametrize(
    ("error", "named"),
    [
        (tf.errors.OutOfRangeError(None, None, "End of sequence"), False),
        (tf.errors.UnavailableError(None, None, "Connection reset by peer"), False),
        (tf.errors.ResourceExhaustedError(None, None, "OOM when allocating"), False),
        (FileNotFoundError(errno.ENOENT, "No such file", "/data/train"), True),
        (OutputError("/c", problem="is full", remedy="No space left on device"), False),
    ],
)
def test_other_errors_are_not_converted(error: Exception, named: bool) -> None:
    with pytest.raises(type(error)) as raised, writing(Path("/a"), named=named):
        raise error
    assert raised.value is error


def test_checking_a_writable_directory_changes_nothing(tmp_path: Path) -> None:
    (tmp_path / "existing").mkdir()

    check_writable(tmp_path / "new" / "logs", tmp_path / "existing" / "logs")

    assert os.listdir(tmp_path) == ["existing"]
    assert os.listdir(tmp_path / "existing") == []


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.ESTALE])
def test_a_disk_that_is_full_at_the_start_is_no_usage_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    """So `tfdist run --max_restarts` starts the job again."""

    def refuse(*_: object, **__: object) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "fsync", refuse)
    with pytest.raises(OutputError, match=r"could not be written: .*start the job again"):
        lock.hold(OutputDirectory(tmp_path).lock)


def test_a_file_instead_of_a_directory_is_rejected(tmp_path: Path) -> None:
    (tmp_path / "output").touch()

    with pytest.raises(UsageError, match="accepted: a directory that this task can write"):
        lock.hold(OutputDirectory(tmp_path / "output").lock)


HEX = "0123456789abcdef"
LEFTOVERS = [
    "ckpt-3_temp/",
    "ckpt-3.index.tempstate17021331872",
    "ckpt-3.data-00000-of-00001.tempstate17021331872",
    "model.ckpt-120_temp/",
    "workertemp_1/",
    "tmp_worker_1/",
    f"checkpoint.tmp{HEX * 2}",
    f"graph.pbtxt.tmp{HEX * 2}",
    f"model.ckpt-120.meta.tmp{HEX * 2}",
    f".metrics.jsonl-{HEX}",
    f".done.json-{HEX}",
    f".checkpoint-{HEX}",
    f".writable-{HEX}",
    ".saved_model-a1b2c3_4/",
    ".shared-a1b2c3_4",
]
OF_THE_EVALUATION = [f".eval_metrics.jsonl-{HEX}"]
OTHERS = [
    "ckpt-3.index",
    "ckpt-3_temporary",
    "my_ckpt-3_temp/",
    "checkpoint",
    "checkpoint.tmp1",
    "model.ckpt-120.meta",
    "tmp_data_1/",
    "notes.tmp",
    ".notes-0123456789abcdef",
    ".saved_model/",
    "saved_model/",
    "saved_model-a1b2c3_4/",
]


@pytest.mark.parametrize("of_evaluation", [False, True])
def test_only_leftovers_are_removed(of_evaluation: bool, tmp_path: Path) -> None:
    for name in [*LEFTOVERS, *OF_THE_EVALUATION, *OTHERS]:
        if name.endswith("/"):
            (tmp_path / name).mkdir()
            (tmp_path / name / "part-00000-of-00001").touch()
        else:
            (tmp_path / name).touch()

    remove_leftovers(tmp_path, of_evaluation=of_evaluation)

    other = LEFTOVERS if of_evaluation else OF_THE_EVALUATION
    left = sorted(name.rstrip("/") for name in (*OTHERS, *other))
    assert sorted(os.listdir(tmp_path)) == left
    remove_leftovers(tmp_path / "missing")


def test_an_interrupted_replacement_is_finished(tmp_path: Path) -> None:
    target = tmp_path / "saved_model"
    target.mkdir()

    class Killed(BaseException):
        pass

    def replace_until_killed(source: Path, place: Path) -> None:
        if place == target:
            raise Killed
        rename(source, place)

    rename = os.replace
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "replace", replace_until_killed)
        # A killed process does not remove its temporary directory either.
        patch.setattr("shutil.rmtree", lambda *_, **__: None)
        with pytest.raises(Killed), replacing_directory(target) as temporary:
            (temporary / "saved_model").mkdir()
            (temporary / "saved_model" / "new").touch()
    assert not target.exists()

    remove_leftovers(tmp_path)

    assert os.listdir(tmp_path) == ["saved_model"]
    assert os.listdir(target) == ["new"]
