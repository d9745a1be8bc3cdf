"""Record files: atomic writes, also on a full disk, and verification against the manifest."""

from __future__ import annotations

import json
import os
import resource
import signal
import struct
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tfdist.data import records
from tfdist.errors import UsageError

pytestmark = pytest.mark.stacks("newest")

PAYLOADS = [bytes([i]) * (i + 1) for i in range(5)]
REPOSITORY = Path(__file__).parents[3]

WRITE_MUCH = """
import sys
from pathlib import Path
from tfdist.data import records
from tfdist.errors import exit_on_usage_error

with exit_on_usage_error():
    files = {"a.tfrecords": [bytes(1000)], "b.tfrecords": (bytes(1000) for _ in range(200))}
    records.write(Path(sys.argv[1]), "zeros", files)
"""


def run_python(code: str, *arguments: str, prefix: tuple[str, ...] = ()) -> list[str]:
    return [*prefix, sys.executable, "-c", code, *arguments]


def environment() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(REPOSITORY), "TF_CPP_MIN_LOG_LEVEL": "3"}


def test_tensorflow_reads_the_written_records(tmp_path: Path) -> None:
    import tensorflow as tf

    manifest = records.write(tmp_path / "new" / "place", "numbers", {"a.tfrecords": PAYLOADS})

    path = tmp_path / "new" / "place" / "a.tfrecords"
    assert list(tf.data.TFRecordDataset(str(path)).as_numpy_iterator()) == PAYLOADS
    assert manifest.source == "numbers"
    assert manifest.files["a.tfrecords"] == records.inspect(path)
    assert manifest.files["a.tfrecords"].records == 5
    assert manifest.files["a.tfrecords"].bytes == path.stat().st_size
    assert records.read_manifest(path.parent) == manifest
    assert sorted(os.listdir(path.parent)) == ["a.tfrecords", "manifest.json"]
    records.verify(path.parent, manifest)


def test_there_is_no_manifest_before_the_first_write(tmp_path: Path) -> None:
    assert records.read_manifest(tmp_path) is None
    assert records.read_manifest(tmp_path / "missing") is None


@pytest.mark.parametrize(
    "text", ["", "[]", '{"source": "x"}', '{"source": "x", "files": {"a": 1}}']
)
def test_the_error_for_a_damaged_manifest_names_it(tmp_path: Path, text: str) -> None:
    (tmp_path / "manifest.json").write_text(text)
    with pytest.raises(UsageError, match=r"manifest\.json.*another --data_dir"):
        records.read_manifest(tmp_path)


@pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt])
def test_an_interrupted_write_leaves_no_files(tmp_path: Path, error: type[BaseException]) -> None:
    def payloads() -> Iterator[bytes]:
        yield b"first"
        assert len(list(tmp_path.glob(".b.tfrecords-*"))) == 1
        raise error

    with pytest.raises(error):
        records.write(tmp_path, "x", {"a.tfrecords": PAYLOADS, "b.tfrecords": payloads()})
    assert os.listdir(tmp_path) == []


def test_an_interrupted_replacement_keeps_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"old")
    with pytest.raises(RuntimeError), records.replacing(path) as temporary:
        temporary.write_bytes(b"new")
        raise RuntimeError
    assert path.read_bytes() == b"old"
    with records.replacing(path) as temporary:
        temporary.write_bytes(b"new")
        assert path.read_bytes() == b"old"
    assert path.read_bytes() == b"new"
    assert os.listdir(tmp_path) == ["file"]


def test_a_killed_writer_leaves_only_partial_files(tmp_path: Path) -> None:
    slow = WRITE_MUCH.replace("import sys", "import itertools, sys").replace(
        "range(200)", "itertools.count()"
    )
    process = subprocess.Popen(run_python(slow, str(tmp_path)), env=environment())
    try:
        deadline = time.monotonic() + 60
        while not list(tmp_path.glob(".b.tfrecords-*")):
            assert process.poll() is None and time.monotonic() < deadline
            time.sleep(0.01)
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait()
    assert all(name.startswith(".") for name in os.listdir(tmp_path))

    for left in tmp_path.iterdir():
        left.unlink()
    records.write(tmp_path, "x", {"a.tfrecords": PAYLOADS})
    assert sorted(os.listdir(tmp_path)) == ["a.tfrecords", "manifest.json"]


def test_a_full_disk_gives_one_error_and_leaves_no_files(tmp_path: Path) -> None:
    """Uses a real file system of 64 KB, mounted in a new namespace."""
    disk = tmp_path / "disk"
    disk.mkdir()
    mount = 'mount -t tmpfs -o size=64k disk "$0" && "$@"; code=$?; ls -A "$0" >&2; exit $code'
    namespace = ["unshare", "--map-root-user", "--mount", "sh", "-c", mount, str(disk)]
    done = subprocess.run(
        [*namespace, *run_python(WRITE_MUCH, str(disk))],
        env=environment(),
        capture_output=True,
        text=True,
        timeout=100,
    )
    assert done.returncode == 2, done.stderr
    # A file that `ls` finds would be another line.
    assert len(done.stderr.strip().splitlines()) == 1, done.stderr
    assert "--data_dir: received" in done.stderr
    assert "No space left on device" in done.stderr


