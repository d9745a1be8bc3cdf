"""The cluster and the task that the variables of engines describe, as recorded in real jobs."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tfdist.cluster.config import ClusterConfig, ClusterFlags
from tfdist.cluster.discovery import discover
from tfdist.cluster.environments import TABLE, mpi
from tfdist.cluster.exchange import Met, in_one_network
from tfdist.cluster.task_counts import TaskCounts
from tfdist.errors import UsageError

pytestmark = pytest.mark.stacks("newest")


def find(environ: Mapping[str, str], **counts: Any) -> ClusterConfig:
    return discover(ClusterFlags(), environ, TaskCounts(**counts))


def hosts_of(config: ClusterConfig) -> str:
    """`worker=n1,n1 ps=n2`, without ports."""
    return " ".join(
        f"{name}={','.join(address.rpartition(':')[0] for address in addresses)}"
        for name, addresses in config.cluster.jobs().items()
    )


# Five tasks over n[1-2,10]: 2, 2 and 1.
STEP = {
    "SLURM_JOB_ID": "17",
    "SLURM_STEP_ID": "0",
    "SLURM_NTASKS": "5",
    "SLURM_STEP_NUM_TASKS": "5",
    "SLURM_STEP_NODELIST": "n[1-2,10]",
    "SLURM_JOB_NODELIST": "n[1-2,10]",
    "SLURM_STEP_TASKS_PER_NODE": "2(x2),1",
}
BLOCK = {**STEP, "SLURM_DISTRIBUTION": "block"}
CYCLIC = {**STEP, "SLURM_DISTRIBUTION": "cyclic"}
# Two ps on n10, then two workers on n[1-2].
HETEROGENEOUS = {
    "SLURM_JOB_ID": "18",
    "SLURM_STEP_ID": "0",
    "SLURM_NTASKS": "4",
    "SLURM_STEP_NUM_TASKS": "4",
    "SLURM_STEP_NODELIST": "n[1-2,10]",
    "SLURM_STEP_TASKS_PER_NODE": "1(x2),2",
    "SLURM_DISTRIBUTION": "cyclic",
    "SLURM_HET_SIZE": "2",
    "SLURM_JOB_NODELIST_HET_GROUP_0": "n10",
    "SLURM_TASKS_PER_NODE_HET_GROUP_0": "2",
    "SLURM_JOB_NODELIST_HET_GROUP_1": "n[1-2]",
    "SLURM_TASKS_PER_NODE_HET_GROUP_1": "1(x2)",
    # The old names.
    "SLURM_JOB_NODELIST_PACK_GROUP_0": "n10",
    "SLURM_JOB_NODELIST_PACK_GROUP_1": "n[1-2]",
}
# The same, started by srun without sbatch.
PACKED = {name: value for name, value in HETEROGENEOUS.items() if "HET_GROUP" not in name}
# A step of the second component alone.
ONE_COMPONENT = {
    **HETEROGENEOUS,
    "SLURM_NTASKS": "2",
    "SLURM_STEP_NODELIST": "n[1-2]",
    "SLURM_STEP_TASKS_PER_NODE": "1(x2)",
}
BATCH = {
    **{name: value for name, value in STEP.items() if "STEP" not in name},
    "SLURM_PROCID": "0",
    "SLURM_LOCALID": "0",
}
SALLOC = {"SLURM_JOB_ID": "17", "SLURM_NTASKS": "5", "SLURM_JOB_NODELIST": "n[1-2,10]"}
JOBSET = {"TFDIST_TASKS": "ps=1,chief=1,worker=2,evaluator=1", "JOBSET_NAME": "run1"}
TF_CONFIG = {
    "cluster": {"chief": ["a:1"], "worker": ["b:1"], "evaluator": ["c:1"]},
    "task": {"type": "evaluator", "index": 0},
}
TRAINJOB_HOSTS = "chief=run1-chief-0-0.run1 worker=run1-worker-0-0.run1,run1-worker-0-1.run1"


def at(environ: Mapping[str, str], rank: int, node: str, place: int) -> dict[str, str]:
    """The environment of one task of a step."""
    own = {"SLURM_PROCID": str(rank), "SLURMD_NODENAME": node, "SLURM_LOCALID": str(place)}
    return {**environ, **own}


@pytest.mark.parametrize(
    ("environ", "counts", "task", "hosts"),
    [
        pytest.param(at(BLOCK, 3, "n2", 1), {}, "worker:3", "worker=n1,n1,n2,n2,n10", id="block"),
        pytest.param(at(CYCLIC, 3, "n1", 1), {}, "worker:3", "worker=n1,n2,n10,n1,n2", id="cyclic"),
        pytest.param(
            at(CYCLIC, 1, "n2", 0),
            {"ps": 1, "evaluator": True},
            "evaluator:0",
            "chief=n10 worker=n1,n2 ps=n1",
            id="counts",
        ),
        pytest.param(
            at(HETEROGENEOUS, 2, "n1", 0),
            {"ps": 2},
            "chief:0",
            "chief=n1 worker=n2 ps=n10,n10",
            id="heterogeneous",
        ),
        pytest.param(
            at(PACKED, 1, "n10", 1),
            {"ps": 2},
            "ps:1",
            "chief=n1 worker=n2 ps=n10,n10",
            id="heterogeneous_without_sbatch",
        ),
        pytest.param(at(ONE_COMPONENT, 1, "n2", 0), {}, "worker:1", "worker=n1,n2", id="component"),
        pytest.param(
            at({**BLOCK, "SLURM_JOB_ID": "9", "SLURM_ARRAY_JOB_ID": "8"}, 4, "n10", 0),
            {},
            "worker:4",
            "worker=n1,n1,n2,n2,n10",
            id="array",
        ),
        pytest.param(
            at(
                {
                    **BLOCK,
                    "SLURM_NTASKS": "2",
                    "SLURM_STEP_NODELIST": "n2",
                    "SLURM_STEP_TASKS_PER_NODE": "2",
                },
                1,
                "n2",
                1,
            ),
            {},
            "worker:1",
            "worker=n2,n2",
            id="step_smaller_than_the_allocation",
        ),
        pytest.param(BATCH, {}, "worker:0", "", id="batch_script"),
        pytest.param(SALLOC, {}, "worker:0", "", id="salloc"),
        pytest.param(
            {"SM_HOSTS": '["algo-10", "algo-1", "algo-2"]', "SM_CURRENT_HOST": "algo-10"},
            {},
            "worker:2",
            "worker=algo-1,algo-2,algo-10",
            id="sagemaker",
        ),
        pytest.param(
            {"SKYPILOT_NODE_IPS": "10.0.0.1\n10.0.0.2", "SKYPILOT_NODE_RANK": "1"},
            {},
            "worker:1",
            "worker=10.0.0.1,10.0.0.2",
            id="skypilot",
        ),
        pytest.param(
            {"LSB_JOBID": "7", "LSB_MCPU_HOSTS": "a 2 b 1", "LSF_PM_TASKID": "3"},
            {},
            "worker:2",
            "worker=a,a,b",
            id="blaunch",
        ),
        pytest.param(
            {
                **{"LSB_JOBID": "7", "LSB_MCPU_HOSTS": "batch 1 a 2 b 2"},
                **{"JSM_NAMESPACE_RANK": "3", "JSM_NAMESPACE_SIZE": "4"},
            },
            {},
            "worker:3",
            "worker=a,a,b,b",
            id="jsrun",
        ),
        pytest.param(
            {**JOBSET, "JOBSET_ROLE": "worker", "JOB_COMPLETION_INDEX": "1"},
            {},
            "worker:1",
            f"{TRAINJOB_HOSTS} ps=run1-ps-0-0.run1",
            id="jobset",
        ),
        pytest.param(
            {**JOBSET, "JOBSET_ROLE": "evaluator", "JOB_COMPLETION_INDEX": "0"},
            {},
            "evaluator:0",
            f"{TRAINJOB_HOSTS} ps=run1-ps-0-0.run1",
            id="evaluator_of_a_jobset",
        ),
        pytest.param(
            {"TF_CONFIG": json.dumps(TF_CONFIG), **at(BLOCK, 3, "n2", 1)},
            {},
            "evaluator:0",
            "chief=a worker=b",
            id="tf_job_with_evaluator",
        ),
        pytest.param(
            {**at(BLOCK, 3, "n2", 1), "HOROVOD_RANK": "1", "HOROVOD_SIZE": "2"},
            {},
            "worker:1",
            "",
            id="horovodrun_in_slurm",
        ),
    ],
)
def test_the_job_that_an_engine_describes(
    environ: dict[str, str], counts: dict[str, Any], task: str, hosts: str
) -> None:
    config = find(environ, **counts)
    assert (str(config.task), hosts_of(config)) == (task, hosts)


def recorded() -> list[dict[str, str]]:
    """The environments above."""
    (mark,) = test_the_job_that_an_engine_describes.pytestmark
    return [parameters.values[0] for parameters in mark.args[1]]


HOSTILE = [
    *("", " ", "-1", "1e9", "9" * 5000, "0x1", "½", "²", "\udcff", "n[1-" + "9" * 30 + "]", "n[1-"),
    *(
        "[" * 100_000,
        '{"a":' * 50_000,
        "[]",
        "{}",
        "null",
        "NaN",
        '{"worker": 1}',
        "1(x9999999999)",
    ),
    *("a b c", "a,,b", "=", "worker=" + "9" * 5000, "/" + "x" * 300, "a\x1b[2J", "[::1"),
]


@settings(deadline=None, max_examples=300, suppress_health_check=[HealthCheck.too_slow])
@given(data=st.data())
def test_a_hostile_variable_is_a_usage_error_or_a_value(data: st.DataObject) -> None:
    environ = data.draw(st.sampled_from(recorded()))
    name = data.draw(st.sampled_from(sorted(environ)))
    # What the environment of a process can hold; "\udcff" is a byte that is no UTF-8.
    text = st.text(st.characters(codec="utf-8", exclude_characters="\0"))
    hostile = {**environ, name: data.draw(st.sampled_from(HOSTILE) | text)}
    with suppress(UsageError):
        find(hostile, ps=data.draw(st.integers(0, 2)))


MPIRUN = {
    "OpenMPI 4": ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", {"PMIX_NAMESPACE": "3466395649"}),
    "OpenMPI 5": (
        "OMPI_COMM_WORLD_RANK",
        "OMPI_COMM_WORLD_SIZE",
        {"PMIX_NAMESPACE": "prterun-a-9@1"},
    ),
    "MPICH": ("PMI_RANK", "PMI_SIZE", {"MPI_LOCALNRANKS": "1", "MPI_LOCALRANKID": "0"}),
    # The variables of Slurm are those of the daemon of Open MPI.
    "mpirun in Slurm": (
        "OMPI_COMM_WORLD_RANK",
        "OMPI_COMM_WORLD_SIZE",
        {**at(BLOCK, 0, "n1", 0), "SLURM_NTASKS": "3"},
    ),
}


@pytest.mark.parametrize("launcher", MPIRUN)
def test_the_ranks_of_mpirun_exchange_their_hosts(
    launcher: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    rank, size, others = MPIRUN[launcher]
    monkeypatch.setattr(mpi, "exchange", lambda: Met(("a", "b", "b"), "run"))
    config = find({rank: "2", size: "3", **others}, ps=1)
    assert (str(config.task), hosts_of(config)) == ("worker:0", "chief=b worker=b ps=a")
    local = {"OMPI_COMM_WORLD_LOCAL_SIZE": "3"}
    if launcher.startswith("OpenMPI"):
        found = find({rank: "2", size: "3", **others, **local})
        assert hosts_of(found) == "worker=127.0.0.1,127.0.0.1,127.0.0.1"
    alone = find({rank: "0", size: "1", **others})
    assert (str(alone.task), alone.cluster.tasks()) == ("worker:0", ())


def test_without_mpi4py_ranks_on_several_hosts_do_not_find_each_other(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "mpi4py", None)
    rank, size, others = MPIRUN["OpenMPI 5"]
    with pytest.raises(UsageError, match=r"Install tfdist\[mpi\]"):
        find({rank: "1", size: "2", **others})


def test_the_hosts_of_ranks_have_addresses_in_a_common_network() -> None:
    bridge = {"172.17.0.0/16": "172.17.0.1"}
    first = {**bridge, "10.0.0.0/24": "10.0.0.1", "10.1.0.0/24": "10.1.0.1"}
    second = {**bridge, "10.1.0.0/24": "10.1.0.2"}
    assert in_one_network([first, first, second]) == ("10.1.0.1", "10.1.0.1", "10.1.0.2")
    assert in_one_network([first, first]) == ("127.0.0.1", "127.0.0.1")
    apart = [{"10.0.0.0/24": "10.0.0.1"}, {"10.1.0.0/24": "10.1.0.2"}]
    assert in_one_network(apart) == ("10.0.0.1", "10.1.0.2")


def test_the_log_says_what_was_found_and_why() -> None:
    assert str(find(at(CYCLIC, 3, "n1", 1))) == "worker:3 of 5 worker (Slurm step 17.0, cyclic)"
    found = str(find(at(HETEROGENEOUS, 0, "n10", 0), ps=2))
    assert found == "ps:0 of 1 chief + 1 worker + 2 ps (Slurm step 18.0, 2 components)"


@pytest.mark.parametrize(
    ("environ", "counts", "field"),
    [
        # Slurm's variables say that rank 3 is the second task of n1.
        (at(CYCLIC, 3, "n2", 1), {}, "SLURM_DISTRIBUTION"),
        ({**at(CYCLIC, 3, "n1", 1), "SLURM_DISTRIBUTION": "plane"}, {}, "SLURM_DISTRIBUTION"),
        ({**at(BLOCK, 3, "n2", 1), "SLURM_STEP_TASKS_PER_NODE": "2"}, {}, "SLURM_STEP_NODELIST"),
        ({**at(BLOCK, 3, "n2", 1), "SLURM_STEP_NODELIST": "n[1-"}, {}, "SLURM_STEP_NODELIST"),
        ({**at(BLOCK, 3, "n2", 1), "SLURM_PROCID": "9"}, {}, "SLURM_PROCID"),
        (at(BLOCK, 3, "n2", 1), {"ps": 5}, "--num_ps"),
        ({}, {"ps": 1}, "--num_ps"),
        ({"TF_CONFIG": json.dumps(TF_CONFIG)}, {"evaluator": True}, "--evaluator"),
        ({"SM_HOSTS": '["a"]', "SM_CURRENT_HOST": "b"}, {}, "SM_CURRENT_HOST"),
        ({"SM_HOSTS": "a,b", "SM_CURRENT_HOST": "b"}, {}, "SM_HOSTS"),
        ({"SKYPILOT_NODE_IPS": "a b", "SKYPILOT_NODE_RANK": "x"}, {}, "SKYPILOT_NODE_RANK"),
        ({"LSB_JOBID": "7", "LSB_MCPU_HOSTS": "a", "LSF_PM_TASKID": "1"}, {}, "LSB_MCPU_HOSTS"),
        ({"LSB_JOBID": "7", "LSB_MCPU_HOSTS": " ", "LSF_PM_TASKID": "1"}, {}, "LSB_MCPU_HOSTS"),
        (
            {
                **{"LSB_JOBID": "7", "LSB_MCPU_HOSTS": "batch 1 a 42 b 42"},
                **{"JSM_NAMESPACE_RANK": "0", "JSM_NAMESPACE_SIZE": "2"},
            },
            {},
            "JSM_NAMESPACE_SIZE",
        ),
        ({"PBS_JOBID": "7", "PBS_NODEFILE": "/no/file", "PBS_VNODENUM": "1"}, {}, "PBS_NODEFILE"),
        (
            {**JOBSET, "TFDIST_TASKS": "ps:1", "JOBSET_ROLE": "ps", "JOB_COMPLETION_INDEX": "0"},
            {},
            "TFDIST_TASKS",
        ),
    ],
)
def test_a_mistake_names_the_variable(
    environ: dict[str, str], counts: dict[str, Any], field: str
) -> None:
    with pytest.raises(UsageError) as raised:
        find(environ, **counts)
    assert raised.value.field == field


def test_pbs_lists_the_hosts_in_a_file(tmp_path: Path) -> None:
    (tmp_path / "nodes").write_text("a\na\nb\n")
    nodefile = str(tmp_path / "nodes")
    config = find({"PBS_JOBID": "7.head", "PBS_NODEFILE": nodefile, "PBS_VNODENUM": "2"})
    assert (str(config.task), hosts_of(config)) == ("worker:2", "worker=a,a,b")
    script = {"PBS_JOBID": "7.head", "PBS_NODEFILE": nodefile, "PBS_VNODENUM": "0"}
    assert find({**script, "PBS_TASKNUM": "1"}) == ClusterConfig()


def test_ports_that_slurm_reserves() -> None:
    reserved = at({**BLOCK, "SLURM_STEP_RESV_PORTS": "12000-12003"}, 0, "n1", 0)
    assert find(reserved).cluster.worker[:3] == ("n1:12000", "n1:12001", "n2:12000")


def test_ten_thousand_tasks_take_less_than_a_second() -> None:
    step = {
        **{"SLURM_JOB_ID": "17", "SLURM_STEP_ID": "0", "SLURM_NTASKS": "10000"},
        **{"SLURM_STEP_NODELIST": "n[0000-1249]", "SLURM_STEP_TASKS_PER_NODE": "8(x1250)"},
        **{"SLURM_DISTRIBUTION": "block"},
    }
    started = time.process_time()
    config = find(at(step, 9999, "n1249", 7), ps=100)
    assert time.process_time() - started < 1
    assert len(config.cluster.worker) == 9899


def test_each_environment_has_its_place() -> None:
    names = [environment.name for environment in TABLE]
    assert len(names) == len({*names})
    assert names[:3] == ["flags", "TF_CONFIG", "horovodrun"]
    assert names.index("Open MPI") < names.index("Slurm step")
