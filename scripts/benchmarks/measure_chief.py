#!/usr/bin/env python
"""Measures the chief of parameter-server jobs: its CPU time per step of a worker, and the steps/s.

    scripts/benchmarks/measure_chief.py
    scripts/benchmarks/measure_chief.py --workers 1 4 --model=resnet20 --steps=20 --by_hand 1 10
    scripts/benchmarks/measure_chief.py --workers 16 32 --alone --plot=chief.png

Each job has a chief, one ps and some workers. The model is small (`training.mlp`), so that the
chief and the ps limit the job. The hand-written job (`plain_parameter_server.py`) runs with several
values of Keras's `steps_per_execution`; the best of them has the most steps/s. The jobs with the
same number of workers take turns, one epoch each, and a ratio compares the epochs of one turn. The
figures are the median, minimum and maximum over the turns, after a warm-up epoch. The CPU time is
that of all threads of the chief's process. With more workers than cores, the steps/s are those of
one machine and not of a cluster.
`--alone` runs one job after the other, for machines without the memory for all of them.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))

from scripts.benchmarks.jobs import Job, Size  # noqa: E402
from scripts.benchmarks.runs import Result, exit_on_sigterm, run, run_in_turn  # noqa: E402

HEADER = (
    "workers",
    "way",
    "steps/s (least to greatest)",
    "/ the best by hand (least to greatest)",
    "chief's CPU, ms per worker step (least to greatest)",
)

#: The jobs with one number of workers, by name.
Jobs = dict[str, Job]


def main() -> None:
    arguments = parse()
    # Otherwise a job that waits for its turn would be left.
    exit_on_sigterm()
    size = Size(arguments.batch_size, arguments.steps, arguments.rounds + 1)
    print(f"| {' | '.join(HEADER)} |\n|{' --- |' * len(HEADER)}", flush=True)
    found: dict[int, dict[str, Result]] = {}
    has_failed = False
    for workers in arguments.workers:
        selected = jobs(arguments, workers)
        found[workers] = measured(selected, size, alone=arguments.alone)
        has_failed |= len(found[workers]) < len(selected)
        print("\n".join(rows(workers, found[workers], size.batch_size)), flush=True)
    if arguments.plot:
        plot(found, arguments.plot)
    sys.exit(1 if has_failed else 0)


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--workers", nargs="+", type=int, default=[1, 4, 8], metavar="N")
    parser.add_argument("--model", choices=("mlp", "resnet20"), default="mlp")
    parser.add_argument(
        "--by_hand",
        nargs="*",
        type=int,
        default=[1, 10, 100],
        metavar="K",
        help="values of steps_per_execution of the hand-written job",
    )
    parser.add_argument(
        "--tfdist",
        nargs="*",
        type=int,
        default=[1],
        metavar="K",
        help="the same for the job with tfdist",
    )
    parser.add_argument(
        "--flags", nargs="*", default=[], help="flags of tfdist's job, without the leading dashes"
    )
    for name, default, meaning in (
        ("steps", 400, "steps of a worker per epoch, a multiple of every steps_per_execution"),
        ("rounds", 4, "epochs after the first one"),
        ("batch_size", 32, "batch size of a worker"),
    ):
        parser.add_argument(f"--{name}", type=int, default=default, help=meaning)
    parser.add_argument("--alone", action="store_true", help="run one job at a time")
    parser.add_argument("--plot", type=Path, help="image file for a plot over the workers")
    arguments = parser.parse_args()
    for count in (*arguments.by_hand, *arguments.tfdist):
        if arguments.steps % count:
            parser.error(f"--steps: received {arguments.steps}; accepted: a multiple of {count}")
    return arguments


def jobs(arguments: argparse.Namespace, workers: int) -> Jobs:
    """The jobs to compare, by name."""
    found = {}
    for way, name, counts in (
        ("plain", "by hand", arguments.by_hand),
        ("tfdist", "tfdist", arguments.tfdist),
    ):
        for count in counts:
            several = f", steps_per_execution={count}" if count > 1 else ""
            flags = [f"--model={arguments.model}", f"--steps_per_execution={count}"]
            if way == "tfdist":
                flags += [f"--{flag}" for flag in arguments.flags]
            found[name + several] = Job(
                way, "parameter_server", workers, training_flags=tuple(flags)
            )
    return found


def measured(selected: Jobs, size: Size, *, alone: bool) -> dict[str, Result]:
    """The results of the jobs that did not fail, by name."""
    with tempfile.TemporaryDirectory(prefix="tfdist-chief-") as directory:
        if not alone:
            return run_in_turn(selected, Path(directory), size)
        found = {}
        for number, (name, job) in enumerate(selected.items()):
            own = Path(directory, f"alone-{number}")
            own.mkdir()
            try:
                found[name] = run(job, own, size)
            except RuntimeError as error:
                print(error, file=sys.stderr)
        return found


def best_by_hand(found: Mapping[str, Result]) -> Result | None:
    """The hand-written job with the most steps/s; None if there is none."""
    by_hand = [result for name, result in found.items() if name.startswith("by hand")]
    return max(by_hand, key=lambda result: result.median, default=None)


def rows(workers: int, found: Mapping[str, Result], batch_size: int) -> list[str]:
    """The rows of the table in Markdown, one per job.

    Args:
      workers: the number of workers.
      found: the results by name.
      batch_size: the batch size of a worker, by which the rates are divided.
    """
    best = best_by_hand(found)
    lines = []
    for name, result in found.items():
        cells = (
            str(workers),
            name,
            spread([rate / batch_size for rate in result.images_per_second], ".1f"),
            spread(result.ratios(best), ".2f") if best is not None else "",
            spread([1000 * seconds for seconds in result.cpu_seconds_per_step], ".3f"),
        )
        lines.append(f"| {' | '.join(cells)} |")
    return lines


def spread(values: Sequence[float], form: str) -> str:
    return f"{statistics.median(values):{form}} ({min(values):{form}} to {max(values):{form}})"


def plot(found: Mapping[int, Mapping[str, Result]], path: Path) -> None:
    """Plots the chief's CPU time per step over the number of workers, one line per way."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(7, 4), layout="constrained")
    for name in dict.fromkeys(name for results in found.values() for name in results):
        points = [
            (workers, [1000 * seconds for seconds in results[name].cpu_seconds_per_step])
            for workers, results in found.items()
            if name in results
        ]
        medians = [statistics.median(times) for _, times in points]
        below = [median - min(times) for median, (_, times) in zip(medians, points, strict=True)]
        above = [max(times) - median for median, (_, times) in zip(medians, points, strict=True)]
        axes.errorbar(
            [workers for workers, _ in points],
            medians,
            yerr=[below, above],
            marker="o",
            capsize=3,
            label=name,
        )
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    axes.set_xticks(list(found), [str(workers) for workers in found])
    axes.set_xlabel("workers")
    axes.set_ylabel("chief's CPU, ms per worker step")
    axes.grid(alpha=0.3)
    axes.legend()
    figure.savefig(path, dpi=120)


if __name__ == "__main__":
    main()
