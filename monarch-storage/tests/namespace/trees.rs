//! Small random trees: two roots, a directory outside, and links of every kind between them.

use crate::common::{BySegment, Spelled, as_path, built, bytes, control, publish};
use monarch_abi::control::ControlMap;
use proptest::prelude::*;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

const NAMES: [&[u8]; 10] = [b"a", b"b", b"c", b"dd", b"..x", b".h", b"sp ace", b"\xff\xfe", b"sub", b"..."];

/// A component of a link's target or of a path.
#[derive(Clone, Debug)]
pub(crate) enum Piece {
    /// A name of the pool, there or not.
    Name(usize),
    /// A name that is in the directory, if the path so far is one.
    Child(usize),
    Dot,
    DotDot,
    /// One more slash.
    Slash,
    /// A number of `/.`.
    Long(usize),
}

pub(crate) fn piece() -> impl Strategy<Value = Piece> {
    prop_oneof![
        12 => any::<u8>().prop_map(|n| Piece::Child(n.into())),
        2 => (0..NAMES.len()).prop_map(Piece::Name),
        2 => Just(Piece::Dot),
        4 => Just(Piece::DotDot),
        2 => Just(Piece::Slash),
    ]
}

/// Where an absolute link or a path starts: one of the spellings, or a place outside them.
pub(crate) const STARTS: usize = 8;

#[derive(Clone, Debug)]
enum Entry {
    Dir,
    File(u16),
    /// Relative, or absolute from a start.
    Link(Option<usize>, Vec<Piece>),
    /// A further name of an earlier file.
    Hard(usize),
}

#[derive(Clone, Debug)]
pub(crate) struct Plan(Vec<(usize, usize, Entry)>);

/// Up to `most` entries: in which directory, under which name, of which kind.
pub(crate) fn plan(most: usize) -> impl Strategy<Value = Plan> {
    let pieces = || prop::collection::vec(piece(), 0..5);
    let entry = prop_oneof![
        4 => Just(Entry::Dir),
        3 => (0..3000u16).prop_map(Entry::File),
        4 => pieces().prop_map(|p| Entry::Link(None, p)),
        3 => (0..STARTS, pieces()).prop_map(|(s, p)| Entry::Link(Some(s), p)),
        1 => any::<u8>().prop_map(|n| Entry::Hard(n.into())),
    ];
    prop::collection::vec((any::<u8>().prop_map(usize::from), 0..NAMES.len(), entry), 1..most).prop_map(Plan)
}

/// A tree on disk, indexed.
pub(crate) struct World {
    _dir: tempfile::TempDir,
    pub(crate) base: PathBuf,
    pub(crate) roots: Vec<PathBuf>,
    pub(crate) spellings: Vec<Spelled>,
    pub(crate) ctl: ControlMap<'static>,
    pub(crate) segs: BySegment,
}

impl World {
    pub(crate) fn new(plan: &Plan) -> Self {
        let dir = tempfile::tempdir().expect("temp dir");
        let base = dir.path().canonicalize().expect("real path").join("w");
        let roots = vec![base.join("r0"), base.join("r1")];
        let outside = base.join("out");
        for d in roots.iter().chain([&outside, &roots[0].join("sub")]) {
            std::fs::create_dir_all(d).expect("mkdir");
        }
        std::fs::write(outside.join("c"), b"outside").expect("write");
        for (to, name) in [("r0", "alias"), ("r0/sub", "into"), (".", "towards"), ("alias", "twice")] {
            symlink(to, base.join(name)).expect("link");
        }
        let spelled = |path: &str, sub, root| Spelled { path: base.join(path), sub, root };
        let spellings = vec![
            spelled("r0", "", 0),
            spelled("r1", "", 1),
            spelled("alias", "", 0),
            spelled("into", "sub", 0),
            spelled("towards/r1", "", 1),
            spelled("twice", "", 0),
        ];
        let mut dirs = vec![roots[0].clone(), roots[1].clone(), roots[0].join("sub"), outside];
        let mut files = Vec::new();
        let mut world_links = Vec::new();
        for (parent, name, entry) in &plan.0 {
            let at = dirs[parent % dirs.len()].join(as_path(NAMES[*name]));
            match entry {
                Entry::Dir if std::fs::create_dir(&at).is_ok() => dirs.push(at),
                Entry::File(len) if !exists(&at) => {
                    std::fs::write(&at, vec![b'x'; (*len).into()]).expect("write");
                    files.push(at);
                }
                // Within one root: a name outside is a way to the file that neither index nor agent
                // sees.
                Entry::Hard(n) if !files.is_empty() => {
                    let from: &PathBuf = &files[n % files.len()];
                    if roots.iter().any(|r| from.starts_with(r) && at.starts_with(r)) {
                        let _ = std::fs::hard_link(from, &at);
                    }
                }
                Entry::Link(start, pieces) => world_links.push((at, start, pieces)),
                _ => {}
            }
        }
        // Links come last, so that their targets can name what is there.
        for (at, start, pieces) in world_links {
            let target = match start {
                Some(s) => spell(&start_of(&base, &spellings, *s), pieces),
                None => relative_target(&at, pieces),
            };
            let _ = symlink(as_path(&target), &at);
        }
        let segs = BySegment(roots.iter().map(|r| publish(dir.path(), &built(r))).collect());
        let ctl = control(dir.path(), &roots, &spellings);
        Self { _dir: dir, base, roots, spellings, ctl, segs }
    }

