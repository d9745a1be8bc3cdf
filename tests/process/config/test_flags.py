"""The flags, and the errors for invalid flags, an invalid TF_CONFIG or a port in use."""

from __future__ import annotations

import os
import re
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from absl import flags as absl_flags

import tfdist.entry
from tests.conftest import tf_config
from tfdist.cluster import Cluster, Task
from tfdist.cluster.config import ClusterFlags
from tfdist.config.flags import JobFlags, read_flags, with_underscores
from tfdist.config.strategies import table
from tfdist.coordination import startup
from tfdist.errors import UsageError

pytestmark = pytest.mark.stacks("newest")

REPOSITORY = Path(__file__).parents[3]
A, B, C = "127.0.0.1:1", "127.0.0.1:2", "127.0.0.1:3"

SCRIPT = """
import sys
from absl import app, flags
import tfdist
from tfdist.config.flags import read_flags

tfdist.define_flags()
flags.DEFINE_string("note_text", None, "A flag of the script.")

def main(argv):
    try:
        if flags.FLAGS.note_text:
            print(flags.FLAGS.note_text, argv[1:], read_flags())
        else:
            tfdist.init()
    finally:
        print("with TensorFlow" if "tensorflow" in sys.modules else "without TensorFlow")

app.run(main{parser})
"""


def run_code(code: str, *arguments: str, **environ: str) -> subprocess.CompletedProcess[str]:
    inherited = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("TF_", "HOROVOD_", "TFDIST_"))
    }
    return subprocess.run(
        [sys.executable, "-c", code, *arguments],
        env={**inherited, "PYTHONPATH": str(REPOSITORY), "TF_CPP_MIN_LOG_LEVEL": "3", **environ},
        capture_output=True,
        text=True,
        timeout=60,
    )


@pytest.fixture(params=["", ", flags_parser=tfdist.parse_flags"], ids=["bare", "parse_flags"])
def script(request: pytest.FixtureRequest) -> str:
    return SCRIPT.replace("{parser}", request.param)


PARSING_SCRIPT = SCRIPT.replace("{parser}", ", flags_parser=tfdist.parse_flags")


@pytest.mark.parametrize(
    ("typed", "read"),
    [
        ("--train-batch-size=16", "--train_batch_size=16"),
        ("--train_batch_size=16", "--train_batch_size=16"),
        ("--data-dir=/a-b/--c-d=e-f", "--data_dir=/a-b/--c-d=e-f"),
        ("--no-distortion", "--no_distortion"),
        ("a-b", "a-b"),
        ("/some-dir/x-y", "/some-dir/x-y"),
        ("-", "-"),
        ("-1", "-1"),
        ("", ""),
    ],
)
def test_dashes_become_underscores_in_names_but_not_in_values(typed: str, read: str) -> None:
    assert with_underscores([typed]) == [read]


def test_nothing_after_a_lone_double_dash_is_rewritten() -> None:
    typed = ["--a-b=c-d", "--", "--e-f=g-h", "--", "--i-j"]

    assert with_underscores(typed) == ["--a_b=c-d", *typed[1:]]
    assert typed[0] == "--a-b=c-d"


