#!/usr/bin/env bash
# Fuzzes the parsers and the shared memory (docs/FUZZING.md). Needs a nightly compiler and
# cargo-fuzz, and installs them.
#   tests/fuzz.sh [--minutes N] [--jobs N] [--keep] [TARGET...]
#     --minutes N   minutes for each target (60)
#     --jobs N      targets that are fuzzed at the same time (1)
#     --keep        add inputs that reach more code to fuzz/corpus, at most 200 KB and 250 files for each target
#     TARGET...     only these targets; without any, all of them
# Prints a line for each target. Inputs found so far are kept in fuzz/target/corpus, so that the
# next run starts from there. Exit status: 1 when an input crashes, hangs or takes too much memory;
# it lies in fuzz/artifacts then.
set -euo pipefail
self=$(realpath "$0")
cd "$(dirname "$self")/../fuzz"
minutes=60 jobs=1 keep="" targets=()
usage() { sed -n '2,9p' "$self" | cut -c3-; }
fail() { echo "fuzz.sh: $*" >&2; exit 2; }
while [ $# -gt 0 ]; do
  case $1 in
    --minutes) minutes=${2:-} && shift ;;
    --jobs) jobs=${2:-} && shift ;;
    --keep) keep=1 ;;
    -h|--help) usage; exit 0 ;;
    -*) fail "unknown argument $1 (try --help)" ;;
    *) [ -f "fuzz_targets/$1.rs" ] || fail "there is no target $1; targets: $(cd fuzz_targets && echo *.rs | sed 's/\.rs//g')"
       targets+=("$1") ;;
  esac
  shift
done
[[ $minutes =~ ^[0-9]+(\.[0-9]+)?$ ]] || fail "--minutes needs a number"
[[ $jobs =~ ^[1-9][0-9]*$ ]] || fail "--jobs needs a number"
[ ${#targets[@]} -gt 0 ] || mapfile -t targets < <(cd fuzz_targets && printf '%s\n' *.rs | sed 's/\.rs$//')
seconds=$(awk "BEGIN { s = int($minutes * 60); print s < 1 ? 1 : s }")

command -v rustup >/dev/null || fail "rustup is needed to have a nightly compiler"
rustup toolchain list | grep -q '^nightly' || rustup toolchain install nightly --profile minimal
command -v cargo-fuzz >/dev/null || cargo install --locked cargo-fuzz
command -v c++ >/dev/null || fail "a C++ compiler is needed to build libFuzzer (apt-get install g++)"

echo "building with AddressSanitizer, overflow checks and debug assertions"
mkdir -p target
for target in "${targets[@]}"; do
  nice -n 19 cargo +nightly fuzz build "$target" >target/build.log 2>&1 || { tail -n 30 target/build.log; fail "$target cannot be built"; }
done
programs=target/$(rustc -vV | sed -n 's/^host: //p')/release

# Fuzzes one target and writes its line.
fuzz_one() {
  local target=$1 work=target/corpus/$1 kept=corpus/$1 log=target/fuzz-$1.log status=0
  mkdir -p "$work" "$kept" "artifacts/$target"
  touch "target/began-$target"
  # Inputs of different targets have different lengths; what is longer than 4 KiB only costs time.
  nice -n 19 "$programs/$target" "$work" "$kept" -max_total_time="$seconds" -timeout=10 -report_slow_units=2 \
    -rss_limit_mb=2048 -max_len=4096 -artifact_prefix="artifacts/$target/" -print_final_stats=1 >"$log" 2>&1 || status=$?
  local executions edges inputs crashes slow cpu_minutes
  # This function is a process of its own: what it has waited for is the fuzzer (the second line of
  # times).
  times >"target/times-$target"
  cpu_minutes=$(awk 'NR == 2 { split($0, t, /[ms ]+/); printf "%.1f", t[1] + t[2] / 60 + t[3] + t[4] / 60 }' "target/times-$target")
  executions=$(sed -n 's/^stat::number_of_executed_units: *//p' "$log" | tail -n 1)
  # (One that crashes at once has no such line.)
  edges=$({ grep -a -o 'cov: [0-9]*' "$log" || true; } | tail -n 1 | cut -d' ' -f2)
  inputs=$(find "$work" -type f | wc -l)
  crashes=$(find "artifacts/$target" -type f -newer "target/began-$target" ! -name 'slow-unit-*' | wc -l)
  slow=$(find "artifacts/$target" -type f -newer "target/began-$target" -name 'slow-unit-*' | wc -l)
  printf '%-14s %8s %14s %8s %8s %8s %6s\n' \
    "$target" "$cpu_minutes" "${executions:-?}" "${edges:-?}" "$inputs" "$crashes" "$slow"
  if [ "$status" != 0 ]; then
    echo "  $target ended with status $status: $(grep -a -m 1 -E 'panicked at|ERROR: |SUMMARY: ' "$log" || echo "see fuzz/$log")"
    touch "target/fuzz-failed"
  fi
}

# Makes the kept corpus the smallest set of inputs that reaches all that was reached, within its
# bounds.
keep_one() {
  local target=$1 kept=corpus/$1 new=target/merged/$1 bytes=0 files=0
  rm -rf "$new" && mkdir -p "$new"
  nice -n 19 "$programs/$target" -set_cover_merge=1 -timeout=10 -rss_limit_mb=2048 "$new" "$kept" "target/corpus/$target" \
    >"target/merge-$target.log" 2>&1 || { echo "  $target: inputs could not be merged (fuzz/target/merge-$target.log)"; return; }
  # Inputs of bugs stay, whatever they reach.
  find "$kept" -type f ! -name 'bug-*' -delete
  # In the order of their names, which are hashes: a sample of all, where they are too many.
  while read -r size file; do
    if [ $((bytes + size)) -gt 200000 ]; then continue; fi
    if [ "$files" -ge 250 ]; then break; fi
    bytes=$((bytes + size)) files=$((files + 1))
    cp "$file" "$kept/"
  done < <(find "$new" -type f -printf '%s %p\n' | sort -k 2)
}

rm -f target/fuzz-failed
printf '%-14s %8s %14s %8s %8s %8s %6s\n' target CPU-min executions edges inputs crashes slow
for target in "${targets[@]}"; do
  while [ "$(jobs -rp | wc -l)" -ge "$jobs" ]; do wait -n || true; done
  fuzz_one "$target" &
done
wait
if [ -n "$keep" ]; then for target in "${targets[@]}"; do keep_one "$target"; done; fi
if [ -e target/fuzz-failed ]; then
  echo "some inputs do harm: fuzz/artifacts. Run one again: cargo +nightly fuzz run TARGET artifacts/TARGET/FILE"
  exit 1
fi
