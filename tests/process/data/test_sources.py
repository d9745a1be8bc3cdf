"""Sources: small archives in the layouts of CIFAR-10, a refused connection, the digits."""

from __future__ import annotations

import hashlib
import io
import os
import pickle
import tarfile
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest

from tests.support import downloads
from tfdist.data import sources
from tfdist.errors import UsageError

pytestmark = pytest.mark.stacks("2.15")

BATCHES = [*(f"data_batch_{i}" for i in range(1, 6)), "test_batch"]
PER_BATCH = 3


def batch(number: int) -> tuple[np.ndarray, np.ndarray]:
    random = np.random.RandomState(number)
    images = random.randint(0, 256, (PER_BATCH, 3072)).astype(np.uint8)
    return images, random.randint(0, 10, PER_BATCH)


def python_members() -> dict[str, bytes]:
    members = {}
    for number, name in enumerate(BATCHES):
        images, labels = batch(number)
        content = {b"data": images, b"labels": labels.tolist(), b"batch_label": b"batch"}
        members[f"cifar-10-batches-py/{name}"] = pickle.dumps(content, protocol=2)
    return {**members, "cifar-10-batches-py/batches.meta": b"not read"}


def binary_members() -> dict[str, bytes]:
    members = {}
    for number, name in enumerate(BATCHES):
        images, labels = batch(number)
        rows = np.concatenate([labels[:, None].astype(np.uint8), images], axis=1)
        members[f"cifar-10-batches-bin/{name}.bin"] = rows.tobytes()
    names = "\n".join(f"class{i}" for i in range(10))
    return {**members, "cifar-10-batches-bin/batches.meta.txt": names.encode()}


def write_archive(path: Path, members: Mapping[str, bytes], links: Mapping[str, str] = {}) -> str:
    with tarfile.open(path, "w:gz") as archive:
        for name, content in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))
        for name, target in links.items():
            info = tarfile.TarInfo(name)
            info.type = tarfile.SYMTYPE
            info.linkname = target
            archive.addfile(info)
    return hashlib.md5(path.read_bytes()).hexdigest()


def check_splits(splits: Mapping[str, sources.Split]) -> None:
    expected = {"train": [0, 1, 2, 3], "validation": [4], "eval": [5]}
    assert list(splits) == list(expected)
    for split, numbers in expected.items():
        images = np.concatenate([batch(number)[0] for number in numbers])
        labels = np.concatenate([batch(number)[1] for number in numbers])
        np.testing.assert_array_equal(splits[split].images, images.reshape(-1, 3, 32, 32))
        np.testing.assert_array_equal(splits[split].labels, labels)
        assert splits[split].images.dtype == np.uint8 and splits[split].labels.dtype == np.int64


LAYOUTS = [(sources.PYTHON_ARCHIVE, python_members), (sources.BINARY_ARCHIVE, binary_members)]


@pytest.mark.parametrize(("name", "members"), LAYOUTS)
def test_both_archives_give_the_same_splits(tmp_path, name, members) -> None:  # type: ignore[no-untyped-def]
    # The source is identified by its content, not by the file name.
    path = tmp_path / "renamed.tgz"
    md5s = {"other": "0" * 32, name: write_archive(path, members())}
    assert sources.identify(path, md5s=md5s) == name
    assert sources.identify(str(path), md5s=md5s) == name
    check_splits(sources.load(path, md5s=md5s))


def test_the_md5s_are_the_published_ones() -> None:
    assert sources.ARCHIVE_MD5S == {
        "cifar-10-python.tar.gz": "c58f30108f718f92721af3b95e74349a",
        "cifar-10-binary.tar.gz": "c32a1d4ab5d03f1284b67883e8d87530",
    }


