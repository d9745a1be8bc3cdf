"""Random crops and flips of noise images, in which the position of a crop is unique."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from tests.unit.data.test_cifar10 import context, write_examples
from tfdist.data import cifar10, records, sources

pytestmark = pytest.mark.stacks("2.15", "newest")


@pytest.fixture(scope="module")
def data_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_examples(tmp_path_factory.mktemp("data"), 301)


def originals(data_dir: Path) -> np.ndarray:
    return next(iter(cifar10.dataset(data_dir, "train", batch_size=1000)))[0].numpy()


def crops_of(image: np.ndarray, result: np.ndarray, *, mirror: bool) -> list[tuple[int, int]]:
    """All positions in the padded image from which the result may have been cropped."""
    padded = np.pad(image, [(4, 4), (4, 4), (0, 0)])
    wanted = result[:, ::-1] if mirror else result
    return [
        (top, left)
        for top in range(9)
        for left in range(9)
        if np.array_equal(padded[top : top + 32, left : left + 32], wanted)
    ]


def augmented(data_dir: Path, pipeline: int | None = None, **keywords: Any) -> tf.data.Dataset:
    input_context = None if pipeline is None else context(2, pipeline)
    return cifar10.dataset(data_dir, "train", input_context, batch_size=64, **keywords)


def images_of(dataset: tf.data.Dataset) -> np.ndarray:
    return np.concatenate([images for images, _ in dataset])


def test_distort_crops_each_padded_image_at_random(data_dir: Path) -> None:
    results = images_of(augmented(data_dir, distort=True, seed=1))
    positions = []
    for image, result in zip(originals(data_dir), results, strict=True):
        # The images are noise: only one position fits. Without `flip` no image is mirrored.
        (position,) = crops_of(image, result, mirror=False)
        positions.append(position)
    # Each of the 9 offsets occurs about 33 times per axis, independent of the other axis.
    for axis in (0, 1):
        counts = Counter(position[axis] for position in positions)
        assert sorted(counts) == list(range(9)) and min(counts.values()) >= 12
    assert len(set(positions)) > 60


def test_flip_mirrors_about_half_of_the_images(data_dir: Path) -> None:
    results = images_of(augmented(data_dir, flip=True, seed=1))
    mirrored = 0
    for image, result in zip(originals(data_dir), results, strict=True):
        if np.array_equal(result, image[:, ::-1]):
            mirrored += 1
        else:
            np.testing.assert_array_equal(result, image)
    assert 110 < mirrored < 190


def test_distort_and_flip_together_crop_and_mirror(data_dir: Path) -> None:
    results = images_of(augmented(data_dir, distort=True, flip=True, seed=1))
    # The position of the crop must not depend on whether the image is mirrored.
    positions: dict[bool, list[tuple[int, int]]] = {True: [], False: []}
    for image, result in zip(originals(data_dir), results, strict=True):
        straight = crops_of(image, result, mirror=False)
        mirrored = crops_of(image, result, mirror=True)
        assert len(straight) + len(mirrored) == 1
        positions[bool(mirrored)] += straight + mirrored
    assert 110 < len(positions[True]) < 190
    for found in positions.values():
        assert (
            {position[1] for position in found}
            == {position[0] for position in found}
            == set(range(9))
        )


def test_distortion_is_reproducible_and_differs_between_epochs(
    data_dir: Path,
) -> None:
    def epochs(seed: int | None) -> list[bytes]:
        dataset = augmented(data_dir, distort=True, flip=True, shuffle=False, seed=seed)
        return [images_of(dataset).tobytes() for _ in range(3)]

    first = epochs(3)
    assert epochs(3) == first
    assert len({*first, *epochs(4), *epochs(None)}) == 9


def test_batches_and_pipelines_are_distorted_differently(
    tmp_path: Path,
) -> None:
    # All examples are the same image, so that only the distortion differs.
    image = np.random.RandomState(1).randint(1, 256, (1, 3, 32, 32)).astype(np.uint8)
    split = sources.Split(np.repeat(image, 256, axis=0), np.zeros(256, np.int64))
    records.write(tmp_path, "same", cifar10.serialized({"train": split}))
    batches = [
        images.numpy().tobytes()
        for pipeline in range(2)
        for images, _ in augmented(tmp_path, pipeline, distort=True, seed=3)
    ]
    assert len(batches) == len(set(batches)) == 4
