#!/bin/bash
# What tools of the system write: each section in a directory of its own, with what it says.
#   tools.sh [NAME...]   in the directory where they go; names: see the sections below
# Times of today and numbers of inodes are not printed; tools that are missing are left out.
export LC_ALL=C TZ=UTC GIT_CONFIG_GLOBAL=/dev/null GIT_CONFIG_NOSYSTEM=1
export GIT_AUTHOR_DATE=2020-01-01T00:00:00Z GIT_COMMITTER_DATE=2020-01-01T00:00:00Z
umask 022

has() { for tool in "$@"; do command -v "$tool" >/dev/null || return 1; done; }
# Name, type, mode, owner, size, links and, if set to the past, the time.
show() {
  for f in "$@"; do
    [ -d "$f" ] && { stat -c '%n %F %a %u:%g' "$f"; continue; }
    stat -c '%n %F %a %u:%g %s B x%h %Y' "$f" 2>&1 | awk '{ if ($NF + 0 > 1700000000) $NF = ""; print }'
    if [ -L "$f" ]; then readlink "$f"; elif [ -f "$f" ]; then cksum < "$f"; fi
  done
}
bytes() { head -c "$1" /dev/zero | tr '\0' "$2"; }
source_tree() {
  mkdir -p "$1/sub/deep"
  bytes 40000 a > "$1/a"; bytes 300 b > "$1/sub/b"; : > "$1/empty"; ln -s a "$1/link"; printf 'x\n' > "$1/sub/deep/x"
  chmod 640 "$1/a"; chmod 755 "$1/sub/b"
  find "$1" -exec touch -h -d 2017-07-14T02:40:00Z {} +
}

