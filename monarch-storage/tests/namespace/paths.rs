//! Every path spelling resolves as the kernel does.
//!
//! Whatever the index answers, the kernel must answer the same. The index may leave a path to the
//! kernel only when the path leaves the roots or leads nowhere: a naive walk over the real tree
//! says when an answer was due.

use crate::common::{BySegment, Indexed, Spelled, bytes, cases, control, kernel, kind, shown};
use crate::trees::{Piece, STARTS, World, piece, plan};
use monarch_abi::resolve::{Found, Miss, resolve, resolve_parent, split_last};
use proptest::prelude::*;
use std::collections::VecDeque;
use std::os::unix::fs::symlink;

/// Links in a path up to which an answer is due.
const MAX_DUE_LINKS: usize = 8;

/// Whether an answer for `path` is due: it starts like a root, never leaves the roots, and leads
/// somewhere. The naive model: component by component, over the real tree.
fn answer_is_due(w: &World, path: &[u8], follow: bool) -> bool {
    walk(w, path, follow).is_some()
}

fn walk(w: &World, path: &[u8], follow: bool) -> Option<()> {
    let (mut root, mut at, rest) = enter(w, path)?;
    // The name of an alias may be a link itself.
    if rest.is_empty() && !follow && !w.roots.iter().any(|r| bytes(r) == path) {
        return None;
    }
    let mut todo = components(&rest);
    let mut links = 0;
    while let Some(name) = todo.pop_front() {
        let here = join(w, root, &at);
        if kind(kernel(&here, false).ok()?.st_mode) != 0o040_000 {
            return None;
        }
        match name.as_slice() {
            b"." => continue,
            b".." => {
                at.pop()?;
                continue;
            }
            _ => at.push(name),
        }
        let here = join(w, root, &at);
        let st = kernel(&here, false).ok()?;
        if kind(st.st_mode) != 0o120_000 || (todo.is_empty() && !follow) {
            continue;
        }
        links += 1;
        if links > MAX_DUE_LINKS {
            return None;
        }
        let target = rustix::fs::readlink(here.as_slice(), Vec::new()).ok()?.into_bytes();
        let mut front;
        if target.first() == Some(&b'/') {
            let rest;
            (root, at, rest) = enter(w, &target)?;
            front = components(&rest);
        } else {
            at.pop();
            front = components(&target);
        }
        front.append(&mut todo);
        todo = front;
    }
    kernel(&join(w, root, &at), false).ok().map(|_| ())
}

/// The longest spelling in front of a path: root, components below it, the rest.
fn enter(w: &World, path: &[u8]) -> Option<(usize, Vec<Vec<u8>>, Vec<u8>)> {
    let fits = |s: &&Spelled| {
        path.strip_prefix(bytes(&s.path)).is_some_and(|rest| rest.is_empty() || rest.first() == Some(&b'/'))
    };
    let s = w.spellings.iter().filter(fits).max_by_key(|s| bytes(&s.path).len())?;
    let sub = s.sub.split('/').filter(|c| !c.is_empty()).map(|c| c.as_bytes().to_vec()).collect();
    Some((s.root, sub, path[bytes(&s.path).len()..].to_vec()))
}

/// Components, with a `.` for slashes at the end.
fn components(path: &[u8]) -> VecDeque<Vec<u8>> {
    let mut out: VecDeque<Vec<u8>> = path.split(|&c| c == b'/').filter(|c| !c.is_empty()).map(<[u8]>::to_vec).collect();
    if path.ends_with(b"/") {
        out.push_back(b".".to_vec());
    }
    out
}

fn join(w: &World, root: usize, at: &[Vec<u8>]) -> Vec<u8> {
    let mut out = bytes(&w.roots[root]).to_vec();
    for name in at {
        out.push(b'/');
        out.extend_from_slice(name);
    }
    out
}

/// The index found what the kernel finds.
fn same(found: &Found<'_>, st: &rustix::fs::Stat) -> bool {
    let r = found.entry.record;
    r.ino == st.st_ino && kind(r.mode.into()) == kind(st.st_mode) && found.segment.index.header.root_dev == st.st_dev
}