    /// A path in an arbitrary spelling.
    pub(crate) fn path(&self, start: usize, pieces: &[Piece]) -> Vec<u8> {
        spell(&start_of(&self.base, &self.spellings, start), pieces)
    }

    /// Every entry of every root, relative to its root.
    pub(crate) fn entries(&self, root: usize) -> Vec<Vec<u8>> {
        let mut out = Vec::new();
        let mut todo = vec![self.roots[root].clone()];
        while let Some(d) = todo.pop() {
            for e in std::fs::read_dir(&d).expect("list").map(|e| e.expect("entry")) {
                if e.file_type().expect("type").is_dir() {
                    todo.push(e.path());
                }
                out.push(bytes(e.path().strip_prefix(&self.roots[root]).expect("below")).to_vec());
            }
        }
        out
    }
}

fn exists(path: &Path) -> bool {
    path.symlink_metadata().is_ok()
}

fn start_of(base: &Path, spellings: &[Spelled], n: usize) -> Vec<u8> {
    match spellings.get(n) {
        Some(s) => bytes(&s.path).to_vec(),
        None if n == spellings.len() => bytes(&base.join("out")).to_vec(),
        None => bytes(base).to_vec(),
    }
}

/// Puts pieces behind `path`.
fn spell(path: &[u8], pieces: &[Piece]) -> Vec<u8> {
    let mut out = path.to_vec();
    for p in pieces {
        match p {
            Piece::Name(n) => push(&mut out, NAMES[n % NAMES.len()]),
            Piece::Child(n) => {
                let name = child(as_path(&out), *n);
                push(&mut out, &name);
            }
            Piece::Dot => push(&mut out, b"."),
            Piece::DotDot => push(&mut out, b".."),
            Piece::Slash => out.push(b'/'),
            Piece::Long(n) => (0..*n).for_each(|_| push(&mut out, b".")),
        }
    }
    out
}

fn push(path: &mut Vec<u8>, name: &[u8]) {
    path.push(b'/');
    path.extend_from_slice(name);
}

/// The `n`-th name in a directory, or one of the pool.
fn child(dir: &Path, n: usize) -> Vec<u8> {
    let mut names: Vec<_> =
        std::fs::read_dir(dir).map(|d| d.flatten().map(|e| e.file_name()).collect()).unwrap_or_default();
    names.sort();
    match names.len() {
        0 => NAMES[n % NAMES.len()].to_vec(),
        len => bytes(Path::new(&names[n % len])).to_vec(),
    }
}

/// Pieces as the target of a relative link at `at`.
fn relative_target(at: &Path, pieces: &[Piece]) -> Vec<u8> {
    let dir = bytes(at.parent().expect("parent"));
    let spelled = spell(dir, pieces);
    let rel = spelled.get(dir.len()..).unwrap_or(&[]);
    let start = rel.iter().position(|&c| c != b'/').unwrap_or(rel.len());
    match &rel[start..] {
        // A target must not be empty: a link to itself, or to its directory.
        b"" if pieces.len().is_multiple_of(2) => bytes(Path::new(at.file_name().expect("name"))).to_vec(),
        b"" => b".".to_vec(),
        rel => rel.to_vec(),
    }
}