copies() {
  source_tree "$TMPDIR/src"
  cp "$TMPDIR/src/a" plain; cp -p "$TMPDIR/src/a" kept; cp -a "$TMPDIR/src" all; cp -r --reflink=auto all again; cp -f plain kept
  cp --remove-destination plain kept; cp -n plain kept; cp -l plain linked; cp -s "$PWD/plain" symbolic; cp -u plain older; cp --sparse=always plain sparse
  cp --backup=numbered plain kept; cp plain dir/ 2>/dev/null || echo "no directory: $?"; cp no such 2>/dev/null || echo "no file: $?"
  show plain kept kept.~1~ linked symbolic older sparse all all/a all/link all/sub/b again/sub/deep/x
  diff -r all again && diff -r "$TMPDIR/src" all && echo same
}
whole_paths() {
  d=$PWD; bytes 20 a > "$d/f"; stat -c '%s %h' "$d/f"; cp "$d/f" "$d/g"; ls -l "$d/g" | cut -c1-10; mv "$d/g" "$d/h"; stat -c %s "$d/h"
  ln -s "$d/h" "$d/l"; stat -L -c %s "$d/l"; rm "$d/f"; stat "$d/f" 2>/dev/null || echo removed; test -e "$d/f" || echo gone; find "$d" -type f -printf '%f %s\n' | sort
  find "$d" -name h -delete; ls -A "$d"
}
moves() {
  source_tree "$TMPDIR/src"
  mv "$TMPDIR/src/a" from_outside; mv "$TMPDIR/src" whole; bytes 10 x > f; mv f g; mv g whole/; mv -n whole/g whole/empty; mv -f whole/g whole/empty
  mv -b from_outside whole/link; bytes 5 y > one; bytes 6 z > two; mv -T one two; mv --exchange one two 2>/dev/null
  show from_outside whole whole/empty whole/link whole/sub/b one two; ls -A whole
}
installs() {
  source_tree "$TMPDIR/src"
  install -m 755 "$TMPDIR/src/a" prog; install -d -m 750 a/b/c; install -D -p -m 600 "$TMPDIR/src/sub/b" x/y/b; install -b -m 644 "$TMPDIR/src/sub/b" prog
  show prog prog~ a/b/c x/y/b
}
archives() {
  source_tree "$TMPDIR/src"
  tar cf all.tar -C "$TMPDIR" --sort=name --mtime=2017-07-14 --owner=1 --group=2 src; cksum < all.tar; mkdir out; tar xf all.tar -C out; show out/src/a out/src/link out/src/sub
  tar xf all.tar -C out --overwrite; tar xf all.tar -C out --unlink-first --recursive-unlink; tar czf all.tgz -C out src; tar tzf all.tgz | sort; tar rf all.tar -C "$TMPDIR" src/empty; tar tf all.tar | wc -l
  show out/src/a out/src/sub/b out/src/sub/deep/x
  if has zip unzip; then (cd out && zip -qrX ../all.zip src && cd .. && mkdir z && unzip -q all.zip -d z && show z/src/a; rm all.zip); fi
  rm all.tgz
}
rsyncs() {
  has rsync || return
  source_tree "$TMPDIR/src"
  rsync -a "$TMPDIR/src/" to/; show to/a to/link to/sub/b; bytes 41000 c > "$TMPDIR/src/a"; rm "$TMPDIR/src/empty"
  rsync -a --delete "$TMPDIR/src/" to/; rsync -a --inplace --checksum "$TMPDIR/src/" to/; rsync -aiO "$TMPDIR/src/" to/; rsync -a --partial --append-verify "$TMPDIR/src/" second/
  show to/sub/deep/x second/link; cksum < to/a; ls -A to
}
editors() {
  printf 'one\ntwo\nthree\n' > text; chmod 640 text
  sed -i 's/two/TWO/' text; sed -i.bak '1d' text; show text text.bak; perl -pi -e 's/three/3/' text; show text; sort -r -o text text; cat text
  printf 'z\na\n' | tee tee1 tee2 | sort > sorted; tee -a tee1 < sorted > /dev/null; cat tee1 sorted
  if has patch; then printf -- '--- text\n+++ text\n@@ -1,2 +1,2 @@\n TWO\n-3\n+three\n' | patch -s text; cat text; fi
  truncate -s 100 text; truncate -s 3 tee1; truncate -s +5 tee1; show text tee1; split -b 30 text part.; show part.*; cat part.* | cmp - text && echo whole
  mktemp -p . made.XXXX | sed 's/[^.]*$/X/'; mktemp -d -p . | wc -c; mkdir dirs; mktemp -d -p dirs | wc -l; rm -r dirs tmp.* made.*
}
compressors() {
  bytes 50000 g > g; touch -d 2017-07-14T02:40:00Z g; gzip -n g; show g.gz; gunzip -k g.gz; show g g.gz; gzip -t g.gz && gzip -c g > again.gz; bzip2 -k g 2>/dev/null; xz -k g 2>/dev/null
  for z in g.*; do [ -f "$z" ] && echo "$z"; done; zcat g.gz | cksum; rm -f g.bz2 g.xz again.gz
}
redirections() {
  echo one > f; echo two >> f; { echo three; sh -c 'echo four'; } >> f; cat f; (echo sub; sleep 0.1; echo later) > g & wait; cat g
  exec 3> h; echo to h >&3; (echo child of h) >&3; exec 3>&-; cat h; exec 4<> rw; echo rw >&4; exec 4>&-; cat rw; : > f; show f; set -C; echo x > f 2>/dev/null || echo "not over it: $?"; echo y >| f; set +C; cat f
  sh -c 'exec > own; echo from exec; ls /nonexistent' 2> err; cat own; wc -l < err; (sleep 0.3; echo after the shell) > late & wait; cat late; cat <<X > here
a document
X
  cat here; yes 2>/dev/null | head -c 100000 > pipe; show pipe; dd if=/dev/zero of=dd bs=1k count=10 status=none; printf X | dd of=dd bs=1 seek=5000 conv=notrunc status=none; show dd
  dd if=dd of=dd2 bs=4k conv=fsync status=none; dd if=/dev/zero of=dd3 bs=1k seek=3 count=1 status=none; dd if=/dev/zero of=dd oflag=append conv=notrunc bs=1 count=7 status=none; show dd dd2 dd3
  printf 'a b\n' | while read -r x y; do echo "$y $x" > "loop.$x"; done; cat loop.a; echo twice > /dev/null > two_targets; show two_targets
}
touches() {
  touch new; touch -d 2016-01-02T03:04:05Z new; touch -m -d 2015-01-01T00:00:00Z new; show new; touch -r new other; show other; touch -c nothing; show nothing; echo x > w; touch -d 2014-01-01T00:00:00Z w; echo y >> w
  [ w -nt new ] && echo newer; [ new -ot w ] && echo older; [ new -ef ./new ] && echo same; ln new hard; [ hard -ef new ] && echo linked; show hard; chmod u+x,g-r new; chmod 0 other; show new other; ln -sf w link; ln -sfn other link; show link
  mkdir -p -m 711 p/q; show p p/q; rmdir -p p/q; show p; find . -type f -newer new | sort; find . -type f -size +0 -perm -u+w | sort; du -b --apparent-size w | cut -f1
}
removals() {
  source_tree t; rm t/a; rm -f t/none; rm t/none 2>/dev/null || echo "none: $?"; rm -r t/sub; ls -A t; find t -type l -delete; ls -A t; rm -d t 2>/dev/null || echo "full: $?"; rm -rf t; show t; mkdir t; rmdir t; echo x > t; unlink t; show t
  source_tree u; find u -depth -delete; show u; source_tree v; (cd v && rm -rf ./* && ls -A); rm -rf v
}
repository() {
  has git || return
  git init -q -b main repo; cd repo || return; git config user.email a@b; git config user.name n; git config gc.auto 0; mkdir d
  for i in 1 2 3 4 5 6; do echo "line $i" > "f$i"; echo "$i" > "d/$i"; done; git add .; git commit -qm one; git checkout -q -b two; git rm -q f1; echo changed > f2; git commit -qam two
  git checkout -q main; ls; git merge -q two; git log --oneline; git gc -q; git fsck 2>&1; git status --porcelain; git stash list; find .git/objects -type f | wc -l; git rev-parse HEAD
  cd ..; git clone -q --no-hardlinks repo clone 2>&1; git -C clone rev-parse HEAD; rm -rf clone repo/.git/logs repo/.git/index repo/.git/COMMIT_EDITMSG
}
build() {
  has make gcc || return
  printf 'prog: a.o b.o\n\tgcc -o $@ $^\n%%.o: %%.c\n\tgcc -c -o $@ $<\nlib.a: a.o b.o\n\tar rcD $@ $^\n' > Makefile; echo 'int b(void); int main(void) { return b(); }' > a.c; echo 'int b(void) { return 7; }' > b.c
  make -s prog lib.a && ./prog; echo "exit $?"; make -s prog | grep -c gcc; show a.c lib.a; strip prog && ./prog; echo "exit $?"; rm -f prog ./*.o lib.a
}

all="copies moves installs archives rsyncs editors compressors redirections touches removals repository build"
top=$PWD
for name in ${*:-$all}; do
  echo "## $name"
  rm -rf "$TMPDIR/src"; mkdir "$name" && cd "$name" || exit 1
  "$name" 2>&1
  cd "$top" || exit 1
done
rm -rf "$TMPDIR/src"
find . -mindepth 1 -printf '%P %y %m %s %n %l\n' | awk '$2 == "d" { $4 = $5 = "" } { print }' | sort
echo "## end"
