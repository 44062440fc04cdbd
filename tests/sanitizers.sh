#!/usr/bin/env bash
# Unit tests under miri and under ThreadSanitizer; not in ./test. What was found, and what is suppressed: docs/SANITIZERS.md
#   tests/sanitizers.sh [miri|thread|thread-agent]...      default: all
#
#   miri           monarch-abi: the views of shared memory, the guard, hashes, rings (bare system calls cannot be interpreted)
#   thread         monarch-abi and monarch-shim: their unit tests
#   thread-agent   monarch-core: its unit tests, and readers against the copier (tests/copying)
#
# Needs a nightly toolchain. What is not installed is skipped with a line. Ends with 1 when anything is found.
set -euo pipefail
cd "$(dirname "$0")/.."
target=target/sanitizers
if ! host=$(rustc +nightly -vV 2>/dev/null | sed -n 's/^host: //p') || [ -z "$host" ]; then
  echo "sanitizers: skipped, there is no nightly toolchain"
  exit 0
fi
failed=0

run_miri() {
  if ! cargo +nightly miri --version >/dev/null 2>&1; then
    echo "miri: skipped, it is not installed (rustup component add --toolchain nightly miri)"
    return
  fi
  # Tests that sleep on a futex make bare system calls.
  MIRIFLAGS="-Zmiri-disable-isolation -Zmiri-ignore-leaks" cargo +nightly miri test --target-dir "$target" -p monarch-abi --lib \
    -- --skip wait --skip futex || failed=1
}

# The standard library is the one that was shipped, without instrumentation: what it does by fences is suppressed by name.
thread() {
  if [ ! -f "$(rustc +nightly --print sysroot)/lib/rustlib/$host/lib/librustc-nightly_rt.tsan.a" ]; then
    echo "ThreadSanitizer: skipped, the nightly toolchain has no runtime for it"
    return
  fi
  RUSTFLAGS="-Zsanitizer=thread -Cunsafe-allow-abi-mismatch=sanitizer --cfg sanitized" \
    TSAN_OPTIONS="suppressions=$PWD/tests/sanitizers/thread.supp exitcode=66 second_deadlock_stack=1" \
    cargo +nightly test --target "$host" --target-dir "$target" "$@" || failed=1
}

[ $# -gt 0 ] || set -- miri thread thread-agent
for what in "$@"; do
  case $what in
    miri) run_miri ;;
    thread) thread -p monarch-abi -p monarch-shim --lib ;;
    thread-agent) thread -p monarch-core --lib --test copying ;;
    *) echo "sanitizers: no $what" >&2; exit 2 ;;
  esac
done
exit "$failed"
