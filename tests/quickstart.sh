#!/usr/bin/env bash
# Interrupts ./quickstart at random moments and looks for what it leaves: mounts, processes, files.
#   tests/quickstart.sh [ROUNDS [SECONDS]]        default: 25 rounds, up to 40 s into the run; about ten minutes, not in ./test
#
# Signals go round: the terminal's Ctrl-C (SIGINT to the process group), two of them in quick
# succession, SIGTERM and SIGHUP to the process, SIGKILL to it, SIGKILL to its guard. Every eighth
# round has something to build. Each round has a TMPDIR of its own, by which its processes are
# known. Ends with 1 when anything is left, or when it ends in another way than by the signal.
set -euo pipefail
cd "$(dirname "$0")/.."
rounds=${1:-25} longest=${2:-40}
base=$(mktemp -d "${TMPDIR:-/tmp}/monarch-qs-XXXXXX")
pid=""
trap '[ -z "$pid" ] || { kill "$pid" && wait "$pid"; } 2>/dev/null || true; rm -rf "$base"' EXIT
# Each job in a process group of its own.
set -m
kinds=(INT INT2 TERM HUP KILL GUARD)
bad=0

# Processes that have this round's TMPDIR in their environment.
processes() { (grep -lazE "^TMPDIR=$1(/|$)" /proc/[0-9]*/environ 2>/dev/null || true) | cut -d/ -f3; }
mounts() { grep -F " $1/" /proc/self/mounts || true; }
# What PyTorch's processes left in shared memory: torch_PID_..., of a process that has gone.
shared() {
  local file pid
  for file in /dev/shm/torch_*; do
    pid=${file#/dev/shm/torch_}; pid=${pid%%_*}
    if [ -e "$file" ] && [ "$file" -nt "$base/start" ] && [ ! -e "/proc/$pid" ]; then echo "file $file"; fi
  done
}

# What is left of a round, in lines.
left() {
  local pid
  for pid in $(processes "$1"); do echo "process $pid: $(xargs -0 -a "/proc/$pid/cmdline" echo 2>/dev/null | cut -c1-120)"; done
  mounts "$1" | sed 's/^/mount /'
  find "$1" -mindepth 1 | sed 's/^/file /' | head -n 5
  shared
  git status --porcelain --ignored examples | sed -n 's/^\(??\|!!\)/repository/p'
}

send() {
  case $1 in
    INT) kill -INT -- "-$2" ;;
    INT2) kill -INT -- "-$2"; sleep 0.0$((RANDOM % 10)); kill -INT -- "-$2" ;;
    GUARD) local guard; guard=$(pgrep -P "$2" -f quickstart.py | head -n 1); kill -KILL "${guard:-$2}" ;;
    *) kill -"$1" "$2" ;;
  esac 2>/dev/null || true
}

# Statuses a round may end with: of its signal, or 0 when it came too late. A front whose guard was
# killed ends with 1.
expected() { case $1 in INT*) echo 130 ;; TERM) echo 143 ;; HUP) echo 129 ;; KILL) echo 137 ;; GUARD) echo "1 137" ;; esac; }

for ((round = 1; round <= rounds; round++)); do
  dir=$base/$round log=$base/$round.log
  kind=${kinds[$(((round - 1) % ${#kinds[@]}))]}
  delay=$(awk -v r="$RANDOM" -v l="$longest" 'BEGIN { printf "%.1f", 0.2 + (l - 0.2) * r / 32767 }')
  if ((round % 8 == 0)); then touch src/main.rs; fi
  mkdir "$dir"; touch "$base/start"
  TMPDIR=$dir env --default-signal ./quickstart --no-install >"$log" 2>&1 &
  pid=$!
  sleep "$delay"
  step=$(grep -oE '^\[[0-9]/4\]|^ +epoch [0-9]' "$log" | tail -n 1 | xargs || true)
  send "$kind" "$pid"
  before=$(date +%s%N)
  status=0; wait "$pid" 2>/dev/null || status=$?
  pid=""
  # A front that was killed cannot wait for the guard.
  [ "$kind" != KILL ] || for _ in $(seq 100); do [ "$(left "$dir")" ] || break; sleep 0.1; done
  took=$((($(date +%s%N) - before) / 1000000))
  found=$(left "$dir")
  printf '%2d  SIG%-5s after %4s s (%s): status %s, gone within %s ms\n' "$round" "$kind" "$delay" "${step:-start}" "$status" "$took"
  # So that the rounds after it come further.
  if ((round % 8 == 0)); then cargo build --release --workspace --quiet; fi
  if [ "$found" ] || ! grep -qw -- "$status" <<<"0 $(expected "$kind")"; then
    bad=$((bad + 1))
    printf 'LEFT OR WRONG STATUS\n%s\n' "$found"; tail -n 5 "$log"
  fi
done
[ "$bad" = 0 ] || { echo "quickstart: $bad of $rounds rounds left something"; exit 1; }
echo "quickstart: $rounds rounds, nothing left"
