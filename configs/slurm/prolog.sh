#!/bin/sh
# Prolog (slurm.conf: Prolog=..., and PrologFlags=Alloc, so that all nodes of a job run it at once), runs as root on each node before a job:
# a directory of the job's own on the node's disk, and, for jobs that say what they read (sbatch --comment=stage:/scratch/imagenet), its
# copies, made as the job's user before it starts; on several nodes by all of them together, each byte once. Such a job names /local/monarch
# as its tier. Never a reason not to start a job. Slurm's PrologEpilogTimeout bounds the whole.
local=${MONARCH_LOCAL:-/local}
monarch=${MONARCH_PROGRAM:-monarch}

# In a directory that everybody may write to (/tmp), somebody else may have been here first: what is there is not taken for the job's.
mkdir -p "$local"
if mkdir -m 0700 "$local/$SLURM_JOB_ID"; then
  chown -h "$SLURM_JOB_UID" "$local/$SLURM_JOB_ID"
fi

case ${SLURM_JOB_COMMENT-} in
  stage:/*)
    # For all users, as /tmp: Monarch makes a directory in it for each, which stays, so that the next job finds the copies.
    [ -d "$local/monarch" ] || mkdir -m 1777 "$local/monarch"
    if [ "$(stat -c %u "$local/monarch")" != 0 ] || [ -L "$local/monarch" ]; then
      echo "monarch: $local/monarch is not a directory of root's: nothing is staged" >&2
      exit 0
    fi
    set -- --tier "$local/monarch:${MONARCH_STAGE:-400GiB}"
    # As the job itself will: copies made without the others would not be found by it.
    [ "${SLURM_JOB_NUM_NODES:-1}" = 1 ] || set -- "$@" --set cluster.discovery=slurm
    home=${MONARCH_HOME:-$(getent passwd "$SLURM_JOB_UID" | cut -d: -f6)}
    setpriv --reuid="$SLURM_JOB_UID" --regid="$SLURM_JOB_GID" --init-groups env HOME="$home" SLURM_JOB_NODELIST="$SLURM_NODELIST" \
      timeout 600 "$monarch" stage --quiet "$@" "${SLURM_JOB_COMMENT#stage:}" || true
    ;;
esac
exit 0