fn check(w: &World, path: &[u8], follow: bool) -> Result<(), TestCaseError> {
    let (ours, kernel) = (resolve(&w.ctl, &w.segs, path, follow), kernel(path, follow));
    match (&ours, &kernel) {
        (Ok(f), Ok(st)) => prop_assert!(same(f, st), "{} (follow {follow}): another file", shown(path)),
        (Ok(_), Err(e)) => prop_assert!(false, "{} (follow {follow}): found, but the kernel says {e}", shown(path)),
        (Err(miss), _) => {
            prop_assert!(!answer_is_due(w, path, follow), "{} (follow {follow}): {miss:?}", shown(path));
        }
    }
    Ok(())
}

fn check_parent(w: &World, path: &[u8]) -> Result<(), TestCaseError> {
    let ours = resolve_parent(&w.ctl, &w.segs, path);
    let Some((dir, name)) = split_last(path) else {
        prop_assert!(ours.is_err(), "{}: has no last component", shown(path));
        return Ok(());
    };
    match ours {
        Ok(p) => {
            let st = kernel(dir, true);
            prop_assert!(st.is_ok_and(|st| same(&p.dir, &st)), "{}: another directory", shown(path));
            let full = [dir, name].concat();
            match (p.entry, kernel(&full, false)) {
                (Some(f), Ok(st)) => prop_assert!(same(&f, &st), "{}: another entry", shown(path)),
                (None, Err(rustix::io::Errno::NOENT)) => {}
                // The directory may be a file: nothing has a name in it.
                (None, Err(rustix::io::Errno::NOTDIR)) => {}
                (ours, k) => prop_assert!(false, "{}: {:?}, kernel {k:?}", shown(path), ours.map(|f| f.entry.id)),
            }
        }
        Err(_) => prop_assert!(!answer_is_due(w, dir, true), "{}: the parent was not found", shown(path)),
    }
    Ok(())
}

fn paths() -> impl Strategy<Value = Vec<(usize, Vec<Piece>)>> {
    prop::collection::vec((0..STARTS, prop::collection::vec(piece(), 0..9)), 1..120)
}

proptest! {
    #![proptest_config(cases(250))]

    #[test]
    fn every_spelling_resolves_as_the_kernel_does(plan in plan(24), paths in paths()) {
        let w = World::new(&plan);
        for (start, pieces) in &paths {
            let path = w.path(*start, pieces);
            check(&w, &path, true)?;
            check(&w, &path, false)?;
            check_parent(&w, &path)?;
        }
        for (n, root) in w.roots.iter().enumerate() {
            for rel in w.entries(n) {
                let path = [bytes(root), b"/", &rel].concat();
                check(&w, &path, true)?;
                check(&w, &path, false)?;
                check_parent(&w, &path)?;
                prop_assert!(resolve(&w.ctl, &w.segs, &path, false).is_ok(), "{}: silent miss", shown(&path));
            }
        }
    }

    #[test]
    fn long_paths_are_as_long_as_the_kernel_allows(plan in plan(8), child in any::<u8>(), slack in -4i64..4, dot in any::<bool>()) {
        let w = World::new(&plan);
        let short = w.path(0, &[Piece::Child(child.into())]).len() as i64;
        let room = (4096 - short + slack) as usize;
        let mut pieces = vec![if dot { Piece::Long(room / 2) } else { Piece::Slash }];
        pieces.extend((0..if dot { room % 2 } else { room - 1 }).map(|_| Piece::Slash));
        pieces.push(Piece::Child(child.into()));
        let path = w.path(0, &pieces);
        // The kernel's limit counts the NUL. The shim passes no longer paths on, but they must be
        // safe.
        let (ours, kernel) = (resolve(&w.ctl, &w.segs, &path, false), kernel(&path, false));
        if path.len() < monarch_abi::PATH_MAX {
            if let Ok(f) = ours {
                prop_assert!(kernel.is_ok_and(|st| same(&f, &st)), "{} bytes", path.len());
            } else {
                prop_assert!(kernel.is_err(), "{} bytes: silent miss", path.len());
            }
        } else {
            prop_assert!(kernel.is_err());
        }
    }
}

/// A root with a directory `d`, a file `d/f`, and what `fill` adds; the control block also knows
/// the root as `alias`.
struct Small {
    tree: Indexed,
    ctl: monarch_abi::control::ControlMap<'static>,
    segs: BySegment,
}

