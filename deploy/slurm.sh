#!/bin/bash
# Trains with a node on each host's own drive: sbatch deploy/slurm.sh TRAIN.py [ARGUMENT ...]. docs/deploy.md
#SBATCH --job-name=train
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=1
#SBATCH --gpus-per-node=8
#SBATCH --signal=B:TERM@120
set -euo pipefail
store="${AIS_LOADER_SCRATCH:-/tmp}/ais-loader-$SLURM_JOB_ID"
on_each_host() { srun --ntasks-per-node=1 --overlap bash -c "$1" "$0" "$store"; }
clean_up() {
    # shellcheck disable=SC2016 # expanded on each host
    on_each_host 'if read -r pid <"$1/node/pid"; then kill "$pid"; timeout 60 tail --pid="$pid" -f /dev/null; fi
        rm -rf "$1"' 2>/dev/null
}
# The pid is that of the training, which ends first: it may still write.
trap 'kill -TERM "$training"; wait "$training" || true; exit 143' TERM
on_each_host 'mkdir -m 700 "$1"'
trap clean_up EXIT
AIS_LOADER_URL="node://$store" srun python "$@" &
training=$!
wait "$training"
