#!/bin/sh
# Epilog (slurm.conf: Epilog=...). Runs as root on each node after a job: removes the job's
# directory, and the shared memory of an agent that was killed without a warning, unless another job
# of the same user has an agent here.
local=${MONARCH_LOCAL:-/local}

rm -rf "${local:?}/${SLURM_JOB_ID:?}"
ps -u "$SLURM_JOB_UID" -o stat=,comm= | grep -q '^[^Z].* monarch$' || rm -rf "/dev/shm/monarch-${SLURM_JOB_UID:?}"
exit 0
