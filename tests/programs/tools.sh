#!/bin/bash
# tools: everyday programs over a tree made by mkdata.py (--git for the repository part), outputs
# made for comparing. usage: tools.sh ROOT [SECTION...]    sections: read stat list copy tar rsync
# diff grep git busybox odd (default: all) Pure reading of ROOT; scratch space is a temporary
# directory whose name never shows. Sections of missing tools say so.
case ${1-} in ''|--help) sed -n '2,4s/^# //p' "$0"; exit 0 ;; esac
export LC_ALL=C TZ=UTC GIT_OPTIONAL_LOCKS=0 GIT_CONFIG_NOSYSTEM=1 GIT_CONFIG_GLOBAL=/dev/null GIT_PAGER=cat
export GIT_CONFIG_COUNT=1 GIT_CONFIG_KEY_0=safe.directory GIT_CONFIG_VALUE_0='*'
root=$(cd "$1" && pwd) || exit 2
shift
tmp=$(mktemp -d) || exit 2
trap 'chmod -R u+rwX "$tmp" 2>/dev/null; rm -rf "$tmp"' EXIT
cd "$tmp" || exit 2

# Runs a command, standard error included, and prints its status; ROOT's and the scratch directory's
# names are hidden.
show() {
    echo "## $*" | sed "s|$root|ROOT|g; s|$tmp|TMP|g"
    { "$@" 2>&1; echo "status $?"; } | sed "s|$root|ROOT|g; s|$tmp|TMP|g"
}
# The same, long outputs as one digest.
sum() {
    echo "## $*" | sed "s|$root|ROOT|g; s|$tmp|TMP|g"
    "$@" 2>&1 | sed "s|$root|ROOT|g; s|$tmp|TMP|g" | sha256sum
    echo "status ${PIPESTATUS[0]}"
}
have() { command -v "$1" >/dev/null || { echo "## $1 is not here"; return 1; }; }
files() { find "$root" -type f -print0 | sort -z; }
# What most of it is about: a tree of another maker has other names.
parts=(data special)
[ -d "$root/data" ] || parts=(.)
first=$(find "$root/${parts[0]}" -type f | sort | head -1)

