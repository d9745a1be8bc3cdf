"""Trains cases of `tests.support.train_steps` one after the other; tests run it as a cluster.

The chief writes the weights of each case to `--result_dir`, or the refusal of tfdist.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path

import tfdist  # isort: skip

import numpy as np
from absl import flags

from tests.support import train_steps
from tfdist.errors import UsageError
from tfdist.job import Job

flags.DEFINE_list("cases", None, "The names of the cases.", required=True)
flags.DEFINE_string("result_dir", None, "Directory for the results.", required=True)
FLAGS = flags.FLAGS


def build(case: str, _: Job) -> train_steps.Model:
    """The model of a case."""
    return train_steps.compiled(case)


@tfdist.main
def main(job: Job) -> None:
    """Trains each case, and saves its weights."""
    results = Path(FLAGS.result_dir)
    batch_size = train_steps.GLOBAL_BATCH // job.num_replicas
    for case in FLAGS.cases:
        try:
            history = job.fit(
                partial(build, case),
                partial(train_steps.dataset, batch_size=batch_size),
                epochs=train_steps.EPOCHS,
                output_dir=str(results / f"{case}.out"),
                verbose=0,
            )
        except UsageError as error:
            if job.is_chief:
                (results / f"{case}.txt").write_text(str(error))
            continue
        if job.is_chief:
            np.savez(results / f"{case}.npz", *history.model.get_weights())


if __name__ == "__main__":
    tfdist.run(main)
