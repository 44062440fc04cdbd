#!/usr/bin/env bash
# Runs real programs bare and under `monarch run`, and compares what they do (docs/DIFFERENTIAL.md).
#   tests/differential.sh                  all cases in all modes; needs root and the release build
#   tests/differential.sh --list           names of the cases, by family
#   tests/differential.sh --mode immutable locks/    one mode; cases whose name contains `locks/`
#   tests/differential.sh --help           all options
# Beside the everyday suite. Each run of a case gets a fresh image of the same data set, mounted at
# the same path, so that exit status, output, errors, the tree afterwards and the tree as the job
# sees it must be equal. Everything happens in a mount and a process namespace of its own: mounts and
# processes go when the runner ends. Exit status 1: something differs that
# tests/differential/expected.tsv does not list.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
case " $* " in
  *" --help "*|*" -h "*|*" --list "*) exec /usr/bin/python3 "$here/differential/run.py" "$@" ;;
esac
[ "$(id -u)" = 0 ] || { echo "differential: skipped, needs root (mounts, users)"; exit 0; }
for tool in gcc mkfs.ext4 unshare python3; do
  command -v "$tool" >/dev/null || { echo "differential: $tool is missing" >&2; exit 2; }
done
exec unshare --mount --pid --fork --kill-child --propagation private --mount-proc \
  /usr/bin/python3 "$here/differential/run.py" "$@"
