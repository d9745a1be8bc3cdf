"""`tfdist plan`: what each way to split a training sends and needs, and which one to choose."""

from __future__ import annotations

import argparse

from tfdist.commands.arguments import Commands, flag, some_seconds
from tfdist.errors import EXIT_OK, UsageError
from tfdist.launch import model_sizes
from tfdist.paths import local_path
from tfdist.planner import quantities
from tfdist.planner.choice import choose
from tfdist.planner.costs import Candidate, Training, candidates
from tfdist.planner.model import FLOAT_BYTES, Model
from tfdist.planner.quantities import bandwidth_text, seconds_text, size_text

#: Slots of each optimizer: numbers that it keeps for each parameter.
SLOTS = {"sgd": 0, "momentum": 1, "adam": 2}

# The table of more tasks takes seconds.
_MOST = {"workers": 10_000, "ps": 10_000, "batch_size": 10**9, "microbatches": 10**9}


def add_to(commands: Commands) -> None:
    """Adds the command to the parser."""
    plan = commands.add_parser(
        "plan",
        help="compare the ways to split a training over tasks",
        description="Prints, for each strategy, the bytes of a step, the memory of the fullest "
        "task, the share of a step in which a worker is idle, and which one to choose. A step is "
        "one batch of every replica. The numbers are computed, not measured; docs/plan.md has "
        "the formulas.",
        usage="%(prog)s (--parameters=N | --model=SCRIPT) --workers=N --bandwidth=B [options] "
        "[-- ARGS ...]",
        allow_abbrev=False,
    )
    flag(plan, "parameters", metavar="N", help="trainable parameters: 350k, 25M, 1.5B")
    flag(
        plan,
        "model",
        metavar="SCRIPT",
        help="take the sizes from the model that SCRIPT's build_model(job) returns, instead of "
        "--parameters and --activation; ARGS are SCRIPT's flags",
    )
    flag(plan, "workers", metavar="N", required=True, help="workers, with one device each")
    flag(
        plan,
        "bandwidth",
        metavar="B",
        required=True,
        help="of each task's link, in each direction: 10Gbit, 100MB/s",
    )
    flag(plan, "ps", metavar="N", default="1", help="parameter servers (default 1)")
    flag(
        plan,
        "batch_size",
        metavar="N",
        default="32",
        help="examples of a replica in a step (default 32)",
    )
    flag(
        plan,
        "activation",
        metavar="N",
        help="float32 numbers per example that cross a border between pipeline stages, and also "
        "those of an input and of an output (default 100k)",
    )
    flag(
        plan,
        "optimizer",
        choices=tuple(SLOTS),
        default="adam",
        help="for the memory of its slots (default adam)",
    )
    flag(
        plan,
        "microbatches",
        metavar="N",
        help="microbatches of a pipeline (default 4 per stage, at most --batch_size)",
    )
    flag(
        plan,
        "step_seconds",
        type=some_seconds,
        metavar="S",
        help="seconds in which one worker alone computes a step of one replica: predicts the "
        "examples/s, by which the choice is then made",
    )
    flag(plan, "memory", metavar="SIZE", help="of a task: 16GB. Splits that need more are marked")
    plan.add_argument("args", metavar="ARGS", nargs="*", help="the flags of SCRIPT, after --")
    plan.set_defaults(run=_run)
    plan.examples = (
        "tfdist plan --parameters=25M --workers=4 --bandwidth=10Gbit",
        "tfdist plan --model=train.py --workers=4 --bandwidth=10Gbit --memory=16GB",
    )


