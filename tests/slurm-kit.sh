#!/usr/bin/env bash
# configs/slurm/kit, installed as its README.md says, on a Slurm of one node that is started for it
# and ended after it: jobs that name a directory are staged before they start, and read copies with
# nothing in their scripts; whatever goes wrong with that loses no job.
#   tests/slurm-kit.sh      needs root, FUSE and Debian 12: installs Slurm, munge, Lua and linters when they are missing. 3 minutes.
# Beside the everyday suite. The data set lies on a slow file system that counts. Programs come from
# target/release (MONARCH_E2E_BIN names another directory). Ends with 1 when something is not as
# documented. MONARCH_TRIAL_KEEP=1 keeps the directory.
set -euo pipefail
cd "$(dirname "$0")/.."
[ "$(id -u)" = 0 ] || { echo "slurm-kit: skipped, needs root"; exit 0; }
need=()
for pair in slurmctld:slurm-wlm munged:munge shellcheck:shellcheck luacheck:lua-check fusermount3:fuse3; do
  command -v "${pair%%:*}" >/dev/null || need+=("${pair##*:}")
done
ldconfig -p | grep -q liblua5.1.so.0 || need+=(liblua5.1-0)
if [ ${#need[@]} -gt 0 ]; then
  apt-get update -qq
  DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "${need[@]}" >/dev/null
fi
programs=${MONARCH_E2E_BIN:-$PWD/target/release}
work=$(mktemp -d /var/tmp/monarch-slurm.XXXXXX)
chmod 755 "$work"
# Users `news` and `proxy`, which nothing else runs as.
me=9
other=13
node=$(hostname -s)
tier=$work/local/monarch
pids=()
export SLURM_CONF=$work/etc/slurm.conf
finish() {
  trap - EXIT
  # Jobs first: they live on without the daemons.
  if [ ${#pids[@]} -gt 2 ]; then
    timeout 10 squeue -h -o %A | xargs -r timeout 10 scancel --full --signal=KILL 2>/dev/null || true
    sleep 1
  fi
  for ((i = ${#pids[@]} - 1; i >= 0; i--)); do kill "${pids[i]}" 2>/dev/null || true; done
  wait || true
  find /sys/fs/cgroup -depth -type d -path "*/slurm_$node*" -exec rmdir {} \; 2>/dev/null || true
  fusermount3 -u "$work/pfs" 2>/dev/null || true
  if [ -z "${MONARCH_TRIAL_KEEP:-}" ]; then rm -rf "$work"; else echo "kept $work"; fi
}
trap finish EXIT

bad=0
row() { printf 'slurm-kit: %-62s %s\n' "$1" "$2"; }
fail() {
  bad=1
  row "$1" "FAILED: $2"
  tail -n 5 "$work/log/slurmctld" "$work/log/slurmd" "$work/log/kit" 2>/dev/null | sed 's/^/  /' || true
}
passed() { # what, what went wrong or nothing, what was seen
  if [ -z "$2" ]; then row "$1" "ok ($3)"; else fail "$1" "$2; $3"; fi
}

wrong=""
shellcheck -x configs/slurm/kit/*.sh configs/slurm/kit/kit.conf tests/slurm-kit.sh || wrong="shellcheck"
(cd configs/slurm/kit && luacheck --no-color -q . >"$work/luacheck") || wrong+=" luacheck: $(cat "$work/luacheck")"
passed "shellcheck and luacheck" "$wrong" "no warning"

# ---- the data set, on a file system that counts
mkdir -p "$work"/{etc,munge,state,spool,log,bin,job,data/a,data/b,pfs,local,unfiltered}
chmod 700 "$work/munge"
chmod 777 "$work/job"
files=200
for d in a b; do
  for i in $(seq $((files / 2))); do head -c 20000 /dev/urandom >"$work/data/$d/$i"; done
done
born=$SECONDS
cp "$programs"/{monarch,libmonarch_shim.so} "$work/bin/"
"$programs/slowfs" --allow-other --cache direct --attr-ttl 600s --data-latency 150ms --control "$work/pfs.sock" "$work/data" "$work/pfs" >"$work/log/slowfs" 2>&1 &
pids+=($!)
until mountpoint -q "$work/pfs"; do sleep 0.1; done
opens() { "$programs/slowfs" ctl "$work/pfs.sock" counters | python3 -c 'import json,sys; print(json.load(sys.stdin)["counters"]["open"])'; }
slow() { "$programs/slowfs" ctl "$work/pfs.sock" set "data_latency=$1" >/dev/null; }

# ---- the kit, copied as an administrator does, with other paths and shorter times in kit.conf
cp -r configs/slurm/kit "$work/etc/monarch"
cp configs/slurm/kit/{job_submit,cli_filter,burst_buffer}.lua configs/slurm/kit/burst_buffer.conf "$work/etc/"
settings() { # NAME=VALUE...: kit.conf with these
  sed -e "s#^monarch=.*#monarch=$work/bin/monarch#" -e "s#^tier=.*#tier=$tier#" -e 's#^capacity=.*#capacity=64MiB#' \
    -e 's#^prolog_limit=.*#prolog_limit=60#' -e 's#^hold_limit=.*#hold_limit=60#' -e 's#^ask_every=.*#ask_every=1#' \
    -e "s#^state=.*#state=$work/running#" -e "s#^log=.*#log=$work/log/kit#" configs/slurm/kit/kit.conf >"$work/etc/monarch/kit.conf"
  for setting in "$@"; do sed -i "s#^${setting%%=*}=.*#$setting#" "$work/etc/monarch/kit.conf"; done
}
settings

# ---- Slurm
(umask 077; head -c 1024 /dev/urandom >"$work/munge/key")
cat >"$work/bare.conf" <<CONF
ClusterName=trial
SlurmctldHost=$node(127.0.0.1)
SlurmctldPort=16827
SlurmdPort=16828
AuthType=auth/munge
AuthInfo=socket=$work/munge.sock
CryptoType=crypto/munge
SlurmUser=root
SlurmdUser=root
StateSaveLocation=$work/state
SlurmdSpoolDir=$work/spool
SlurmctldPidFile=$work/slurmctld.pid
SlurmdPidFile=$work/slurmd.pid
SlurmctldLogFile=$work/log/slurmctld
SlurmdLogFile=$work/log/slurmd
ProctrackType=proctrack/TRACKING
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
MailProg=/bin/true
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SlurmdParameters=config_overrides
SchedulerParameters=sched_interval=2,batch_sched_delay=1
ReturnToService=2
MpiDefault=none
KillWait=5
NodeName=$node NodeAddr=127.0.0.1 CPUs=4 State=UNKNOWN
PartitionName=all Nodes=ALL Default=YES State=UP
CONF
cat "$work/bare.conf" - >"$work/kit.conf" <<CONF
JobSubmitPlugins=lua
CliFilterPlugins=lua
BurstBufferType=burst_buffer/lua
Prolog=$work/etc/monarch/prolog.sh
PrologFlags=Alloc
TaskProlog=$work/etc/monarch/task-prolog.sh
Epilog=$work/etc/monarch/epilog.sh
PrologEpilogTimeout=120
BatchStartTimeout=130
CONF
printf 'CgroupAutomount=yes\nCgroupMountpoint=/sys/fs/cgroup\nCgroupPlugin=autodetect\n' >"$work/etc/cgroup.conf"
# As on real clusters where that works here, otherwise by their parents.
tracking=cgroup
munged -F --socket="$work/munge.sock" --key-file="$work/munge/key" --log-file="$work/munge/log" --pid-file="$work/munge/pid" \
  --seed-file="$work/munge/seed" >"$work/log/munged" 2>&1 &
pids+=($!)
sleep 1
up() { # configuration
  sed "s#TRACKING#$tracking#" "$1" >"$work/etc/slurm.conf"
  slurmctld -D -c >"$work/log/ctld.out" 2>&1 &
  pids+=($!)
  slurmd -D -c >"$work/log/slurmd.out" 2>&1 &
  pids+=($!)
  for _ in $(seq 150); do
    [ "$(sinfo -h -o %t 2>/dev/null)" = idle ] && timeout 20 srun -n1 true 2>>"$work/log/srun" && return
    sleep 0.1
  done
  if [ $tracking = cgroup ]; then
    down
    tracking=linuxproc
    up "$1"
    return
  fi
  echo "slurm-kit: FAILED, no Slurm can be started here"
  tail -n 5 "$work"/log/*
  exit 1
}
down() {
  for pid in "${pids[@]:2}"; do kill "$pid" || true; done
  for pid in "${pids[@]:2}"; do wait "$pid" || true; done
  pids=("${pids[@]:0:2}")
}

# ---- what is done and looked at
as() { # user, command
  (cd "$work/job" && uid=$1 && shift && exec setpriv --reuid="$uid" --regid="$uid" --clear-groups \
    env -i HOME="$work/job" USER="$(id -un "$uid")" PATH=/usr/bin:/bin SLURM_CONF="$SLURM_CONF" "$@")
}
as_user() { as $me "$@"; }
submit() { as_user sbatch --parsable "$@"; }
unfiltered() { SLURM_CONF=$work/unfiltered/slurm.conf submit "$@"; }
field() { scontrol show job -o "$1" | grep -oE " $2=[^ ]+" | head -n 1 | cut -d= -f2; }
reason() { squeue -h -j "$1" -o %r; }
until_true() { # tenths of a second, command
  local n=$1
  shift
  for _ in $(seq "$n"); do
    if "$@"; then return 0; fi
    sleep 0.1
  done
  return 1
}
is() { field "$1" JobState | grep -qE "^($2)$"; }
ended() { is "$1" 'COMPLETED|FAILED|CANCELLED|TIMEOUT|NODE_FAIL'; }
out() { cat "$work/job/job-$1.log" 2>/dev/null || true; }
# What a job may not leave: memory, processes, notes; a node in service is idle.
left() {
  find /dev/shm -mindepth 2 -user $me -path '/dev/shm/monarch-*' 2>/dev/null | head -n 3
  pgrep -u $me -a --runstates R,S,D . || true
  pgrep -f "$work/etc/monarch/" -a || true
  ls "$work/running" 2>/dev/null || true
}
clean() { [ -z "$(left)" ] && [ "$(sinfo -h -o %t)" = idle ]; }
leaves_nothing() { until_true 200 clean || echo " left: $(left | tr '\n' ' ') $(sinfo -h -o '%t %E')"; }
forget() { # copies of the job before, and how the file system was
  rm -rf "${tier:?}" "$work"/job/go "$work"/job/begun-*
  settings
  slow 150ms
}
noted() { grep -E "job $1: .*$2" "$work/log/kit" >/dev/null 2>&1 || echo " no line in the kit's log"; }

# ---- jobs, which know nothing of Monarch
cat >"$work/job/train.py" <<'PY'
import hashlib, os, sys
for epoch in range(3):
    h = hashlib.sha256()
    for root in sys.argv[1:]:
        for d, dirs, names in os.walk(root):
            dirs.sort()
            for n in sorted(names):
                with open(os.path.join(d, n), "rb") as f:
                    h.update(f.read())
    how = "preloaded" if "monarch" in os.environ.get("LD_PRELOAD", "") else "bare"
    os.write(1, f"read {epoch} {h.hexdigest()[:16]} {how}\n".encode())
PY
want=$(find "$work/data" -type f | LC_ALL=C sort | xargs cat | sha256sum | cut -c1-16)
script() { # name, a line with #, command
  # shellcheck disable=SC2016 # the job's shell expands it
  printf '#!/bin/sh\n%s\n#SBATCH --output=job-%%j.log\ntouch begun-$SLURM_JOB_ID\nwhile [ ! -e go ]; do sleep 0.1; done\n%s\n' "$2" "$3" >"$work/job/$1"
}
train="/usr/bin/python3 train.py $work/pfs"
script plain.sbatch "# nothing" "exec $train"
script comment.sbatch "#SBATCH --comment=monarch:$work/pfs" "exec $train"
script directive.sbatch "#BB monarch:$work/pfs@48MiB" "exec $train"
script steps.sbatch "#SBATCH --comment=monarch:$work/pfs" "srun --ntasks=2 $train"
script unexported.sbatch "#SBATCH --comment=monarch:$work/pfs" "srun --ntasks=2 --export=NONE $train"
script long.sbatch "#SBATCH --comment=monarch:$work/pfs" "$train; sleep 600"
cat >"$work/job/env.sbatch" <<'SH'
#!/bin/sh
#SBATCH --output=env-%j.log
env | grep -vE '^SLURM_(JOB_ID|JOBID|TASK_PID|TOPOLOGY.*|JOB_START_TIME|JOB_END_TIME)=' | sort
exec cat pfs/a/1
SH
ln -s "$work/pfs" "$work/job/pfs"

# A staged job: what, for which reason it waits, readers, arguments of sbatch. All files have been
# read when it starts, none is read after that, and nothing stays but the copies.
staged() {
  local what=$1 why=$2 readers=$3 job mark begin end held=0 wrong=""
  shift 3
  forget
  mark=$(opens)
  job=$(submit "$@")
  for _ in $(seq 600); do
    [ ! -e "$work/job/begun-$job" ] || break
    [ "$(reason "$job")" != "$why" ] || [ "$(opens)" = "$mark" ] || held=1
    sleep 0.1
  done
  begin=$(($(opens) - mark))
  sleep 1
  touch "$work/job/go"
  until_true 600 ended "$job" || true
  end=$(($(opens) - mark))
  [ $held = 1 ] || wrong+=" did not wait"
  [ "$begin" -ge $files ] || wrong+=" $begin opens when it started"
  [ "$end" = "$begin" ] || wrong+=" $((end - begin)) opens after that"
  [ "$(out "$job" | grep -c "^read [0-2] $want preloaded$")" = $((3 * readers)) ] || wrong+=" output: $(out "$job")"
  [ "$(out "$job" | wc -l)" = $((3 * readers)) ] || wrong+=" more output: $(out "$job")"
  wrong+=$(noted "$job" "is staged")
  # A burst buffer has staged everything before the prolog looks.
  [ "$why" = Prolog ] || [ "$(grep -c "job $job: .* is staged" "$work/log/kit")" = 2 ] || wrong+=" not by the burst buffer"
  wrong+=$(leaves_nothing)
  passed "$what" "$wrong" "$begin opens of the file system before the start, $((end - begin)) by the job's $((3 * readers * files))"
}
# A job whose staging fails: what, a pattern of the note, how it reads, arguments of sbatch. It runs
# all the same, and reads what is right. (`beside` as the last one: another job of the user runs.)
lives() {
  local what=$1 note=$2 how=$3 job wrong="" beside=""
  shift 3
  if [ "${*: -1}" = beside ]; then beside=1; set -- "${@:1:$#-1}"; fi
  touch "$work/job/go"
  job=$(unfiltered "$@")
  until_true 300 test -e "$work/job/begun-$job" || wrong+=" does not start"
  slow 0s
  until_true 300 ended "$job" || true
  is "$job" COMPLETED || wrong+=" $(field "$job" JobState)"
  [ "$(out "$job" | grep -c "^read [0-2] $want $how$")" = 3 ] || wrong+=" output"
  out "$job" | grep -qE "^monarch on $node: .*$note.*reads what is missing from the file system$" || wrong+=" no note"
  wrong+=$(noted "$job" "$note")
  [ -n "$beside" ] || wrong+=$(leaves_nothing)
  [ -z "$wrong" ] || out "$job"
  passed "$what" "$wrong" "$(out "$job" | grep -m 1 '^monarch on' | sed "s#$work#DIR#g; s#^monarch on $node: ##")"
}
# Submissions that are refused.
rejects() { # sentence, command, arguments: prints what went wrong
  local sentence=$1 status=0
  shift
  "$@" >"$work/log/refused" 2>&1 || status=$?
  [ $status != 0 ] && grep -qF "monarch: " "$work/log/refused" && grep -qF "$sentence" "$work/log/refused" || echo " status $status: $(cat "$work/log/refused")"
}
refused() { # what, sentence, command, arguments
  local what=$1
  shift
  passed "$what" "$(rejects "$@")" "$(sed -n "s#$work#DIR#g; s#.*monarch: ##p" "$work/log/refused" | head -n 1)"
}

# What has just been written is not copied (dataset.min_file_age).
[ $((SECONDS - born)) -gt 11 ] || sleep $((11 - (SECONDS - born)))

# ---- without the kit, for comparison
# (Slurm sets SLURM_SCRIPT_CONTEXT in jobs when there is any task prolog.)
echo "TaskProlog=/bin/true" | cat "$work/bare.conf" - >"$work/without.conf"
up "$work/without.conf"
echo "slurm-kit: $(srun --version | head -n 1), processes tracked by $tracking"
slow 0s
job=$(submit env.sbatch)
until_true 300 ended "$job" || true
cp "$work/job/env-$job.log" "$work/log/without"
as $other srun --quiet /bin/sh -c 'env | grep -E "MONARCH|LD_PRELOAD|TMPDIR"; cat pfs/a/2' >"$work/log/without-srun" 2>&1
down

# ---- with the kit
up "$work/kit.conf"
# A user whose commands read a configuration of their own gets past the filter.
grep -v CliFilterPlugins "$work/etc/slurm.conf" >"$work/unfiltered/slurm.conf"
job=$(submit env.sbatch)
until_true 300 ended "$job" || true
wrong=""
cmp "$work/job/env-$job.log" "$work/log/without" || wrong=" differs: $(diff -a "$work/job/env-$job.log" "$work/log/without" | grep -a SLURM | head -n 5 || true)"
passed "a job without comment: environment and output" "$wrong$(leaves_nothing)" "the same bytes as without the kit, $(wc -l <"$work/log/without") lines"
job=$(submit --comment="a word, monarch: /scratch" env.sbatch)
until_true 300 ended "$job" || true
wrong=""
cmp "$work/job/env-$job.log" "$work/log/without" || wrong=" differs"
[ "$(field "$job" JobState)" = COMPLETED ] || wrong+=" $(field "$job" JobState)"
passed "a job with another comment" "$wrong" "the same bytes"

staged "#SBATCH --comment=monarch:DIR" Prolog 1 comment.sbatch
staged "--comment=monarch:DIR/a,DIR/b@32MiB" Prolog 1 --comment="monarch:$work/pfs/a,$work/pfs/b@32MiB" plain.sbatch
staged "--licenses=monarch:DIR" Prolog 1 --licenses="monarch:$work/pfs" plain.sbatch
staged "#BB monarch:DIR@CAPACITY: pending until staged" BurstBufferStageIn 1 directive.sbatch
staged "a script with srun, two tasks" Prolog 2 --ntasks=2 steps.sbatch
staged "a script with srun --export=NONE" Prolog 2 --ntasks=2 unexported.sbatch

# A job that calls `monarch env` with tiers of its own keeps these, in its tasks too.
forget
touch "$work/job/go"
mkdir -m 1777 "$work/own"
script own.sbatch "#SBATCH --comment=monarch:$work/pfs" "eval \"\$($work/bin/monarch env --root $work/pfs --tier $work/own:64MiB)\"
echo own \$MONARCH_CTL
srun /bin/sh -c 'echo own \$MONARCH_CTL'
srun $train
eval \"\$($work/bin/monarch env --end)\""
job=$(submit own.sbatch)
until_true 300 ended "$job" || true
wrong=""
[ "$(out "$job" | grep -c "^read [0-2] $want preloaded$")" = 3 ] || wrong=" output: $(out "$job")"
[ "$(out "$job" | grep '^own /' | uniq -c | awk '{ print $1 }')" = 2 ] || wrong+=" another agent: $(out "$job")"
passed "a script with monarch env" "$wrong$(leaves_nothing)" "its tasks have its agent"

forget
mark=$(opens)
as_user srun --quiet --comment="monarch:$work/pfs" /bin/sh -c "sleep 1; exec $train" >"$work/log/srun" 2>&1 || true
read=$(($(opens) - mark))
wrong=""
[ "$(grep -c "^read [0-2] $want preloaded$" "$work/log/srun")" = 3 ] || wrong=" output: $(cat "$work/log/srun")"
[ "$read" = $files ] || wrong+=" opens"
passed "srun without a script" "$wrong$(leaves_nothing)" "$read opens of $((3 * files))"

# The next job of the user finds the copies; another user's job meanwhile is as without the kit.
touch "$work/job/go"
mark=$(opens)
job=$(submit long.sbatch)
until_true 300 grep -qs '^read 2' "$work/job/job-$job.log" || true
read=$(($(opens) - mark))
wrong=""
[ "$read" = 0 ] || wrong=" opens"
passed "the next job finds the copies" "$wrong" "$read opens"
mark=$(opens)
as $other srun --quiet /bin/sh -c 'env | grep -E "MONARCH|LD_PRELOAD|TMPDIR"; cat pfs/a/2' >"$work/log/with-srun" 2>&1
read=$(($(opens) - mark))
wrong=""
[ "$read" = 1 ] || wrong=" opens"
cmp "$work/log/with-srun" "$work/log/without-srun" || wrong=" output differs"
as $other ls "$tier/monarch-$me" >/dev/null 2>&1 && wrong+=" reads the copies of another user"
passed "a job of another user beside it" "$wrong" "the same bytes, $read open of the file system for its one file"
lives "another job of the user has another capacity" "another job of yours uses these tiers" bare --comment="monarch:$work/pfs@32MiB" plain.sbatch beside
pgrep -u $me | xargs -r kill -KILL || true
until_true 300 ended "$job" || true
passed "SIGKILL to all processes of a job, then the epilog" "$(leaves_nothing)" "nothing is left but $(find "$tier" -type f | wc -l) files on the disk"
settings keep_copies=no
job=$(submit comment.sbatch)
until_true 300 ended "$job" || true
wrong=$(leaves_nothing)
[ -z "$(ls "$tier")" ] || wrong+=" copies are left"
passed "keep_copies=no" "$wrong" "the epilog removes the copies"

# ---- mistakes at submission: the filter of the user's command, then the controller alone
refused "a directory that is not there" "No such file or directory" submit --comment="monarch:$work/nothing" plain.sbatch
refused "a file instead of a directory" "Not a directory" submit --comment="monarch:$work/pfs/a/1" plain.sbatch
refused "the same by srun" "No such file or directory" as_user srun --comment="monarch:$work/nothing" true
refused "the same as a licence" "No such file or directory" submit --licenses="monarch:$work/nothing" plain.sbatch
newline="
touch $work/job/written"
hostile=("" / scratch/set "$work/pfs,," "$work/pfs /etc" "$work/'pfs'\"" "$work/pfs;touch $work/job/written" "$work/pfs$newline" "*" -rf
  "$work/\$(touch $work/job/written)" "$work/\`touch $work/job/written\`" "$work/pfs|touch $work/job/written" "$work/pfs&" "$work/pfs	" "$work/pfs\\")
upward=("$work/pfs/../pfs" "$work/pfs/.." "$work/pfs/a,$work/pfs/..@1GiB" /..)
sizes=("$work/pfs@lots" "$work/pfs@" "$work/pfs@0GiB" "$work/pfs@1GiB;touch $work/job/written" "$work/pfs@1GiB@2GiB" "$work/pfs@-1GiB")
for how in submit unfiltered; do
  wrong=""
  for text in "${hostile[@]}"; do wrong+=$(rejects "write monarch:/DIRECTORY" $how --comment="monarch:$text" plain.sbatch); done
  for text in "${upward[@]}"; do wrong+=$(rejects "write full paths without \`..\`" $how --comment="monarch:$text" plain.sbatch); done
  for text in "${sizes[@]}"; do wrong+=$(rejects "the capacity behind @" $how --comment="monarch:$text" plain.sbatch); done
  by="sbatch and its filter"
  [ $how = submit ] || by="slurmctld alone"
  passed "spaces, quotes, ; newline, .. and so on: $by" "$wrong" "$((${#hostile[@]} + ${#upward[@]} + ${#sizes[@]})) comments refused with a sentence"
done
refused "a comment and a licence" "has a comment already" submit --comment="a word" --licenses="monarch:$work/pfs" plain.sbatch
script wrong.sbatch "#BB monarch:$work/../set" true
refused "a wrong #BB line" "without \`..\`" submit wrong.sbatch
job=$(submit --hold plain.sbatch)
wrong=""
! as_user scontrol update "job=$job" "comment=monarch:/a/.." 2>/dev/null || wrong=" not refused"
grep -qF "monarch: write full paths without" "$work/log/slurmctld" || wrong+=" no line in the log"
passed "scontrol update comment=" "$wrong" "refused, with the sentence in slurmctld's log"
as_user scancel "$job"

# The same strings where no plugin has refused them, as on a site without job_submit.lua.
wrong=""
for text in "${hostile[@]}" "${upward[@]}" "${sizes[@]}"; do
  (
    export SLURM_JOB_ID=999 SLURM_JOB_UID=$me SLURM_JOB_GID=$me SLURM_NODELIST=$node SLURM_JOB_COMMENT="monarch:$text"
    "$work/etc/monarch/prolog.sh" >"$work/log/hostile" 2>&1
  ) || wrong+=" status"
  [ -s "$work/log/hostile" ] && wrong+=" output for $text"
  [ -s "$work/running/999/note" ] && [ ! -e "$work/running/999/arguments" ] || wrong+=" took $text"
done
[ ! -e "$work/job/written" ] || wrong+=" executed something"
SLURM_JOB_ID=999 SLURM_JOB_UID=$me "$work/etc/monarch/epilog.sh" || wrong+=" epilog"
passed "the same strings straight to the prolog" "$wrong$(leaves_nothing)" "noted, neither staged nor executed"

# Two jobs of a user on the node: the epilog of the first leaves what the second needs.
settings keep_copies=no
mkdir -p "$work/running/998" "$work/running/999" "$tier/monarch-$me"
echo $me | tee "$work/running/998/uid" >"$work/running/999/uid"
SLURM_JOB_ID=999 SLURM_JOB_UID=$me "$work/etc/monarch/epilog.sh"
wrong=""
[ -d "$tier/monarch-$me" ] || wrong=" the copies are gone"
[ ! -e "$work/running/999" ] || wrong+=" its notes are left"
SLURM_JOB_ID=998 SLURM_JOB_UID=$me "$work/etc/monarch/epilog.sh"
[ ! -e "$tier/monarch-$me" ] || wrong+=" the last one leaves the copies"
passed "keep_copies=no, two jobs" "$wrong$(leaves_nothing)" "the epilog of the last one removes the copies"

# ---- what fails later never loses the job
forget
lives "a directory that is not there, without the filter" "No such file or directory" bare --comment="monarch:$work/nothing" plain.sbatch
forget
lives "no room" "no room" preloaded --comment="monarch:$work/pfs@2MiB" plain.sbatch
forget
settings prolog_limit=3
slow 8s
lives "staging takes longer than the limit" "took longer than 3 s" preloaded comment.sbatch
forget
settings monarch=/nothing/monarch
lives "the program is missing" "/nothing/monarch is not installed" bare comment.sbatch
forget
slow 0s
touch "$work/job/go"
job=$(submit --export=ALL,MONARCH_CONFIG=/nothing.yaml comment.sbatch)
until_true 300 ended "$job" || true
wrong=""
[ "$(out "$job" | grep -c "^read [0-2] $want bare$")" = 3 ] || wrong+=" output: $(out "$job")"
[ "$(out "$job" | grep -cE "^monarch on $node: error: .*/nothing.yaml.*; the job reads the file system$")" = 1 ] || wrong+=" no note: $(out "$job")"
passed "a configuration of the user that is not there" "$wrong$(leaves_nothing)" "$(out "$job" | sed -n "s#^monarch on $node: ##p")"
forget
mkdir "$work/elsewhere"
ln -s "$work/elsewhere" "$tier"
lives "the tier is a link" "is not a directory of root's" bare comment.sbatch
forget
touch "$work/job/go"
slow 0s
echo 'monarch=(' >>"$work/etc/monarch/kit.conf"
job=$(submit comment.sbatch)
until_true 300 ended "$job" || true
wrong=""
is "$job" COMPLETED || wrong+=" $(field "$job" JobState)"
[ "$(out "$job" | grep -c "^read [0-2] $want bare$")" = 3 ] || wrong+=" output: $(out "$job")"
rm -rf "$work/running"/*
passed "kit.conf is broken" "$wrong$(leaves_nothing)" "the job runs as without the kit"
forget
settings hold_limit=3
slow 8s
touch "$work/job/go"
job=$(submit directive.sbatch)
# (Then the prolog tries again, and has room in its limit.)
until_true 100 grep -qs "job $job: .*longer than 3 s" "$work/log/kit" || true
slow 0s
until_true 300 ended "$job" || true
wrong=$(noted "$job" "longer than 3 s")
[ "$(out "$job" | grep -c "^read [0-2] $want preloaded$")" = 3 ] || wrong+=" output: $(out "$job")"
passed "#BB: staging takes longer than the limit" "$wrong$(leaves_nothing)" "the prolog continues"

# ---- cancelled while they are staged
for how in comment directive; do
  forget
  slow 5s
  mark=$(opens)
  job=$(submit $how.sbatch)
  begun() { [ "$(opens)" -gt "$mark" ]; }
  until_true 200 begun || true
  wrong=""
  pgrep -u $me -x monarch >/dev/null || wrong=" no stage was running"
  as_user scancel "$job"
  at=$SECONDS
  wrong+=$(leaves_nothing)
  took=$((SECONDS - at))
  slow 0s
  read=$(($(opens) - mark))
  [ "$read" -lt $files ] && [ ! -e "$work/job/begun-$job" ] || wrong+=" it was staged to its end"
  passed "$how: scancel while it is staged" "$wrong" "nothing is left after $took s, $read files of $files were opened"
done

sinfo -h -o %t | grep -q idle || fail "the node stays in service" "$(sinfo -h -o '%t %E')"
rm -rf "/dev/shm/monarch-$me"
if [ $bad = 0 ]; then echo "slurm-kit: ok"; else echo "slurm-kit: FAILED"; exit 1; fi
