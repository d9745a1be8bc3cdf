"""Files of the output directory that contain anything are read as far as possible."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import tensorflow as tf
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tfdist.storage.checkpointer import training_marker
from tfdist.storage.lock import holder
from tfdist.storage.output_directory import OutputDirectory, cut_json_lines, read_json_lines
from tfdist.training import history

pytestmark = pytest.mark.stacks("newest")

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["finished", "epochs", "epoch", "loss", "pid"]), inner, max_size=5
        )
    ),
    max_leaves=8,
)
CONTENTS = (
    st.binary()
    | VALUES.map(lambda value: json.dumps(value).encode())
    | st.lists(VALUES, max_size=4).map(lambda all: "\n".join(map(json.dumps, all)).encode())
    | st.sampled_from(
        [b"[" * 100_000, b"9" * 5000, b'{"finished": Infinity, "epochs": 1}', b"\xff"]
    )
)


@settings(
    deadline=None,
    max_examples=200,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(content=CONTENTS)
def test_any_content_is_read(content: bytes, tmp_path: Path) -> None:
    output = OutputDirectory(tmp_path)
    output.done.write_bytes(content)
    marker = training_marker(output)
    assert marker is None or {type(marker["finished"]), type(marker["epochs"])} == {int}
    assert isinstance(holder(output.done), str)

    output.metrics.write_bytes(content)
    assert all(isinstance(record, dict) for record in read_json_lines(output.metrics))
    trained: Any = tf.keras.callbacks.History()
    trained.history = {"loss": [0.5]}
    trained.epoch = [3]
    history.add_earlier_epochs(trained, output.metrics, epochs=3)
    assert trained.history["loss"][-1] == 0.5
    cut_json_lines(output.metrics, lambda record: record.get("loss") is not None)
    assert all(record["loss"] is not None for record in read_json_lines(output.metrics))
