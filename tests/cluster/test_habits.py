"""What users of Keras do gives the weights and the history of one process under every strategy."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tests.conftest import keras_is_3
from tests.support import habits
from tests.support.processes import launch

pytestmark = [
    pytest.mark.stacks("2.15", "newest"),
    pytest.mark.timeout(400),
    pytest.mark.xdist_group("habits"),
]

PROGRAM = str(Path(__file__).parents[1] / "support" / "habits_program.py")
SERVERS = ["--ps=1", "--chief", "--workers=2"]
STRATEGIES = {
    "multi_worker_mirrored": ["--workers=2"],
    "in_graph": ["--workers=2"],
    "horovod": ["--workers=2"],
    "parameter_server --sync": SERVERS,
    "mirrored": ["--num_cpu_devices=2"],
    "central_storage": ["--num_cpu_devices=2"],
}
if not keras_is_3():
    # Its Keras 2 takes the steps of multi_worker_mirrored.
    del STRATEGIES["mirrored"], STRATEGIES["central_storage"]
# Strategies that differ from another one only in the variables, or that are compared with nothing:
# what sees their variables, callbacks and batches.
SOME = {
    "mirrored": (
        "dynamic",
        "early_stopping",
        "files",
        "evaluation",
        "ragged",
        "float16",
        "synchronized",
    ),
    "central_storage": (
        "dynamic",
        "files",
        "evaluation",
        "sparse",
        "float16",
        "backup",
        "synchronized",
    ),
    "parameter_server": (
        "words",
        "features",
        "dynamic",
        "files",
        "evaluation",
        "sparse",
        "ragged",
        "float16",
        "loaded",
    ),
}
# An export takes a third of the time of a case. The others export as one process does.
_TABLES = "files,words,features,dynamic,synchronized"
EXPORTS = {"one_device": "files", "multi_worker_mirrored": _TABLES, "in_graph": _TABLES}
if not keras_is_3():
    # Keras 3 trains the others.
    SOME["parameter_server"] = ("dynamic", "files", "evaluation", "sparse")
# The strategies with jobs of several processes train a half with each Keras, and these with both.
OF_BOTH = {"dynamic", "files", "evaluation"}
OF_KERAS_2 = {
    *("features", "ranking", "early_stopping", "several_inputs_and_outputs", "classes", "sparse"),
    *("float16", "two_phases"),
}
HALF = tuple(
    case for case in habits.CASES if case in OF_BOTH or (case in OF_KERAS_2) != keras_is_3()
)
for several in ("multi_worker_mirrored", "in_graph", "horovod", "parameter_server --sync"):
    SOME[several] = HALF
#: The cases that a strategy refuses, with what the refusal says.
_OF_PARAMETER_SERVERS = {} if keras_is_3() else {"float16": "is not supported"}
_OF_CENTRAL_STORAGE = (
    {"float16": "an optimizer without loss scaling"}
    if keras_is_3()
    else {**_OF_PARAMETER_SERVERS, "backup": "not supported"}
)
REFUSED = {
    "in_graph": {
        "dynamic": "received 'a DynamicEmbedding under in_graph'",
        "synchronized": "synchronized: received 'True in layer",
        "add_loss": "with an activity regularizer or a call of add_loss",
        "sparse": "received 'SparseTensor'",
        "ragged": "received 'RaggedTensor'",
    },
    "parameter_server --sync": {
        **_OF_PARAMETER_SERVERS,
        "synchronized": "False under parameter_server with --sync",
    },
    "central_storage": _OF_CENTRAL_STORAGE,
}


def cases_of(strategy: str) -> set[str]:
    """The cases of a strategy of `STRATEGIES`, or of asynchronous parameter servers."""
    return {*SOME.get(strategy, habits.CASES)}


def train(path: Path, strategy: str, *flags: str, saved: Path | None = None) -> None:
    name, _, own = strategy.partition(" ")
    ended = launch(
        path / "log",
        f"--strategy={name}",
        *([own] if own else []),
        *flags,
        PROGRAM,
        f"--cases={','.join(case for case in habits.CASES if case in cases_of(strategy))}",
        f"--result_dir={path}",
        *([f"--saved={saved / 'files.0'}"] if saved else []),
        f"--exports={EXPORTS.get(strategy, '')}",
        deadline=300,
    )
    assert ended.code == 0, ended.output


@pytest.fixture(scope="module")
def one_process(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("one")
    train(path, "one_device")
    return path


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_weights_and_history_equal_those_of_one_process(
    strategy: str, one_process: Path, tmp_path: Path
) -> None:
    train(tmp_path, strategy, *STRATEGIES[strategy], saved=one_process)
    cases = cases_of(strategy)
    refused = {case: why for case, why in REFUSED.get(strategy, {}).items() if case in cases}
    assert {path.stem for path in tmp_path.glob("*.txt")} == {*refused}
    for case, reason in refused.items():
        assert reason in (tmp_path / f"{case}.txt").read_text()
    for case in cases - {*refused}:
        found, expected = (np.load(path / f"{case}.npz") for path in (tmp_path, one_process))
        assert set(found.files) == set(expected.files), case
        for name in {*found.files} - {"examples_per_second"}:
            np.testing.assert_allclose(
                found[name],
                expected[name],
                rtol=1e-5,
                atol=habits.CASES[case].atol,
                err_msg=f"{case}: {name}",
            )


def test_asynchronous_parameter_servers_train_all_of_them(
    one_process: Path, tmp_path: Path
) -> None:
    train(tmp_path, "parameter_server", *SERVERS, saved=one_process)
    trained = cases_of("parameter_server") - {*_OF_PARAMETER_SERVERS}
    assert {path.stem for path in tmp_path.glob("*.npz")} == trained
    for case in trained:
        found = np.load(tmp_path / f"{case}.npz")
        # The loss of float16 is not finite in the steps that are left out.
        names = [name for name in found.files if case != "float16" or name.startswith("weight")]
        assert names
        assert all(np.isfinite(found[name]).all() for name in names), case
