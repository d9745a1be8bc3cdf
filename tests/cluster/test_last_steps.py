"""Weights and losses are those of one process, whatever the replicas have in the last step."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tests.conftest import keras_is_3
from tests.support.processes import launch

pytestmark = [
    pytest.mark.stacks("2.15", "newest"),
    pytest.mark.timeout(400),
    pytest.mark.xdist_group("last_steps"),
]

PROGRAM = str(Path(__file__).parents[1] / "support" / "last_steps.py")
SERVERS = ["--ps=2", "--chief", "--workers=2", "--sync"]
# By strategy and its replicas: its flags, those of the program, and the examples of a global batch.
# A full batch and one example, or each number up to two global batches and one example.
STRATEGIES = {
    "mirrored 4": (
        ["--num_cpu_devices=4"],
        [
            "--cases=mean,mask,sum,table,several,negatives",
            "--exhaustive=negatives",
        ],
        4,
    ),
    "central_storage 2": (["--num_cpu_devices=2"], ["--cases=adam,mask,table"], 6),
    "multi_worker_mirrored 2": (["--workers=2"], ["--exhaustive=mask"], 6),
    "horovod 2": (["--workers=2"], ["--exhaustive=mean,negatives"], 6),
    "parameter_server 2": (SERVERS, ["--exhaustive=mask"], 6),
}
# The ways in which a Keras divides the losses. Horovod's ranks run all cases, with Keras 3.
FEW = "mean,mask,sum,several,two_outputs,regularized_sum,metric,guide_step,negatives"
FEW += "" if keras_is_3() else ",legacy"
#: The flags of the training in one process with the same global batch.
OF_SIX = ["--exhaustive=mean,mask,negatives"]
STRATEGIES["parameter_server 2"][1].append(f"--cases={FEW}")
if keras_is_3():
    # What it does otherwise than mirrored is how it sums.
    STRATEGIES["multi_worker_mirrored 2"][1].append("--cases=mean,mask,sum,several,negatives")
else:
    del STRATEGIES["horovod 2"]
    STRATEGIES["multi_worker_mirrored 2"][1].append(f"--cases={FEW}")
    OF_SIX.append(f"--cases={FEW},adam,table")
    STRATEGIES["mirrored 4"][1][:] = ["--cases=mean,mask,sum,several,guide_step"]
#: A metric that adds the means of batches, and what a train step of one's own returns, are not
#: those of the whole batch.
OWN = ("ratio", "own")
# A worker's step of a synchronous server, and an evaluation of a rank, do not know the denominators
# of the others. By strategy: the losses that are means over the batches of replicas.
OF_REPLICAS = {
    "parameter_server": [
        *("sum loss", "regularized_sum loss", "mask loss", "mask val_loss"),
        *("mask_and_weights loss", "mean_with_sample_weight loss", "guide_step loss"),
        # Keras 3 adds up the means of batches for an output.
        *("two_outputs one_loss", "two_outputs two_loss"),
        *("several mean_loss", "several scores_loss", "several total_loss"),
    ],
    "horovod": ["mask val_loss"],
}
#: A worker of a synchronous server that has no example leaves its part of a penalty out.
NOT_WITH_SYNC = ("regularized_sum",)


def train(
    path: Path, strategy: str, flags: list[str], own: list[str], batch: int
) -> dict[str, np.ndarray]:
    ended = launch(
        path / "log",
        f"--strategy={strategy}",
        *flags,
        PROGRAM,
        f"--result={path / 'found.npz'}",
        f"--batch={batch}",
        *own,
        deadline=300,
    )
    assert ended.code == 0, ended.output
    return dict(np.load(path / "found.npz"))


@pytest.fixture(scope="module")
def one_process(tmp_path_factory: pytest.TempPathFactory) -> dict[int, dict[str, np.ndarray]]:
    _, of_four, _ = STRATEGIES["mirrored 4"]
    return {
        batch: train(tmp_path_factory.mktemp(f"one{batch}"), "one_device", [], own, batch)
        for batch, own in ((6, OF_SIX), (4, of_four))
    }


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_a_last_step_is_that_of_one_process(
    strategy: str, one_process: dict[int, dict[str, np.ndarray]], tmp_path: Path
) -> None:
    name = strategy.split()[0]
    flags, own, batch = STRATEGIES[strategy]
    found = train(tmp_path, name, flags, own, batch)
    assert len(found) > 10
    for key, value in found.items():
        case, _, result = key.split(" ", 2)
        expected = one_process[batch][key]
        if result in OWN or f"{case} {result}" in OF_REPLICAS.get(name, ()):
            continue
        if name == "parameter_server" and case in NOT_WITH_SYNC:
            continue
        np.testing.assert_allclose(value, expected, rtol=1e-5, atol=2e-6, err_msg=key)
    if name != "central_storage" and "metric 7 ratio" in found:
        assert np.isfinite(found["metric 7 ratio"]).all()
