"""Mistakes in commands, in flags and in TF_CONFIG, by what the user did."""

from __future__ import annotations

from tests.support.mistakes import Mistake, script, tested


def tfdist(prints: str, *command: str) -> Mistake:
    """A command that is refused."""
    return Mistake(prints, command=command)


def started(prints: str, *flags: str, code: int = 2) -> Mistake:
    """The right script with other flags."""
    return Mistake(prints, code, flags=flags)


def configured(what: str) -> Mistake:
    """A row of the tests of TF_CONFIG."""
    name = "test_each_mistake_in_tf_config_prints_one_line_and_exits_with_code_2"
    return tested(f"unit/cluster/test_mistakes.py::{name}[{what}]")


def hosts(addresses: str, job_name: str = "worker", index: str = "0") -> tuple[str, ...]:
    """The flags of one task."""
    return f"--job_name={job_name}", f"--task_index={index}", f"--worker_hosts={addresses}"


_CLUSTER = ("--worker_hosts=127.0.0.1:1,127.0.0.1:2", "--ps_hosts=127.0.0.1:3")
_ONE_TASK = ("--job_name=worker", "--task_index=0")

COMMANDS = {
    "a command that does not exist": tfdist("'train'", "train"),
    "no command before the script": tfdist(r"did you mean tfdist run train\.py\?", "train.py"),
    "rum for run": tfdist(r"did you mean run\?", "rum", "train.py"),
    "no script": tfdist("SCRIPT", "run"),
    "a script that does not exist": tfdist("SCRIPT: received 'missing.py'", "run", "missing.py"),
    "python before the script": tfdist(
        "SCRIPT: received 'python'.* tfdist starts Python itself", "run", "python", "train.py"
    ),
    "--worker": tfdist(r"--worker=2; did you mean --workers\?", "run", "--worker=2", "train.py"),
    "--num_workers": tfdist(r"did you mean --workers\?", "run", "--num_workers=2", "train.py"),
    "--stratgy": tfdist(r"did you mean --strategy\?", "run", "--stratgy=horovod", "train.py"),
    "a flag of the script before it": tfdist(
        "flags of the script come after it", "run", "--epochs=2", "train.py"
    ),
    "a number in words": tfdist("--ps", "run", "--ps=two", "train.py"),
    "no worker": tfdist("--workers: received 0", "run", "--workers=0", "train.py"),
    "mirorred": tfdist("--strategy: received 'mirorred'", "run", "--strategy=mirorred", "train.py"),
    "the class of TensorFlow as the strategy": tfdist(
        r"Did you mean multi_worker_mirrored\?",
        *("run", "--strategy=MultiWorkerMirroredStrategy", "--workers=2", "train.py"),
    ),
    "mirrored with two workers": tfdist(
        "--strategy: received 'mirrored with 2 worker",
        "run",
        "--strategy=mirrored",
        "--workers=2",
        "train.py",
    ),
    "horovod with a ps": tfdist(
        r"horovod with 1 worker \+ 1 ps", "run", "--strategy=horovod", "--ps=1", "train.py"
    ),
    "another --cluster_as": tfdist("--cluster_as", "run", "--cluster_as=argv", "train.py"),
    "flags of a cluster for one process": tfdist(
        "received 'flags with --strategy=one_device", "run", "--cluster_as=flags", "train.py"
    ),
    "flags of a cluster that changes": tfdist(
        "--cluster_as: received 'flags'",
        *("run", "--cluster_as=flags", "--strategy=multi_worker_mirrored"),
        *("--host_discovery_script=./hosts.sh", "--max_workers=2", "train.py"),
    ),
    "a negative time": tfdist("--grace_period", "run", "--grace_period=-1", "train.py"),
    "an endless time": tfdist("--grace_period", "run", "--grace_period=inf", "train.py"),
    "render without hosts": tfdist("--worker_hosts: received None", "render", "hosts"),
    "render without a port": tfdist(
        r"--worker_hosts\[0\]: received 'a'", "render", "hosts", "--worker_hosts=a"
    ),
    "render without a worker": tfdist("--worker_hosts", "render", "hosts", "--ps_hosts=a:1"),
    "render as YAML": tfdist(
        "--cluster_as", "render", "hosts", "--worker_hosts=a:1", "--cluster_as=yaml"
    ),
    "data that do not exist": tfdist("'mnist'", "data", "mnist", "--data_dir=/a"),
    "data without a directory": tfdist("--data_dir", "data", "cifar10"),
    "a number of tasks beside a cluster": tfdist(
        "--ps: received", "run", *_ONE_TASK, *_CLUSTER, "--ps=1", "train.py"
    ),
    "an index beyond the cluster": tfdist(
        "--task_index: received 2",
        "run",
        "--job_name=worker",
        "--task_index=2",
        *_CLUSTER,
        "train.py",
    ),
    "an index without a type": tfdist(
        "--job_name: received None", "run", "--task_index=0", *_CLUSTER, "train.py"
    ),
    "horovod with the flags of a ps": tfdist(
        "--strategy: received 'horovod with",
        "run",
        *_ONE_TASK,
        *_CLUSTER,
        "--strategy=horovod",
        "train.py",
    ),
    "horovod with a cluster in flags": tfdist(
        "--cluster_as: received 'flags with --strategy=horovod and ",
        *("run", *_ONE_TASK, _CLUSTER[0], "--strategy=horovod", "--cluster_as=flags", "train.py"),
    ),
    "status of no directory": tfdist("missing", "status", "missing"),
    "report of no directory": tfdist("missing", "report", "missing"),
    "logs in a bucket": tfdist("no URL", "run", "--log_dir=gs://bucket/logs", "train.py"),
    "flags of tfdist after the script": Mistake(
        r"^\[worker:0\] .*train\.py --workers=2$",
        code=0,
        command=("run", "--dry_run", "train.py", "--workers=2"),
    ),
}

