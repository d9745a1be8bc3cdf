"""A damaged data file stops the training, and the error explains how to find the file."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf

from tests.support.processes import launch

pytestmark = [pytest.mark.stacks("2.15"), pytest.mark.timeout(180)]

PROGRAM = str(Path(__file__).parents[1] / "support" / "records_program.py")
_RECORDS = 100

JOBS = {
    "one_device": [],
    "multi_worker_mirrored": ["--workers=2"],
    "horovod": ["--workers=2"],
    "parameter_server": ["--ps=1", "--workers=2", "--chief"],
}


def write_files_and_truncate_one(directory: Path) -> tuple[Path, int]:
    """Writes six files and truncates one within a record; returns its path and the offset."""
    directory.mkdir()
    for index in range(6):
        path = directory / f"train-{index}.tfrecords"
        with tf.io.TFRecordWriter(str(path)) as writer:
            for vector in np.random.default_rng(index).normal(size=(_RECORDS, 4)):
                writer.write(tf.io.serialize_tensor(vector.astype("float32")).numpy())
    # The file is in the second of two shards, which the chief does not read.
    truncated = directory / "train-3.tfrecords"
    offset = truncated.stat().st_size * 60 // _RECORDS
    os.truncate(truncated, offset + 20)
    return truncated, offset


@pytest.mark.parametrize(
    ("strategy", "flags"),
    [*((strategy, []) for strategy in JOBS), ("parameter_server", ["--estimator"])],
)
def test_a_truncated_file_stops_the_training(
    tmp_path: Path, strategy: str, flags: list[str]
) -> None:
    truncated, offset = write_files_and_truncate_one(tmp_path / "data")
    job = [f"--strategy={strategy}", *JOBS[strategy], PROGRAM, *flags]
    data = f"--records={truncated.parent}/*.tfrecords"
    ended = launch(tmp_path, *job, data, f"--output_dir={tmp_path / 'output'}", deadline=120)
    assert ended.code == 1, ended.output
    assert "DataLossError" in ended.output, "the output should also contain the traceback"
    hint = "tfdist: error: a file is damaged. To find it, run: tfdist data verify FILE..."
    assert ended.output.count(hint) == 1, ended.output
    assert f"truncated record at {offset}" in ended.output
