"""Dynamic tables over restarts, in exports, and as the start of another training."""

from __future__ import annotations

import json
import re
import signal
import sys
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf

from tests.support.processes import (
    ROOT,
    Processes,
    checkpoints,
    launch,
    run_by_hand,
    tasks_of,
)
from tfdist.layers import apply_deltas

pytestmark = [
    pytest.mark.stacks("2.15", "newest", horovod=("2.15",)),
    pytest.mark.timeout(300),
]

PROGRAM = str(ROOT / "tests" / "support" / "dynamic_program.py")
SYNC = ["--strategy=parameter_server", "--workers=2", PROGRAM, "--sync"]


def train(path: Path, output: str, epochs: int, *arguments: str) -> dict[str, np.ndarray]:
    """Trains until the end of an epoch; returns the ids and the rows of the table."""
    result = path / f"{output}-{epochs}.npz"
    flags = [f"--output_dir={path / output}", f"--result={result}", f"--epochs={epochs}"]
    ended = launch(path / f"logs-{output}-{epochs}", *arguments, *flags, deadline=120)
    assert ended.code == 0, ended.output
    (path / f"{output}.log").write_text(ended.output)
    return dict(np.load(result))


@pytest.mark.stacks("newest")
def test_a_training_on_one_to_three_ps_is_that_of_one_process(tmp_path: Path) -> None:
    expected = train(tmp_path, "one", 4, PROGRAM)
    for epochs, ps, partition in ((1, 1, ""), (2, 2, "--partition_bytes=128"), (3, 3, "")):
        flags = filter(None, [f"--ps={ps}", *SYNC, partition])
        train(tmp_path, "resumed", epochs, *flags)
    found = train(tmp_path, "resumed", 4, PROGRAM)
    assert len(np.unique(expected["ids"])) == 24
    for name, values in expected.items():
        np.testing.assert_allclose(found[name], values, atol=2e-6, err_msg=name)


@pytest.mark.stacks("2.15")
def test_a_table_that_is_too_small_evicts_the_same_ids_after_a_restart(tmp_path: Path) -> None:
    flags = [PROGRAM, "--capacity=16", "--save_steps=2"]
    expected = train(tmp_path, "at_once", 4, *flags)
    train(tmp_path, "twice", 2, *flags)
    found = train(tmp_path, "twice", 4, *flags)
    lines = (tmp_path / "at_once" / "metrics.jsonl").read_text().splitlines()
    assert json.loads(lines[-1])["table_evicted"] > 10
    for name, values in expected.items():
        np.testing.assert_array_equal(found[name], values, err_msg=name)


@pytest.mark.horovod
def test_ranks_without_an_example_admit_the_ids_of_the_others(tmp_path: Path) -> None:
    expected = train(tmp_path, "one", 2, PROGRAM)
    found = train(tmp_path, "ranks", 2, "--strategy=horovod", "--workers=2", PROGRAM)
    other = np.load(tmp_path / "ranks-2.npz.other.npz")
    for name, values in expected.items():
        np.testing.assert_allclose(found[name], values, atol=2e-6, err_msg=name)
        np.testing.assert_array_equal(found[name], other[name], err_msg=name)


@pytest.mark.stacks("2.15")
@pytest.mark.parametrize("flags", [["--sync"], []], ids=["synchronous", "asynchronous"])
def test_nothing_is_lost_with_a_worker_and_a_ps(tmp_path: Path, flags: list[str]) -> None:
    expected = train(tmp_path, "one", 2, PROGRAM)
    output, result = tmp_path / "output", tmp_path / "disturbed.npz"
    # The number of the checkpoint after which to kill a task, and its place in the order of their
    # starts: worker:0, which then is the last, and ps:0.
    kills = [(4, 1), (8, 2)]

    def kill(processes: Processes, _: Mapping[str, Path]) -> None:
        saved = max((int(name[5:-6]) for name in checkpoints(tmp_path)), default=0)
        if kills and saved >= kills[0][0]:
            tasks_of(processes["tfdist"].pid)[kills.pop(0)[1]].send_signal(signal.SIGKILL)

    job = ["--strategy=parameter_server", "--chief", "--workers=2", "--ps=2", "--max_restarts=2"]
    command = [sys.executable, "-m", "tfdist", "run", *job, PROGRAM, *flags, "--epochs=2"]
    command += [f"--output_dir={output}", f"--result={result}", "--save_steps=2", "--rest=0.3"]
    ended = run_by_hand(tmp_path, {"tfdist": (command, {})}, deadline=200, watch=kill)["tfdist"]
    assert ended.code == 0, ended.output
    assert "worker:0 was killed by signal 9 (Killed), restart 1 of 2 now" in ended.output
    assert re.search(r"ps:0 was killed by signal 9 \(Killed\), restart 2 of 2 of all", ended.output)
    assert re.search(r"resuming after (step \d+ of )?epoch", ended.output)
    found = dict(np.load(result))
    np.testing.assert_array_equal(found["ids"], expected["ids"])
    assert np.isfinite(found["rows"]).all()
    for name, values in expected.items() if flags else ():
        np.testing.assert_allclose(found[name], values, atol=2e-6, err_msg=name)


