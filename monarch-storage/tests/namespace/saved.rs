//! Saved index files: a saved index loads unchanged; anything else is an error, never a panic.

use crate::common::{Indexed, built, cases, held};
use monarch_storage::index::{Built, SavedError, Tree, build, load, load_within, save};
use monarch_storage::shm::BLOCK_BYTES;
use proptest::prelude::*;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::sync::OnceLock;

/// A saved index of a small tree.
struct Saved {
    _dir: tempfile::TempDir,
    built: Built,
    path: PathBuf,
    bytes: Vec<u8>,
}

fn saved() -> &'static Saved {
    static SAVED: OnceLock<Saved> = OnceLock::new();
    SAVED.get_or_init(|| {
        let tree = Indexed::new(|root| {
            std::fs::create_dir(root.join("d")).expect("mkdir");
            (0..60).for_each(|n| std::fs::write(root.join(format!("d/{n}")), vec![0; n]).expect("write"));
            std::os::unix::fs::symlink("d/1", root.join("l")).expect("link");
        });
        let built = built(&tree.root);
        let path = tree.dir.path().join("saved");
        save(&built, &path).expect("save");
        let bytes = std::fs::read(&path).expect("read");
        Saved { _dir: tree.dir, built, path, bytes }
    })
}

/// Loads these bytes as a file.
fn loaded(bytes: &[u8]) -> Result<(), SavedError> {
    let file = tempfile::NamedTempFile::new().expect("temp file");
    std::fs::write(file.path(), bytes).expect("write");
    load(file.path()).map(|_| ())
}

#[test]
fn a_saved_index_loads_unchanged() {
    let s = saved();
    let back = load(&s.path).expect("load");
    assert!(back.index() == s.built.index && back.buckets() == s.built.buckets);
    let leftovers = std::fs::read_dir(s.path.parent().expect("parent")).expect("list").flatten();
    assert_eq!(leftovers.filter(|e| e.file_name().to_string_lossy().contains(".tmp")).count(), 0);
}

/// An index of several blocks, each of which has a sum of its own.
#[test]
fn a_large_index_is_read_into_the_files_that_processes_map_and_damage_anywhere_is_noticed() {
    let built = build(Tree::synthetic(900, 1000), 42, [7; 16]);
    assert!(built.index.len() > BLOCK_BYTES + 8192);
    let dir = tempfile::tempdir_in("/dev/shm").expect("a directory");
    let path = dir.path().join("saved");
    save(&built, &path).expect("save");
    let loaded = load_within(&path, &held(dir.path())).expect("load");
    assert!(*loaded.index == *built.index && loaded.table.bytes() == built.buckets);
    drop(loaded);
    assert_eq!(std::fs::read_dir(dir.path()).expect("list").count(), 1, "what was not used is gone");
    let file = std::fs::OpenOptions::new().read(true).write(true).open(&path).expect("open");
    let len = file.metadata().expect("metadata").len();
    for at in [4096, BLOCK_BYTES as u64, BLOCK_BYTES as u64 + 4096, len - built.buckets.len() as u64, len - 1] {
        let mut byte = [0];
        file.read_exact_at(&mut byte, at).expect("read");
        file.write_all_at(&[byte[0] ^ 1], at).expect("write");
        let why = load_within(&path, &held(dir.path())).expect_err("damaged").to_string();
        assert!(why.contains("its checksum does not match"), "byte {at}: {why}");
        file.write_all_at(&byte, at).expect("write");
    }
    load_within(&path, &held(dir.path())).expect("whole again");
}

#[test]
fn an_error_names_the_file_and_the_remedy() {
    let s = saved();
    let text = |e: SavedError| e.to_string();
    let other = tempfile::NamedTempFile::new().expect("temp file");
    std::fs::write(other.path(), b"PK\x03\x04 this is no index at all, but it is long enough to be looked at by us")
        .expect("write");
    let e = text(load(other.path()).expect_err("no index"));
    assert!(e.contains(&other.path().display().to_string()) && e.contains("monarch index build"), "{e}");
    assert!(matches!(load(&s.path.with_file_name("no")), Err(SavedError::Io { .. })));
    assert!(load(s.path.parent().expect("parent")).is_err(), "a directory");
    assert!(loaded(b"").is_err());
    let mut later = s.bytes.clone();
    later[8] += 1;
    assert!(text(loaded(&later).expect_err("another version")).contains("another version"));
}

#[test]
fn saving_where_nothing_can_be_written_is_an_error() {
    assert!(matches!(save(&saved().built, &PathBuf::from("/proc/no/such/place")), Err(SavedError::Io { .. })));
}

proptest! {
    #![proptest_config(cases(300))]

    #[test]
    fn a_flipped_bit_is_noticed_wherever_it_is(at in any::<prop::sample::Index>(), bit in 0..8u32, header in any::<bool>()) {
        let mut bytes = saved().bytes.clone();
        let at = at.index(if header { 64 } else { bytes.len() });
        bytes[at] ^= 1 << bit;
        prop_assert!(loaded(&bytes).is_err(), "bit {bit} of byte {at}");
    }

    #[test]
    fn a_file_cut_short_or_grown_is_noticed(len in any::<prop::sample::Index>(), more in prop::collection::vec(any::<u8>(), 1..80)) {
        let bytes = &saved().bytes;
        prop_assert!(loaded(&bytes[..len.index(bytes.len())]).is_err());
        prop_assert!(loaded(&[bytes.as_slice(), &more].concat()).is_err());
    }

    #[test]
    fn garbage_behind_the_magic_is_noticed(garbage in prop::collection::vec(any::<u8>(), 0..300), keep in 0..64usize) {
        let mut bytes = saved().bytes[..keep].to_vec();
        bytes.extend_from_slice(&garbage);
        prop_assert!(loaded(&bytes).is_err());
    }
}
