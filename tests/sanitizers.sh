#!/usr/bin/env bash
# Unit tests under miri and ThreadSanitizer; not in ./test. What was found: docs/SANITIZERS.md
#   tests/sanitizers.sh [miri|thread|thread-agent]...      default: all
#
#   miri           monarch-abi: views of shared memory, guard, hashes, rings (no bare system calls)
#   thread         monarch-abi, monarch-guest and monarch-shim: their unit tests
#   thread-agent   monarch-core, monarch-cluster, monarch-storage: their unit tests, and readers against the copier (tests/copying)
#
# Needs a nightly toolchain, and `cargo build --release --workspace` for thread-agent. What is not
# installed is skipped with a line. Ends with 1 when anything is found.
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
  # (Memory that stands for a mapping is kept for good.)
  MIRIFLAGS="-Zmiri-ignore-leaks" cargo +nightly miri test --target-dir "$target" -p monarch-abi --lib || failed=1
}

thread() {
  local sysroot std=() flags="-Zsanitizer=thread"
  sysroot=$(rustc +nightly --print sysroot)
  if [ ! -f "$sysroot/lib/rustlib/$host/lib/librustc-nightly_rt.tsan.a" ]; then
    echo "ThreadSanitizer: skipped, the nightly toolchain has no runtime for it"
    return
  fi
  if [ -d "$sysroot/lib/rustlib/src/rust/library" ]; then
    std=(-Zbuild-std)
  else
    # What the library orders by fences is not seen then, and reported as races.
    echo "ThreadSanitizer: without rust-src the standard library is not instrumented: expect reports from it"
    flags+=" -Cunsafe-allow-abi-mismatch=sanitizer"
  fi
  # With the profile's `abort` cargo would build two standard libraries, which do not go together.
  MONARCH_E2E_BIN=$PWD/target/release CARGO_PROFILE_DEV_PANIC=unwind RUSTFLAGS=$flags TSAN_OPTIONS="suppressions=$PWD/tests/sanitizers/thread.supp exitcode=66" \
    cargo +nightly test "${std[@]}" --target "$host" --target-dir "$target" "$@" || failed=1
}

[ $# -gt 0 ] || set -- miri thread thread-agent
for what in "$@"; do
  case $what in
    miri) run_miri ;;
    thread) thread -p monarch-abi -p monarch-guest -p monarch-shim --lib ;;
    thread-agent) thread -p monarch-core --lib; thread -p monarch-cluster --lib; thread -p monarch-storage --lib --test copying ;;
    *) echo "sanitizers: no $what" >&2; exit 2 ;;
  esac
done
exit "$failed"