impl Small {
    fn new(fill: impl FnOnce(&std::path::Path)) -> Self {
        let tree = Indexed::new(|root| {
            std::fs::create_dir(root.join("d")).expect("mkdir");
            std::fs::write(root.join("d/f"), b"f").expect("write");
            symlink(root, root.with_file_name("alias")).expect("link");
            fill(root);
        });
        let alias = Spelled { path: tree.root.with_file_name("alias"), sub: "", root: 0 };
        let real = Spelled { path: tree.root.clone(), sub: "", root: 0 };
        let ctl = control(tree.dir.path(), std::slice::from_ref(&tree.root), &[real, alias]);
        let segs = BySegment(vec![tree.segment]);
        Self { tree, ctl, segs }
    }

    /// Resolves `path` below the parent of the root; checked against the kernel.
    fn at(&self, path: &str, follow: bool) -> Result<u64, Miss> {
        let full = bytes(&self.tree.root.with_file_name("").join(path)).to_vec();
        let ours = resolve(&self.ctl, &self.segs, &full, follow);
        if let Ok(f) = &ours {
            let st = kernel(&full, follow).unwrap_or_else(|e| panic!("{path}: found, kernel says {e}"));
            assert!(same(f, &st), "{path}: another file");
        }
        ours.map(|f| f.entry.record.ino)
    }
}

#[test]
fn an_alias_that_is_a_link_is_a_link_to_lstat() {
    let s = Small::new(|_| {});
    assert!(s.at("alias", true).is_ok());
    assert!(s.at("alias/", false).is_ok());
    assert!(s.at("alias/.", false).is_ok());
    assert!(s.at("alias", false).is_err(), "lstat of the link must be the kernel's");
    assert!(s.at(".//alias", false).is_err(), "also when it is spelled oddly");
}

#[test]
fn odd_spellings_in_front_of_a_root_are_hits() {
    let s = Small::new(|_| {});
    for path in [".//root/d/f", "./root/d/f", ".//.//root//d/.//f", "../{}/root/d/f", "./alias/d/f", "root//d///f"] {
        let dir = s.tree.dir.path().canonicalize().expect("real path");
        let path = path.replace("{}", dir.file_name().and_then(|n| n.to_str()).expect("name"));
        assert!(s.at(&path, true).is_ok(), "{path}");
    }
}

#[test]
fn chains_of_links_end_where_the_kernel_ends_them() {
    // Each link leads to the next one through the alias, which is a link, too: the kernel counts
    // both.
    let s = Small::new(|root| {
        let alias = root.with_file_name("alias");
        for n in 1..=45 {
            let (from, to) = (format!("n{n}"), if n == 1 { "d/f".to_owned() } else { format!("n{}", n - 1) });
            symlink(&to, root.join(&from)).expect("link");
            let to = if n == 1 { to } else { format!("a{}", n - 1) };
            symlink(alias.join(to), root.join(format!("a{n}"))).expect("link");
        }
    });
    for n in 1..=45 {
        for (kind, start) in [("n", "root"), ("n", "alias"), ("a", "root"), ("a", "alias")] {
            let found = s.at(&format!("{start}/{kind}{n}"), true);
            assert!(found.is_ok() || n > MAX_DUE_LINKS, "{start}/{kind}{n}: {found:?}");
        }
    }
}

#[test]
fn a_slash_behind_a_links_target_wants_a_directory() {
    let s = Small::new(|root| {
        symlink("d/f/", root.join("file")).expect("link");
        symlink("d/", root.join("dir")).expect("link");
        symlink("file", root.join("chain")).expect("link");
    });
    assert!(s.at("root/file", true).is_err());
    assert!(s.at("root/chain", true).is_err());
    assert!(s.at("root/file", false).is_ok());
    assert!(s.at("root/dir", true).is_ok());
    assert!(s.at("root/dir/f", true).is_ok());
    assert!(s.at("root/dir/f/", true).is_err());
    assert!(s.at("root/dir/f/..", true).is_err());
}

#[test]
fn a_path_that_only_starts_like_a_root_is_outside() {
    let s = Small::new(|_| {});
    assert_eq!(s.at("rootless/d/f", true), Err(Miss::Outside));
    assert_eq!(s.at("roo", true), Err(Miss::Outside));
    assert_eq!(s.at("root/..", true), Err(Miss::Outside));
    assert_eq!(s.at("root/d/../../other/f", true), Err(Miss::Outside));
    // Above the root the way to a root is known by name.
    assert_eq!(s.at("root/d/../../root/d/f", true), s.at("root/d/f", true));
    assert!(s.at("root/d/f", true).is_ok());
}
