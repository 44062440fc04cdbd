#!/bin/sh
# TaskProlog (slurm.conf: TaskProlog=/etc/slurm/monarch/task-prolog.sh). Runs as the user before the
# batch script and before each task: Slurm sets what it prints after `export` in the environment of
# these. Jobs that were staged read their copies, with nothing in their scripts; other jobs get
# nothing. It never fails, since Slurm would not start the task, and ends after a minute.

task_prolog() (
  # shellcheck source=configs/slurm/kit/kit.conf
  . "${0%/*}/kit.conf"
  dir=$state/$SLURM_JOB_ID
  [ -d "$dir" ] || exit 0

  # Once on each node: the tasks of a batch job inherit MONARCH_KIT_NODE from its script.
  tell() {
    if [ "${SLURM_LOCALID:-0}" = 0 ] && [ "${MONARCH_KIT_NODE-}" != "$SLURMD_NODENAME" ]; then
      echo "print monarch on $SLURMD_NODENAME: $*"
    fi
  }
  [ ! -r "$dir/note" ] || tell "$(cat "$dir/note")"
  [ -r "$dir/arguments" ] || exit 0
  echo "export MONARCH_KIT_NODE=$SLURMD_NODENAME"

  # A job that calls `monarch run` or `monarch env` itself keeps what it has. What it inherits from
  # the task prolog of its batch script may belong to another node, and is replaced.
  case ${LD_PRELOAD-} in
    *libmonarch_shim*) [ "${MONARCH_CTL-}" = "${MONARCH_KIT_CTL-}" ] || exit 0 ;;
  esac

  set --
  while read -r argument; do set -- "$@" "$argument"; done <"$dir/arguments"
  # Monarch serves until the task has ended (SLURM_TASK_PID). As in the prolog, the nodes are those
  # of the job, not of the step, and their secret is the one in the home directory. `monarch hold`
  # prints a line that a shell is to evaluate: this one does, and prints the values without the
  # quotes, which Slurm would keep.
  unset MONARCH_CTL
  said=$(env -u SLURM_STEP_NODELIST -u SLURM_NODEID -u MONARCH_CLUSTER_SECRET -u MONARCH_CLUSTER_JOB_SECRET timeout 60 "$monarch" hold --shell sh "$@" --for "$SLURM_TASK_PID" 2>&1)
  eval "$(printf "%s\n" "$said" | grep '^export LD_PRELOAD=')"
  if [ -z "${MONARCH_CTL-}" ]; then
    [ -r "$dir/note" ] || tell "$(printf "%s\n" "$said" | grep -m 1 -E '^error|running without' | cut -c 1-300); the job reads the file system"
    exit 0
  fi
  export MONARCH_KIT_CTL="$MONARCH_CTL"
  for name in LD_PRELOAD LD_AUDIT MONARCH_CTL MONARCH_JOB MONARCH_CHANGES MONARCH_KIT_CTL; do
    value=$(printenv "$name") && echo "export $name=$value"
  done
)
task_prolog
exit 0
