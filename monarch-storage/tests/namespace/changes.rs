//! Paths that the job changed are never answered from the index.
//!
//! Changes are marked as the shim marks them (entry and directory Bypass, a moved subtree as a
//! range), then made. Afterwards every path must lead to something marked, nowhere, or to what the
//! kernel finds.

use crate::common::{as_path, bytes, cases, kernel, kind, shown};
use crate::trees::{Piece, STARTS, World, piece, plan};
use monarch_abi::resolve::{Found, resolve, resolve_parent};
use monarch_abi::word::{State, Word};
use proptest::prelude::*;
use std::os::unix::fs::symlink;
use std::sync::atomic::Ordering;

#[derive(Clone, Debug)]
enum Change {
    Unlink,
    RenameTo(Vec<u8>),
    ReplaceByDir,
    ReplaceByFile,
    ReplaceByLink(Vec<Piece>),
    MoveOver(usize),
    /// Writes through the path, links followed.
    Write,
}

fn change() -> impl Strategy<Value = Change> {
    prop_oneof![
        Just(Change::Unlink),
        prop_oneof![Just(b"a".to_vec()), Just(b"new".to_vec())].prop_map(Change::RenameTo),
        Just(Change::ReplaceByDir),
        Just(Change::ReplaceByFile),
        prop::collection::vec(piece(), 1..4).prop_map(Change::ReplaceByLink),
        any::<u8>().prop_map(|n| Change::MoveOver(n.into())),
        Just(Change::Write),
    ]
}

fn bypass(f: &Found<'_>) {
    let word = &f.entry.master.word;
    let now = Word(word.load(Ordering::Acquire));
    word.store(now.next(State::Bypass).0, Ordering::Release);
}

/// Marks the entries that a change of the name `path` concerns. A path that the index does not know
/// may lead to a directory that it knows by another name, through a link that is new: then the real
/// name counts.
fn mark(w: &World, path: &[u8]) {
    let p = resolve_parent(&w.ctl, &w.segs, path).or_else(|miss| {
        let Ok(dir) = as_path(path).parent().expect("parent").canonicalize() else { return Err(miss) };
        resolve_parent(&w.ctl, &w.segs, bytes(&dir.join(as_path(path).file_name().expect("name"))))
    });
    let Ok(p) = p else { return };
    bypass(&p.dir);
    let Some(f) = p.entry else { return };
    bypass(&f);
    if let Some(d) = f.segment.index.dir(f.entry.record) {
        assert!(w.ctl.bypass_range(f.number as u32, d.id, d.end));
    }
}

/// Marks the file that is written through `path`. A file that was replaced before may be a link by
/// now: then the real name counts.
fn mark_file(w: &World, path: &[u8]) {
    let known = resolve(&w.ctl, &w.segs, path, true).ok().filter(|f| f.entry.word().state() != State::Bypass);
    let real = as_path(path).canonicalize();
    let found = known.or_else(|| resolve(&w.ctl, &w.segs, bytes(&real.ok()?), false).ok());
    if let Some(f) = found {
        bypass(&f);
    }
}

fn remove(path: &[u8]) {
    let _ = std::fs::remove_file(as_path(path)).or_else(|_| std::fs::remove_dir_all(as_path(path)));
}

fn apply(w: &World, path: &[u8], change: &Change, others: &[Vec<u8>]) {
    if let Change::Write = change {
        if as_path(path).is_file() {
            mark_file(w, path);
            std::fs::write(as_path(path), vec![b'w'; 5000]).expect("write");
        }
        return;
    }
    mark(w, path);
    match change {
        Change::Write => {}
        Change::Unlink => remove(path),
        Change::RenameTo(name) => {
            let to = bytes(&as_path(path).with_file_name(as_path(name))).to_vec();
            mark(w, &to);
            let _ = std::fs::rename(as_path(path), as_path(&to));
        }
        Change::ReplaceByDir => {
            remove(path);
            let _ = std::fs::create_dir(as_path(path));
            let _ = std::fs::write(as_path(path).join("a"), b"new");
        }
        Change::ReplaceByFile => {
            remove(path);
            let _ = std::fs::write(as_path(path), b"new");
        }
        Change::ReplaceByLink(pieces) => {
            remove(path);
            let _ = symlink(as_path(&w.path(0, pieces)), as_path(path));
        }
        Change::MoveOver(n) => {
            let to = &others[n % others.len()];
            mark(w, to);
            let _ = std::fs::rename(as_path(path), as_path(to));
        }
    }
}

proptest! {
    #![proptest_config(cases(150))]

    #[test]
    fn no_path_leads_to_a_file_from_before_the_changes(
        plan in plan(24),
        changes in prop::collection::vec((any::<u8>(), change()), 1..5),
        paths in prop::collection::vec((0..STARTS, prop::collection::vec(piece(), 0..7)), 1..80),
    ) {
        let w = World::new(&plan);
        // Spelled before the changes: these are the names that were there.
        let mut spelled: Vec<Vec<u8>> = paths.iter().map(|(s, p)| w.path(*s, p)).collect();
        let all: Vec<Vec<u8>> =
            (0..2).flat_map(|n| w.entries(n).into_iter().map(move |rel| (n, rel)))
            .map(|(n, rel)| [bytes(&w.roots[n]), b"/", &rel].concat()).collect();
        for (n, change) in &changes {
            apply(&w, &all[usize::from(*n) % all.len()], change, &all);
        }
        spelled.extend(paths.iter().map(|(s, p)| w.path(*s, p)));
        spelled.extend(all);
        for path in &spelled {
            for follow in [false, true] {
                let Ok(f) = resolve(&w.ctl, &w.segs, path, follow) else { continue };
                if f.entry.word().state() == State::Bypass {
                    continue;
                }
                match kernel(path, follow) {
                    Ok(st) => prop_assert!(
                        f.entry.record.ino == st.st_ino
                            && kind(f.entry.record.mode.into()) == kind(st.st_mode)
                            && (f.entry.record.is_dir() || f.entry.record.size == st.st_size as u64),
                        "{} (follow {follow}): not what is there now", shown(path)
                    ),
                    Err(e) => prop_assert!(false, "{} (follow {follow}): found, kernel says {e}", shown(path)),
                }
            }
        }
    }
}
