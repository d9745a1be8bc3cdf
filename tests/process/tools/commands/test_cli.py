"""The `tfdist` command: its arguments, output and errors."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from tfdist.data import cifar10
from tfdist.process import setup
from tfdist.process.version import __version__
from tfdist.tools.commands import cli

ROOT = Path(__file__).parents[3]

pytestmark = [pytest.mark.stacks("2.15", "newest"), pytest.mark.timeout(60)]


@pytest.fixture
def script(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A script that prints its arguments, in the working directory."""
    monkeypatch.chdir(tmp_path)
    Path("train.py").write_text("import sys; print(sys.argv[1:])")
    return "train.py"


def test_help_does_not_import_tensorflow() -> None:
    code = (
        "import sys, tfdist.tools.commands.cli\n"
        "try: tfdist.tools.commands.cli.main(['--help'])\n"
        "finally: print(sorted({'horovod', 'numpy', 'tensorflow'} & set(sys.modules)))"
    )

    answer = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True
    )

    assert answer.stdout.startswith("usage: tfdist")
    assert answer.stdout.endswith("[]\n")


def test_version_flag_prints_the_version(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        cli.main(["--version"])

    assert ended.value.code == 0
    assert capsys.readouterr().out == f"tfdist {__version__}\n"


@pytest.mark.parametrize("dry_run", ["--dry_run", "--dry-run"])
def test_dry_run_prints_shell_commands(
    script: str, dry_run: str, capfd: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["run", "--workers=2", dry_run, script, "it's", "--ps=3", "--help"]) == 0

    out, err = capfd.readouterr()
    assert err == ""
    assert re.findall(r"^\[(.*?)\] TF_CONFIG=", out, re.MULTILINE) == ["worker:0", "worker:1"]
    command = out.splitlines()[0].removeprefix("[worker:0] ")
    printed = subprocess.run(["sh", "-c", command], capture_output=True, text=True, check=True)
    assert printed.stdout == """["it's", '--ps=3', '--help']\n"""


@pytest.mark.parametrize(
    ("flags", "onednn", "shares"),
    [
        ([], "users", ["0/2", "1/2"]),
        (["--onednn=off", "--cores=share"], "0", ["0/1", "0/1"]),
        (["--onednn=on", "--cores=divide"], "1", ["0/2", "1/2"]),
    ],
)
def test_the_onednn_and_cores_flags(
    flags: list[str],
    onednn: str,
    shares: list[str],
    script: str,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(setup, "cpu_flags", lambda: frozenset({"avx2"}))
    monkeypatch.setenv("TF_ENABLE_ONEDNN_OPTS", "users")

    assert cli.main(["run", "--workers=2", "--dry_run", *flags, script]) == 0

    out, _ = capfd.readouterr()
    assert re.findall(r"TF_ENABLE_ONEDNN_OPTS=(\S+)", out) == [onednn] * 2
    assert re.findall(r"TFDIST_CORES=(\S+)", out) == shares


@pytest.mark.parametrize(
    ("flags", "shares"), [([], ["0/2", "1/2"]), (["--cores=share"], ["0/1", "0/1"])]
)
def test_the_tasks_of_a_host_get_the_cores_flag(
    flags: list[str], shares: list[str], script: str, capfd: pytest.CaptureFixture[str]
) -> None:
    Path(script).write_text("import os; print('cores', os.environ['TFDIST_CORES'])")
    # What `ssh` would run on the host is the last word.
    Path("ssh").write_text('for command; do :; done; eval "exec $command"')

    assert cli.main(["run", "--hosts=a:2", "--ssh=sh ssh", *flags, script]) == 0

    out, _ = capfd.readouterr()
    assert sorted(re.findall(r"cores (\S+)", out)) == shares


CLUSTER = ["--worker_hosts=127.0.0.1:4711,127.0.0.1:4712", "--ps-hosts=127.0.0.1:4713"]


def test_run_starts_one_task_of_a_job_that_spans_machines(
    script: str, capfd: pytest.CaptureFixture[str]
) -> None:
    arguments = ["--job_name=worker", "--task-index=1", *CLUSTER, "--dry_run", script, "--x"]
    assert cli.main(["run", *arguments]) == 0

    out, _ = capfd.readouterr()
    name, *words = shlex.split(out)
    config = json.loads(
        next(word for word in words if word.startswith("TF_CONFIG=")).removeprefix("TF_CONFIG=")
    )
    assert name == "[worker:1]"
    assert config["task"] == {"type": "worker", "index": 1}
    assert config["cluster"]["ps"] == ["127.0.0.1:4713"]
    assert words[-3:] == [sys.executable, script, "--x"]
    assert "TFDIST_CORES" not in out
    assert cli.main(["run", "--cores=share", *arguments]) == 0
    assert "TFDIST_CORES=0/1" in capfd.readouterr().out


@pytest.mark.parametrize("source", ["flags", "TF_CONFIG"])
def test_run_passes_the_flags_of_one_task_on(
    script: str, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], source: str
) -> None:
    monkeypatch.setenv("TF_CONFIG", "of another job")
    task = ["--job_name=worker", "--task_index=1"]
    given = [*task, *CLUSTER]
    if source == "TF_CONFIG":
        hosts = '{"worker": ["127.0.0.1:4711", "127.0.0.1:4712"], "ps": ["127.0.0.1:4713"]}'
        monkeypatch.setenv(
            "TF_CONFIG", f'{{"cluster": {hosts}, "task": {{"type": "worker", "index": 1}}}}'
        )
        given = []

    assert cli.main(["run", *given, "--cluster-as=flags", "--dry_run", script, "--issync"]) == 0

    out, _ = capfd.readouterr()
    words = shlex.split(out)
    assert words[:4] == ["[worker:1]", "env", "-u", "TF_CONFIG"]
    passed = [CLUSTER[0], CLUSTER[1].replace("-hosts", "_hosts")]
    assert words[words.index(script) + 1 :] == ["--issync", *task, *passed]


def test_run_uses_the_task_of_tf_config(
    script: str, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    text = '{"cluster": {"master": ["a:1"], "ps": ["b:1"]}, "task": {"type": "ps", "index": 0}}'
    monkeypatch.setenv("TF_CONFIG", text)

    assert cli.main(["run", "--dry_run", script]) == 0
    out, _ = capfd.readouterr()
    assert out.startswith("[ps:0] ")
    assert "TF_CONFIG" not in out, "the task inherits TF_CONFIG unchanged, in its dialect"

    assert cli.main(["run", "--workers=1", "--dry_run", script]) == 0
    out, _ = capfd.readouterr()
    assert out.startswith("[worker:0] env -u TF_CONFIG"), "--workers requests a complete job"


def test_arguments_after_the_script_belong_to_it(
    script: str, capfd: pytest.CaptureFixture[str]
) -> None:
    arguments = ["--workers=5", "--dry_run", "-m", "--", "--version"]

    assert cli.main(["run", "--grace-period=1", script, *arguments]) == 0

    assert capfd.readouterr().out == f"[worker:0] {arguments}\n"


def test_a_module_runs(script: str, capfd: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["run", "-m", "train", "--epochs=1"]) == 0

    assert capfd.readouterr().out == "[worker:0] ['--epochs=1']\n"


def test_dry_run_lists_every_task(script: str, capfd: pytest.CaptureFixture[str]) -> None:
    flags = ["--ps=1", "--workers=1", "--chief", "--evaluator", "--dry_run"]

    assert cli.main(["run", "--strategy=parameter_server", *flags, script]) == 0

    names = [line.split()[0] for line in capfd.readouterr().out.splitlines()]
    assert names == ["[chief:0]", "[worker:0]", "[ps:0]", "[evaluator:0]"]


HOSTS = ["--worker_hosts=a:1,[::1]:2", "--ps-hosts=c:3"]


def test_render_prints_the_tf_config_of_each_task(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["render", "hosts", *HOSTS, "--chief_hosts=d:4", "--evaluator"]) == 0

    cluster = '"cluster": {"chief": ["d:4"], "ps": ["c:3"], "worker": ["a:1", "[::1]:2"]}'
    tasks = [("chief", 0), ("worker", 0), ("worker", 1), ("ps", 0), ("evaluator", 0)]
    assert capsys.readouterr().out.splitlines() == [
        f"[{job}:{index}] export TF_CONFIG='{{{cluster}, "
        f'"task": {{"index": {index}, "type": "{job}"}}}}\''
        for job, index in tasks
    ]


def test_render_prints_the_flags_of_each_task(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["render", "hosts", *HOSTS, "--cluster_as=flags"]) == 0

    lines = capsys.readouterr().out.splitlines()
    assert [shlex.split(line) for line in lines] == [
        [
            f"[{job}:{index}]",
            f"--job_name={job}",
            f"--task_index={index}",
            "--worker_hosts=a:1,[::1]:2",
            "--ps_hosts=c:3",
        ]
        for job, index in [("worker", 0), ("worker", 1), ("ps", 0)]
    ]


def test_render_prints_the_variables_of_other_libraries(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["render", "hosts", "--worker_hosts=a:1,b:2", "--cluster_as=torch"]) == 0
    _, line = capsys.readouterr().out.splitlines()
    expected = "[worker:1] export MASTER_ADDR=a MASTER_PORT=1 WORLD_SIZE=2 RANK=1 "
    assert line == f"{expected}LOCAL_WORLD_SIZE=1 LOCAL_RANK=0"
    with pytest.raises(SystemExit):
        cli.main(["render", "hosts", *HOSTS, "--cluster_as=keras"])
    assert "--cluster_as: received 'keras with" in capsys.readouterr().err


def test_render_prints_the_command_of_each_task(capsys: pytest.CaptureFixture[str]) -> None:
    hosts = ["--chief_hosts=a:1", "--worker_hosts=b:1", "--ps_hosts=a:2,b:2"]
    options = [*hosts, "--evaluator", "--cluster_as=master"]
    assert cli.main(["render", "hosts", *options, "train.py", "--steps=3", "a b"]) == 0

    lines = capsys.readouterr().out.splitlines()
    assert lines[::2] == [
        "# chief:0, on a",
        "# worker:0, on b",
        "# ps:0, on a",
        "# ps:1, on b",
        "# evaluator:0, on any host",
    ]
    token, config, *command = shlex.split(lines[3])
    assert command == ["python", "train.py", "--steps=3", "a b"]
    assert all(line.startswith(f"{token} ") for line in lines[1::2])
    assert len(token) > len("TFDIST_JOB_TOKEN=")
    assert json.loads(config.removeprefix("TF_CONFIG=")) == {
        "cluster": {"master": ["a:1"], "worker": ["b:1"], "ps": ["a:2", "b:2"]},
        "task": {"type": "worker", "index": 0},
    }
    options = ["--worker_hosts=a:1", "--cluster_as=flags"]
    assert cli.main(["render", "hosts", *options, "-m", "train", "--steps=3"]) == 0
    comment, line = capsys.readouterr().out.splitlines()
    assert comment == "# worker:0, on a"
    assert line.partition(" ")[2] == (
        "python -m train --steps=3 --job_name=worker --task_index=0 --worker_hosts=a:1"
    )


@pytest.mark.parametrize(
    ("given", "source"),
    [([], "digits"), (["--source=download"], "download")],
)
def test_data_writes_the_dataset(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    given: list[str],
    source: str,
) -> None:
    monkeypatch.setattr(cifar10, "write", lambda data_dir, source: f"{source} to {data_dir}")

    assert cli.main(["data", "cifar10", "--data-dir=/a/place", *given]) == 0

    assert capsys.readouterr().out == f"{source} to /a/place\n"


def test_without_arguments_the_help_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main([]) == 2
    assert "usage: tfdist" in capsys.readouterr().err
