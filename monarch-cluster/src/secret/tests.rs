//! One secret for all, and none that others could know.

use std::collections::BTreeSet;
use std::fs::{self, Permissions};
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::Path;
use std::sync::Barrier;
use std::thread;

use super::job::PORTS;
use super::user::default_file;
use super::*;

fn nothing(_: &str) -> Option<String> {
    None
}

fn write(path: &Path, text: &str, mode: u32) {
    fs::write(path, text).unwrap();
    fs::set_permissions(path, Permissions::from_mode(mode)).unwrap();
}

#[track_caller]
fn refused(path: &Path, fragments: &[&str]) {
    let error = UserSecret::load(Some(path), &nothing).unwrap_err().to_string();
    for fragment in fragments {
        assert!(error.contains(fragment), "no `{fragment}` in {error}");
    }
}

#[test]
fn of_many_that_start_at_once_one_makes_the_file_and_all_read_the_same() {
    for _ in 0..20 {
        let dir = tempfile::tempdir().unwrap();
        let home = dir.path().to_str().unwrap().to_owned();
        let barrier = Barrier::new(32);
        let found: BTreeSet<[u8; 32]> = thread::scope(|scope| {
            let threads: Vec<_> = (0..32)
                .map(|_| {
                    scope.spawn(|| {
                        barrier.wait();
                        let env = |name: &str| (name == "HOME").then(|| home.clone());
                        UserSecret::load(None, &env).unwrap().0.derive("x")
                    })
                })
                .collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).collect()
        });
        assert_eq!(found.len(), 1);
        let names: Vec<_> = fs::read_dir(dir.path().join(".config/monarch")).unwrap().collect();
        assert_eq!(names.len(), 1, "nothing else is left");
        let path = dir.path().join(".config/monarch/cluster-secret");
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        assert_eq!(fs::read_to_string(&path).unwrap().trim_end().len(), 64);
        assert_eq!(fs::metadata(path.parent().unwrap()).unwrap().permissions().mode() & 0o777, 0o700);
    }
}

#[test]
fn what_others_could_know_is_no_secret() {
    let dir = tempfile::tempdir().unwrap();
    let at = |name: &str| dir.path().join(name);
    let good = "0123456789abcdef";
    write(&at("open"), good, 0o640);
    refused(&at("open"), &["is open to others", "chmod 600"]);
    write(&at("good"), good, 0o600);
    symlink(at("good"), at("link")).unwrap();
    refused(&at("link"), &["is a symbolic link"]);
    fs::create_dir(at("dir")).unwrap();
    refused(&at("dir"), &["is not a regular file"]);
    rustix::fs::mknodat(rustix::fs::CWD, at("pipe"), rustix::fs::FileType::Fifo, 0o600.into(), 0).unwrap();
    refused(&at("pipe"), &["is not a regular file"]);
    write(&at("short"), "0123456789abcde\n", 0o600);
    refused(&at("short"), &["15 bytes", "at least 16", "openssl"]);
    write(&at("long"), &"x".repeat(5000), 0o600);
    refused(&at("long"), &["longer than any secret"]);
    refused(&at("none/secret"), &["cannot make the secret", "No such file", "cluster.secret_file"]);
    assert!(UserSecret::load(Some(&at("good")), &nothing).is_ok());
    if rustix::process::geteuid().is_root() {
        std::os::unix::fs::chown(at("good"), Some(12_345), None).unwrap();
        refused(&at("good"), &["belongs to another user"]);
    }
}

#[test]
fn the_environment_goes_before_the_file() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("secret");
    write(&path, "a file of 16 byte\n", 0o400);
    let env = |name: &str| (name == VARIABLE).then(|| "a file of 16 byte".to_owned());
    let (one, two) = (UserSecret::load(Some(&path), &nothing).unwrap(), UserSecret::load(None, &env).unwrap());
    assert_eq!(one.0.derive("x"), two.0.derive("x"));
    let short = |name: &str| (name == VARIABLE).then(|| "short".to_owned());
    let error = UserSecret::load(Some(&path), &short).unwrap_err().to_string();
    assert!(error.starts_with("MONARCH_CLUSTER_SECRET holds a secret of 5 bytes"), "{error}");
    let error = UserSecret::load(None, &nothing).unwrap_err().to_string();
    assert!(error.contains("HOME"), "{error}");
    assert_eq!(format!("{one:?}"), "UserSecret(Secret(..))");
}

#[test]
fn where_the_default_file_is() {
    let at = |pairs: &'static [(&str, &str)]| {
        let env = move |name: &str| pairs.iter().find(|(n, _)| *n == name).map(|(_, value)| (*value).to_owned());
        default_file(&env).map(|path| path.display().to_string())
    };
    assert_eq!(at(&[("HOME", "/h")]).as_deref(), Some("/h/.config/monarch/cluster-secret"));
    assert_eq!(at(&[("HOME", "/h"), ("XDG_CONFIG_HOME", "/x")]).as_deref(), Some("/x/monarch/cluster-secret"));
    assert_eq!(at(&[("HOME", "/h"), ("XDG_CONFIG_HOME", "x")]).as_deref(), Some("/h/.config/monarch/cluster-secret"));
    assert_eq!(at(&[("HOME", "")]), None);
}

#[test]
fn each_purpose_has_a_key_of_its_own() {
    let (a, b) = (Secret::new(&[7; 32], "a").unwrap(), Secret::new(&[8; 32], "b").unwrap());
    assert_eq!(a.derive("http"), a.clone().derive("http"));
    assert_ne!(a.derive("http"), a.derive("gossip"));
    assert_ne!(a.derive("http"), b.derive("http"));
    assert_ne!(UserSecret(a.clone()).seed(), UserSecret(b).seed());
    let members = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>();
    let job = JobSecret(a.clone());
    let port = job.port(&members(&["n1", "n2"]));
    assert_eq!(port, job.port(&members(&["n2", "n1"])));
    let ports: BTreeSet<u16> = (0..500).map(|n| job.port(&members(&["n1", &format!("n{n}")]))).collect();
    assert!(ports.len() > 450 && ports.iter().all(|port| PORTS.contains(port)));
    assert_ne!(a.code(&[b"ab", b"c"]), a.code(&[b"a", b"bc"]));
}

/// What releases agree on: a mixture of them in one job must find the same port and keys, and find
/// each other's copies.
#[test]
fn what_is_derived_stays_the_same() {
    let secret = UserSecret::new(b"sixteen bytes...", "a test").unwrap();
    let hex = |key: [u8; 32]| data_encoding::HEXLOWER.encode(&key[..8]);
    let job = JobSecret::of_user(&secret);
    assert_eq!(hex(secret.0.derive("http")), "2ea96259f4dbac9e");
    let keys = [job.connections(), job.gossip(), job.tls(), job.tags()].map(hex);
    assert_eq!(keys, ["3ebe6eb101af1bf5", "872aeda6001e96b3", "fd2d8e13adc10e62", "06bcdaf51cc457d2"]);
    assert_eq!((job.port(&["a".to_owned()]), secret.seed()), (25407, 8_483_261_030_780_272_633));
}