def test_a_file_size_limit_gives_one_error_and_leaves_no_files(tmp_path: Path) -> None:
    done = subprocess.run(
        run_python(WRITE_MUCH, str(tmp_path)),
        env=environment(),
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (65536, 65536)),
        capture_output=True,
        text=True,
        timeout=100,
    )
    assert done.returncode == 2, done.stderr
    assert len(done.stderr.strip().splitlines()) == 1, done.stderr
    assert "File too large" in done.stderr
    assert os.listdir(tmp_path) == []


def test_a_data_dir_below_a_file_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(UsageError, match=r"--data_dir.*Not a directory"):
        records.write(tmp_path / "file" / "data", "x", {"a.tfrecords": PAYLOADS})


def test_unknown_files_are_not_overwritten(tmp_path: Path) -> None:
    path = tmp_path / "a.tfrecords"
    records.write(tmp_path, "x", {"a.tfrecords": PAYLOADS[:2]})
    (tmp_path / "manifest.json").unlink()
    before = path.read_bytes()
    with pytest.raises(UsageError, match=r"a\.tfrecords: other records.*another --data_dir"):
        records.write(tmp_path, "x", {"a.tfrecords": PAYLOADS})
    assert path.read_bytes() == before
    assert os.listdir(tmp_path) == ["a.tfrecords"]
    # A run that was interrupted between two renames leaves a file with the same records.
    records.write(tmp_path, "x", {"a.tfrecords": PAYLOADS[:2]})
    assert sorted(os.listdir(tmp_path)) == ["a.tfrecords", "manifest.json"]


def test_every_change_of_a_file_is_detected(tmp_path: Path) -> None:
    manifest = records.write(tmp_path, "x", {"a.tfrecords": PAYLOADS, "b.tfrecords": PAYLOADS})
    path = tmp_path / "b.tfrecords"
    intact = path.read_bytes()
    flipped = bytearray(intact)
    flipped[-5] ^= 1
    for changed in (bytes(flipped), intact[:-1], intact + intact[:17], b""):
        path.write_bytes(changed)
        with pytest.raises(UsageError, match=r"b\.tfrecords.*Delete .*another --data_dir"):
            records.verify(tmp_path, manifest)
    path.unlink()
    with pytest.raises(UsageError, match=r"b\.tfrecords: No such file"):
        records.verify(tmp_path, manifest)


def test_a_manifest_with_a_wrong_count_is_detected(tmp_path: Path) -> None:
    manifest = records.write(tmp_path, "x", {"a.tfrecords": PAYLOADS})
    entry = manifest.files["a.tfrecords"]
    wrong = records.Manifest("x", {"a.tfrecords": records.FileEntry(4, entry.bytes, entry.sha256)})
    with pytest.raises(UsageError, match=r"records=5.*records=4"):
        records.verify(tmp_path, wrong)


@pytest.mark.parametrize("keep", [*range(1, 13), 16, 17])
def test_a_file_that_ends_within_a_record_is_an_error(tmp_path: Path, keep: int) -> None:
    records.write(tmp_path, "x", {"a.tfrecords": PAYLOADS})
    path = tmp_path / "a.tfrecords"
    first = 8 + 4 + len(PAYLOADS[0]) + 4
    path.write_bytes(path.read_bytes()[: first + keep])
    ends = rf"a\.tfrecords'.*ends at byte {first + keep}, within record 1, .* at byte {first}: copy"
    for read in (records.inspect, records.count):
        with pytest.raises(UsageError, match=ends):
            read(path)


def test_importing_the_data_modules_does_not_import_tensorflow() -> None:
    code = (
        "import sys, tfdist.data.cifar10, tfdist.data.records, tfdist.data.sources\n"
        "print([m for m in ('tensorflow', 'sklearn') if m in sys.modules])"
    )
    done = subprocess.run(run_python(code), env=environment(), capture_output=True, text=True)
    assert done.stdout.strip() == "[]", done.stderr


NESTED = "[" * 100_000
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
def test_any_file_is_records_or_a_usage_error(tmp_path: Path, data: st.DataObject) -> None:
    """Damaged lengths must not need memory either."""
    intact = b"".join(
        struct.pack("<QI", len(payload), 0) + payload + bytes(4) for payload in (b"", b"abc" * 9)
    )
    content = bytearray(data.draw(st.just(intact) | st.binary()))
    for _ in range(data.draw(st.integers(0, 3)) if content else 0):
        content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    file = tmp_path / "train.tfrecords"
    file.write_bytes(content)
    try:
        assert records.inspect(file).bytes == len(content)
    except UsageError as error:
        assert str(file) in str(error)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
def test_any_manifest_is_one_or_a_usage_error(tmp_path: Path, data: st.DataObject) -> None:
    entry = {"records": 1, "bytes": 2, "sha256": "3"}
    content: dict[str, object] = {"source": "test", "files": {"train.tfrecords": entry}}
    place = data.draw(st.sampled_from([content, content["files"], entry]))
    assert isinstance(place, dict)
    place[data.draw(st.sampled_from(sorted(place)))] = data.draw(JSON)
    text = data.draw(st.sampled_from([json.dumps(content), NESTED]) | st.text())
    (tmp_path / "manifest.json").write_text(text, encoding="utf-8", errors="replace")
    try:
        found = records.read_manifest(tmp_path)
        assert found is not None
        assert all(type(entry.records) is int for entry in found.files.values())
    except UsageError as error:
        assert "manifest.json" in str(error)