def test_a_program_that_defines_no_flags_gets_the_defaults(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(absl_flags, "FLAGS", absl_flags.FlagValues())
    assert read_flags() == JobFlags()


ARGPARSE_SCRIPT = """
import argparse, tfdist
parser = argparse.ArgumentParser()
parser.add_argument("--lr", type=float)
arguments, others = parser.parse_known_args()
job = tfdist.init(others)
print(arguments.lr, tfdist.config.flags.read_flags().strategy)
"""


def test_a_script_with_argparse_passes_on_the_flags_of_tfdist() -> None:
    done = run_code(ARGPARSE_SCRIPT, "--lr", "0.5", "--strategy=mirrored", "--num-gpus=0")
    assert (done.returncode, done.stdout) == (0, "0.5 mirrored\n"), done.stderr

    for argument, words in (("--strateg=mirrored", "Unknown command line flag"), ("x", "'x'")):
        failed = run_code(ARGPARSE_SCRIPT, argument)
        assert failed.returncode == 2
        assert words in failed.stderr


OWN_EVALUATOR = """
import tfdist
from absl import app, flags
flags.DEFINE_bool("evaluator", True, "The script's own.")
tfdist.define_flags()

def main(_):
    print(flags.FLAGS.evaluator, tfdist.config.flags.read_flags().counts)

app.run(main, flags_parser=tfdist.parse_flags)
"""


def test_a_script_may_have_flags_of_the_names_of_roles() -> None:
    done = run_code(OWN_EVALUATOR, "--num-ps=2")
    assert done.stdout == "True TaskCounts({'ps': 2})\n", done.stderr


def test_scripts_accept_dashes_and_underscores(script: str) -> None:
    typed = [
        "--note-text=a-b --c-d",
        "--task-index=1",
        "--job-name=worker",
        "--worker-hosts=a-b:1,c-d:2",
        "--num-gpus=0",
        "--variable-partitions=2",
        "--all-reduce=ring",
        "--",
        "--e-f",
    ]
    underscored = [*with_underscores(typed)[:-2], "--", "--e-f"]
    assert underscored != typed

    ends = [run_code(script, *arguments) for arguments in (typed, underscored)]

    expected = JobFlags.of(
        cluster=ClusterFlags(job_name="worker", task_index="1", worker_hosts="a-b:1,c-d:2"),
        all_reduce="ring",
        num_gpus=0,
        variable_partitions=2,
    )
    for end in ends:
        assert end.stdout == f"a-b --c-d ['--e-f'] {expected}\nwithout TensorFlow\n", end.stderr


def test_the_flags_of_synchronous_updates() -> None:
    script = """
import sys
from tfdist.config.flags import define_flags, parse_flags, read_flags
define_flags()
parse_flags(sys.argv)
print(read_flags())
"""
    end = run_code(script, "--sync", "--replicas-to-aggregate=2", "--num_gpus=0")
    assert end.stdout == f"{JobFlags.of(num_gpus=0, sync=True, replicas_to_aggregate=2)}\n", (
        end.stderr
    )
    assert run_code(script, "--nosync").stdout == f"{JobFlags.of(sync=False)}\n"


MISTAKES: dict[str, tuple[list[str], dict[str, str], str]] = {
    "unknown strategy": (["--strategy=mirored"], {}, "--strategy: received 'mirored'"),
    "malformed TF_CONFIG": ([], {"TF_CONFIG": "{"}, "TF_CONFIG: received '{'"),
    "missing index": (
        ["--job-name=worker", f"--worker_hosts={A}"],
        {},
        "--task_index: received None",
    ),
    "index is a word": (
        ["--job_name=worker", "--task-index=one", f"--worker_hosts={A}"],
        {},
        "--task_index: received 'one'",
    ),
    "ps in an all-reduce cluster": (
        ["--strategy=multi_worker_mirrored"],
        {"TF_CONFIG": tf_config("worker", 0, worker=[A], ps=[B])},
        "--strategy: received 'multi_worker_mirrored with 1 worker + 1 ps'",
    ),
    "no ps for parameter_server": (
        ["--strategy=parameter_server"],
        {},
        "--strategy: received 'parameter_server with this process alone'",
    ),
    "two workers for mirrored": (
        ["--strategy=mirrored"],
        {"TF_CONFIG": tf_config("worker", 0, worker=[A, B])},
        "--strategy: received 'mirrored with 2 worker'",
    ),
    "negative number": (["--num_gpus=-1"], {}, "--num_gpus: received -1"),
    "endless timeout": (["--startup_timeout=inf"], {}, "--startup_timeout: received inf"),
    "no timeout": (["--heartbeat_timeout=0"], {}, "--heartbeat_timeout: received 0.0"),
    "more gradients than workers": (
        ["--sync", "--replicas_to_aggregate=4"],
        {"TF_CONFIG": tf_config("worker", 0, worker=[A, B, C], ps=["127.0.0.1:4"])},
        "--replicas_to_aggregate: received 4",
    ),
    "stages that do not divide the workers": (
        ["--strategy=in_graph", "--stages=3"],
        {"TF_CONFIG": tf_config("worker", 0, worker=[A, B, C, "127.0.0.1:4"])},
        "--stages: received '3 with 4 workers'",
    ),
    "partitions of no bytes": (
        ["--partition_bytes=0"],
        {"TF_CONFIG": tf_config("worker", 0, worker=[A], ps=[B])},
        "--partition_bytes: received 0",
    ),
    "flags of tfdist run": (
        [],
        {"TFDIST_FLAGS": '{"sync": 1}'},
        "TFDIST_FLAGS: received '{\"sync\": 1}'",
    ),
    "duplicate address": (
        ["--job_name=worker", "--task_index=0", f"--worker_hosts={A},{A}"],
        {},
        f"--worker_hosts[1]: received '{A}'",
    ),
    "http:// address": (
        ["--job_name=worker", "--task_index=0", "--worker_hosts=http://a:1"],
        {},
        "--worker_hosts[0]: received 'http://a:1'",
    ),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_prints_one_line_and_exits_with_code_2(mistake: str, script: str) -> None:
    arguments, environ, field = MISTAKES[mistake]

    end = run_code(script, *arguments, **environ)

    (line,) = end.stderr.splitlines()
    assert line.startswith(f"tfdist: error: {field}; accepted: ")
    assert end.returncode == 2
    assert end.stdout == "without TensorFlow\n"


@pytest.mark.parametrize(
    ("argument", "named"),
    [
        ("--num-gpus=one", "--num_gpus=one"),
        ("--task_indx=1", "task_indx"),
        ("--workers=2", "--workers is a flag of tfdist run. Write it before the script"),
    ],
)
def test_a_flag_that_absl_cannot_parse_exits_with_code_2(argument: str, named: str) -> None:
    end = run_code(PARSING_SCRIPT, argument)

    error, advice = end.stderr.splitlines()
    assert error.startswith("tfdist: error: ")
    assert named in error
    assert advice == "Run with --help for the flags of this script."
    assert end.returncode == 2
    assert end.stdout == ""


def test_the_help_of_a_script_has_the_flags_of_tfdist() -> None:
    end = run_code(PARSING_SCRIPT, "--help")
    assert (end.returncode, end.stderr) == (0, "")
    for flag in ("--note_text", "--strategy", "--job_name", "--[no]sync"):
        assert flag in end.stdout


def errors_of(end: subprocess.CompletedProcess[str]) -> list[str]:
    """The lines of tfdist in stderr; TensorFlow may log others when it is imported."""
    assert "Traceback" not in end.stderr
    assert end.returncode == 2, end.stderr
    return re.findall(r"^tfdist: .*$", end.stderr, re.MULTILINE)


def test_a_flag_of_another_strategy_exits_with_code_2() -> None:
    end = run_code(PARSING_SCRIPT, "--strategy=mirrored", "--all-reduce=ring")

    (line,) = errors_of(end)
    assert line.startswith(
        "tfdist: error: --all_reduce: received 'ring'; accepted: not supported with"
    )


def test_a_port_in_use_exits_with_code_2(listener: socket.socket) -> None:
    address = f"127.0.0.1:{listener.getsockname()[1]}"

    end = run_code(PARSING_SCRIPT, TF_CONFIG=tf_config("worker", 0, worker=[address, A]))

    (line,) = errors_of(end)
    assert line.startswith(f"tfdist: error: address of worker:0: received '{address}'; accepted: ")


@pytest.mark.parametrize(
    ("options", "field", "received"),
    [
        (JobFlags.of(strategy="multi_worker_mirrored", all_reduce="tree"), "--all_reduce", "tree"),
        (JobFlags.of(num_gpus=99), "--num_gpus", 99),
    ],
)
def test_a_value_that_the_machine_or_strategy_does_not_support_is_rejected(
    options: JobFlags, field: str, received: Any
) -> None:
    with pytest.raises(UsageError) as error:
        tfdist.entry.create(options, {})

    assert (error.value.field, error.value.received) == (field, received)


@pytest.fixture
def listener() -> Iterator[socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server


def test_a_port_with_a_listener_is_rejected(listener: socket.socket) -> None:
    address = f"127.0.0.1:{listener.getsockname()[1]}"

    with pytest.raises(UsageError) as error:
        tfdist.entry.create(JobFlags(), {"TF_CONFIG": tf_config("worker", 1, worker=[A, address])})

    assert (error.value.field, error.value.received) == ("address of worker:1", address)
    assert "Address already in use" in error.value.remedy


def test_a_port_that_is_bound_but_not_listening_is_accepted() -> None:
    with socket.socket() as held:
        held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        held.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{held.getsockname()[1]}"
        cluster = Cluster(worker=(address, B))
        startup.check_port(cluster, Task("worker", 0))
        held.listen()
        with pytest.raises(UsageError):
            startup.check_port(cluster, Task("worker", 0))


@pytest.mark.parametrize("has_cluster", [True, False])
def test_an_evaluator_is_not_part_of_the_cluster_and_not_the_chief(
    has_cluster: bool, listener: socket.socket
) -> None:
    address = f"127.0.0.1:{listener.getsockname()[1]}"
    found = ClusterFlags(
        job_name="evaluator",
        task_index="0",
        worker_hosts=f"{address},{B}" if has_cluster else None,
    )

    job = tfdist.entry.create(
        JobFlags.of(cluster=found, strategy="multi_worker_mirrored", all_reduce="ring"), {}
    )

    assert job.name == "one_device"
    assert job.evaluates
    assert not job.is_chief
    assert not job.serves


@pytest.mark.parametrize(
    ("environ", "options", "name"),
    [
        ({}, JobFlags(), "one_device"),
        ({table.STRATEGY_VARIABLE: "mirrored"}, JobFlags(), "mirrored"),
        (
            {table.STRATEGY_VARIABLE: "mirrored"},
            JobFlags.of(strategy="central_storage"),
            "central_storage",
        ),
    ],
)
def test_the_flag_overrides_the_variable_which_overrides_the_cluster(
    environ: dict[str, str], options: JobFlags, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    job = tfdist.entry.create(options, environ)

    assert job.name == name
    log = capsys.readouterr().err
    assert log.startswith(f"tfdist: worker:0 of this process alone (default), {name}; oneDNN ")
    assert log.count("\n") == 1


@pytest.mark.parametrize("name", ["one_device", "mirrored", "multi_worker_mirrored"])
def test_ranks_of_horovodrun_reject_other_strategies(name: str) -> None:
    with pytest.raises(UsageError) as error:
        tfdist.entry.create(JobFlags.of(strategy=name), {"HOROVOD_RANK": "1", "HOROVOD_SIZE": "2"})

    assert error.value.field == "--strategy"


def test_importing_the_package_and_its_command_does_not_import_tensorflow() -> None:
    code = """
import sys
import tfdist, tfdist.tools.commands.cli, tfdist.entry, tfdist.tools.launch.local
for name in tfdist.__all__:
    if name != "Job":
        getattr(tfdist, name)
print(sorted({module.partition(".")[0] for module in sys.modules} & {"tensorflow", "keras"}))
"""
    end = run_code(code)

    assert (end.stdout, end.stderr) == ("[]\n", "")
