#!/usr/bin/env bash
# What docs/NEIGHBOURS.md says: Monarch beside other tools that preload libraries, in every order,
# and beside tools that look at a process or change what it is.
#   tests/neighbours.sh      needs root and Debian 12: installs what is missing. 5 to 8 minutes.
#   NEIGHBOURS_BIN=DIR       the programs that are tried; otherwise target/release
# Beside the everyday suite. Each cell runs a program with the neighbours alone and with Monarch
# among them: same output, same standard error, same exit status, and as many opens served from
# copies as with Monarch alone. Ends with 1 when something is not as documented.
set -euo pipefail
cd "$(dirname "$0")/.."
[ "$(id -u)" = 0 ] || { echo "neighbours: skipped, needs root"; exit 0; }
programs=${NEIGHBOURS_BIN:-target/release}
packages=(bubblewrap podman crun golang-github-containers-common proot less git python3 python3-numpy
  openmpi-bin libopenmpi-dev gcc libc6-dev libc6-dev-i386 libtsan2 bsdutils libjemalloc2 libtcmalloc-minimal4
  libgoogle-perftools4 libmimalloc2.0 heaptrack fakeroot fakechroot faketime libeatmydata1 valgrind
  strace ltrace gdb sudo libc-dev-bin)
need=()
for package in "${packages[@]}"; do
  dpkg-query -W -f '${Status}' "$package" 2>/dev/null | grep -q 'ok installed' || need+=("$package")
