"""A job of Slurm, for `sbatch`.

print(script(job))

The ps and the evaluator are the first component of a heterogeneous job, and the tasks that train
the second one. After any failure but a usage error, the job is requeued up to a number of times,
and resumes from its checkpoint.
"""

from __future__ import annotations

import shlex

from tfdist.cluster import task_types
from tfdist.errors import EXIT_USAGE
from tfdist.tools.render.rendered_job import EXPORT_TOKEN, RenderedJob

_SCRIPT = """\
#!/bin/bash
#SBATCH --job-name={name}
#SBATCH --output={name}-%j.log
#SBATCH --open-mode=append
# The tasks save, and exit with code 75, this long before the time limit.
{components}
# srun returns the highest code, which hides a usage error behind the signal to the other tasks.
export USAGE_ERROR="$SLURM_SUBMIT_DIR/{name}-$SLURM_JOB_ID.usage_error"
rm -f "$USAGE_ERROR"
# Keeps others out of the start of the job.
{token}
# The shell outlives a signal to the step, and reports the code of its task.
srun {groups}--kill-on-bad-exit=1 --wait=0 bash -c 'trap : TERM
"$@"
code=$?
[ $code != {usage} ] || touch "$USAGE_ERROR"
exit $code' task {command}
code=$?

restarts=${{SLURM_RESTART_COUNT:-0}}
if [ $code != 0 ] && [ ! -e "$USAGE_ERROR" ] && [ "$restarts" -lt {restarts} ]; then
    echo "tfdist: the job has ended with code $code, and is requeued"
    scontrol requeue "$SLURM_JOB_ID"
fi
rm -f "$USAGE_ERROR"
exit $code"""


def script(job: RenderedJob) -> str:
    """The batch script of a job, without the end of its last line."""
    training = sum(number for name, number in job.counts.items() if task_types.row(name).trains)
    serving = sum(job.counts.values()) - training
    # Each component needs them.
    options = f"--requeue --signal=TERM@{job.grace_period}"
    train = f"#SBATCH {options} --ntasks={training} --ntasks-per-node=1"
    components = [train]
    if serving:
        components = [f"#SBATCH {options} --ntasks={serving}", "#SBATCH hetjob", train]
    return _SCRIPT.format(
        name=job.name,
        components="\n".join(components) + "\n",
        groups="--het-group=0,1 " if serving else "",
        usage=EXIT_USAGE,
        token=EXPORT_TOKEN,
        command=shlex.join(job.command(by_rank=True)),
        restarts=job.max_restarts,
    )
