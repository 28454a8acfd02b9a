#!/usr/bin/env bash
# Train one run on the nodes of a SLURM job, with one process per GPU; see README.md.
#
#   sbatch --nodes 2 --gpus-per-node 8 --ntasks-per-node 8 slurm.sh train --folder SHARED/runs/mine
#
#SBATCH --job-name gtrxl
#SBATCH --time 12:00:00
#SBATCH --requeue
#SBATCH --open-mode append
#SBATCH --signal TERM@300
set -euo pipefail

if (($# < 1)) || [[ -z ${SLURM_JOB_ID:-} ]]; then
  sed -n '2,4s/^# \{0,1\}//p' "$0" >&2
  exit 2
fi
# 75: the run was preempted or reached its time limit, and has been saved.
status=0
srun --kill-on-bad-exit=0 "${GTRXL:-gtrxl}" "$@" --distributed || status=$?
if ((status == 75)); then
  scontrol requeue "$SLURM_JOB_ID"
fi
exit "$status"
