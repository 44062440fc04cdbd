#!/usr/bin/env bash
# The job scripts of configs/slurm for several nodes, prolog and epilog, on a Slurm of three nodes:
# each is a network, host name and mount namespace with a /dev/shm and a disk of its own, and a
# slurmd; the data set lies on a slow file system that all see, which counts.
#   tests/slurm-nodes.sh      needs root and Debian 12: installs Slurm, munge and PyTorch when they are missing. 3 minutes.
# Beside the everyday suite, after tests/slurm.sh, which tries one node. Programs come from
# target/release (MONARCH_E2E_BIN names another directory). Ends with 1 when something is not as
# documented. MONARCH_TRIAL_KEEP=1 keeps the directory.
set -euo pipefail
cd "$(dirname "$0")/.."
repo=$PWD
[ "$(id -u)" = 0 ] || { echo "slurm-nodes: skipped, needs root"; exit 0; }
need=()
for pair in slurmctld:slurm-wlm munged:munge ip:iproute2; do
  command -v "${pair%%:*}" >/dev/null || need+=("${pair##*:}")
done
/usr/bin/python3 -c 'import torch' 2>/dev/null || need+=(python3-torch)
if [ ${#need[@]} -gt 0 ]; then
  apt-get update -qq
  DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "${need[@]}" >/dev/null
fi

programs=${MONARCH_E2E_BIN:-$repo/target/release}
nodes=3
me=65534
work=$(mktemp -d /var/tmp/monarch-slurm.XXXXXX)
chmod 755 "$work"
net=monarch-slurm$$
pids=()
finish() {
  trap - EXIT
  squeue -h -o %A 2>/dev/null | xargs -r scancel --full --signal=KILL 2>/dev/null || true
  for ((i = ${#pids[@]} - 1; i >= 0; i--)); do kill "${pids[i]}" 2>/dev/null || true; done
  wait || true
  for n in sw ctl $(seq "$nodes"); do
    ip netns pids "$net-$n" 2>/dev/null | xargs -r kill -KILL 2>/dev/null || true
    ip netns del "$net-$n" 2>/dev/null || true
  done
  fusermount3 -u "$work/pfs" 2>/dev/null || true
  if [ -z "${MONARCH_TRIAL_KEEP:-}" ]; then rm -rf "$work"; else echo "kept $work"; fi
}
trap finish EXIT

# ---- the data set, on a file system that counts
mkdir -p "$work"/{munge,state,log,bin,job,data/a,data/b,pfs,local}
chmod 700 "$work/munge"
chmod 777 "$work/job"
files=200
for d in a b; do
  for i in $(seq $((files / 2))); do head -c 20000 /dev/urandom >"$work/data/$d/$i"; done
done
born=$SECONDS
"$programs/slowfs" --allow-other --cache direct --attr-ttl 600s --control "$work/pfs.sock" "$work/data" "$work/pfs" >"$work/log/slowfs" 2>&1 &
pids+=($!)
until mountpoint -q "$work/pfs"; do sleep 0.1; done
opens() { "$programs/slowfs" ctl "$work/pfs.sock" counters | python3 -c 'import json,sys; print(json.load(sys.stdin)["counters"]["open"])'; }

# ---- the network: one bridge, an address for each node
ip netns add "$net-sw"
ip -n "$net-sw" link add br0 type bridge
ip -n "$net-sw" link set br0 up
echo "127.0.0.1 localhost" >"$work/hosts"
join() { # name, last number of its address
  ip netns add "$net-$1"
  ip -n "$net-sw" link add "p$2" type veth peer name eth0 netns "$net-$1"
  ip -n "$net-sw" link set "p$2" master br0 up
  ip -n "$net-$1" addr add "10.15.0.$2/24" dev eth0
  ip -n "$net-$1" link set eth0 up
  ip -n "$net-$1" link set lo up
}
join ctl 100
echo "10.15.0.100 ctl" >>"$work/hosts"
for n in $(seq "$nodes"); do
  join "$n" "$n"
  echo "10.15.0.$n n$n" >>"$work/hosts"
done
on() { # namespace, host name, command: as that machine
  local ns=$1 name=$2
  shift 2
  exec nsenter --net="/run/netns/$net-$ns" unshare --mount --uts sh -c 'hostname "$0" && mount --bind "$1/hosts" /etc/hosts &&
    mount -t tmpfs -o mode=1777 tmpfs /dev/shm && mkdir "$1/disk.$0" && mount --bind "$1/disk.$0" "$1/local" && shift && exec "$@"' "$name" "$work" "$@"
}

# ---- Slurm
(umask 077; head -c 1024 /dev/urandom >"$work/munge/key")
# (The home of the user `nobody` is nowhere.)
for f in prolog task-prolog epilog; do
  sed -e "s#:-/local}#:-$work/local}#" -e "s#:-monarch}#:-$work/bin/monarch}#" -e 's#:-400GiB}#:-64MiB}#' -e "s#:-\$(getent.*)}#:-$work/job}#" "configs/slurm/$f.sh" >"$work/$f.sh"
  chmod 755 "$work/$f.sh"
done
# The kit beside them, as on a site that has scripts of its own.
cp -r configs/slurm/kit "$work/monarch"
sed -i -e "s#^monarch=.*#monarch=$work/bin/monarch#" -e "s#^tier=.*#tier=$work/local/monarch#" -e 's#^capacity=.*#capacity=64MiB#' \
  -e "s#^state=.*#state=$work/local/monarch-jobs#" -e "s#^log=.*#log=$work/log/kit#" "$work/monarch/kit.conf"
sed -i "s#^home=.*#home=$work/job#" "$work/monarch/stage.sh"
for f in prolog task-prolog epilog; do
  printf '#!/bin/sh\n%s\n%s\n' "$work/$f.sh" "$work/monarch/$f.sh" >"$work/site-$f"
  chmod 755 "$work/site-$f"
done
cat >"$work/slurm.conf" <<IN
ClusterName=trial
SlurmctldHost=ctl(10.15.0.100)
AuthType=auth/munge
AuthInfo=socket=$work/munge.sock
CryptoType=crypto/munge
SlurmUser=root
SlurmdUser=root
StateSaveLocation=$work/state
SlurmdSpoolDir=$work/spool.%n
SlurmctldPidFile=$work/slurmctld.pid
SlurmdPidFile=$work/slurmd.%n.pid
SlurmctldLogFile=$work/log/slurmctld
SlurmdLogFile=$work/log/slurmd.%n
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
MailProg=/bin/true
Prolog=$work/site-prolog
PrologFlags=Alloc
TaskProlog=$work/site-task-prolog
Epilog=$work/site-epilog
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SlurmdParameters=config_overrides
SchedulerParameters=sched_interval=2,batch_sched_delay=1
ReturnToService=2
MpiDefault=none
$(for n in $(seq "$nodes"); do echo "NodeName=n$n NodeAddr=10.15.0.$n CPUs=2 State=UNKNOWN"; done)
PartitionName=all Nodes=ALL Default=YES State=UP
IN
export SLURM_CONF=$work/slurm.conf
munged -F --socket="$work/munge.sock" --key-file="$work/munge/key" --log-file="$work/munge/log" --pid-file="$work/munge/pid" \
  --seed-file="$work/munge/seed" >"$work/log/munged" 2>&1 &
pids+=($!)
sleep 1
(on ctl ctl slurmctld -D -c) >"$work/log/ctld.out" 2>&1 &
pids+=($!)
for n in $(seq "$nodes"); do
  (on "$n" "n$n" slurmd -D -c) >"$work/log/slurmd.out.$n" 2>&1 &
  pids+=($!)
done
# Slurm's own commands, from the machine of its controller.
slurm() { nsenter --net="/run/netns/$net-ctl" "$@"; }
squeue() { slurm /usr/bin/squeue "$@"; }
scancel() { slurm /usr/bin/scancel "$@"; }
as_user() {
  (cd "$work/job" && slurm setpriv --reuid=$me --regid=$me --clear-groups env -i HOME="$work/job" USER=nobody \
    PATH="$work/bin:/usr/bin:/bin" SLURM_CONF="$SLURM_CONF" "$@")
}
for _ in $(seq 150); do
  [ "$(slurm sinfo -h -o %t-%D 2>/dev/null)" = "idle-$nodes" ] && break
  sleep 0.2
done
[ "$(slurm sinfo -h -o %t-%D)" = "idle-$nodes" ] || { echo "slurm-nodes: FAILED, no Slurm can be started here"; tail -n 5 "$work"/log/*; exit 1; }
echo "slurm-nodes: $(srun --version | head -n 1), $nodes nodes"

# ---- the job
cp "$programs"/{monarch,libmonarch_shim.so} "$work/bin/"
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
cat >"$work/job/train.py" <<'IN'
import argparse, hashlib, os, socket, time
p = argparse.ArgumentParser()
p.add_argument("--data")
a = p.parse_args()
env = os.environ
rank = next((env[r] for r in ("RANK", "SLURM_PROCID") if r in env), "0")
if "RANK" in env:
    import torch, torch.distributed as dist
    dist.init_process_group("gloo")
    dist.all_reduce(torch.ones(1))
# What is opened before the index is there is read from the file system, by any job.
time.sleep(4)
for epoch in range(3):
    h = hashlib.sha256()
    for d, dirs, names in os.walk(a.data):
        dirs.sort()
        for n in sorted(names):
            with open(os.path.join(d, n), "rb") as f:
                h.update(f.read())
    how = "preloaded" if "monarch" in env.get("LD_PRELOAD", "") else "bare"
    os.write(1, f"read {rank} {socket.gethostname()} {epoch} {h.hexdigest()[:16]} {how}\n".encode())
    time.sleep(0.5)
if os.path.exists("long"):
    time.sleep(600)
IN
want=$(cd "$work/data" && find . -type f | LC_ALL=C sort | sed 's#^\./##' | (while read -r f; do cat "$f"; done) | sha256sum | cut -c1-16)
for f in configs/slurm/*nodes.sbatch; do
  sed -e "s#^data=.*#data=$work/pfs#" -e 's#:200GiB#:64MiB#' -e '/--gpus-per-node/d' -e 's/--cpus-per-task=[0-9]*/--cpus-per-task=1/' \
    -e "s/--nodes=4/--nodes=$nodes/" -e 's/--ntasks-per-node=4/--ntasks-per-node=2/' -e 's/ON_NODE:-4/ON_NODE:-2/' "$f" >"$work/job/$(basename "$f")"
done

# ---- what is looked at
bad=0
row() { printf 'slurm-nodes: %-66s %s\n' "$1" "$2"; }
state() { slurm scontrol show job -o "$1" | grep -oE "$2=[^ ]+" | head -n 1 | cut -d= -f2; }
submit() { as_user sbatch --parsable "$@"; }
until_state() { # job, states
  for _ in $(seq 1500); do
    state "$1" JobState | grep -qE "^($2)$" && return
    sleep 0.1
  done
  echo "slurm-nodes: job $1 is $(state "$1" JobState), not $2"
}
log() { cat "$work/job/"*"-$1.log" 2>/dev/null; }
agents() { pgrep -u $me -x -a --runstates R,S,D monarch | grep -c ' agent' || true; }
until_read() { # job, lines
  for _ in $(seq 300); do
    [ "$(log "$1" | grep -c '^read .* 2 ')" -ge "$2" ] && return
    sleep 0.1
  done
}
# What lies in the memory of a node: its /dev/shm is its own.
left() {
  for n in $(seq "$nodes"); do
    pid=$(cat "$work/slurmd.n$n.pid")
    nsenter -t "$pid" -m find /dev/shm "$work/local" -mindepth 1 -user $me ! -path "$work/local/monarch/*" 2>/dev/null | head -n 3
    nsenter -t "$pid" -m find /dev/shm -user $me -type f -path '/dev/shm/monarch-*' 2>/dev/null | head -n 3
  done
  pgrep -u $me -x -a --runstates R,S,D monarch || true
}
check() { # what, job, state, readers, opens of the file system since $mark at most
  local what=$1 job=$2 end=$3 readers=$4 most=$5 wrong="" seen
  until_state "$job" 'COMPLETED|FAILED|TIMEOUT|CANCELLED|NODE_FAIL'
  [ "$(state "$job" JobState)" = "$end" ] || wrong+=" state $(state "$job" JobState)"
  [ "$(log "$job" | grep -cE "^read [0-9]+ n[1-$nodes] [0-2] $want preloaded\$")" = $((readers * 3)) ] || wrong+=" output"
  [ "$(log "$job" | grep -oE ' n[1-9] ' | sort -u | wc -l)" = "$nodes" ] || wrong+=" nodes"
  seen=$(($(opens) - mark))
  [ "$seen" -le "$most" ] || wrong+=" opens"
  for _ in $(seq 100); do
    [ -z "$(left)" ] && break
    sleep 0.1
  done
  [ -z "$(left)" ] || wrong+=" left: $(left | tr '\n' ' ')"
  if [ -n "$wrong" ]; then
    bad=1
    row "$what" "FAILED:$wrong; $seen opens"
    log "$job" | tail -n 20
    tail -n 5 "$work"/log/slurmd.n* | sed 's/^/  /'
  else
    row "$what" "ok ($end, $readers readers; the file system saw $seen opens of $((readers * 3 * files)))"
  fi
}

# What has just been written is not copied (dataset.min_file_age).
[ $((SECONDS - born)) -gt 11 ] || sleep $((11 - (SECONDS - born)))
mark=$(opens)
job=$(submit nodes.sbatch)
until_read "$job" 1
[ "$(agents)" = "$nodes" ] || { bad=1; row "one agent on each node" "FAILED: $(agents)"; }
check "nodes.sbatch: two tasks on each node" "$job" COMPLETED $((2 * nodes)) $((files + files / 20))
reports=$(find "$work/job" -name "saved-$job-[0-9].json" | wc -l)
copies=$(python3 -c 'import json,sys; print(sum(t["files"] for f in sys.argv[1:] for t in json.load(open(f))["status"]["tiers"]))' "$work/job/saved-$job-"*.json)
if [ "$reports" = "$nodes" ] && [ "$copies" -ge "$files" ]; then
  row "a report from each node" "ok ($copies copies in all tiers)"
else
  bad=1
  row "a report from each node" "FAILED: $reports, $copies copies"
fi
mark=$(opens)
check "torchrun-nodes.sbatch: two processes on each node" "$(submit torchrun-nodes.sbatch)" COMPLETED $((2 * nodes)) $((files + files / 20))

# A secret of each job's own, derived from the number that Slurm gives it: two jobs on all nodes at
# once, one of them encrypted, do not hear each other, and each reads the data set once.
for n in 1 2; do
  set="--set cluster.job_secret=derived$([ $n = 1 ] || echo " --set cluster.encryption=tls")"
  sed -e "s#--set cluster.discovery=slurm#& $set#" "$work/job/nodes.sbatch" >"$work/job/derived$n.sbatch"
  grep -q "job_secret=derived" "$work/job/derived$n.sbatch"
done
mark=$(opens)
first=$(submit --ntasks-per-node=1 derived1.sbatch)
second=$(submit --ntasks-per-node=1 derived2.sbatch)
until_state "$first" 'COMPLETED|FAILED|TIMEOUT|CANCELLED|NODE_FAIL'
check "job_secret: derived, two jobs at once: the first" "$first" COMPLETED "$nodes" $((2 * (files + files / 20)))
check "the second, encrypted" "$second" COMPLETED "$nodes" $((2 * (files + files / 20)))
if grep -h "never heard\|shares nothing" "$work/job/"*"-$first.log" "$work/job/"*"-$second.log"; then
  bad=1
  row "their nodes hear each other" FAILED
else
  row "their nodes hear each other" ok
fi

# The prolog stages for jobs that ask for it, into a directory of the user's that stays; the job
# names it as its tier.
sed -e "s#^tier=.*#touch $work/job/begun; sleep 3; tier=$work/local/monarch:64MiB#" "$work/job/nodes.sbatch" >"$work/job/staged.sbatch"
mark=$(opens)
job=$(submit --comment="stage:$work/pfs" staged.sbatch)
# A job's script begins when the prologs are over: by then all files have been read, and later only
# what they missed.
for _ in $(seq 600); do
  [ -e "$work/job/begun" ] && break
  sleep 0.1
done
sleep 1
staged=$(($(opens) - mark))
if [ "$staged" -ge "$files" ]; then
  row "the prologs have staged when the job begins" "ok ($staged opens)"
else
  bad=1
  row "the prologs have staged when the job begins" "FAILED: $staged opens for $files files"
fi
until_read "$job" 1
check "--comment=stage: the prologs of all nodes stage" "$job" COMPLETED $((2 * nodes)) $((files + files / 20))

# The kit: the same, with nothing of Monarch in the script.
cat >"$work/job/kit.sbatch" <<IN
#!/bin/sh
#SBATCH --nodes=$nodes --ntasks-per-node=2 --output=train-%j.log
touch $work/job/begun-\$SLURM_JOB_ID
srun python3 train.py --data $work/pfs
IN
for n in $(seq "$nodes"); do rm -rf "$work/disk.n$n/monarch"; done
mark=$(opens)
job=$(submit --comment="monarch:$work/pfs" kit.sbatch)
for _ in $(seq 600); do
  [ -e "$work/job/begun-$job" ] && break
  sleep 0.1
done
staged=$(($(opens) - mark))
if [ "$staged" = "$files" ] && [ "$(grep -c "job $job: .* is staged" "$work/log/kit")" = "$nodes" ]; then
  row "the kit: all nodes have staged when the job begins" "ok ($staged opens)"
else
  bad=1
  row "the kit: all nodes have staged when the job begins" "FAILED: $staged opens; $(cat "$work/log/kit")"
fi
check "the kit: two tasks on each node" "$job" COMPLETED $((2 * nodes)) "$files"
slurm scontrol show node -o | grep -q 'State=[^ ]*DRAIN' && { bad=1; row "the prolog does not drain nodes" FAILED; }

touch "$work/job/long"
mark=$(opens)
job=$(submit nodes.sbatch)
until_read "$job" $((2 * nodes))
as_user /usr/bin/scancel "$job"
check "scancel in the middle" "$job" CANCELLED $((2 * nodes)) $((files + files / 20))

job=$(submit nodes.sbatch)
until_read "$job" $((2 * nodes))
pgrep -u $me | xargs -r kill -KILL || true
until_state "$job" 'FAILED|CANCELLED|COMPLETED'
for _ in $(seq 100); do
  [ -z "$(left)" ] && break
  sleep 0.1
done
if [ -z "$(left)" ]; then row "SIGKILL to all processes of the job, then epilog.sh" "ok (nothing is left)"; else bad=1; row "SIGKILL, then epilog.sh" "FAILED: $(left)"; fi
if [ $bad = 0 ]; then echo "slurm-nodes: ok"; else echo "slurm-nodes: FAILED"; exit 1; fi