STRATEGIES = {
    "one_device": [PROGRAM],
    "multi_worker_mirrored": ["--workers=2", PROGRAM],
    "parameter_server": ["--ps=2", *SYNC, "--partition_bytes=128"],
}
IN_A_STACK = [
    pytest.param("one_device", marks=pytest.mark.stacks("2.15")),
    pytest.param("multi_worker_mirrored", marks=pytest.mark.stacks("newest")),
    pytest.param("parameter_server", marks=pytest.mark.stacks("2.15")),
]


@pytest.mark.parametrize("strategy", IN_A_STACK)
def test_a_model_is_exported_while_it_trains(tmp_path: Path, strategy: str) -> None:
    flags = ["--save_steps=2", "--export_steps=5", "--export_keep=2", "--delta_steps=1"]
    # Six steps an epoch: the checkpoints are after each second step.
    found = train(tmp_path, "run", 3, *STRATEGIES[strategy], *flags)
    output = tmp_path / "run"
    _, newest = sorted(int(path.name) for path in (output / "export").iterdir())
    deltas = {
        int(path.parent.name): json.loads(path.read_text())["base"]
        for path in (output / "deltas").glob("*/manifest.json")
    }
    assert len(deltas) >= 3 and max(*deltas, newest) == 21
    served = tf.saved_model.load(str(output / "export" / str(newest))).signatures["serving_default"]
    operations = {node.op for node in served.graph.as_graph_def().node}
    assert not {each for each in operations if "Mutex" in each or "MutableHash" in each}
    keras_file = output / "export" / str(newest) / "model.keras"
    model = tf.keras.models.load_model(keras_file if keras_file.exists() else keras_file.parent)
    assert apply_deltas(model, output / "deltas", newest) == 21
    ids, rows = model.get_layer("table").rows()
    order = np.argsort(ids)
    np.testing.assert_array_equal(ids[order], found["ids"])
    np.testing.assert_allclose(rows[order], found["rows"], atol=1e-6)


@pytest.mark.parametrize("strategy", IN_A_STACK)
def test_a_smaller_table_starts_with_the_rows_of_a_larger_one(
    tmp_path: Path, strategy: str
) -> None:
    before = train(tmp_path, "before", 2, PROGRAM)
    flags = ["--capacity=20", f"--warm_start={tmp_path / 'before'}"]
    result = train(tmp_path, "after", 1, *STRATEGIES[strategy], *flags, "--learning_rate=0")
    # Four ids have found no row, but nothing is evicted after the last step.
    known = np.searchsorted(before["ids"], result["ids"])
    np.testing.assert_array_equal(before["ids"][known], result["ids"])
    np.testing.assert_array_equal(before["rows"][known], result["rows"])
    np.testing.assert_array_equal(before["last"], result["last"])
    log = (tmp_path / "after.log").read_text()
    assert re.search(r"warm start from \S+/ckpt-14: 2 variables of the same shape", log)
    assert "table: 20 of 24 ids have their rows" in log


@pytest.mark.stacks("2.15")
@pytest.mark.parametrize(
    ("flags", "received"),
    [
        (["--workers=2", "--accumulate_steps=2"], "multi_worker_mirrored with --accumulate_steps'"),
        (["--workers=2", "--sync_period=2"], "--sync_period'"),
    ],
)
def test_what_cannot_know_all_ids_is_refused(
    tmp_path: Path, flags: list[str], received: str
) -> None:
    directories = [f"--output_dir={tmp_path / 'run'}", f"--result={tmp_path / 'result'}"]
    ended = launch(tmp_path, *flags, PROGRAM, *directories, deadline=120)
    assert ended.code == 2
    assert f"the layer table: received 'a DynamicEmbedding under {received}" in ended.output


@pytest.mark.stacks("newest")
def test_the_best_export_stays(tmp_path: Path) -> None:
    # The loss is the largest after the first epoch of 7 steps.
    flags = ["--export_steps=7", "--export_best=max:loss", "--export_keep=1"]
    train(tmp_path, "run", 3, PROGRAM, *flags)
    exports = tmp_path / "run" / "export"
    assert sorted(path.name for path in exports.iterdir()) == ["21", "7"]
    manifest = json.loads((exports / "7" / "export.json").read_text())
    assert manifest["step"] == 7 and manifest["metrics"]["loss"] > 0
    # A later training knows the best one.
    train(tmp_path, "run", 4, PROGRAM, "--export_best=max:loss")
    assert sorted(path.name for path in exports.iterdir()) == ["21", "7"]
    directories = [f"--output_dir={tmp_path / 'other'}", f"--result={tmp_path / 'result'}"]
    ended = launch(tmp_path, PROGRAM, *directories, "--export_best=max:auc", deadline=120)
    assert ended.code == 2
    accepted = "accepted: a metric of this training: loss"
    assert f"--export_best: received 'auc'; {accepted}" in ended.output
