#!/usr/bin/env bash
# The job scripts of configs/slurm, and what docs/SLURM.md says, on a Slurm of one node that is
# started for it and ended after it.
#   tests/slurm.sh      needs root and Debian 12: installs Slurm, munge, Open MPI and PyTorch when they are missing. 5 minutes.
# Beside the everyday suite. Everything lies in a directory of its own; jobs run as the user
# `nobody`. Processes are tracked by cgroups as on real clusters where that works here (Slurm then
# kills what a job leaves running), otherwise by their parents. Ends with 1 when something is not as
# documented. MONARCH_TRIAL_KEEP=1 keeps the directory.
set -euo pipefail
cd "$(dirname "$0")/.."
repo=$PWD
[ "$(id -u)" = 0 ] || { echo "slurm: skipped, needs root"; exit 0; }
need=()
for pair in slurmctld:slurm-wlm munged:munge mpirun:openmpi-bin; do
  command -v "${pair%%:*}" >/dev/null || need+=("${pair##*:}")
done
/usr/bin/python3 -c 'import torch' 2>/dev/null || need+=(python3-torch)
if [ ${#need[@]} -gt 0 ]; then
  apt-get update -qq
  DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "${need[@]}" >/dev/null
fi

work=$(mktemp -d /var/tmp/monarch-slurm.XXXXXX)
chmod 755 "$work"
me=65534
pids=()
finish() {
  trap - EXIT
  # Jobs first: they live on without the daemons.
  if [ ${#pids[@]} -gt 1 ]; then
    squeue -h -o %A | xargs -r scancel --full --signal=KILL 2>/dev/null || true
    for _ in $(seq 50); do
      [ -z "$(pgrep -u $me -x monarch)" ] && break
      sleep 0.1
    done
  fi
  for ((i = ${#pids[@]} - 1; i >= 0; i--)); do kill "${pids[i]}" 2>/dev/null || true; done
  wait || true
  find /sys/fs/cgroup -depth -type d -path "*/slurm_$node*" -exec rmdir {} \; 2>/dev/null || true
  if [ -z "${MONARCH_TRIAL_KEEP:-}" ]; then rm -rf "$work"; else echo "kept $work"; fi
}
trap finish EXIT

# ---- the cluster
node=$(hostname -s)
mkdir -p "$work"/{munge,state,spool,log,bin,job,data/a,data/b,node}
chmod 700 "$work/munge"
chmod 777 "$work/job"
chmod 1777 "$work/node"
(umask 077; head -c 1024 /dev/urandom >"$work/munge/key")
cat >"$work/prolog" <<IN
#!/bin/sh
# As many sites do it: a directory for each job on the node's disk.
mkdir -p "$work/node/\$SLURM_JOB_ID" && chown "\$SLURM_JOB_UID" "$work/node/\$SLURM_JOB_ID"
IN
cat >"$work/task-prolog" <<IN
#!/bin/sh
echo "export SLURM_TMPDIR=$work/node/\$SLURM_JOB_ID"
IN
# What docs/SLURM.md proposes, behind a switch.
cat >"$work/epilog" <<IN
#!/bin/sh
rm -rf "$work/node/\$SLURM_JOB_ID"
[ -e "$work/no-epilog" ] && exit 0
ps -u "\$SLURM_JOB_UID" -o stat=,comm= | grep -q '^[^Z].* monarch\$' || rm -rf "/dev/shm/monarch-\$SLURM_JOB_UID"
IN
chmod 755 "$work/prolog" "$work/task-prolog" "$work/epilog"
touch "$work/no-epilog"
conf() {
  cat <<IN
ClusterName=trial
SlurmctldHost=$node(127.0.0.1)
SlurmctldPort=16817
SlurmdPort=16818
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
ProctrackType=proctrack/$1
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
MailProg=/bin/true
Prolog=$work/prolog
TaskProlog=$work/task-prolog
Epilog=$work/epilog
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SlurmdParameters=config_overrides
SchedulerParameters=sched_interval=2,batch_sched_delay=1
ReturnToService=2
MpiDefault=none
NodeName=$node NodeAddr=127.0.0.1 CPUs=4 State=UNKNOWN
PartitionName=all Nodes=ALL Default=YES State=UP
IN
}
printf 'CgroupAutomount=yes\nCgroupMountpoint=/sys/fs/cgroup\nCgroupPlugin=autodetect\n' >"$work/cgroup.conf"
export SLURM_CONF=$work/slurm.conf
munged -F --socket="$work/munge.sock" --key-file="$work/munge/key" --log-file="$work/munge/log" --pid-file="$work/munge/pid" \
  --seed-file="$work/munge/seed" >"$work/log/munged" 2>&1 &
pids+=($!)
as_user() {
  (cd "$work/job" && exec setpriv --reuid=$me --regid=$me --clear-groups env -i HOME="$work/job" USER=nobody \
    PATH="$work/bin:/usr/bin:/bin" SLURM_CONF="$SLURM_CONF" "$@")
}
up() { # how processes are tracked
  conf "$1" >"$work/slurm.conf"
  slurmctld -D -c >"$work/log/ctld.out" 2>&1 &
  pids+=($!)
  slurmd -D -c >"$work/log/slurmd.out" 2>&1 &
  pids+=($!)
  for _ in $(seq 100); do
    [ "$(sinfo -h -o %t 2>/dev/null)" = idle ] && break
    sleep 0.1
  done
  as_user timeout 20 srun -n1 true 2>>"$work/log/srun"
}
down() {
  for pid in "${pids[@]:1}"; do kill "$pid" || true; done
  for pid in "${pids[@]:1}"; do wait "$pid" || true; done
  pids=("${pids[0]}")
}
tracking=cgroup
sleep 1
if ! up cgroup; then
  down
  tracking=linuxproc
  up linuxproc || { echo "slurm: FAILED, no Slurm can be started here"; tail -n 5 "$work"/log/*; exit 1; }
fi
echo "slurm: $(srun --version | head -n 1), processes tracked by $tracking"

# ---- the job: Monarch, a data set, a training script
cp target/release/monarch target/release/libmonarch_shim.so "$work/bin/"
ln -s /usr/bin/python3 "$work/bin/python"
# Debian's torchrun; its version 1.13 cannot take its own default of --redirects under Python 3.11.
cat >"$work/bin/torchrun" <<'IN'
#!/usr/bin/python3
from torch.distributed.elastic.multiprocessing.api import Std
plain = Std.from_str
Std.from_str = classmethod(lambda cls, v: Std.NONE if v == "0" else plain(v))
from torch.distributed.run import main
main()
IN
chmod 755 "$work"/bin/*
files=200
for d in a b; do
  for i in $(seq $((files / 2))); do head -c 20000 /dev/urandom >"$work/data/$d/$i"; done
done
born=$SECONDS
cat >"$work/job/train.py" <<'IN'
import argparse, hashlib, os, signal, sys, time
p = argparse.ArgumentParser()
p.add_argument("--data")
a = p.parse_args()
env = os.environ
def checkpoint(*_):
    print("checkpoint", flush=True)
    sys.exit(3)
signal.signal(signal.SIGUSR1, checkpoint)
ranks = ["RANK", "OMPI_COMM_WORLD_RANK", "SLURM_PROCID"]
rank = next((env[r] for r in ranks if r in env), "0")
if "RANK" in env:
    import torch, torch.distributed as dist
    dist.init_process_group("gloo")
    dist.all_reduce(torch.ones(1))
for epoch in range(3):
    h = hashlib.sha256()
    for d, dirs, names in os.walk(a.data):
        dirs.sort()
        for n in sorted(names):
            with open(os.path.join(d, n), "rb") as f:
                h.update(f.read())
    how = "preloaded" if "monarch" in env.get("LD_PRELOAD", "") else "bare"
    # At once: tasks write to one file.
    os.write(1, f"read {rank} {epoch} {h.hexdigest()[:16]} {how}\n".encode())
    time.sleep(0.5)
if not os.path.exists("long") or int(env.get("SLURM_RESTART_COUNT", 0)) > 0:
    sys.exit(7 if os.path.exists("fail") else 0)
time.sleep(600)
IN
cp "$work/job/train.py" "$work/job/check.py"
want=$(cd "$work/data" && find . -type f | LC_ALL=C sort | sed 's#^\./##' | (while read -r f; do cat "$f"; done) | sha256sum | cut -c1-16)
# The examples as they are but for the place of the data set and what this machine has not got.
for f in configs/slurm/*.sbatch; do
  sed -e "s#^data=.*#data=$work/data#" -e 's#:200GiB#:1GiB#' -e '/--gpus-per-node/d' -e 's/--cpus-per-task=[0-9]*/--cpus-per-task=1/' \
    -e 's/--ntasks-per-node=4/--ntasks-per-node=2/' -e 's/ON_NODE:-4/ON_NODE:-2/' "$repo/$f" >"$work/job/$(basename "$f")"
done
in_memory() { # example, new name: copies in memory
  sed 's#^tier=.*#tier=/dev/shm:1GiB#' "$work/job/$1" >"$work/job/$2"
}
for f in run env torchrun srun; do in_memory $f.sbatch $f-ram.sbatch; done

# ---- what is looked at
bad=0
# Monarch's own line of a task is there once.
spoke_once() { [ "$(log "$1" | grep -c 'monarch: the PFS sent ')" = 1 ]; }
row() { printf 'slurm: %-58s %s\n' "$1" "$2"; }
state() { scontrol show job -o "$1" | grep -oE "$2=[^ ]+" | head -n 1 | cut -d= -f2; }
submit() { as_user sbatch --parsable "$@"; }
until_state() { # job, states
  for _ in $(seq 1500); do
    state "$1" JobState | grep -qE "^($2)$" && return
    sleep 0.1
  done
  echo "slurm: job $1 is $(state "$1" JobState), not $2"
}
log() { cat "$work/job/"*"-$1.log" 2>/dev/null; }
until_read() { # job
  for _ in $(seq 300); do
    log "$1" | grep -q '^read .* 2 ' && return
    sleep 0.1
  done
  # Other tasks of the job are about as far.
  sleep 1
}
left() { # whatever of this user is still there
  find /dev/shm -mindepth 2 -user $me -path '/dev/shm/monarch-*' 2>/dev/null | head -n 3
  pgrep -u $me -x -a --runstates R,S,D monarch || true
}
figure() { python3 -c 'import json,sys; print(json.load(open(sys.argv[1]))'"$2"')' "$work/job/saved-$1.json" 2>/dev/null || echo none; }
# job, state, exit code, processes that read three epochs, bare or preloaded, opens served at least
# or `none` for no report
check() {
  local what=$1 job=$2 end=$3 code=$4 readers=$5 how=$6 local_opens=$7 wrong=""
  until_state "$job" 'COMPLETED|FAILED|TIMEOUT|CANCELLED|NODE_FAIL'
  [ "$(state "$job" JobState)" = "$end" ] || wrong+=" state $(state "$job" JobState)"
  [ "$(state "$job" ExitCode)" = "$code" ] || wrong+=" exit $(state "$job" ExitCode)"
  [ "$(log "$job" | grep -cE "^read [0-9]+ [0-2] $want $how\$")" = $((readers * 3)) ] || wrong+=" output"
  local got
  got=$(figure "$job" '["opens_local"]')
  if [ "$local_opens" = none ]; then
    [ "$got" = none ] || wrong+=" a report"
  elif [ "$got" = none ] || [ "$got" -lt "$local_opens" ]; then
    wrong+=" report: $got"
  fi
  if [ "$tracking" = linuxproc ]; then sleep 5; fi
  for _ in $(seq 20); do
    [ -z "$(left)" ] && break
    sleep 0.1
  done
  [ -z "$(left)" ] || wrong+=" left: $(left | tr '\n' ' ')"
  if [ -n "$wrong" ]; then
    bad=1
    row "$what" "FAILED:$wrong"
    log "$job" | tail -n 20
    tail -n 20 "$work/log/slurmd" | sed 's/^/  slurmd: /'
  else
    row "$what" "ok ($end, exit $code, $got local opens in the report)"
  fi
}
# The first of three rounds may find the index not made yet.
all=$((files * 2))

# What has just been written is not copied (dataset.min_file_age).
[ $((SECONDS - born)) -gt 11 ] || sleep $((11 - (SECONDS - born)))
check "run.sbatch" "$(submit run.sbatch)" COMPLETED 0:0 1 preloaded $all
check "run.sbatch, copies in memory" "$(submit run-ram.sbatch)" COMPLETED 0:0 1 preloaded $all
touch "$work/job/fail"
check "run.sbatch, the job fails with 7" "$(submit run-ram.sbatch)" FAILED 7:0 1 preloaded $all
check "env.sbatch, its first command fails with 7" "$(submit env-ram.sbatch)" FAILED 7:0 1 preloaded $all
rm "$work/job/fail"
check "env.sbatch" "$(submit env.sbatch)" COMPLETED 0:0 2 preloaded $((all * 2))
check "env.sbatch, copies in memory" "$(submit env-ram.sbatch)" COMPLETED 0:0 2 preloaded $((all * 2))
check "torchrun.sbatch, two processes" "$(submit torchrun-ram.sbatch)" COMPLETED 0:0 2 preloaded $((all * 2))
# The tasks start at about the same time: what one opens before the other has looked is not in the
# other's figures.
job=$(submit srun-ram.sbatch)
check "srun.sbatch, two tasks" "$job" COMPLETED 0:0 2 preloaded $all
copied=$(figure "$job" '["status"]["tiers"][0]["files"]')
[ "$copied" = $files ] || { bad=1; row "srun.sbatch: one set of copies" "FAILED: $copied"; }
sed -e "s#^monarch=.*#monarch=$work/bin/monarch#" -e "s#^  python #  $work/bin/python #" "$work/job/srun-ram.sbatch" >"$work/job/absolute.sbatch"
check "srun.sbatch with paths in full, sbatch --export=NONE" "$(submit --export=NONE absolute.sbatch)" COMPLETED 0:0 2 preloaded $all

script() { # name, last line
  sed -e '/^srun/,$d' "$work/job/srun-ram.sbatch" >"$work/job/$1"
  cat >>"$work/job/$1"
}
script behind.sbatch <<'IN'
export PATH
monarch run --root "$data" --tier "$tier" --report "saved-$SLURM_JOB_ID.json" -- srun python train.py --data "$data"
IN
check "monarch run -- srun" "$(submit behind.sbatch)" COMPLETED 0:0 2 preloaded $((all * 2))
script none.sbatch <<'IN'
monarch run --root "$data" --tier "$tier" --report "saved-$SLURM_JOB_ID.json" -- srun --export=NONE "$(command -v python)" train.py --data "$data"
IN
check "monarch run -- srun --export=NONE: the preload is lost" "$(submit none.sbatch)" COMPLETED 0:0 2 bare 0
script some.sbatch <<'IN'
monarch run --root "$data" --tier "$tier" --report "saved-$SLURM_JOB_ID.json" -- srun --export=LD_PRELOAD,MONARCH_CTL,PATH python train.py --data "$data"
IN
check "monarch run -- srun --export=LD_PRELOAD,MONARCH_CTL,PATH" "$(submit some.sbatch)" COMPLETED 0:0 2 preloaded $((all * 2))
script within.sbatch <<'IN'
srun --export=NONE "$monarch" run --root "$data" --tier "$tier" --report "$PWD/saved-$SLURM_JOB_ID.json" -- "$(command -v python)" train.py --data "$data"
IN
check "srun --export=NONE monarch run" "$(submit within.sbatch)" COMPLETED 0:0 2 preloaded $all
script env-srun.sbatch <<'IN'
eval "$(monarch env --root "$data" --tier "$tier" --report "saved-$SLURM_JOB_ID.json")"
trap 'eval "$(monarch env --end)"' EXIT
srun python train.py --data "$data"
IN
check "env, then srun" "$(submit env-srun.sbatch)" COMPLETED 0:0 2 preloaded $((all * 2))
script mpi.sbatch <<'IN'
monarch run --root "$data" --tier "$tier" --report "saved-$SLURM_JOB_ID.json" -- \
  mpirun --oversubscribe --mca plm isolated -n 2 python train.py --data "$data"
IN
check "monarch run -- mpirun, one node" "$(submit mpi.sbatch)" COMPLETED 0:0 2 preloaded $((all * 2))
script mpi-within.sbatch <<'IN'
mpirun --oversubscribe --mca plm isolated -n 2 monarch run --root "$data" --tier "$tier" --report "saved-$SLURM_JOB_ID.json" -- python train.py --data "$data"
IN
job=$(submit mpi-within.sbatch)
check "mpirun monarch run" "$job" COMPLETED 0:0 2 preloaded $all
spoke_once "$job" || { bad=1; row "mpirun monarch run: one summary" FAILED; }

touch "$work/array"
array=$(submit --array=1-2 --output=train-%A_%a.log run-ram.sbatch)
until_state "$array" COMPLETED
for _ in $(seq 100); do
  [ -z "$(squeue -h)" ] && break
  sleep 0.2
done
found=$(find "$work/job" -name 'saved-*.json' -newer "$work/array" -exec grep -l opens_local {} \; | wc -l)
count=$(cat "$work/job/train-${array}_"[12].log | grep -cE "^read 0 [0-2] $want preloaded$" || true)
if [ "$count" = 6 ] && [ -z "$(left)" ] && [ "$found" = 2 ]; then
  row "job array of two" "ok (two reports)"
else
  bad=1
  row "job array of two" "FAILED: $count lines, $found reports, left: $(left)"
  cat "$work/job/train-${array}_"[12].log
fi

touch "$work/job/long"
job=$(submit --requeue run-ram.sbatch)
until_read "$job"
scontrol requeue "$job"
until_state "$job" PENDING
# Until the epilog of the first start is through: both have one number.
for _ in $(seq 100); do
  [ "$(sinfo -h -o %t)" = idle ] && break
  sleep 0.2
done
sleep 1
scontrol update job="$job" StartTime=now
check "scontrol requeue in the middle: the second start" "$job" COMPLETED 0:0 1 preloaded $all
for kind in run env srun; do
  job=$(submit $kind-ram.sbatch)
  until_read "$job"
  readers=1
  if [ $kind = srun ]; then readers=2; fi
  as_user scancel "$job"
  check "scancel in the middle, $kind.sbatch" "$job" CANCELLED 0:15 $readers preloaded $all
done
job=$(submit --time=1 --signal=B:USR1@50 run-ram.sbatch)
check "--signal=B:USR1@50: the script's handler ends with 3" "$job" FAILED 3:0 1 preloaded $all
log "$job" | grep -q '^checkpoint$' || { bad=1; row "its checkpoint" FAILED; }
check "time limit, run.sbatch" "$(submit --time=1 run-ram.sbatch)" TIMEOUT 0:15 1 preloaded $all

# Killed without a warning: no process can clean up. The next job takes over; the epilog is for
# nodes where none comes.
killed() {
  job=$(submit run-ram.sbatch)
  until_read "$job"
  scontrol listpids "$job" | awk 'NR > 1 && $1 > 1 { print $1 }' | xargs -r kill -KILL || true
  until_state "$job" 'FAILED|CANCELLED'
  sleep 2
}
killed
row "SIGKILL to all processes: files left in /dev/shm" "$(find /dev/shm -user $me -type f -path '/dev/shm/monarch-*' | wc -l)"
rm "$work/job/long"
check "the next job after that" "$(submit run-ram.sbatch)" COMPLETED 0:0 1 preloaded $all
touch "$work/job/long"
rm "$work/no-epilog"
killed
if [ -z "$(left)" ]; then row "SIGKILL with the epilog of docs/SLURM.md" "ok (nothing is left)"; else bad=1; row "SIGKILL with the epilog" "FAILED: $(left)"; fi

rm -rf "/dev/shm/monarch-$me"
if [ $bad = 0 ]; then echo "slurm: ok"; else echo "slurm: FAILED"; exit 1; fi
