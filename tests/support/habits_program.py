"""Trains cases of `tests.support.habits` one after the other; tests run it as a cluster.

The chief writes the weights and the history of each case to `--result_dir`, or its error.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import tfdist  # isort: skip

import numpy as np
from absl import app, flags

from tests.support import habits
from tfdist.errors import UsageError
from tfdist.layers import dynamic_embedding
from tfdist.storage import export

tfdist.define_flags()
flags.DEFINE_list("cases", None, "The names of the cases.", required=True)
flags.DEFINE_string("result_dir", None, "Directory for the results.", required=True)
flags.DEFINE_string("saved", None, "The directory of a training of files; default: this one.")
flags.DEFINE_list("exports", [], "The cases whose trained models are exported.")
FLAGS = flags.FLAGS


def weights_of(model: Any) -> list[Any]:
    """The weights of a model; those of a dynamic table are its rows, in the order of the ids."""
    tables = dynamic_embedding.of_model(model)
    if not tables:
        return list(model.get_weights())
    of_tables = {id(weight) for table in tables for weight in table.weights}
    found = [weight.numpy() for weight in model.weights if id(weight) not in of_tables]
    for table in tables:
        (rows,), weights = table.table.get_weights(), table.get_weights()
        (ids,) = [each for each in weights if each.shape == (table.capacity,)]
        found += [np.append(rows[np.argsort(ids)], rows[-1:], axis=0), np.sort(ids)]
    return found


def train(job: tfdist.Job, name: str) -> dict[str, Any]:
    """Trains a case; returns its weights and its history."""
    case, results = habits.CASES[name], Path(FLAGS.result_dir)
    own = results / f"{name}.{str(job.task).replace(':', '-')}"
    own.mkdir()
    batch_size = habits.GLOBAL_BATCH // job.num_replicas
    data = partial(habits.dataset, name, own, batch_size=batch_size)
    with job.scope():
        model = habits.compiled(name, Path(FLAGS.saved or results / "files.0") / "saved_model")
    history: dict[str, list[float]] = {}
    for phase in [0] if case.change is None else [0, 1]:
        if case.change is not None and phase:
            with job.scope():
                case.change(model)
        history |= model.fit(
            job.dataset(data),
            epochs=case.epochs,
            callbacks=[*job.callbacks(str(results / f"{name}.{phase}")), *case.callbacks(own)],
            validation_data=job.eval_dataset(data) if case.validates else None,
            verbose=0,
            **case.options,
        ).history
    # An adapted layer of Keras 2 also has its words.
    weights = [np.asarray(weight) for weight in weights_of(model)]
    weights = [weight for weight in weights if weight.dtype.kind in "fi"]
    return {
        **{f"weight {index}": weight for index, weight in enumerate(weights)},
        **{name: np.array(values) for name, values in history.items()},
    }


def main(_: list[str]) -> None:
    """Trains each case."""
    job = tfdist.init()
    if job.serves:
        return job.serve()
    results = Path(FLAGS.result_dir)
    whole = export.export
    for name in FLAGS.cases:
        export.export = whole if name in FLAGS.exports else lambda *_, **__: None
        try:
            found = train(job, name)
        # Keras 2 itself refuses some optimizers and callbacks under some strategies.
        except (UsageError, ValueError, NotImplementedError) as error:
            if job.is_chief:
                (results / f"{name}.txt").write_text(str(error))
            continue
        if job.is_chief:
            np.savez(results / f"{name}.npz", **found)
    return None


if __name__ == "__main__":
    app.run(main, flags_parser=tfdist.parse_flags)
