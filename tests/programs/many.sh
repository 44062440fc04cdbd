#!/bin/sh
# many: N short programs (default 1000) started at once by a shell, one file each; prints how many
# differed. usage: many.sh ROOT [N]
case ${1-} in ''|--help) sed -n '2,3s/^# //p' "$0"; exit 0 ;; esac
root=$1 n=${2-1000}
tmp=$(mktemp -d) || exit 2
trap 'rm -rf "$tmp"' EXIT
find "$root/data" -type f | LC_ALL=C sort > "$tmp/list"
have=$(wc -l < "$tmp/list")
i=0
while [ "$i" -lt "$n" ]; do
    f=$(sed -n "$((i % have + 1))p" "$tmp/list")
    cksum < "$f" > "$tmp/out$i" &
    i=$((i + 1))
done
wait
i=0 bad=0
while [ "$i" -lt "$have" ] && [ "$i" -lt "$n" ]; do
    j=$i
    while [ "$j" -lt "$n" ]; do
        cmp -s "$tmp/out$i" "$tmp/out$j" || bad=$((bad + 1))
        j=$((j + have))
    done
    i=$((i + 1))
done
i=0
: > "$tmp/all"
while [ "$i" -lt "$n" ]; do cat "$tmp/out$i"; i=$((i + 1)); done > "$tmp/all"
echo "programs $n differing $bad sum $(sha256sum < "$tmp/all" | cut -c1-24)"
[ "$bad" = 0 ]