class MaliciousPickle:
    """Its pickle creates a directory when it is loaded."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return (os.mkdir, (str(self.path),))


def test_a_wrong_md5_is_an_error_and_no_pickle_is_executed(tmp_path: Path) -> None:
    trace = tmp_path / "unpickled"
    path = tmp_path / sources.PYTHON_ARCHIVE
    members = {
        **python_members(),
        "cifar-10-batches-py/data_batch_1": pickle.dumps(MaliciousPickle(trace)),
    }
    md5 = write_archive(path, members)
    for call in (sources.identify, sources.load):
        with pytest.raises(UsageError, match=rf"MD5 {md5}.*c58f3.*--source=digits"):
            call(path)
    assert not trace.exists()
    # Not even if the MD5 of its archive is trusted.
    with pytest.raises(UsageError, match=r"it names posix\.mkdir"):
        sources.load(path, md5s={sources.PYTHON_ARCHIVE: md5})
    assert not trace.exists()


@pytest.mark.parametrize(("name", "members"), LAYOUTS)
@pytest.mark.parametrize("keep", [0, 10, 0.3, 0.9])
def test_a_truncated_archive_is_an_error(tmp_path, name, members, keep) -> None:  # type: ignore[no-untyped-def]
    path = tmp_path / name
    intact_md5 = write_archive(path, members())
    content = path.read_bytes()
    path.write_bytes(content[: keep if keep >= 1 else int(len(content) * keep)])
    with pytest.raises(UsageError, match=r"MD5.*incomplete"):
        sources.load(path, md5s={name: intact_md5})
    md5 = hashlib.md5(path.read_bytes()).hexdigest()
    with pytest.raises(UsageError, match=r"incomplete or damaged: download it again"):
        sources.load(path, md5s={name: md5})


@pytest.mark.parametrize(("name", "members"), LAYOUTS)
def test_archives_are_not_extracted_to_the_disk(tmp_path, name, members) -> None:  # type: ignore[no-untyped-def]
    inside = tmp_path / "inside"
    inside.mkdir()
    path = inside / name
    malicious = {"../escaped": b"x", f"{tmp_path}/absolute": b"x", **members()}
    md5 = write_archive(path, malicious, {"link": "/etc/passwd"})
    check_splits(sources.load(path, md5s={name: md5}))
    assert os.listdir(tmp_path) == ["inside"] and os.listdir(inside) == [name]


def test_a_link_instead_of_a_batch_is_not_followed(tmp_path: Path) -> None:
    path = tmp_path / "archive"
    members = binary_members()
    del members["cifar-10-batches-bin/data_batch_2.bin"]
    link = {"cifar-10-batches-bin/data_batch_2.bin": "data_batch_1.bin"}
    md5 = write_archive(path, members, link)
    with pytest.raises(UsageError, match=r"KeyError\('data_batch_2'\)"):
        sources.load(path, md5s={sources.BINARY_ARCHIVE: md5})


@pytest.mark.parametrize(("name", "members"), LAYOUTS)
@pytest.mark.parametrize("damaged", [b"", b"\x80", bytes(3072)])
def test_a_damaged_batch_is_an_error(tmp_path, name, members, damaged) -> None:  # type: ignore[no-untyped-def]
    path = tmp_path / name
    contents = members()
    contents[next(key for key in contents if "test_batch" in key)] = damaged
    md5 = write_archive(path, contents)
    if name == sources.BINARY_ARCHIVE and not damaged:
        assert len(sources.load(path, md5s={name: md5})["eval"].labels) == 0
        return
    with pytest.raises(UsageError, match="incomplete or damaged"):
        sources.load(path, md5s={name: md5})


def test_an_unknown_source_is_an_error(tmp_path: Path) -> None:
    for source in ("cifar100", tmp_path / "missing.tar.gz", tmp_path):
        for call in (sources.identify, sources.load):
            with pytest.raises(UsageError, match=r"--source.*download, digits, or the path"):
                call(source)


def test_the_split_of_the_digits_never_changes() -> None:
    from sklearn.datasets import load_digits

    splits = sources.load("digits")
    sizes = {split: len(content.labels) for split, content in splits.items()}
    assert sizes == {"train": 1257, "validation": 180, "eval": 360}

    # Every digit of scikit-learn is in exactly one split, with its own label.
    digits = load_digits()
    expected = sorted(
        (np.rint(image * 255 / 16).astype(np.uint8).tobytes(), int(label))
        for image, label in zip(digits.images, digits.target, strict=True)
    )
    found = []
    for content in splits.values():
        for image, label in zip(content.images, content.labels, strict=True):
            small = image[0, ::4, ::4]
            np.testing.assert_array_equal(
                image, np.broadcast_to(np.kron(small, np.ones((4, 4))), (3, 32, 32))
            )
            found.append((small.tobytes(), int(label)))
    assert sorted(found) == expected
    assert max(content.images.max() for content in splits.values()) == 255
    # The order is fixed: another order would silently move test images into the training split.
    assert splits["train"].labels[:8].tolist() == [2, 8, 2, 6, 6, 7, 1, 9]
    assert sources.identify("digits") == "digits"


DOWNLOAD = """
import sys
from tfdist.data import sources
from tfdist.errors import exit_on_usage_error

with exit_on_usage_error():
    splits = sources.load("download", md5s={sources.BINARY_ARCHIVE: sys.argv[1]})
    import numpy as np
    fields = [(split, field) for split in splits for field in ("images", "labels")]
    np.savez(sys.argv[2], **{f"{s}_{field}": getattr(splits[s], field) for s, field in fields})
"""


def test_a_download_is_read_once_it_is_complete(tmp_path: Path) -> None:
    cache = tmp_path / ".keras" / "datasets"
    cache.mkdir(parents=True)
    path = cache / sources.BINARY_ARCHIVE
    md5 = write_archive(path, binary_members())
    saved = tmp_path / "splits.npz"
    done = downloads.run(DOWNLOAD, tmp_path, md5, str(saved))
    assert done.returncode == 0, done.stderr
    with np.load(saved) as arrays:
        check_splits(
            {
                split: sources.Split(arrays[f"{split}_images"], arrays[f"{split}_labels"])
                for split in sources.SPLITS
            }
        )

    # Keras downloads the rest of it again, and there is no network.
    path.write_bytes(path.read_bytes()[:-1])
    done = downloads.run(DOWNLOAD, tmp_path, md5, str(saved))
    assert done.returncode == 2, done.stderr
    last = done.stderr.strip().splitlines()[-1]
    assert last.startswith("tfdist: error: --source: received 'download'")
    assert "--source=digits" in last and sources.BINARY_ARCHIVE in last
