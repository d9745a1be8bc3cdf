"""`tfdist status` and `tfdist stacks`: what a job does on this machine, or how it has ended."""

from __future__ import annotations

import argparse
import json
import os
import time
from contextlib import suppress
from datetime import datetime

from tfdist.coordination.liveness import activity
from tfdist.coordination.liveness.activity import State
from tfdist.coordination.liveness.hang_report import state_table
from tfdist.errors import EXIT_FAILED, EXIT_OK, UsageError, log
from tfdist.process import quantities, thread_stacks
from tfdist.process.paths import local_path
from tfdist.tools.commands.arguments import Commands

_JOB_HELP = "the output directory of a job, or the process ID of a task or of tfdist run"


def add_to(commands: Commands) -> None:
    """Adds the commands to the parser."""
    status = commands.add_parser(
        "status",
        help="show what the tasks of a job do, or how it has ended",
        description="Prints what each task of a job does on this machine, how many steps it has "
        "made since its start, how far the training is, and the last metrics. Only "
        "the user of the job can see it. Of a job that does not run, prints whether the training "
        "is complete, and what is saved. Exit code 0: the job runs or is complete, 1: it does not.",
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
    from tfdist.storage.output_directory import OutputDirectory, last_json_line

    states = _states(arguments.job)
    if not states:
        return _show_outcome(arguments.job) if os.path.isdir(arguments.job) else EXIT_FAILED
    print("\n".join(state_table(states, time.time())))
    # Estimators have no epochs.
    training = next((state for state in states if state.epoch or state.goal), None)
    if training is not None:
        print(f"\n{_progress(training)}")
    output = next((state.output for state in states if state.output), "")
    if output and (last := last_json_line(OutputDirectory(output).metrics)):
        print(f"\nlast metrics: {json.dumps(last)}")
    return EXIT_OK


def _progress(state: State) -> str:
    """The progress of a training, as a task reports it."""
    known = quantities.value(state.loss)
    epoch = f"epoch {state.epoch}" + (f" of {state.epochs}" if state.epochs else "")
    step = f"step {state.resumed + state.steps:,}" + (f" of {state.goal:,}" if state.goal else "")
    loss = f"loss {known}" if known else ""
    return ", ".join(filter(None, [epoch if state.epoch else "", step, loss, state.tables]))


def _show_outcome(directory: str) -> int:
    """Prints how far a training has come that does not run on this machine."""
    from tfdist.storage import lock
    from tfdist.storage.output_directory import OutputDirectory, saved_checkpoints, size_and_time
    from tfdist.training.records import events

    output = OutputDirectory(directory)
    known = events.read(output)
    checkpoints = saved_checkpoints(output)
    if lock.is_held(output.lock):
        print("the job runs, but its chief not for this user on this machine")
        return EXIT_OK
    if output.is_complete:
        last = f", at step {known[-1]['step']:,}" if known else ""
        model = f"; the model is in {output.saved_model}" if output.has_model else ""
        print(f"complete{last}{model}")
        return EXIT_OK
    if not checkpoints:
        if known:
            print("failed or killed before the first checkpoint; the same command starts it again")
        return EXIT_FAILED
    goal = next((each["goal"] for each in reversed(known) if each.get("goal")), None)
    step, checkpoint = checkpoints[-1]
    at = datetime.fromtimestamp(size_and_time(checkpoint)[1]).astimezone()
    how = "interrupted" if known and known[-1]["event"] == events.PREEMPTED else "failed or killed"
    of = f" of {goal:,}" if goal else ""
    print(
        f"{how}: saved at step {step:,}{of}, {at:%Y-%m-%d %H:%M:%S %z}; the same command resumes "
        "there"
    )
    return EXIT_FAILED


def _stacks(arguments: argparse.Namespace) -> int:
    states = _states(arguments.job)
    code = EXIT_OK if states else EXIT_FAILED
    for state in states:
        print(f"{state.task}, process {state.pid}: {state.doing}, step {state.steps}")
        try:
            print(thread_stacks.stacks_of(state.pid))
        except (OSError, LookupError) as error:  # TimeoutError is an OSError.
            print(f"{error}\n")
            code = EXIT_FAILED
    return code


def _states(job: str) -> list[State]:
    """The tasks of a job on this machine; without any, a line says so.

    Raises:
      UsageError: there is no such directory or process, or the path is a URL.
    """
    states = [record.state for record in activity.tasks_of_this_machine()]
    job = str(local_path("OUTPUT_DIR|PID", job))
    if os.path.isdir(job):
        output = os.path.realpath(job)
        own = [each for each in states if each.output and os.path.realpath(each.output) == output]
        # A server does not know the output directory.
        jobs = {each.job for each in own if each.job}
        found = [each for each in states if each in own or each.job in jobs]
    elif job.isascii() and job.isdigit() and os.path.isdir(f"/proc/{job}"):
        found = [each for each in states if int(job) in _with_ancestors(each.pid)]
    else:
        raise UsageError(
            "OUTPUT_DIR|PID",
            received=job,
            accepted="an existing output directory, or the ID of a running process",
            remedy="Give the directory that the script passes to fit, or a process of `ps`.",
        )
    if not found:
        log(f"no task of {job} runs of this user on this machine{_last_chief(job)}")
    return found


def _last_chief(output: str) -> str:
    from tfdist.storage import lock
    from tfdist.storage.output_directory import OutputDirectory, read_text

    path = OutputDirectory(output).lock
    return f"; its last chief was {lock.holder(path)}" if read_text(path) else ""


def _with_ancestors(pid: int) -> list[int]:
    import psutil

    with suppress(psutil.Error):
        return [pid, *(parent.pid for parent in psutil.Process(pid).parents())]
    return []
