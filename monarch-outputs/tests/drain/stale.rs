//! Directories of the PFS that other nodes remove or replace, while this node's client remembers
//! them.

use monarch_outputs::target::{DirTarget, OutputTarget};
use rustix::io::{Errno, Result};
use slowfs::Slowfs;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// A client that believes what it knows for ten minutes, and the tree as its server has it.
fn client() -> (Slowfs, tempfile::TempDir, tempfile::TempDir) {
    let (backing, mount) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let exe = std::env::current_exe().unwrap();
    let programs = std::env::var_os("MONARCH_E2E_BIN").map(PathBuf::from);
    let programs = programs.unwrap_or_else(|| exe.ancestors().nth(3).unwrap().join("release"));
    let fs = Slowfs::builder(backing.path(), mount.path()).program(programs.join("slowfs"));
    let fs = fs.attr_ttl(Duration::from_secs(600)).meta_latency(Duration::ZERO).data_latency(Duration::ZERO);
    (fs.spawn().expect("slowfs of a release build"), backing, mount)
}

type Call = fn(&dyn OutputTarget) -> Result<()>;

/// Each call about a name in the directory `sub`.
const CALLS: [(&str, Call); 10] = [
    ("open", |t| t.open(b"sub/old").map(drop)),
    ("open a part file", |t| t.open(b"sub/.monarch-part-1-1").map(drop)),
    ("create", |t| t.create(b"sub/new", 0o600).map(drop)),
    ("rename", |t| t.rename(b"sub/old", b"sub/new")),
    ("rename a part file", |t| t.rename(b"sub/.monarch-part-1-1", b"sub/new")),
    ("rename out of it", |t| t.rename(b"sub/old", b"new")),
    ("rename into it", |t| t.rename(b"top", b"sub/new")),
    ("unlink", |t| t.unlink(b"sub/old")),
    ("rmdir", |t| t.rmdir(b"sub/dir")),
    ("symlink", |t| t.symlink(b"sub/new", b"x")),
];

fn fill(dir: &Path) {
    std::fs::create_dir_all(dir.join("dir")).unwrap();
    std::fs::write(dir.join("old"), "x").unwrap();
    std::fs::write(dir.join(".monarch-part-1-1"), "x").unwrap();
}

#[test]
fn a_directory_that_another_node_removed_is_not_there() {
    let (fs, backing, _mount) = client();
    let dir = backing.path().join("sub");
    std::fs::write(backing.path().join("top"), "x").unwrap();
    let target = DirTarget::open(fs.mountpoint()).unwrap();
    for (name, call) in CALLS {
        fill(&dir);
        let _ = target.stat(b"sub/old");
        std::fs::remove_dir_all(&dir).unwrap();
        assert_eq!(call(&target), Err(Errno::NOENT), "{name}");
    }
}

#[test]
fn a_directory_that_another_node_replaced_is_found() {
    let (fs, backing, _mount) = client();
    let (dir, away) = (backing.path().join("sub"), backing.path().join("away"));
    for (name, call) in CALLS {
        std::fs::write(backing.path().join("top"), "x").unwrap();
        let target = DirTarget::open(fs.mountpoint()).unwrap();
        fill(&dir);
        let _ = target.stat(b"sub/old");
        std::fs::remove_dir_all(&dir).unwrap();
        fill(&away);
        std::fs::rename(&away, &dir).unwrap();
        assert_eq!(call(&target), Ok(()), "{name}");
        std::fs::remove_dir_all(&dir).unwrap();
        let _ = std::fs::remove_file(backing.path().join("new"));
        let _ = target.open(b"sub/old");
    }
}
