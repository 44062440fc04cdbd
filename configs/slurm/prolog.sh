#!/bin/sh
# Prolog (slurm.conf: Prolog=..., and PrologFlags=Alloc, so that all nodes of a job run it at once).
# Runs as root on each node before a job. Makes a directory for the job on the node's disk. For jobs
# that say what they read (sbatch --comment=stage:/scratch/imagenet) it also makes the copies, as
# the job's user; several nodes share the work, and read each byte once. Such a job names
# /local/monarch as its tier. A failure never keeps a job from starting. Slurm's PrologEpilogTimeout
# bounds the time.
local=${MONARCH_LOCAL:-/local}
monarch=${MONARCH_PROGRAM:-monarch}

# In a directory that all users may write to (/tmp), another user may have made this name before: an
# existing directory is not used.
mkdir -p "$local"
if mkdir -m 0700 "$local/$SLURM_JOB_ID"; then
  chown -h "$SLURM_JOB_UID" "$local/$SLURM_JOB_ID"
fi

case ${SLURM_JOB_COMMENT-} in
  stage:/*)
    # For all users, as /tmp: Monarch makes a directory in it for each user, which stays, so that
    # the next job finds the copies.
    [ -d "$local/monarch" ] || mkdir -m 1777 "$local/monarch"
    if [ "$(stat -c %u "$local/monarch")" != 0 ] || [ -L "$local/monarch" ]; then
      echo "monarch: $local/monarch is not a directory of root's: nothing is staged" >&2
      exit 0
    fi
    set -- --tier "$local/monarch:${MONARCH_STAGE:-400GiB}"
    # As the job itself does: names of copies depend on the cluster's secret.
    [ "${SLURM_JOB_NUM_NODES:-1}" = 1 ] || set -- "$@" --set cluster.discovery=slurm
    home=${MONARCH_HOME:-$(getent passwd "$SLURM_JOB_UID" | cut -d: -f6)}
    setpriv --reuid="$SLURM_JOB_UID" --regid="$SLURM_JOB_GID" --init-groups env HOME="$home" SLURM_JOB_NODELIST="$SLURM_NODELIST" \
      timeout 600 "$monarch" stage --quiet "$@" "${SLURM_JOB_COMMENT#stage:}" || true
    ;;
esac
exit 0
