#!/bin/sh
# Epilog (slurm.conf: Epilog=/etc/slurm/monarch/epilog.sh). Runs as root on each node after a job.
# Removes what stage.sh noted about the job, and what an agent that was killed left in memory. Does
# nothing for jobs that asked for nothing. It never fails, since Slurm would take the node out of
# service.

epilog() (
  # shellcheck source=configs/slurm/kit/kit.conf
  . "${0%/*}/kit.conf"
  dir=${state:?}/${SLURM_JOB_ID:?}
  [ -d "$dir" ] || exit 0
  rm -rf "$dir"
  # Another job of the user, staged or being staged.
  ! grep -qsx "$SLURM_JOB_UID" "$state"/*/uid || exit 0
  # An agent ends 3 s after its last job. One that runs longer serves a job without the kit.
  # shellcheck disable=SC2009 # pgrep of older distributions counts zombies
  serves() { ps -u "$SLURM_JOB_UID" -o stat=,comm= | grep -q '^[^Z].* monarch$'; }
  for _ in 1 2 3 4 5; do
    serves || break
    sleep 1
  done
  ! serves || exit 0
  rm -rf "/dev/shm/monarch-${SLURM_JOB_UID:?}"
  # (Where the user has put a link in its place, rm removes the link.)
  [ "$keep_copies" = yes ] || rm -rf "${tier:?}/monarch-$SLURM_JOB_UID"
)
epilog
exit 0
