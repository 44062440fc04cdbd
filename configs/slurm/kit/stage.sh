#!/bin/bash
# Stages what a job asked for. Runs as root, on the job's node or on the controller:
#   stage.sh prolog      called by prolog.sh, with the variables of a prolog
#   stage.sh hold JOB    called by burst_buffer.lua while the job is pending
# The request, monarch:/DIRECTORY[,/DIRECTORY...][@CAPACITY], is text of a user. It is compared with
# patterns, is never evaluated, and is used after that by processes of the user only. Time and
# output of these are bounded. The exit status is 0 when everything is staged.
set -euf
export LC_ALL=C
umask 022
# shellcheck source=configs/slurm/kit/kit.conf
. "${0%/*}/kit.conf"
export PATH

mode=$1
if [ "$mode" = prolog ]; then
  job=$SLURM_JOB_ID uid=$SLURM_JOB_UID gid=$SLURM_JOB_GID request=$SLURM_JOB_COMMENT
  nodes=${SLURM_JOB_NUM_NODES:-1} limit=$prolog_limit
else
  job=$2 nodes=1 limit=$hold_limit
fi

# For administrators.
say() {
  if [ -n "$log" ]; then
    echo "$(date +%FT%T) ${HOSTNAME%%.*} job $job: $*" >>"$log"
  else
    logger -t monarch-slurm -- "job $job: $*"
  fi || :
}
# For the job's user too: task-prolog.sh prints the note in the job's output.
fail() {
  say "$*"
  [ "$mode" != prolog ] || echo "$*; the job reads what is missing from the file system" >"$dir/note"
  exit 1
}

# The job's directory: `arguments` for Monarch, one a line, and `note` for task-prolog.sh, `uid` for
# epilog.sh.
mkdir -p "$state"
if [ "$mode" = prolog ]; then
  dir=$state/$job
  rm -rf "$dir"
  mkdir -m 0750 "$dir"
  chgrp "$gid" "$dir"
else
  dir=$(mktemp -d "$state/hold.XXXXXX")
  trap 'rm -rf "$dir"' EXIT
  # (The comment is last: it may have spaces.)
  read -r uid gid request < <(timeout 60 squeue --noheader --jobs="$job" --format='%U %G %k') || fail "squeue does not know the job"
fi

# The same rules as in monarch_comment.lua, which refuses mistakes when the job is submitted.
list=${request#monarch:}
case $list in
  *@*) capacity=${list##*@} list=${list%@*} ;;
esac
[[ $capacity =~ ^[1-9][0-9]{0,5}[KMGT]iB$ ]] || fail "the capacity is not a number with KiB, MiB, GiB or TiB"
set --
IFS=,
for root in $list; do
  [[ $root =~ ^/[A-Za-z0-9/._+=-]+$ && $root =~ [^/] && $root/ != */../* ]] ||
    fail "the comment is not monarch:/DIRECTORY[,/DIRECTORY...][@CAPACITY]"
  set -- "$@" --root "$root"
done
unset IFS
[ $# -gt 0 ] || fail "the comment names no directory"
set -- "$@" --tier "$tier:$capacity"
# Nodes that share copies give them other names than a node alone.
if [ "$nodes" -gt 1 ] && [ "$share_nodes" = yes ]; then set -- "$@" --set cluster.discovery=slurm; fi

# A directory that all may write to, so that Monarch can make one for each user in it.
if [ ! -d "$tier" ]; then mkdir -m 1777 "$tier" || fail "$tier cannot be made"; fi
if [ -L "$tier" ] || [ "$(stat -c %u "$tier")" != 0 ]; then fail "$tier is not a directory of root's"; fi
echo "$uid" >"$dir/uid"
printf '%s\n' "$@" >"$dir/arguments"
[ -x "$monarch" ] || fail "$monarch is not installed"

# As the job's user, with nothing of root's environment but the job's number and what belongs to it
# (`cluster.job_secret: derived`). `timeout` and `head` bound time and output.
home=$(getent passwd "$uid" | cut -d: -f6)
mkfifo -m 0600 "$dir/pipe"
timeout $((limit + 30)) head -c 4096 <"$dir/pipe" >"$dir/output" &
reader=$!
setpriv --reuid="$uid" --regid="$gid" --init-groups --no-new-privs \
  env -i PATH="$PATH" HOME="${home:-/}" SLURM_JOB_ID="$job" SLURM_JOB_NODELIST="${SLURM_NODELIST-}" \
  ${SLURM_CLUSTER_NAME:+"SLURM_CLUSTER_NAME=$SLURM_CLUSTER_NAME"} \
  ${SLURM_JOB_START_TIME:+"SLURM_JOB_START_TIME=$SLURM_JOB_START_TIME"} \
  timeout --kill-after=10 "$limit" "$monarch" stage --quiet "$@" >"$dir/pipe" 2>&1 </dev/null &
stage=$!
begun=$SECONDS asked=$SECONDS
while kill -0 "$stage" 2>/dev/null; do
  sleep 0.5
  [ $((SECONDS - asked)) -ge "$ask_every" ] || continue
  asked=$SECONDS
  # A controller that does not answer is no reason to stop.
  now=$(timeout 10 squeue --noheader --states=all --jobs="$job" --format=%T 2>/dev/null) || continue
  case $now in
    PENDING | CONFIGURING | RUNNING | SUSPENDED | STOPPED) ;;
    *)
      # (`timeout` leads a group. Slurm starts burst buffers with SIGTERM blocked.)
      kill -KILL -- "-$stage" || :
      wait "$stage" "$reader" || :
      fail "the job has ended while it was staged"
      ;;
  esac
done
status=0
wait "$stage" || status=$?
wait "$reader" || :

# The line that says what is wrong, in printable characters.
said=$(tr -cd '\n -~' <"$dir/output" | cut -c 1-300)
cause=$(grep -m 1 -E '^(error|not staged)' <<<"$said") || cause=${said%%$'\n'*}
case $status in
  0) say "$list is staged, $((SECONDS - begun)) s" ;;
  3) fail "$list: ${cause:-there is no room for some files}" ;;
  124 | 137) fail "staging $list took longer than $limit s" ;;
  *) fail "staging $list failed with status $status: $cause" ;;
esac
