"""The errors for mistakes in TF_CONFIG and in the flags of the cluster."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

import pytest

import tfdist
from tests.conftest import tf_config
from tfdist.cluster.config import ClusterConfig, ClusterFlags
from tfdist.cluster.discovery import discover
from tfdist.config.strategies.table import STRATEGY_VARIABLE
from tfdist.errors import UsageError

pytestmark = pytest.mark.stacks("2.15", "newest")

A, B, C, D = "10.0.0.1:2222", "10.0.0.2:2222", "10.0.0.3:2222", "10.0.0.4:2222"

NO_FLAGS = ClusterFlags()


def in_tf_config(text: str) -> ClusterConfig:
    return discover(NO_FLAGS, {"TF_CONFIG": text})


@dataclass(frozen=True)
class Mistake:
    """An invalid TF_CONFIG and the parts of its error message."""

    config: str
    field: str
    received: Any
    accepted: str
    remedy: str
    strategy: str = "auto"


LIST = "a JSON object"
UNSET = "or unset TF_CONFIG to train in a single process"
TYPES = "chief, worker, ps, evaluator"
INDEX = "an integer of at least 0"
INDICES = "a list of host:port, or a map with one for each index from 0"
ADDRESS = "host:port with a port from 1 to 65535"

MISTAKES = {
    "bad JSON": Mistake(
        '{"cluster": }',
        "TF_CONFIG",
        '{"cluster": }',
        "JSON: ",
        "Correct the JSON: Expecting",
    ),
    "a list": Mistake("[]", "TF_CONFIG", [], LIST, UNSET),
    "a number": Mistake("1", "TF_CONFIG", 1, LIST, UNSET),
    "no cluster": Mistake(
        '{"task": {"type": "worker", "index": 0}}', "TF_CONFIG cluster", None, LIST, UNSET
    ),
    "cluster is a list": Mistake(
        '{"cluster": ["a:1"], "task": {}}', "TF_CONFIG cluster", ["a:1"], LIST, UNSET
    ),
    "an empty cluster": Mistake(
        tf_config("worker", 0, worker=[]),
        "TF_CONFIG cluster",
        {"worker": []},
        "at least one address",
        "unset TF_CONFIG",
    ),
    "no task": Mistake(
        json.dumps({"cluster": {"worker": [A]}}), "TF_CONFIG task", None, LIST, UNSET
    ),
    "no task type": Mistake(
        json.dumps({"cluster": {"worker": [A]}, "task": {"index": 0}}),
        "TF_CONFIG task.type",
        None,
        TYPES,
        "Choose one of these.",
    ),
    "no task index": Mistake(
        json.dumps({"cluster": {"worker": [A]}, "task": {"type": "worker"}}),
        "TF_CONFIG task.index",
        None,
        INDEX,
        "Number the tasks",
    ),
    "index 5 of 2": Mistake(
        tf_config("worker", 5, worker=[A, B]),
        "TF_CONFIG task.index",
        5,
        "0 to 1",
        "Correct the index",
    ),
    "index -1": Mistake(
        tf_config("worker", -1, worker=[A, B]), "TF_CONFIG task.index", -1, INDEX, "from 0."
    ),
    "index is a fraction": Mistake(
        tf_config("worker", 0.5, worker=[A, B]), "TF_CONFIG task.index", 0.5, INDEX, "from 0."
    ),
    "type absent from the cluster": Mistake(
        tf_config("chief", 0, worker=[A, B]),
        "TF_CONFIG task.type",
        "chief",
        "worker, evaluator",
        "Choose one of these.",
    ),
    "unknown type": Mistake(
        tf_config("boss", 0, worker=[A]),
        "TF_CONFIG task.type",
        "boss",
        TYPES,
        "Choose one of these",
    ),
    "two chiefs": Mistake(
        tf_config("chief", 0, chief=[A, B]),
        "TF_CONFIG cluster.chief",
        [A, B],
        "one address",
        "Make the others workers",
    ),
    "chief and master": Mistake(
        tf_config("chief", 0, chief=[A], master=[B]),
        "TF_CONFIG cluster",
        ["chief", "master"],
        "either chief or master",
        "Keep chief",
    ),
    "duplicate address": Mistake(
        tf_config("worker", 0, worker=[A, A]),
        "TF_CONFIG cluster.worker[1]",
        A,
        "an address that no other task has",
        "Give each task its own port",
    ),
    "no port": Mistake(
        tf_config("worker", 0, worker=["10.0.0.1"]),
        "TF_CONFIG cluster.worker[0]",
        "10.0.0.1",
        ADDRESS,
        "Add the task's port",
    ),
    "http://": Mistake(
        tf_config("worker", 0, worker=["http://10.0.0.1:2222"]),
        "TF_CONFIG cluster.worker[0]",
        "http://10.0.0.1:2222",
        ADDRESS,
        "Remove the scheme",
    ),
    "one address without a list": Mistake(
        tf_config("worker", 0, worker=A),
        "TF_CONFIG cluster.worker",
        A,
        "a list of host:port",
        "Write a list",
    ),
    "only an evaluator in the cluster": Mistake(
        tf_config("evaluator", 0, evaluator=[B]),
        "TF_CONFIG cluster",
        {"evaluator": [B]},
        "at least one address",
        "unset TF_CONFIG",
    ),
    # Kubeflow's enableDynamicWorker, as a worker, a ps and a chief see it.
    "a map of one worker": Mistake(
        tf_config("worker", 3, worker={"3": A}, ps=[B, C]),
        "TF_CONFIG cluster.worker",
        {"3": A},
        INDICES,
        "each task needs all addresses. In a TFJob of Kubeflow, set enableDynamicWorker to false.",
    ),
    "a map with gaps": Mistake(
        tf_config("worker", 1, worker={"9": A, "1": B, "2": C, "4": D}),
        "TF_CONFIG cluster.worker",
        {"9": A, "1": B, "2": C, "4": D},
        INDICES,
        "Add what is missing",
    ),
    "a ps without the workers": Mistake(
        tf_config("ps", 1, worker={}, ps=[A]),
        "TF_CONFIG cluster.worker",
        {},
        INDICES,
        "Add what is missing",
    ),
    "a chief without addresses": Mistake(
        tf_config("chief", 0, worker={}, ps=[]),
        "TF_CONFIG cluster.worker",
        {},
        INDICES,
        "enableDynamicWorker",
    ),
    "worker 0 without the others": Mistake(
        tf_config("worker", 0, worker={"0": A}, ps=[]),
        "TF_CONFIG cluster",
        {"worker": {"0": A}, "ps": []},
        "the addresses of all tasks",
        "enableDynamicWorker",
    ),
    **{
        f"the key {key!r}": Mistake(
            tf_config("worker", 0, worker={"0": A, key: B}),
            "TF_CONFIG cluster.worker",
            {"0": A, key: B},
            INDICES,
            "Add what is missing",
        )
        for key in ("one", "-1", "1.0", "01", "", "1" * 20)
    },
    "a key twice": Mistake(
        '{"cluster": {"worker": {"0": "a:1", "0": "b:1"}}, "task": {}}',
        "TF_CONFIG",
        ["0", "0"],
        "each key of a JSON object once",
        "Remove or rename one '0'",
    ),
    "a map with a bad address": Mistake(
        tf_config("worker", 0, worker={"0": A, "1": "b"}),
        "TF_CONFIG cluster.worker[1]",
        "b",
        ADDRESS,
        "Add the task's port",
    ),
    "two evaluators": Mistake(
        tf_config("evaluator", 1, worker=[A]),
        "TF_CONFIG task.index",
        1,
        "0 to 0",
        "Correct the index.",
    ),
    "unknown job": Mistake(
        tf_config("worker", 0, worker=[A], boss=[B]),
        "TF_CONFIG cluster",
        "boss",
        "chief, worker, ps, master",
        "Choose one of these",
    ),
    "ps without workers": Mistake(
        tf_config("ps", 0, ps=[A]),
        "TF_CONFIG cluster.worker",
        [],
        "at least one address",
        "Add a worker",
    ),
    "ps in an all-reduce cluster": Mistake(
        tf_config("worker", 0, worker=[A, B], ps=[C]),
        "--strategy",
        "multi_worker_mirrored with 2 worker + 1 ps",
        "multi_worker_mirrored with no ps",
        "Remove the ps from the cluster",
        strategy="multi_worker_mirrored",
    ),
}


@pytest.mark.parametrize("mistake", MISTAKES.values(), ids=MISTAKES.keys())
def test_each_mistake_in_tf_config_prints_one_line_and_exits_with_code_2(
    mistake: Mistake, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("TF_CONFIG", mistake.config)
    monkeypatch.setenv(STRATEGY_VARIABLE, mistake.strategy)

    with pytest.raises(SystemExit) as end:
        tfdist.init()

    assert end.value.code == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    (line,) = printed.err.splitlines()
    start, accepted_and_remedy = line.split("; accepted: ")
    assert start == f"tfdist: error: {mistake.field}: received {mistake.received!r}"
    assert accepted_and_remedy.startswith(mistake.accepted)
    assert mistake.remedy in accepted_and_remedy


def test_the_error_for_a_long_tf_config_is_shortened() -> None:
    with pytest.raises(UsageError) as error:
        in_tf_config("{" + "x" * 1000)

    assert len(str(error.value)) < 300


@pytest.mark.parametrize(
    ("given", "field", "received", "accepted"),
    [
        ({"task_index": "0"}, "--job_name", None, TYPES),
        ({"task_index": "0", "worker_hosts": A}, "--job_name", None, TYPES),
        ({"worker_hosts": A}, "--job_name", None, TYPES),
        ({"job_name": "worker", "worker_hosts": A}, "--task_index", None, INDEX),
        ({"job_name": "worker", "task_index": "", "worker_hosts": A}, "--task_index", "", INDEX),
        (
            {"job_name": "worker", "task_index": "one", "worker_hosts": A},
            "--task_index",
            "one",
            INDEX,
        ),
        ({"job_name": "worker", "task_index": "-1", "worker_hosts": A}, "--task_index", -1, INDEX),
        ({"job_name": "worker", "task_index": "1", "worker_hosts": A}, "--task_index", 1, "0 to 0"),
        ({"job_name": "boss", "task_index": "0", "worker_hosts": A}, "--job_name", "boss", TYPES),
        ({"job_name": "worker", "task_index": "0"}, "--job_name", "worker", "evaluator"),
        (
            {"job_name": "ps", "task_index": "0", "worker_hosts": A},
            "--job_name",
            "ps",
            "worker, evaluator",
        ),
        (
            {"job_name": "worker", "task_index": "0", "worker_hosts": f"{A},"},
            "--worker_hosts[1]",
            "",
            ADDRESS,
        ),
        (
            {"job_name": "worker", "task_index": "0", "worker_hosts": f"{A},{A}"},
            "--worker_hosts[1]",
            A,
            "an address that no other task has",
        ),
        (
            {"job_name": "worker", "task_index": "0", "worker_hosts": A, "ps_hosts": "http://b:1"},
            "--ps_hosts[0]",
            "http://b:1",
            ADDRESS,
        ),
        (
            {"job_name": "chief", "task_index": "0", "chief_hosts": f"{A},{B}"},
            "--chief_hosts",
            [A, B],
            "one address",
        ),
        (
            {"job_name": "ps", "task_index": "0", "ps_hosts": A},
            "--worker_hosts",
            [],
            "at least one address",
        ),
    ],
)
def test_the_error_for_an_invalid_flag_names_it(
    given: dict[str, str], field: str, received: Any, accepted: str
) -> None:
    with pytest.raises(UsageError) as error:
        discover(ClusterFlags(**given), {})

    assert (error.value.field, error.value.received) == (field, received)
    assert error.value.accepted.startswith(accepted)
    assert error.value.remedy.endswith(".")
