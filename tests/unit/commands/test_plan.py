"""`tfdist plan`: its table, the model of a script, and its errors."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import tensorflow as tf

from tests.support.pages import readme_script
from tfdist.commands import cli
from tfdist.launch import model_sizes
from tfdist.planner import sizes
from tfdist.strategies.in_graph.stages import stages_of

NETWORK = ["--workers=4", "--bandwidth=10Gbit"]
PARAMETERS = ["--parameters=25M", *NETWORK]

pytestmark = [pytest.mark.stacks("newest"), pytest.mark.timeout(60)]


def table(output: str) -> dict[str, list[str]]:
    """The cells of each split."""
    rows = [re.split(r" {2,}", line) for line in output.splitlines()]
    return {row[0]: row[1:] for row in rows if len(row) > 6 and row[0] not in ("", "split")}


def planned(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    assert cli.main(["plan", *arguments]) == 0
    return capsys.readouterr().out


def test_the_table_and_the_choice(capsys: pytest.CaptureFixture[str]) -> None:
    output = planned(capsys, *PARAMETERS, "--activation=10M")
    found = table(output)
    assert len(found) == 8
    assert found["horovod"] == ["4", "150 MB", "150 MB", "600 MB", "120 ms", "400 MB", "0%"]
    assert found["in_graph --stages=4 --microbatches=16"][-1] == "16%"
    assert output.splitlines()[-1].startswith("Choose multi_worker_mirrored: the fewest seconds")


def test_step_seconds_predict_the_speed(capsys: pytest.CaptureFixture[str]) -> None:
    found = table(planned(capsys, *PARAMETERS, "--step_seconds=0.2", "--batch-size=8"))
    # 120 ms for the gradients; 4 x 8 examples.
    assert found["horovod"][-3:] == ["38%", "320 ms", "100"]
    assert found["one_device"][-3:] == ["0%", "200 ms", "40"]


def test_what_does_not_fit_is_marked(capsys: pytest.CaptureFixture[str]) -> None:
    output = planned(capsys, *PARAMETERS, "--optimizer=momentum", "--memory=290MB")
    found = table(output)
    assert found["one_device"][5] == "300 MB!"
    assert found["in_graph --stages=2 --microbatches=8"][5] == "200 MB"
    output = planned(capsys, *PARAMETERS, "--memory=1MB")
    assert output.splitlines()[-1].startswith("Choose none: none fits; in_graph --stages=4")


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (NETWORK, "--parameters, --model: received 'neither'; accepted: exactly one of them. Pass"),
        ([*PARAMETERS, "--model=train.py"], "--parameters, --model: received 'both'; accepted: "),
        (["--parameters=25M", "--workers=4"], "--bandwidth"),
        (["--parameters=many", *NETWORK], "--parameters: received 'many'"),
        ([*PARAMETERS, "--workers=0"], "--workers: received '0'"),
        ([*PARAMETERS, "--workers=1M"], "--workers: received '1M'; accepted: an integer from 1 to"),
        ([*PARAMETERS, "--ps=0"], "--ps: received '0'"),
        ([*PARAMETERS, "--batch_size=1.5"], "--batch_size: received '1.5'"),
        ([*PARAMETERS, "--bandwidth=10"], "--bandwidth: received '10'"),
        ([*PARAMETERS, "--activation=0"], "--activation: received '0'"),
        ([*PARAMETERS, "--memory=big"], "--memory: received 'big'"),
        ([*PARAMETERS, "--microbatches=33"], "--microbatches: received '33'; accepted: 1 to 32"),
        ([*PARAMETERS, "--step_seconds=0"], "--step_seconds"),
        ([*PARAMETERS, "--optimizer=lion"], "--optimizer"),
        ([*PARAMETERS, "--", "--layers=3"], "ARGS: received '--layers=3'"),
        (["--model=missing.py", *NETWORK], "--model: received 'missing.py'"),
        (["--model=train.py", *NETWORK, "--activation=1k"], "--activation: received '1k'"),
    ],
)
def test_a_mistake_prints_one_line_that_names_it(
    capsys: pytest.CaptureFixture[str], arguments: list[str], named: str
) -> None:
    with pytest.raises(SystemExit) as ended:
        cli.main(["plan", *arguments])
    out, err = capsys.readouterr()
    assert (ended.value.code, out, err.count("\n")) == (2, "", 1)
    assert err.startswith("tfdist: error: ")
    assert named in err


SCRIPT = """
import tfdist
import tensorflow as tf
from absl import flags

flags.DEFINE_string("output_dir", None, "", required=True)
flags.DEFINE_integer("layers", 2, "")
flags.DEFINE_integer("even", 2, "")
flags.register_validator("even", lambda value: value % 2 == 0, "must be even")


def build_model(job):
    dense = [tf.keras.layers.Dense(10) for _ in range(flags.FLAGS.layers)]
    print("noise")
    return tf.keras.Sequential([tf.keras.Input([{inputs}]), *dense])


@tfdist.main
def main(job):
    raise AssertionError("it must not train")


if __name__ == "__main__":
    tfdist.run(main)
