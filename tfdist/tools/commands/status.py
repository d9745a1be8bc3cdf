"""`tfdist status` and `tfdist stacks`: what the tasks of a running job do on this machine."""

from __future__ import annotations

import argparse
import json
import os
import time
from contextlib import suppress
from typing import Any

from tfdist.coordination.liveness import activity
from tfdist.coordination.liveness.activity import Record, State
from tfdist.coordination.liveness.hang_report import state_table
from tfdist.errors import EXIT_FAILED, EXIT_OK, UsageError, log
from tfdist.process import quantities, thread_stacks
from tfdist.process.paths import local_path
from tfdist.tools.commands.arguments import Commands

_JOB_HELP = "the output directory of a running job, or the process ID of a task or of tfdist run"


def add_to(commands: Commands) -> None:
    """Adds the commands to the parser."""
    status = commands.add_parser(
        "status",
        help="show what the tasks of a running job do",
        description="Prints what each task of a job does on this machine, how many steps it has "
        "made since its start, how far the training is, and the last metrics. Only "
        "the user of the job can see it. Exit code 0: the job runs, 1: no task of it runs on this "
        "machine.",
    )
    status.add_argument("job", metavar="OUTPUT_DIR|PID", help=_JOB_HELP)
    status.set_defaults(run=_status)
    status.examples = (
        "tfdist status /shared/run1",
        "tfdist status 4711",
    )
    trace = commands.add_parser(
        "stacks",
        help="show the Python stacks of the tasks of a running job",
        description="Prints the Python stacks of each task of a job on this machine, which goes "
        "on. Exit code 0: all tasks have answered, 1: some have not, or none runs.",
    )
    trace.add_argument("job", metavar="OUTPUT_DIR|PID", help=_JOB_HELP)
    trace.set_defaults(run=_stacks)
    trace.examples = ("tfdist stacks /shared/run1",)


def _status(arguments: argparse.Namespace) -> int:
    records = _tasks(arguments.job)
    if not records:
        return _no_task(arguments.job)
    print("\n".join(state_table([record.state for record in records], time.time())))
    output = next((record.state.output for record in records if record.state.output), "")
    states = (record.state for record in records)
    # Estimators have no epochs.
    training = next((state for state in states if state.epoch or state.goal), None)
    if training is not None:
        print(f"\n{_progress(training)}")
    if output and (last := _last_epoch(output)):
        print(f"\nlast metrics: {json.dumps(last)}")
    return EXIT_OK


def _progress(state: State) -> str:
    """How far a training is, as a task has seen it."""
    known = quantities.value(state.loss)
    epoch = f"epoch {state.epoch}" + (f" of {state.epochs}" if state.epochs else "")
    step = f"step {state.resumed + state.steps:,}" + (f" of {state.goal:,}" if state.goal else "")
    return ", ".join(
        [*([epoch] if state.epoch else []), step, *([f"loss {known}"] if known else [])]
    )


def _stacks(arguments: argparse.Namespace) -> int:
    records = _tasks(arguments.job)
    if not records:
        return _no_task(arguments.job)
    code = EXIT_OK
    for record in records:
        state = record.state
        print(f"{state.task}, process {state.pid}: {state.doing}, step {state.steps}")
        try:
            print(thread_stacks.stacks_of(state.pid))
        except (OSError, LookupError) as error:  # TimeoutError is an OSError.
            print(f"{error}\n")
            code = EXIT_FAILED
    return code


def _tasks(job: str) -> list[Record]:
    """The tasks of a job on this machine.

    Raises:
      UsageError: there is no such directory or process, or the path is a URL.
    """
    records = activity.tasks_of_this_machine()
    job = str(local_path("OUTPUT_DIR|PID", job))
    if os.path.isdir(job):
        output = os.path.realpath(job)
        of_output = [each for each in records if os.path.realpath(each.state.output) == output]
        # A server does not know the output directory.
        jobs = {each.state.job for each in of_output if each.state.job}
        return [each for each in records if each in of_output or each.state.job in jobs]
    if job.isascii() and job.isdigit() and os.path.isdir(f"/proc/{job}"):
        return [each for each in records if int(job) in _with_ancestors(each.state.pid)]
    raise UsageError(
        "OUTPUT_DIR|PID",
        received=job,
        accepted="an existing output directory, or the ID of a running process",
        remedy="Give the directory that the script passes to fit, or a process of `ps`.",
    )


def _no_task(job: str) -> int:
    log(f"no task of {job} runs of this user on this machine{_holder(job)}")
    return EXIT_FAILED


def _holder(output: str) -> str:
    from tfdist.storage.output_directory import OutputDirectory

    try:
        holder = json.loads(OutputDirectory(output).lock.read_text())
        return f"; its last chief was process {holder['pid']} on {holder['host']}"
    except (OSError, ValueError, TypeError, KeyError, RecursionError):
        return ""


def _last_epoch(output: str) -> dict[str, Any]:
    from tfdist.storage.output_directory import OutputDirectory, last_json_line

    return last_json_line(OutputDirectory(output).metrics)


def _with_ancestors(pid: int) -> list[int]:
    import psutil

    with suppress(psutil.Error):
        return [pid, *(parent.pid for parent in psutil.Process(pid).parents())]
    return []
