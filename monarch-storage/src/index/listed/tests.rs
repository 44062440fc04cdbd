//! What is sent of a directory arrives; whatever arrives instead is refused or harmless.

use super::*;
use proptest::prelude::*;
use std::os::unix::fs::symlink;
use std::path::Path;

fn reader(root: &Path) -> DirReader {
    DirReader::new(root.to_owned(), Arc::default(), 2)
}

/// A directory with a file, a directory and a link in it, and an empty one.
fn tree() -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    std::fs::create_dir_all(dir.path().join("a/b")).unwrap();
    std::fs::write(dir.path().join("a/file"), "12345").unwrap();
    symlink("../a/file", dir.path().join("a/link")).unwrap();
    dir
}

fn message(root: &Path) -> Vec<u8> {
    encode(&reader(root).read(&[b"./a", b"./no", b"./a/b", b"."]).unwrap())
}

#[test]
fn a_listing_arrives_as_it_was_read() {
    let dir = tree();
    let came = decode(&message(dir.path())).unwrap();
    assert_eq!(came.iter().map(Option::is_some).collect::<Vec<_>>(), [true, false, true, true]);
    let read = reader(dir.path()).read(&[b"./a"]).unwrap().remove(0).unwrap();
    let a = came[0].as_ref().unwrap();
    assert_eq!((a.dir.names.as_slice(), a.dir.links.as_slice()), (&*read.dir.names, &*read.dir.links));
    // (Reading a directory may have changed when it was read last.)
    let entries = |l: &Listed| l.dir.entries.iter().map(|r| Record { atime_ns: 0, ..*r }).collect::<Vec<_>>();
    assert_eq!((entries(a).as_bytes(), &a.dir.btimes), (entries(&read).as_bytes(), &read.dir.btimes));
    assert_eq!((&a.owners, a.dir.parent_ino, a.dir.flags), (&read.owners, read.dir.parent_ino, read.dir.flags));
    assert!(a.is_of(&read.own, read.owner) && !came[2].as_ref().unwrap().is_of(&read.own, read.owner));
    // One that was changed since, or has another owner, is not the directory that is meant.
    assert!(!a.is_of(&Record { ctime_ns: 1, ..read.own }, read.owner) && !a.is_of(&read.own, Some(7 << 32)));
}

#[test]
fn no_path_leads_out_of_the_root() {
    let dir = tree();
    symlink("/", dir.path().join("out")).unwrap();
    let paths: [&[u8]; 9] = [b"", b"/", b"..", b"./..", b"./a/../a", b"a", b"./a/", b"./out/etc", b"./a\0"];
    assert!(reader(dir.path()).read(&paths).unwrap().iter().all(Option::is_none));
    let named = encode_paths(&paths);
    assert_eq!(decode_paths(&named).unwrap(), paths);
    assert!((1..named.len()).any(|end| decode_paths(&named[..end]).is_none()));
}

#[test]
fn listings_that_do_not_make_sense_are_refused() {
    let dir = tree();
    let whole = message(dir.path());
    let listed = || decode(&whole).unwrap().remove(0).unwrap();
    let link = |l: &Listed| l.dir.entries.iter().position(Record::is_link).unwrap();
    let refused = |what: &str, change: &dyn Fn(&mut Listed)| {
        let mut l = listed();
        change(&mut l);
        assert!(decode(&encode(&[Some(l)])).is_none(), "{what}");
    };
    refused("an owner that is not there", &|l| l.dir.entries[0].owner = 9);
    refused("a name beyond the names", &|l| l.dir.entries[0].name_lo = 1 << 20);
    refused("an empty name", &|l| l.dir.entries[0].name_len = 0);
    refused("a name with a slash", &|l| l.dir.names[0] = b'/');
    refused("a link without a target", &|l| {
        let at = link(l);
        l.dir.entries[at].aux = 1000;
    });
    refused("a name that is there twice", &|l| {
        l.dir.entries[1] = l.dir.entries[0];
    });
    refused("birth times of other entries", &|l| l.dir.btimes.truncate(1));
    refused("a place in the tree", &|l| {
        let at = l.dir.entries.iter().position(Record::is_dir).unwrap();
        l.dir.entries[at].aux = 5;
    });
    assert!(decode(&encode(&[Some(listed())])).is_some());
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    /// Decoding gives nothing, or listings whose parts can all be used.
    #[test]
    fn any_bytes_are_taken_for_what_they_are(
        at in any::<prop::sample::Index>(), to in any::<u8>(), cut in any::<prop::sample::Index>(), cuts in any::<bool>(),
        other in prop::collection::vec(any::<u8>(), 0..300),
    ) {
        thread_local!(static WHOLE: Vec<u8> = message(tree().path()));
        let mut bytes = WHOLE.with(Clone::clone);
        let at = at.index(bytes.len());
        bytes[at] = to;
        if cuts {
            bytes.truncate(cut.index(bytes.len()));
        }
        for bytes in [bytes, [&MAGIC[..], &other].concat(), other] {
            for l in decode(&bytes).into_iter().flatten().flatten() {
                prop_assert_eq!(l.dir.entries.len(), l.dir.btimes.len());
                for r in &l.dir.entries {
                    prop_assert!(is_name(l.dir.name(r)));
                    prop_assert!(!r.is_link() || link_end(&l.dir.links, r.aux as usize).is_some());
                }
            }
            let _ = decode_paths(&bytes);
        }
    }
}
