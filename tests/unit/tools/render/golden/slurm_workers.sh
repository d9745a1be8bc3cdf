#!/bin/bash
#SBATCH --job-name=train
#SBATCH --output=train-%j.log
#SBATCH --open-mode=append
# The tasks save, and exit with code 75, this long before the time limit.
#SBATCH --requeue --signal=TERM@60 --ntasks=4 --ntasks-per-node=1

# srun returns the highest code, which hides a usage error behind the signal to the other tasks.
export USAGE_ERROR="$SLURM_SUBMIT_DIR/train-$SLURM_JOB_ID.usage_error"
rm -f "$USAGE_ERROR"
# Keeps others out of the start of the job.
export TFDIST_JOB_TOKEN=$(od -An -N16 -tx1 /dev/urandom | tr -d ' \n')
# The shell outlives a signal to the step, and reports the code of its task.
srun --kill-on-bad-exit=1 --wait=0 bash -c 'trap : TERM
"$@"
code=$?
[ $code != 2 ] || touch "$USAGE_ERROR"
exit $code' task python train.py --epochs=3 --strategy=multi_worker_mirrored
code=$?

restarts=${SLURM_RESTART_COUNT:-0}
if [ $code != 0 ] && [ ! -e "$USAGE_ERROR" ] && [ "$restarts" -lt 3 ]; then
    echo "tfdist: the job has ended with code $code, and is requeued"
    scontrol requeue "$SLURM_JOB_ID"
fi
rm -f "$USAGE_ERROR"
exit $code
