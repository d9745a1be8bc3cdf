"""Writes a run for TensorBoard: scalars, the job as text, the layers of the model as a graph.

    run = TensorBoardRun(Path("/shared/run1/logs/train"))
    run.scalars({"epoch_loss": 0.5}, step=0)
    run.text("job", {"strategy": "horovod"})
    run.graph(model)
    run.close()

All writes go to one file per run: of several files that grow, TensorBoard follows only the newest.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import tensorflow as tf

from tfdist.storage import output_directory

# The plugin of TensorBoard that reads the JSON of a Keras model.
_GRAPH_PLUGIN = "graph_keras_model"


class TensorBoardRun:
    """A run; its directory is created with the first write.

    Args:
      directory: the directory of the run.

    Raises:
      OutputError: in all methods, if something could not be written.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._writer: tf.summary.SummaryWriter | None = None

    def scalars(self, values: Mapping[str, float], step: int) -> None:
        """Writes values by name, so that a reader sees them at once."""
        if not values:
            return
        with self._writing(step):
            for name, value in values.items():
                tf.summary.scalar(name, value)

    def text(self, name: str, facts: Mapping[str, Any]) -> None:
        """Writes a table of names and texts."""
        rows = [f"| {_escaped(key)} | {_escaped(str(value))} |" for key, value in facts.items()]
        with self._writing(0):
            tf.summary.text(name, "\n".join(["| | |", "| --- | --- |", *rows]))

    def graph(self, model: tf.keras.Model) -> None:
        """Writes the layers of a model; nothing if Keras cannot describe it."""
        try:
            description = model.to_json()
        except Exception:  # The `get_config` of a layer of the user may raise anything.
            return
        metadata = tf.compat.v1.SummaryMetadata()
        metadata.plugin_data.plugin_name = _GRAPH_PLUGIN
        with self._writing(0):
            tf.summary.write("keras", description, metadata=metadata)

    def close(self) -> None:
        """Ends the file."""
        if self._writer is not None:
            with output_directory.writing(self._directory):
                self._writer.close()
            self._writer = None

    @contextmanager
    def _writing(self, step: int) -> Iterator[None]:
        # Also in a strategy's scope, whose devices may be on other machines.
        with output_directory.writing(self._directory), tf.init_scope(), tf.device("CPU:0"):
            if self._writer is None:
                self._writer = tf.summary.create_file_writer(str(self._directory))
            # Its end flushes, so that a reader sees the values.
            with self._writer.as_default(step=step), tf.summary.record_if(True):
                yield


def _escaped(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", "<br>")
