"""The sizes of the model that a training script builds, for `tfdist plan --model`.

    model = read("train.py", ["--layers=3"])     # in a fresh process

The process runs `python -m tfdist.launch.model_sizes OUTPUT SCRIPT [ARGS ...]`. It imports the
script, parses ARGS as its flags, and calls `build_model(job)` with the job of a single process.
"""

from __future__ import annotations

import json
import os
import runpy
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tfdist.errors import UsageError, exit_on_usage_error
from tfdist.planner.model import Layer, Model
from tfdist.planner.sizes import UnsupportedModelError, sizes_of

if TYPE_CHECKING:
    import tensorflow as tf

_FLAG = "--model"
_BUILDER = "build_model"
_TIMEOUT_SECONDS = 300
_INSTEAD = "or pass --parameters and --activation"


def read(script: str, arguments: Sequence[str]) -> tuple[Model, list[str]]:
    """The sizes of a script's model, and the names of its embedding layers.

    Args:
      script: the path of the training script.
      arguments: the script's own flags.

    Raises:
      UsageError: the script does not exist or fails, has no `build_model`, or its model has no
        fixed shapes.
    """
    if not os.path.isfile(script):
        raise UsageError(
            _FLAG,
            received=script,
            accepted="the path of a training script",
            remedy="Correct the path: there is no such file.",
        )
    with tempfile.TemporaryDirectory(prefix="tfdist-plan-") as directory:
        output = Path(directory) / "sizes.json"
        # The same tfdist, wherever it was imported from.
        package = str(Path(__file__).parents[2])
        environ = {**os.environ, "PYTHONPATH": os.pathsep.join([package, *sys.path])}
        command = [sys.executable, "-P", "-m", __spec__.name, str(output), script, *arguments]
        try:
            ended = subprocess.run(
                command,
                env=environ,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                timeout=_TIMEOUT_SECONDS,
            )
        except subprocess.TimeoutExpired as error:
            raise _error(f"{script}, which takes more than {_TIMEOUT_SECONDS} s") from error
        if not output.exists():
            lines = [line for line in ended.stderr.splitlines() if line.strip()]
            raise _error(f"{script}, which fails: {lines[-1] if lines else ended.returncode}")
        sizes = json.loads(output.read_text())
    if "error" in sizes:
        raise _error(f"{script}, {sizes['error']}")
    layers = [Layer(*layer) for layer in sizes["layers"]]
    return Model.of_layers(layers, sizes["inputs"], sizes["outputs"]), sizes["embeddings"]


def _error(received: str) -> UsageError:
    return UsageError(
        _FLAG,
        received=received,
        accepted="a script whose build_model(job) returns a Sequential or functional model with "
        "fixed shapes",
        remedy=f"Correct the script or its flags, which follow `--`, {_INSTEAD}.",
    )


def _build(script: str, arguments: Sequence[str]) -> tf.keras.Model:
    """The model of a script."""
    from absl import flags

    import tfdist.entry  # before the script, which may import TensorFlow first
    from tfdist.flags import JobFlags, define_flags

    sys.argv = [script, *arguments]
    # As `python script` does.
    sys.path.insert(0, str(Path(script).resolve().parent))
    names = runpy.run_path(script, run_name="tfdist_plan")
    if _BUILDER not in names:
        raise UnsupportedModelError(f"which defines no {_BUILDER}(job)")
    define_flags()
    try:
        flags.FLAGS([script, *arguments])
    except flags.Error as error:
        if wrong := _wrong_flags(str(error), flags.FLAGS.is_parsed()):
            raise UnsupportedModelError(f"whose flags are wrong: {wrong}") from error
    job = tfdist.entry.create(JobFlags(), {})
    return names[_BUILDER](job)


def _wrong_flags(error: str, is_parsed: bool) -> str:
    """What absl says about wrong flags, without those that are missing.

    A required flag that only the training needs, such as an output directory, may be missing: absl
    parses the others before it says so. If the model needs it, `build_model` fails.
    """
    if not is_parsed:
        return error
    lines = [line for line in error.splitlines() if line.startswith("flag")]
    return "; ".join(line for line in lines if "=None" not in line)


@exit_on_usage_error()
def main() -> None:
    """Writes the sizes of a script's model to a file, or the reason why it has none."""
    output, script, *arguments = sys.argv[1:]
    # A job on a GPU would keep its memory from a training on this machine.
    os.environ["CUDA_VISIBLE_DEVICES"] = "-1"
    found: dict[str, Any]
    try:
        found = sizes_of(_build(script, arguments))
    except UnsupportedModelError as error:
        found = {"error": str(error)}
    Path(output).write_text(json.dumps(found))


if __name__ == "__main__":
    main()