"""


def test_the_model_of_a_script(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    script = tmp_path / "train.py"
    script.write_text(SCRIPT.replace("{inputs}", "10"))
    output = planned(capsys, f"--model={script}", *NETWORK, "--", "--layers=4")
    # 4 x 110 float32; an input and an output, 10 float32 each.
    assert output.startswith("1.76 kB of parameters")
    assert "\nlayers with weights: 4\n" in output
    found = table(output)
    assert found["in_graph --stages=1"][1] == "13 kB"
    assert len(found) == 8


@pytest.mark.parametrize(
    ("argument", "named"),
    [
        ("--layers=abc", "flag --layers=abc: invalid literal"),
        ("--layers=None", "flag --layers=None: invalid literal"),
        # A validator's message, in the same error as the missing --output_dir.
        ("--even=3", "flag --even=3: must be even';"),
    ],
)
def test_a_wrong_flag_of_the_script_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], argument: str, named: str
) -> None:
    script = tmp_path / "train.py"
    script.write_text(SCRIPT.replace("{inputs}", "10"))
    with pytest.raises(SystemExit) as ended:
        cli.main(["plan", f"--model={script}", *NETWORK, "--", argument])
    err = capsys.readouterr().err
    assert (ended.value.code, err.count("\n")) == (2, 1)
    assert f"train.py, whose flags are wrong: {named}" in err


def test_the_script_of_the_readme(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(readme_script())
    model, embeddings = model_sizes.read(str(script), [])
    assert (model.parameter_bytes, model.input_bytes, model.output_bytes) == (4 * 9, 4 * 8, 4)
    assert embeddings == []


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("model = 1", "which defines no build_model(job)"),
        ("raise OSError('no data')", "which fails: OSError: no data"),
        (SCRIPT.replace("{inputs}", "None, 10"), "a tensor of shape (None, None, 10)"),
    ],
    ids=["no function", "an error", "no shape"],
)
def test_a_script_without_a_fitting_model_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str, named: str
) -> None:
    script = tmp_path / "train.py"
    script.write_text(text)
    with pytest.raises(SystemExit) as ended:
        cli.main(["plan", f"--model={script}", *NETWORK])
    err = capsys.readouterr().err
    assert (ended.value.code, err.count("\n")) == (2, 1)
    assert "--model: received " in err
    assert named in err


class Subclassed(tf.keras.Model):
    def __init__(self) -> None:
        super().__init__()
        self.dense = tf.keras.layers.Dense(3)

    def call(self, inputs: tf.Tensor) -> tf.Tensor:
        return self.dense(inputs)


def twice() -> tf.keras.Model:
    dense = tf.keras.layers.Dense(4)
    inputs = tf.keras.Input([4])
    return tf.keras.Model(inputs, dense(dense(inputs)))


@pytest.mark.parametrize(
    ("make", "named"),
    [(Subclassed, "no sequence of layers"), (list, "no sequence"), (twice, "several times")],
)
def test_a_model_without_a_sequence_of_layers_is_refused(
    make: Callable[[], Any], named: str
) -> None:
    with pytest.raises(sizes.UnsupportedModelError, match=named):
        sizes.sizes_of(make())


def sequence() -> tf.keras.Model:
    dense = [tf.keras.layers.Dense(3), tf.keras.layers.Dense(5)]
    return tf.keras.Sequential([tf.keras.Input([4]), *dense])


def unbuilt() -> tf.keras.Model:
    return tf.keras.Sequential([tf.keras.layers.Dense(3), tf.keras.layers.Dense(5)])


def functional() -> tf.keras.Model:
    inputs = tf.keras.Input([4])
    return tf.keras.Model(inputs, tf.keras.layers.Dense(5)(tf.keras.layers.Dense(3)(inputs)))


@pytest.mark.parametrize("make", [sequence, unbuilt, functional])
def test_the_layers_of_a_model_in_a_sequence_count_one_by_one(
    make: Callable[[], tf.keras.Model],
) -> None:
    whole = tf.keras.Sequential([tf.keras.Input([4]), make(), tf.keras.layers.Dense(2)])
    found = sizes.sizes_of(whole)
    assert found["layers"] == [
        [4 * 15, 4 * 3, 4 * 3, 0],
        [4 * 20, 4 * 5, 4 * 5, 0],
        [4 * 12, 4 * 2, 4 * 2, 0],
    ]
    assert len(stages_of(whole, 3)) == 3


def test_a_skip_connection_crosses_each_border() -> None:
    """Inputs [8] go to the first and to the last layer."""
    inputs = tf.keras.Input([8])
    first = tf.keras.layers.Dense(4)(inputs)
    second = tf.keras.layers.Dense(2)(first)
    joined = tf.keras.layers.Concatenate()([inputs, first, second])
    outputs = tf.keras.layers.Dense(3)(joined)
    found = sizes.sizes_of(tf.keras.Model(inputs, [outputs, first]))
    assert found["layers"] == [
        [4 * (8 * 4 + 4), 4 * 4, 4 * (8 + 4), 0],
        [4 * (4 * 2 + 2), 4 * 2, 4 * (8 + 4 + 2), 0],
        # One of the outputs is that of the first layer, which the client receives at the end.
        [0, 4 * 14, 4 * (4 + 14), 0],
        [4 * (14 * 3 + 3), 4 * 3, 4 * (4 + 3), 0],
    ]
    assert (found["inputs"], found["outputs"]) == (4 * 8, 4 * (3 + 4))


def test_all_weights_are_counted() -> None:
    layers = [
        tf.keras.layers.Embedding(50, 4, name="words"),
        tf.keras.layers.Flatten(),
        tf.keras.layers.BatchNormalization(),
        tf.keras.layers.Dense(3, dtype="float16"),
        tf.keras.layers.Dense(5, trainable=False),
    ]
    model = tf.keras.Sequential([tf.keras.Input([7], dtype="int32"), *layers])
    found = sizes.sizes_of(model)
    weights = [(layer[0], layer[3]) for layer in found["layers"]]
    assert weights == [
        (4 * 200, 0),
        (0, 0),
        (4 * 2 * 28, 4 * 2 * 28),
        (2 * (28 * 3 + 3), 0),
        (0, 4 * (3 * 5 + 5)),
    ]
    assert found["embeddings"] == ["words"]
    assert (found["inputs"], found["outputs"]) == (4 * 7, 4 * 5)