CLUSTERS = {
    "--job_name=master": started(
        "--job_name: received 'master'", *hosts("127.0.0.1:22411", "master")
    ),
    "a type in capitals": started(r"Did you mean worker\?", *hosts("127.0.0.1:22411", "Worker")),
    "blanks between hosts": started("accepted: 0 to 1", *hosts("a:1, b:2", index="2")),
    "an IPv6 host without brackets": started("in brackets", *hosts("[::1]:22411,::1:22412")),
    "the index 1 of one worker": started("accepted: 0 to 0", *hosts("a:1", index="1")),
    "a host that does not exist": started(
        "worker:1 has a host name that does not resolve: nowhere.invalid:2",
        *hosts("127.0.0.1:22411,nowhere.invalid:2"),
        "--startup_timeout=1",
        code=1,
    ),
    "an argument that is no flag": started("command line: received 'epochs=2'", "epochs=2"),
    "more GPUs than there are": started("--num_gpus: received 2", "--num_gpus=2"),
    "TF_CONFIG as a Python dict": script(
        "Correct the JSON", environ={"TF_CONFIG": "{'cluster': {'worker': ['a:1']}}"}
    ),
    "TF_CONFIG of the number 0": script("TF_CONFIG: received 0", environ={"TF_CONFIG": "0"}),
    "an empty object in TF_CONFIG": script(
        "TF_CONFIG cluster: received None", environ={"TF_CONFIG": "{}"}
    ),
    "an empty TF_CONFIG": tested(
        "unit/cluster/test_discovery.py::test_a_blank_tf_config_is_ignored"
    ),
    "TF_CONFIG of no JSON": configured("bad JSON"),
    "TF_CONFIG without a task": configured("no task"),
    "TF_CONFIG without an index": configured("no task index"),
    "TF_CONFIG without a port": configured("no port"),
    "TF_CONFIG with a URL": configured("http://"),
    "TF_CONFIG with an address twice": configured("duplicate address"),
    "TF_CONFIG with an index beyond the cluster": configured("index 5 of 2"),
    "TF_CONFIG with an unknown type": configured("unknown type"),
    "TF_CONFIG with two chiefs": configured("two chiefs"),
    "TF_CONFIG with an address in place of a list": configured("one address without a list"),
    "TF_CONFIG without a worker": configured("ps without workers"),
    "one address with two names": tested(
        "cluster/test_faults_startup.py::test_one_address_with_two_host_names_is_rejected"
    ),
    "a port in use": tested(
        "cluster/test_faults_startup.py::test_a_port_in_use_by_another_program_is_reported"
    ),
    "hosts in another order": tested(
        "cluster/test_faults_startup.py::test_every_task_names_a_task_with_swapped_addresses"
    ),
    "fewer hosts in one task": tested(
        "cluster/test_faults_startup.py::"
        "test_every_task_names_a_task_with_a_different_number_of_tasks"
    ),
    "another strategy in one task": tested(
        "cluster/test_faults_startup.py::test_every_task_reports_different_strategies"
    ),
    "a task that is never started": tested(
        "cluster/test_faults_startup.py::test_every_task_names_a_task_that_never_starts"
    ),
    "two tasks with one index": tested(
        "unit/coordination/startup/test_barrier.py::test_every_task_names_a_task_that_was_started_twice"
    ),
    "another version of the script in one task": tested(
        "unit/coordination/startup/test_conflicts.py::test_scripts_of_one_name_are_compared"
    ),
    "another version of Keras in one task": tested(
        "unit/coordination/startup/test_conflicts.py::test_a_different_version_or_strategy_is_named"
    ),
}