done
if [ ${#need[@]} -gt 0 ]; then
  apt-get update -qq
  DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "${need[@]}" >/dev/null
fi

# ---- programs, libraries and a data set
work=$(mktemp -d /var/tmp/monarch-neighbours.XXXXXX)
chmod 755 "$work"
# A runtime directory of its own: other jobs of this user may end their agents.
runtime=$(mktemp -d /dev/shm/monarch-neighbours.XXXXXX)
holder=
finish() {
  if [ -n "$holder" ] && kill "$holder" 2>/dev/null; then wait "$holder" || true; fi
  rm -rf "$work" "$runtime"
}
trap finish EXIT
mkdir -p "$work"/{bin,lib,job,root/files,tier,bare,out,logs}
chmod 777 "$work/out" "$work/logs"
cp "$programs"/monarch "$programs"/libmonarch_shim.so "$work/bin/"
monarch=$work/bin/monarch
shim=$work/bin/libmonarch_shim.so
lib=$work/lib
strict=(-O2 -Wall -Wextra -Werror)
gcc "${strict[@]}" -shared -fPIC -o "$lib/libprofiler.so" tests/neighbours/profiler.c
gcc "${strict[@]}" -shared -fPIC -o "$lib/libtracker.so" tests/neighbours/tracker.c
gcc "${strict[@]}" -shared -fPIC -o "$lib/libaudit.so" tests/neighbours/audit.c
gcc "${strict[@]}" -o "$lib/tracker-helper" tests/neighbours/tracker-helper.c
mpicc "${strict[@]}" -o "$work/bin/mpi-read" tests/neighbours/mpi-read.c
cp /usr/lib/x86_64-linux-gnu/libjemalloc.so.2 "$lib/"
# A site's wrapper: puts its library in front of what is preloaded.
cat >"$work/bin/tracked" <<IN
#!/bin/sh
LD_PRELOAD="$lib/libtracker.so\${LD_PRELOAD:+:\$LD_PRELOAD}" exec "\$@"
IN
chmod 755 "$work/bin/tracked"

root=$work/root
files=24
for i in $(seq -f %02g $files); do head -c 20000 /dev/urandom >"$root/files/$i"; done
head -c 12000000 /dev/urandom >"$root/large"
seq -f 'line %06g of a text' 3000 >"$root/text"
echo 'echo "sourced with $# arguments"' >"$root/script.sh"
/usr/bin/python3 -c 'import numpy, sys; numpy.save(sys.argv[1], numpy.arange(100000) % 977)' "$root/array.npy"
users_path=$PATH home=$HOME
export PATH=/usr/sbin:/usr/bin:/sbin:/bin LC_ALL=C TERM=xterm HOME=$work
unset LD_PRELOAD LD_AUDIT PYTHONPATH OPENBLAS_CORETYPE OPENBLAS_L2_SIZE
unset "${!MONARCH_@}"
cat >"$work/.gitconfig" <<'IN'
[user]
  name = test
  email = test@localhost
[safe]
  directory = *
[init]
  defaultBranch = main
IN
export GIT_OPTIONAL_LOCKS=0 GIT_AUTHOR_DATE='2026-01-01T00:00:00Z' GIT_COMMITTER_DATE='2026-01-01T00:00:00Z'
git init -q "$root/repository"
for n in 1 2 3; do
  seq $((n * 300)) >"$root/repository/numbers"
  cp "$root/files/0$n" "$root/repository/binary"
  git -C "$root/repository" add .
  git -C "$root/repository" commit -q -m "step $n"
done
git -C "$root/repository" gc -q

# ---- jobs: $1 is the root, $2 a directory to write in
cat >"$work/job/bash" <<'IN'
root=$1
for f in "$root"/files/*; do cmp "$f" <(cat <"$f") && wc -c <"$f"; done | sort | uniq -c
n=0
while IFS= read -r line; do n=$((n + 1)); done <"$root/text"
echo "$n $line"
mapfile -t lines <"$root/text"
echo "${lines[9]}, $(<"$root/script.sh")"
exec 60<"$root/text"
read -r -u 60 a
(read -r -u 60 b; echo "in a child: $b")
read -r -u 60 c
exec 60<&-
echo "$a, $c"
source "$root/script.sh" 1 2
cat "$root"/files/* | sha256sum
diff <(head -n 5 "$root/text") <(tail -n 5 "$root/text")
echo "diff $?"
cat "$root/missing"
echo "cat $?"
: <"$root/missing"
echo "redirection $?"
(exit 3) &
wait $!
echo "child $?"
sh -c 'kill -TERM $$'
echo "killed $?"
trap 'echo ended >&2' EXIT
exit 7
IN
cat >"$work/job/less" <<'IN'
root=$1
less "$root/text" | sha256sum
less "$root/missing"
echo "missing $?"
# On a terminal: to the end and out, and a search.
script -qec "less -X +Gq $root/text" /dev/null </dev/null | tr -d '\r' | sha256sum
script -qec "less -X '+/002000' +q $root/text" /dev/null </dev/null | tr -d '\r' | sha256sum
exit 4
IN
cat >"$work/job/git" <<'IN'
repository=$1/repository
git -C "$repository" log --oneline --stat --no-renames
git -C "$repository" fsck --full --strict
git -C "$repository" grep -c 9 HEAD~1
git -C "$repository" status --porcelain
git -C "$repository" show HEAD:binary | sha256sum
git hash-object "$1/files/01" "$1/large"
git diff --no-index --stat "$1/files/01" "$1/files/02"
echo "diff $?"
git clone -q "file://$repository" "$2/clone" && git -C "$2/clone" rev-parse HEAD
git clone -q --local --no-hardlinks "$repository" "$2/local" && git -C "$2/local" archive HEAD | sha256sum
rm -rf "$2/clone" "$2/local"
git -C "$repository" log no-such-revision
IN
cat >"$work/job/python3" <<'IN'
import concurrent.futures, hashlib, mmap, multiprocessing, os, subprocess, sys

root, own = sys.argv[1:3]
names = sorted(os.path.join(root, "files", name) for name in os.listdir(os.path.join(root, "files")))


def digest(path):
    with open(path, "rb") as f:
        return hashlib.sha256(f.read()).hexdigest()[:12]


def all_ways(path):
    fd = os.open(path, os.O_RDONLY)
    size = os.fstat(fd).st_size
    into = bytearray(size)
    parts = [os.pread(fd, 4096, at) for at in range(0, size, 4096)]
    assert os.preadv(fd, [into], 0) == size and bytes(into) == b"".join(parts)
    os.close(fd)
    with open(path, "rb", buffering=0) as f, mmap.mmap(f.fileno(), 0, prot=mmap.PROT_READ) as m:
        assert m[:] == bytes(into)
    return hashlib.sha256(into).hexdigest()[:12]


if __name__ == "__main__":
    print([digest(n) for n in names][-1], [all_ways(n) for n in names][-1])
    print(sum(e.stat().st_size for e in os.scandir(os.path.join(root, "files"))))
    import numpy

    array = os.path.join(root, "array.npy")
    print(int(numpy.load(array).sum()), int(numpy.load(array, mmap_mode="r")[5000:6000].sum()))
    print(int(numpy.fromfile(os.path.join(root, "large"), dtype="u1").sum(dtype="u8")))
    print(subprocess.run(["sha256sum", names[0]], capture_output=True, text=True).stdout.split()[0])
    print(subprocess.run(f"cat {names[1]} | wc -c; exit 9", shell=True, stdout=subprocess.PIPE))
    with open(names[2], "rb") as f:
        print(subprocess.run(["sha256sum"], stdin=f, preexec_fn=os.setsid, capture_output=True).stdout)
    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        print(hash(tuple(pool.map(digest, names))) == hash(tuple(map(digest, names))))
    for method in "fork", "spawn":
        pool = multiprocessing.get_context(method).Pool(2)
        print(method, pool.map(digest, names)[-2:])
        pool.close()
        pool.join()
    child = os.fork()
    if child == 0:
        print(digest(names[3]), flush=True)
        os._exit(6)
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
    loaded = {line.split("/")[-1].strip() for line in open("/proc/self/maps") if ".so" in line}
    print(sorted(l for l in loaded if "profiler" in l or "tracker" in l or "alloc" in l))
    open(os.path.join(root, "missing"))
IN
for status in 0 3; do
  echo "exec mpirun --allow-run-as-root --oversubscribe -n 2 $work/bin/mpi-read \"\$1\" $files $status" >"$work/job/mpirun$status"
done
cat >"$work/job/container" <<IN
exec bwrap --ro-bind /usr /usr --ro-bind /etc /etc --symlink usr/bin /bin --symlink usr/lib /lib --symlink usr/lib64 /lib64 \\
  --proc /proc --dev /dev --tmpfs /tmp --unshare-pid --unshare-net --die-with-parent --ro-bind "\$1" "\$1" \\
  --ro-bind $work/bin $work/bin --ro-bind $work/lib $work/lib --ro-bind $work/job $work/job --ro-bind $work/tier $work/tier \\
  --bind $work/logs $work/logs --bind $runtime $runtime \\
  bash $work/job/contained "\$1"
IN
cat >"$work/job/contained" <<'IN'
for f in "$1"/files/*; do sha256sum <"$f"; done | sha256sum
sh -c 'tail -n 1 "$1"; ls "$1.d"' sh "$1/text"
echo "ls $?"
exit 6
IN

# ---- how a cell is tried
bad=0 cells=0
export PROFILER_ROOT=$root TRACKER_HELPER=$lib/tracker-helper
declare -A path=([M]=$shim [P]=$lib/libprofiler.so [T]=$lib/libtracker.so [J]=$lib/libjemalloc.so.2)
# A list for LD_PRELOAD of letters.
preload() {
  local list="" i
  for ((i = 0; i < ${#1}; i++)); do list+=${list:+:}${path[${1:i:1}]}; done
  echo "$list"
}
settings=(--root "$root" --tier "$work/tier:256MiB" --set dataset.min_file_age=0s --set runtime_dir="$runtime")
run=("$monarch" run "${settings[@]}" --quiet --report "$work/out/report")
# What a command says, with what differs from run to run made equal: $1 is a prefix of files.
said() {
  local to=$1 status=0
  shift
  rm -f "$work"/logs/*
  PROFILER_LOG=$work/logs/profiler TRACKER_LOG=$work/logs/tracker "$@" >"$to.out" 2>"$to.err" </dev/null || status=$?
  echo "$status" >"$to.status"
  # Names of MPI jobs, numbers of processes, addresses.
  sed -i -E 's/\[\[[0-9]+,/[[N,/; s/process [0-9]+/process N/; s/0x[0-9a-f]+/0xN/g' "$to.out" "$to.err"
  # Sums of what the profiler saw in all processes: opens, reads, bytes, maps, stats, closes.
  find "$work/logs" -name "profiler.*" -exec cat {} + | awk '{ for (i = 1; i <= 6; i++) s[i] += $i } END { print s[1] + 0, s[2] + 0, s[3] + 0, s[4] + 0, s[5] + 0, s[6] + 0 }' >"$to.profile"
  # The programs that the tracker saw. (Python's resource tracker outlives the job.)
  { grep -shv 'monarch run\|LD_PRELOAD\|end .*resource_tracker' "$work/logs/tracker" || true; } |
    sed -E 's/(tracker_fd|pipe_handle)=[0-9]+/\1=N/g; s/main\([0-9]+\)/main(N)/; s/fetch-pack [0-9]+/fetch-pack N/' |
    sort >"$to.tracked"
}
served() { python3 -c 'import json; print(json.load(open("'"$work"'/out/report"))["opens_local"])' 2>/dev/null || echo none; }
row() { printf 'neighbours: %-66s %s\n' "$1" "$2"; }
failed() {
  bad=$((bad + 1))
  row "$1" "FAILED: $2"
}

# ---- the matrix: every order of Monarch (M) with every choice of profiler, tracker and jemalloc
# Prints all orders of the given letters.
orders() {
  local i rest
  [ ${#1} -gt 1 ] || { echo "$1"; return; }
  for ((i = 0; i < ${#1}; i++)); do
    rest=${1:0:i}${1:i+1}
    orders "$rest" | sed "s/^/${1:i:1}/"
  done
}
jobs=(bash less git python3 mpirun0 container)
# The command of a job.
command_of() {
  case $1 in
    python3) job=(python3 "$work/job/python3" "$root" "$work/out") ;;
    *) job=(bash "$work/job/$1" "$root" "$work/out") ;;
  esac
}
# The result of a job with neighbours alone, in this order; made once.
bare() {
  local order=$1 to=$work/bare/$1-$2
  [ -e "$to.status" ] || said "$to" env ${order:+LD_PRELOAD="$(preload "$order")"} "${job[@]}"
}
# Ways to one order. given: the user names all libraries, the shim too, before `monarch run`; split:
# the user names those before the shim, and a script in the job adds those behind it; inside: a
# script in the job adds all of them, the tracker by its wrapper if it is the first.
command_for() {
  local order=$1 way=$2 before=${1%%M*} behind=${1#*M}
  case $way in
    given) line=(env LD_PRELOAD="$(preload "$order")" "${run[@]}" --) ;;
    split)
      line=(env ${before:+LD_PRELOAD="$(preload "$before")"} "${run[@]}" --)
      # shellcheck disable=SC2016
      [ -z "$behind" ] || line+=(sh -c 'LD_PRELOAD=$LD_PRELOAD:$0 exec "$@"' "$(preload "$behind")")
      ;;
    inside)
      line=("${run[@]}" --)
      case $order in
        T*) line+=(env LD_PRELOAD="$(preload "${order#T}")" "$work/bin/tracked") ;;
        *) line+=(env LD_PRELOAD="$(preload "$order")") ;;
      esac
      ;;
  esac
}
# Compares what a job said among neighbours with what it said with the neighbours alone.
compare() {
  local what=$1 got=$2 want=$3 part
  for part in out err status tracked "${@:4}"; do
    cmp -s "$got.$part" "$want.$part" && continue
    failed "$what" "another $part"
    diff "$want.$part" "$got.$part" | head -n 8 || true
    return 1
  done
}
cell() {
  local order=$1 way=$2 name=$3 others=${1//M/} got=$work/out/cell count
  local want=$work/bare/$others-$name what="$3, $1, $2"
  command_of "$name"
  bare "$others" "$name"
  command_for "$order" "$way"
  rm -f "$work/out/report"
  said "$got" "${line[@]}" "${job[@]}"
  cells=$((cells + 1))
  # A profiler before the shim sees the job's opens and reads, one behind it only what is not served.
  case $order in
    *P*M*) compare "$what" "$got" "$want" profile || return 0 ;;
    *) compare "$what" "$got" "$want" || return 0 ;;
  esac
  count=$(served)
  : "${alone[$name]:=$count}"
  if [ "$count" = none ] || [ "$count" -lt "${least[$name]}" ] || [ "$count" != "${alone[$name]}" ]; then
    failed "$what" "$count opens from copies, ${alone[$name]} with Monarch alone"
  fi
}
# As many opens from copies as these have files to read, at least.
declare -A alone least=([bash]=75 [less]=3 [git]=20 [python3]=150 [mpirun0]=48 [mpirun3]=48 [container]=25)

# One agent for all cells, which holds all files.
"$monarch" run "${settings[@]}" --quiet -- sleep 1000 &
holder=$!
"$monarch" stage "${settings[@]}" --quiet >/dev/null

# All three ways for two libraries; for more, each program of an order takes the next way.
declare -A good=()
ways=(given split inside)
turn=0
for letters in M MP MT MJ MPT MPJ MTJ MPTJ; do
  for order in $(orders "$letters"); do
    before=$bad
    for name in "${jobs[@]}"; do
      case ${#order} in
        1) cell M given "$name" ;;
        2) for way in "${ways[@]}"; do cell "$order" "$way" "$name"; done ;;
        *) cell "$order" "${ways[turn++ % 3]}" "$name" ;;
      esac
    done
    # The number of programs is a multiple of the number of ways.
    turn=$((turn + 1))
    [ "$bad" != "$before" ] || good[${#letters}]+=" $order"
  done
done
# Ranks that fail: mpirun ends the others, which may cost a profiler its logs.
for order in M TJM MTJ; do cell "$order" split mpirun3; done
for n in 1 2 3 4; do row "${#jobs[@]} programs, $n libraries, in these orders" "ok:${good[$n]:-}"; done
row "with Monarch alone, opens from copies" "$(for one in "${jobs[@]}"; do printf '%s %s ' "$one" "${alone[$one]}"; done)"

# ---- other tools
# Tries one tool with a job: what it is, opens from copies (a number, or all: as with Monarch alone),
# lines that ld.so adds to standard error (none, or some), and the command. Words in `outer` stand
# before `monarch run` and before the bare command.
outer=()
beside() {
  local what=$1 opens=$2 lines=$3 count
  shift 3
  said "$work/bare/tool" "${outer[@]}" "$@"
  rm -f "$work/out/report"
  said "$work/out/tool" "${outer[@]}" "${run[@]}" -- "$@"
  cells=$((cells + 1))
  if [ "$lines" = some ]; then
    grep -q '^ERROR: ld.so: object .*libmonarch_shim.so' "$work/out/tool.err" || failed "$what" "no line of ld.so"
    sed -i '/^ERROR: ld.so: object .*libmonarch_shim.so/d' "$work/out/tool.err"
  fi
  compare "$what" "$work/out/tool" "$work/bare/tool" || return 0
  count=$(served)
  [ "$opens" != all ] || opens=${alone[$name]}
  if [ "$count" = "$opens" ]; then row "$what" "ok ($count opens from copies)"; else failed "$what" "$count opens from copies, not $opens"; fi
}
debian=/usr/lib/x86_64-linux-gnu
# shellcheck disable=SC2016
behind_it='LD_PRELOAD=${LD_PRELOAD:+$LD_PRELOAD:}$0 exec "$@"'
# shellcheck disable=SC2016
before_it='LD_PRELOAD=$0${LD_PRELOAD:+:$LD_PRELOAD} exec "$@"'
for library in libtcmalloc.so.4 libtcmalloc_minimal.so.4 libtcmalloc_debug.so.4 libmimalloc.so.2 libeatmydata.so.1 faketime/libfaketime.so.1; do
  name=bash
  command_of bash
  outer=(env LD_PRELOAD="$debian/$library" FAKETIME=-1d)
  beside "bash, $library given before run" all none "${job[@]}"
  name=python3
  command_of python3
  outer=(env FAKETIME=-1d)
  beside "python3, $library before the shim" all none sh -c "$before_it" "$debian/$library" "${job[@]}"
  beside "python3, $library behind the shim" all none sh -c "$behind_it" "$debian/$library" "${job[@]}"
  outer=()
done

# dftracer changes the tables by which a program finds functions, after it was loaded.
tracer=${XDG_CACHE_HOME:-$home/.cache}/monarch/dftracer-2.2.0
if [ ! -d "$tracer" ]; then
  mkdir -p "${tracer%/*}"
  if PATH=$users_path pip download -q --no-deps --only-binary :all: --python-version 3.11 --platform manylinux_2_28_x86_64 \
    -d "$work/wheel" dftracer==2.2.0 >/dev/null 2>&1; then
    python3 -m zipfile -e "$work"/wheel/*.whl "$tracer.new"
    mv "$tracer.new" "$tracer"
  fi
fi
if [ -d "$tracer" ]; then
  library=$tracer/dftracer/lib64/libdftracer_preload.so
  for name in bash python3 git; do
    command_of "$name"
    for side in before behind; do
      script=${side}_it
      seen=()
      for run_as in bare run; do
        rm -rf "$work/out/trace"
        mkdir "$work/out/trace"
        line=(env DFTRACER_ENABLE=1 DFTRACER_INIT=PRELOAD DFTRACER_LOG_FILE="$work/out/trace/t" DFTRACER_DATA_DIR="$root"
          sh -c "${!script}" "$library" "${job[@]}")
        if [ $run_as = run ]; then line=("${run[@]}" -- "${line[@]}"); fi
        said "$work/out/$run_as" "${line[@]}"
        # Python's resource tracker may write its trace still.
        sleep 0.5
        seen+=("$(find "$work/out/trace" -type f -exec zcat -f {} + 2>/dev/null | grep -c '"name":"open' || true)")
      done
      cells=$((cells + 1))
      what="$name, dftracer 2.2 $side the shim"
      compare "$what" "$work/out/run" "$work/out/bare" || continue
      # (In python3 it sees 180 opens or 181, without Monarch too.)
      apart=$((seen[0] - seen[1]))
      if [ "$(served)" = "${alone[$name]}" ] && [ "${seen[0]}" -gt 9 ] && [ "${apart#-}" -le 2 ]; then
        row "$what" "ok ($(served) opens from copies, dftracer sees ${seen[1]} opens)"
      else
        failed "$what" "$(served) opens from copies, dftracer sees ${seen[1]} opens, without Monarch ${seen[0]}"
      fi
    done
  done
else
  row "dftracer" "not tried, it cannot be downloaded"
fi

# Another copy of the shim, as of another installation.
mkdir "$work/second"
cp "$shim" "$work/second/"
for name in bash python3 mpirun0; do
  command_of "$name"
  beside "$name, a second shim before the shim" all none sh -c "$before_it" "$work/second/libmonarch_shim.so" "${job[@]}"
  beside "$name, a second shim behind the shim" all none sh -c "$behind_it" "$work/second/libmonarch_shim.so" "${job[@]}"
done
# Lists as the loader takes them.
name=bash
command_of bash
# shellcheck disable=SC2016
for list in " $debian/libjemalloc.so.2" "$debian/libjemalloc.so.2 " "$debian/libjemalloc.so.2 $lib/libprofiler.so" \
  ":$debian/libjemalloc.so.2::" libjemalloc.so.2 '/usr/$LIB/libjemalloc.so.2'; do
  outer=(env LD_PRELOAD="$list")
  beside "bash, LD_PRELOAD='${list//$work/DIR}'" all none "${job[@]}"
done

# Tools in the job, and around `monarch run`.
for name in bash python3 git; do
  command_of "$name"
  audit=(env LD_AUDIT="$lib/libaudit.so" AUDIT_LOG="$work/out/audit")
  for tool in 'fakeroot --' 'fakechroot --' 'stdbuf -oL' "faketime -m 2020-01-01" "strace -f -qq -o $work/out/calls" "${audit[*]}" 'timeout 60'; do
    read -ra words <<<"$tool"
    outer=()
    beside "$name, ${words[0]} ${words[1]%%=*} in the job" all none "${words[@]}" "${job[@]}"
    outer=("${words[@]}")
    [ "$name" != python3 ] || beside "$name, ${words[0]} ${words[1]%%=*} around run" all none "${job[@]}"
    outer=()
  done
done
name=bash
reader=(cat "$root/text")
# shellcheck disable=SC2016
# (sort has errors of its own there, from thread to thread others.)
beside "sh and its children, valgrind" 2 none \
  valgrind -q --trace-children=yes --error-exitcode=99 sh -c 'cat "$0" | wc -l; (head -n 2 "$0"; exit 3)' "$root/text"
beside "cat, valgrind" 1 none valgrind -q --error-exitcode=99 "${reader[@]}"
beside "cat, heaptrack" 1 none heaptrack -o "$work/out/heap" "${reader[@]}"
beside "cat, ltrace" 1 none ltrace -f -o "$work/out/calls" "${reader[@]}"
beside "cat, sotruss (LD_AUDIT)" 1 none sotruss -o "$work/out/calls" "${reader[@]}"
beside "cat, gdb with a breakpoint in the C library" 1 none \
  gdb -nx -q -batch -ex 'set breakpoint pending on' -ex 'break fclose' -ex run -ex continue -ex continue --args "${reader[@]}"

# ---- processes that no preload reaches
beside "cat, sudo" 0 none sudo "${reader[@]}"
beside "cat, sudo -E" 0 none sudo -E "${reader[@]}"
beside "cat, su to another user" 0 none su -s /bin/sh -c "cat $root/text" nobody
beside "cat, setpriv to another user" 0 none setpriv --reuid=23456 --regid=23456 --clear-groups "${reader[@]}"
beside "cat, env -i" 0 none env -i "${reader[@]}"
beside "cat, LD_PRELOAD replaced by a wrapper" 0 none env LD_PRELOAD="$debian/libjemalloc.so.2" "${reader[@]}"
cat >"$work/reader.c" <<'IN'
#include <stdio.h>
int main(int argc, char **argv) {
  FILE *f = argc > 1 ? fopen(argv[1], "r") : NULL;
  int c;
  if (!f) return 1;
  while ((c = getc(f)) != EOF) putchar(c);
  return 5;
}
IN
gcc -O2 -o "$work/bin/setuid" "$work/reader.c"
chmod 4755 "$work/bin/setuid"
gcc -O2 -static -o "$work/bin/static" "$work/reader.c"
gcc -O2 -m32 -o "$work/bin/32-bit" "$work/reader.c"
gcc -O2 -fsanitize=thread -o "$work/bin/thread-sanitizer" "$work/reader.c"
beside "a setuid program, by another user" 0 none setpriv --reuid=23456 --regid=23456 --clear-groups "$work/bin/setuid" "$root/text"
beside "a static program" 0 none "$work/bin/static" "$root/text"
beside "a 32-bit program" 0 some "$work/bin/32-bit" "$root/text"
beside "a program with ThreadSanitizer" 1 none setarch -R "$work/bin/thread-sanitizer" "$root/text"
# The shim where another user cannot read it.
mkdir -m 700 "$work/private"
cp "$shim" "$work/private/"
outer=(env MONARCH_SHIM="$work/private/libmonarch_shim.so")
beside "cat by another user, the shim in a directory of mode 700" 0 some setpriv --reuid=23456 --regid=23456 --clear-groups "${reader[@]}"
outer=()

# ---- containers
small=(bwrap --ro-bind /usr /usr --ro-bind /etc /etc --symlink usr/bin /bin --symlink usr/lib /lib --symlink usr/lib64 /lib64
  --proc /proc --dev /dev --tmpfs /tmp --unshare-pid --die-with-parent --ro-bind "$root" "$root" --ro-bind "$work/job" "$work/job")
served_parts=(--ro-bind "$work/bin" "$work/bin" --ro-bind "$work/tier" "$work/tier" --bind "$runtime" "$runtime")
contained=(bash "$work/job/contained" "$root")
name=container
beside "bwrap, nothing of Monarch inside" 0 some "${small[@]}" "${contained[@]}"
beside "bwrap --unsetenv LD_PRELOAD" 0 none "${small[@]}" --unsetenv LD_PRELOAD "${contained[@]}"
beside "bwrap --clearenv" 0 none "${small[@]}" --clearenv --setenv PATH /usr/bin:/bin "${contained[@]}"
beside "env -u LD_PRELOAD bwrap" 0 none env -u LD_PRELOAD "${small[@]}" "${contained[@]}"
beside "bwrap, the shim bound and nothing else" 0 none "${small[@]}" --ro-bind "$shim" "$shim" "${contained[@]}"
beside "bwrap, shim, tier and runtime directory bound" all none "${small[@]}" "${served_parts[@]}" "${contained[@]}"
mkdir -p "$work/other/files"
echo other >"$work/other/text"
reader=(cat "$root/text")
beside "proot: not served" 0 none proot "${reader[@]}"
beside "proot, other data at the path of the root" 0 none proot -b "$work/other:$root" "${reader[@]}"
# A tree whose path of the root has other data.
mkdir -p "$work/tree$work"
cp -r "$work/other" "$work/tree$root"
for d in usr bin lib lib64 etc; do ln -s "/$d" "$work/tree/$d"; done
beside "fakechroot chroot, other data at the path of the root" 0 none fakechroot chroot "$work/tree" /usr/bin/cat "$root/text"
grep -qx other "$work/out/tool.out" || failed "fakechroot chroot" "it did not read its own tree"
beside "  its library behind the shim: not served" 0 none env FAKECHROOT=true FAKECHROOT_BASE="$work/tree" \
  sh -c "$behind_it" "$debian/fakechroot/libfakechroot.so" "${reader[@]}"
grep -qx other "$work/out/tool.out" || failed "fakechroot behind the shim" "it did not read its own tree"

# podman, as tests/containers.sh starts it: a directory as image, no network.
mkdir -p "$work"/image/{usr,etc,dev,proc,sys,tmp,run,var/tmp}
for d in bin sbin lib lib64; do ln -s "usr/$d" "$work/image/$d"; done
cp /etc/passwd /etc/group "$work/image/etc/"
cat >"$work/bin/oci" <<IN
#!/bin/bash
umount /sys/fs/cgroup/unified 2>/dev/null || true
umount /sys/fs/cgroup/systemd 2>/dev/null || true
exec podman --root $work/pod --runroot $work/podrun --storage-driver vfs --cgroup-manager cgroupfs --events-backend none --runtime crun \\
  run --rm --network none --cgroups=disabled --ulimit nofile=1024:1024 --ulimit nproc=4096:4096 -v /usr:/usr:ro \\
  -v $root:$root:ro -v $work/job:$work/job:ro "\$@"
IN
chmod 755 "$work/bin/oci"
oci=(unshare -m "$work/bin/oci")
if "${oci[@]}" --rootfs "$work/image" true 2>"$work/out/err"; then
  served_parts=(-v "$work/bin:$work/bin:ro" -v "$work/lib:$work/lib:ro" -v "$work/tier:$work/tier:ro" -v "$runtime:$runtime")
  beside "podman, no variables passed" 0 none "${oci[@]}" --rootfs "$work/image" "${contained[@]}"
  beside "podman -e LD_PRELOAD, nothing of Monarch inside" 0 some "${oci[@]}" -e LD_PRELOAD --rootfs "$work/image" "${contained[@]}"
  beside "podman, four things bound, two variables" all none \
    "${oci[@]}" "${served_parts[@]}" -e LD_PRELOAD -e MONARCH_CTL -e MONARCH_JOB --rootfs "$work/image" "${contained[@]}"
  outer=(env LD_PRELOAD="$lib/libjemalloc.so.2:$lib/libprofiler.so")
  beside "  the same with jemalloc and the profiler" all none \
    "${oci[@]}" "${served_parts[@]}" -e LD_PRELOAD -e MONARCH_CTL -e MONARCH_JOB --rootfs "$work/image" "${contained[@]}"
  outer=()
else
  row "podman" "not tried, it cannot start a container here: $(tail -n 1 "$work/out/err")"
fi

if [ "$bad" = 0 ]; then echo "neighbours: ok, $cells cells"; else
  echo "neighbours: $bad of $cells FAILED"
  exit 1
fi
