#!/bin/sh
# Epilog (slurm.conf: Epilog=...). Runs as root on each node after a job: publishes what the job has
# written below an output root and what is not on the file system yet, removes the job's directory,
# and the shared memory of an agent that was killed without a warning, unless another job of the
# same user has an agent here.
local=${MONARCH_LOCAL:-/local}
monarch=${MONARCH:-monarch}
dir="${local:?}/${SLURM_JOB_ID:?}"
keep=

# The staging directories of the job's tiers, as its user. One that cannot be emptied within ten
# minutes (a full quota, a file system that does not answer) stays: `monarch recover` publishes it
# later, and `monarch outputs` lists it. Slurm's PrologEpilogTimeout bounds all of this.
for outputs in "$dir"/monarch-"$SLURM_JOB_UID"/outputs "$dir"/*/monarch-"$SLURM_JOB_UID"/outputs; do
    [ -d "$outputs" ] || continue
    tier=${outputs%/monarch-*}
    runuser -u "${SLURM_JOB_USER:?}" -- timeout 600 "$monarch" recover --quiet --tier "$tier" || keep=$dir
done

[ -n "$keep" ] || rm -rf "$dir"
ps -u "$SLURM_JOB_UID" -o stat=,comm= | grep -q '^[^Z].* monarch$' || rm -rf "/dev/shm/monarch-${SLURM_JOB_UID:?}"
exit 0