read_() {
    sum bash -c 'find "$1" -type f -print0 | sort -z | xargs -0 cat' _ "$root"
    sum bash -c 'find "$1" -type f -print0 | sort -z | xargs -0 -n 7 -P 1 sha256sum' _ "$root"
    show bash -c 'find "$1" -type f -print0 | sort -z | xargs -0 wc -c' _ "$root/special"
    show dd if="$first" of=dd.out bs=4096 status=none
    show cmp "$first" dd.out
    show dd if="$first" bs=1000 skip=2 count=3 status=none of=dd.part
    show sha256sum dd.part
    sum dd if="$root/special/sparse.z1048576.bin" bs=64k iflag=direct,nonblock status=none
    sum dd if="$root/special/block.z65537.bin" bs=3 iflag=fullblock status=none
    sum head -c 1000 "$first"
    sum tail -c 1000 "$first"
    sum od -A d -t x1 "$first"
    sum md5sum "$root"/special/*.bin
    sum bash -c 'gzip -nc "$1" > first.gz; zcat first.gz' _ "$first"
    sum bash -c 'while IFS= read -r line; do echo "${#line}"; done < "$1"' _ "$first"
    sum bash -c 'cat < "$1"' _ "$first"
    sum bash -c 'cat "$1" - < "$1"' _ "$first"
    sum bash -c 'cmp - "$1" < "$1"' _ "$first"
    sum env -i cat "$first"
    sum bash -c 'exec 7< "$1"; cat <&7; cat /dev/fd/7; exec 7<&-; cat <&7' _ "$first"
    sum sort "$first"
    sum awk 'BEGIN { RS = "\n" } { n += length($0) } END { print NR, n }' "$first"
    sum cksum "$root"/special/link-*
    show sh -c '. "$1"' _ "$root/special/empty.z0.bin"
}
stat_() {
    sum bash -c 'find "$1" -print0 | sort -z | xargs -0 stat -c "%n %s %b %f %u %g %i %h %Y %Z %y %z"' _ "$root"
    sum bash -c 'find "$1" -print0 | sort -z | xargs -0 stat -L -c "%n %s %b %f %u %g %i %h %Y"' _ "$root"
    show stat -c '%F %s %a' "$root" "$first" "$root/special/link-file" "$root/special/link-dangling" "$root/nothing"
    show test "$root/special/hard1.z5000.bin" -ef "$root/special/hard2.z5000.bin"
    show test "$root/special/one.z1.bin" -nt "$first"
    for t in e f d L r w x s; do show test -$t "$root/special/exec.z602.bin"; done
    show readlink -f "$root/special/link-chain" "$root/special/link-dir/d00/../.."
    show realpath "$root/special/link-up" "$root/special/link-abs"
    show du -s --apparent-size "$root"
    sum du -a "$root"
    sum du -ab "$root"
    show du -sl "$root"
}
list_() {
    sum ls -lR --time-style=full-iso "$root"
    sum ls -laiRU "$root"
    show ls "$root" "$root/special/link-dir/" "$root/special/emptydir" "$root/special/link-dir/d00"
    show ls -ld "$root" "$root/special/link-dangling" "$root/nothing"
    sum find "$root"
    sum find "$root" -printf '%p %s %m %n %U %G %i %T@ %C@ %b %y %Y %l %d %f %h\n'
    sum find -L "$root/${parts[0]}" "$root/special/sub" -printf '%p %s %i\n'
    sum find "$root" -name '*.bin' -size +10k -newer "$root/special/one.z1.bin"
    show find "$root" -samefile "$root/special/hard1.z5000.bin"
    show find "$root" -links +1 -type f
    show find "$root" -empty
    show find "$root/special" -xtype l
    sum bash -c 'cd "$1" && find . -type d -exec sh -c "cd \"\$1\" && pwd && echo *" _ {} \;' _ "$root"
    sum bash -c 'shopt -s globstar dotglob; cd "$1" && printf "%q\n" **' _ "$root"
}
copy_() {
    show cp -a "$root" copy
    show diff -r --no-dereference "$root" copy
    sum bash -c 'cd copy && find . -printf "%p %s %m %n %U %G %T@ %y %l\n" | sort'
    show cp -r --reflink=auto "$root/${parts[0]}" copy2
    show diff -r "$root/${parts[0]}" copy2
    show cp --sparse=always "$root/special/sparse.z1048576.bin" sparse
    show cmp "$root/special/sparse.z1048576.bin" sparse
    show cp -L "$root/special/link-up" followed
    show cmp "$root/special/link-up" followed
    show install -m 600 "$first" installed
    show cmp "$first" installed
    show cp -u "$first" installed
    show cp "$root/special/link-dangling" nothing
    show cp "$first" "$first"
    chmod -R u+rwX copy copy2; rm -rf copy copy2
}
tar_() {
    have tar || return
    show bash -c 'tar --sort=name -C "$1" -cf all.tar . && sha256sum < all.tar' _ "$root"
    sum tar --full-time -tvf all.tar
    show tar -C "$root" -df all.tar
    # One after the other: what two programs of a pipe complain of comes in either order.
    sum bash -c 'tar -cf - -C "$@" | cat > some.tar; tar -tvf some.tar' _ "$root" "${parts[@]}"
    sum bash -c 'tar --sort=name -hcf - -C "$@" | cat > followed.tar; sha256sum < followed.tar' _ "$root" "${parts[0]}"
    mkdir x && tar -C x -xf all.tar && show diff -r --no-dereference "$root" x
    chmod -R u+rwX x; rm -rf x *.tar
}
rsync_() {
    have rsync || return
    show rsync -aH "$root/" synced/
    show diff -r --no-dereference "$root" synced
    show rsync -aHn --itemize-changes "$root/" synced/
    show rsync -aHnc --itemize-changes --delete "$root/" synced/
    sum bash -c 'rsync -aHn --itemize-changes "$1/" none/ | sort' _ "$root"
    sum bash -c 'rsync --list-only -r "$1/" | sort' _ "$root"
    chmod -R u+rwX synced; rm -rf synced
}
diff_() {
    cp -r "$root/${parts[0]}" other
    show diff -rq "$root/${parts[0]}" other
    show cmp "$first" "$root/special/page.z4096.bin"
    f=$(cd "$root/${parts[0]}" && find . -type f | sort | tail -1)
    printf x >> "other/$f"
    show diff -rq "$root/${parts[0]}" other
    rm -rf other
}
grep_() {
    show grep -rl PK "$root/${parts[0]}"
    show grep -rc commit "$root/repo/src"
    sum grep -ra 'file [0-9]* commit 2' "$root"
    show grep -q x "$root/special" "$root/nothing"
    show grep -c '' "$first"
}
git_() {
    [ -d "$root/repo/.git" ] && have git || return
    cd "$root/repo" || return
    show git status --porcelain
    show git log --stat --format='%H %an %ad %s'
    show git diff
    show git fsck --full
    show git ls-files -s
    sum git cat-file --batch-all-objects --batch-check
    sum git archive HEAD
    show git grep -n 'commit 2' -- src/m1
    show git -C src rev-parse --show-toplevel --show-prefix
    cd "$tmp" || exit 2
    show git clone -q --no-hardlinks "$root/repo" cloned # a hard link would change ctimes below ROOT
    show git -C cloned log --oneline
    show git --git-dir="$root/repo/.git" --work-tree="$root/repo" status --short
    rm -rf cloned
}
busybox_() {
    b=busybox
    have $b || return
    sum $b find "$root" -type f
    sum bash -c 'busybox find "$1" -type f -print0 | sort -z | xargs -0 busybox cat' _ "$root"
    sum bash -c 'busybox find "$1" -type f -print0 | sort -z | xargs -0 busybox sha256sum' _ "$root"
    sum $b ls -lRn --full-time "$root"
    sum $b stat -c '%n %s %i %f' "$root"/special/*
    show $b cp -a "$root/${parts[0]}" bb
    show $b diff -r "$root/${parts[0]}" bb
    sum $b tar -cf - -C "$root" "${parts[0]}"
    rm -rf bb
}
odd_() {
    for f in "$root//special/./one.z1.bin" "$root/special/../special/one.z1.bin" "$root/special/one.z1.bin/" "$root/special/link-dir/../special/one.z1.bin" \
        "$root/special/nonutf8-"$'\xff\xfe\x80'".z300.bin" "$root/special/space and"$'\n'"newline.z301.bin" "$root"/special/LLL* "$root/special/nobody.z603.bin" \
        "$root/special/closed/inner.z604.bin" "$root/special/loop-a" "$root/special/link-dangling" "$root/special/link-slash" "$root/special" "$root/special/link-dir" ""; do
        sum cat "$f"
    done
    sum bash -c 'cd "$1/special/link-dir/d00" && cat ../../special/one.z1.bin && cd .. && pwd && pwd -P && ls' _ "$root"
    sum bash -c 'cd "$1/special" && (cd sub && cat ../one.z1.bin hard3.z5000.bin) && cat sub/../one.z1.bin' _ "$root"
    sum bash -c 'echo "$(< "$1")" | wc -c' _ "$root/special/one.z1.bin"
    sum bash -c 'ls "$1" | while read -r d; do ls "$1/$d" | wc -l; done' _ "$root"
    show bash -c 'for i in 1 2 3 4 5 6 7 8; do cat "$1" | sha256sum & done; wait' _ "$first"
}

for s in ${*:-read stat list copy tar rsync diff grep git busybox odd}; do
    echo "# $s"
    "${s}_"
done