def _run(arguments: argparse.Namespace) -> int:
    bandwidth = quantities.bandwidth("--bandwidth", arguments.bandwidth)
    memory = None
    if arguments.memory is not None:
        memory = quantities.size("--memory", arguments.memory)
    sizes = {
        name: quantities.count(f"--{name}", getattr(arguments, name), most)
        for name, most in _MOST.items()
        if getattr(arguments, name) is not None
    }
    if sizes.get("microbatches", 1) > sizes["batch_size"]:
        raise UsageError(
            "--microbatches",
            received=arguments.microbatches,
            accepted=f"1 to {sizes['batch_size']}, the examples of --batch_size",
            remedy="Pass fewer microbatches, or a larger --batch_size.",
        )
    model, embeddings = _model(arguments)
    job = Training(model, slots=SLOTS[arguments.optimizer], **sizes)
    splits = candidates(job)
    choice = choose(
        splits,
        bandwidth=bandwidth,
        batch_size=job.batch_size,
        memory=memory,
        replica_seconds=arguments.step_seconds,
    )
    print(_title(job, bandwidth, arguments.optimizer))
    print(*_table(splits, job, bandwidth, memory, arguments.step_seconds), sep="\n")
    for name in embeddings:
        print(f"The table of {name} counts like a dense weight; sparse gradients send fewer bytes.")
    print(f"Choose {choice.split.flags if choice.split else 'none'}: {choice.reason}.")
    return EXIT_OK


def _model(arguments: argparse.Namespace) -> tuple[Model, list[str]]:
    """The model of the flags, and the names of its embedding layers."""
    if (arguments.parameters is None) == (arguments.model is None):
        raise UsageError(
            "--parameters, --model",
            received="neither" if arguments.model is None else "both",
            accepted="exactly one of them",
            remedy="Pass one." if arguments.model is None else "Leave one out.",
        )
    if arguments.model is not None:
        if arguments.activation is not None:
            raise UsageError(
                "--activation",
                received=arguments.activation,
                accepted="only together with --parameters, because --model has its own",
                remedy="Leave one of them out.",
            )
        return model_sizes.read(str(local_path("--model", arguments.model)), arguments.args)
    if arguments.args:
        raise UsageError(
            "ARGS",
            received=" ".join(arguments.args),
            accepted="the flags of a script, with --model",
            remedy="Leave them out, or pass the script.",
        )
    parameters = quantities.count("--parameters", arguments.parameters)
    activation = quantities.count("--activation", arguments.activation or "100k")
    return Model.even(FLOAT_BYTES * parameters, FLOAT_BYTES * activation), []


def _title(job: Training, bandwidth: float, optimizer: str) -> str:
    model = job.model
    border = f"{size_text(model.border_bytes)} per example at a border; memory without activations"
    details = f"layers with weights: {len(model.layers)}" if model.layers else border
    if model.untrained_bytes:
        details += f"; weights that are not trained: {size_text(model.untrained_bytes)}"
    return (
        f"{size_text(model.parameter_bytes)} of parameters, {optimizer}, {job.batch_size} examples "
        f"per replica, {job.workers} workers at {bandwidth_text(bandwidth)};\n{details}\n"
    )


def _table(
    splits: list[Candidate],
    job: Training,
    bandwidth: float,
    memory: float | None,
    replica_seconds: float | None,
) -> list[str]:
    """The table, aligned; each row is a split."""
    lines = [
        ["", "", "busiest task:", "", "all", "network", "fullest", "", "", ""],
        [
            *["split", "tasks", "sends", "receives", "tasks", "seconds", "memory", "idle"],
            *["step", "examples/s"],
        ],
    ]
    for split in splits:
        row = [
            split.flags,
            str(split.tasks),
            size_text(split.sent),
            size_text(split.received),
            size_text(split.traffic.total),
            seconds_text(split.network_seconds(bandwidth)),
            size_text(split.memory) + "!" * (memory is not None and split.memory > memory),
            f"{split.idle_share(bandwidth, replica_seconds):.0%}",
        ]
        if replica_seconds is not None:
            step = split.step_seconds(bandwidth, replica_seconds)
            rate = split.replicas * job.batch_size / step
            row += [seconds_text(step), f"{rate:,.0f}"]
        lines.append(row)
    lines = [line[: len(lines[-1])] for line in lines]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return [
        "  ".join(
            [name.ljust(widths[0]), *map(str.rjust, cells, widths[1:])],
        ).rstrip()
        for name, *cells in lines
    ] + [""]
