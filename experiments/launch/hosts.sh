#!/usr/bin/env bash
# Train one run on a list of hosts, reached by ssh without a password; see README.md.
#
#   hosts.sh "host0 host1 host2" train --folder /shared/runs/mine [more arguments of gtrxl]
#
# GTRXL: command on the hosts (default gtrxl). PORT: a free port of the first host (default 29400).
set -euo pipefail

if (($# < 2)); then
  sed -n '2,6s/^# \{0,1\}//p' "$0" >&2
  exit 2
fi
read -ra hosts <<<"$1"
shift
command="exec ${GTRXL:-gtrxl} $(printf '%q ' "$@")--distributed"
processes=()
for index in "${!hosts[@]}"; do
  # With a terminal (-tt), the remote process ends when this script does.
  ssh -tt -o BatchMode=yes "${hosts[index]}" \
    "export JAX_COORDINATOR_ADDRESS=${hosts[0]}:${PORT:-29400} JAX_NUM_PROCESSES=${#hosts[@]}" \
    "JAX_PROCESS_ID=$index; $command" </dev/null &
  processes+=($!)
done
trap 'kill "${processes[@]}" 2>/dev/null || true' INT TERM
status=0
for process in "${processes[@]}"; do
  wait "$process" || status=$?
done
exit "$status"
