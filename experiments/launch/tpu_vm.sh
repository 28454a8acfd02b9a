#!/usr/bin/env bash
# Train one run on all hosts of a Cloud TPU VM slice; see README.md.
#
#   tpu_vm.sh NAME ZONE train --folder /mnt/shared/runs/mine [more arguments of gtrxl]
set -euo pipefail

if (($# < 3)); then
  sed -n '2,4s/^# \{0,1\}//p' "$0" >&2
  exit 2
fi
name=$1 zone=$2
shift 2
arguments=$(printf '%q ' "$@")
exec gcloud compute tpus tpu-vm ssh "$name" --zone "$zone" --worker=all --batch-size=all \
  --command "cd gtrxl_jax && exec .venv/bin/gtrxl ${arguments}--distributed"
