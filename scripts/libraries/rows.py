"""Trains the scripts of this directory under several strategies; prints a row for each.

    python -m scripts.libraries.rows        # those whose library is installed
    python -m scripts.libraries.rows hub_classifier --strategies one_device horovod

The last checkpoint of each job is compared with that of one process that makes the same updates
with batches of the same examples. `scripts/libraries/run` makes the environment.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import tensorflow as tf
from packaging.utils import canonicalize_name

from tfdist.process.packages import installed

HERE = Path(__file__).parent
#: The distribution of each script.
LIBRARIES = {
    "addons_lamb": "tensorflow-addons",
    "deepctr_deepfm": "deepctr",
    "forests_trees": "tensorflow-decision-forests",
    "hub_classifier": "keras-hub",
    "models_encoder": "tf-models-official",
    "optimization_pruning": "tensorflow-model-optimization",
    "probability_regression": "tensorflow-probability",
    "recommenders_retrieval": "tensorflow-recommenders",
    "rs_ranking": "keras-rs",
    "sonnet_loop": "dm-sonnet",
    "text_ngrams": "tensorflow-text",
    "tuner_search": "keras-tuner",
}
STRATEGIES = {
    "one_device": ("--strategy=one_device",),
    "multi_worker_mirrored": ("--strategy=multi_worker_mirrored", "--workers=2"),
    "parameter_server": (
        "--strategy=parameter_server",
        "--ps=1",
        "--workers=2",
        "--chief",
        "--sync",
    ),
    "horovod": ("--strategy=horovod", "--workers=2"),
}
_SECONDS = 300


def weights(directory: Path) -> dict[str, np.ndarray]:
    """The weights in the last checkpoints of a job, by their names in them."""
    found = {}
    for each in sorted(directory.rglob("checkpoints")):
        reader = tf.train.load_checkpoint(tf.train.latest_checkpoint(str(each)))
        for name, dtype in reader.get_variable_to_dtype_map().items():
            if dtype.is_floating and "optimizer" not in name:
                found[f"{each.parent.relative_to(directory)}/{name}"] = reader.get_tensor(name)
    return found


def difference(found: dict[str, np.ndarray], expected: dict[str, np.ndarray]) -> float:
    """The largest difference of a weight."""
    if found.keys() != expected.keys():
        raise ValueError(f"The checkpoints have other names: {found.keys() ^ expected.keys()}")
    return max(float(np.abs(found[name] - expected[name]).max()) for name in expected)


def train(script: str, strategy: str, directory: Path) -> str | None:
    """Runs a job; returns the last lines of its output if it fails."""
    command = [sys.executable, "-m", "tfdist", "run", *STRATEGIES[strategy]]
    command += [str(HERE / f"{script}.py"), f"--output_dir={directory}"]
    with (directory.parent / f"{directory.name}.log").open("w+") as output:
        code = subprocess.run(
            ["timeout", str(_SECONDS), *command], stdout=output, stderr=subprocess.STDOUT
        ).returncode
        output.seek(0)
        return f"code {code}: " + " / ".join(output.read().splitlines()[-3:]) if code else None


def row(script: str, strategy: str, directory: Path) -> str:
    """What came of a job, in words."""
    failure = train(script, strategy, directory / strategy)
    if failure:
        return failure
    losses = [
        f"{float(epoch['loss']):.3f}"
        for path in sorted((directory / strategy).rglob("metrics.jsonl"))
        for epoch in map(json.loads, path.read_text().splitlines())
    ]
    found, expected = weights(directory / strategy), weights(directory / "one_device")
    return f"loss {', '.join(losses)}; {difference(found, expected):.0e} from one process"


def main(scripts: Sequence[str], strategies: Sequence[str]) -> None:
    known = {canonicalize_name(each.name) for each in importlib.metadata.distributions()}
    versions = installed()
    stack = ", ".join(f"{name} {versions[name]}" for name in ("tensorflow", "keras", "python"))
    root = Path(tempfile.mkdtemp(prefix="libraries-"))
    print(f"{stack}; outputs: {root}", flush=True)
    for script in scripts:
        library = LIBRARIES[script]
        if library in known:
            # Its weights are what the others are compared with.
            for strategy in dict.fromkeys(strategies):
                (root / script).mkdir(exist_ok=True)
                words = row(script, strategy, root / script)
                version = importlib.metadata.version(library)
                print(f"| {library} {version} | {stack} | {strategy} | {words} |", flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("scripts", nargs="*", default=[*LIBRARIES])
    parser.add_argument("--strategies", nargs="+", default=[*STRATEGIES], choices=STRATEGIES)
    arguments = parser.parse_args()
    main(arguments.scripts, ["one_device", *arguments.strategies])
