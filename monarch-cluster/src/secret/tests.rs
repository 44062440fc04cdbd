//! One secret for all, and none that others could know.

use monarch_config::{Cluster, JobSecretSource};
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
                        UserSecret::load(None, &env).unwrap().current().derive("x")
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
    assert_eq!(one.current().derive("x"), two.current().derive("x"));
    let short = |name: &str| (name == VARIABLE).then(|| "short".to_owned());
    let error = UserSecret::load(Some(&path), &short).unwrap_err().to_string();
    assert!(error.starts_with("MONARCH_CLUSTER_SECRET holds a secret of 5 bytes"), "{error}");
    let error = UserSecret::load(None, &nothing).unwrap_err().to_string();
    assert!(error.contains("HOME"), "{error}");
    assert_eq!(format!("{one:?}"), "UserSecret(Lines { current: Secret(..), former: None })");
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
    let seed = |secret: &Secret| UserSecret::new(&secret.0, "a").unwrap().seed();
    assert_ne!(seed(&a), seed(&b));
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
    assert_eq!(hex(secret.current().derive("http")), "2ea96259f4dbac9e");
    let keys = [job.connections(), job.gossip(), job.tls(), job.tags()].map(hex);
    assert_eq!(keys, ["3ebe6eb101af1bf5", "872aeda6001e96b3", "fd2d8e13adc10e62", "06bcdaf51cc457d2"]);
    let (derived, given) = (JobSecret::numbered(&secret, "SLURM_JOB_ID=7"), job_of_file_bytes(&secret));
    assert_eq!([derived.connections(), given.connections()].map(hex), ["4564772ad503432c", "f5907574db05b1df"]);
    assert_eq!((job.port(&["a".to_owned()]), secret.seed()), (25407, 8_483_261_030_780_272_633));
}

/// The secret of a job that was given "a job's own secret".
fn job_of_file_bytes(user: &UserSecret) -> JobSecret {
    let env = |name: &str| (name == JOB_VARIABLE).then(|| "a job's own secret".to_owned());
    JobSecret::load(&Cluster::default(), user, &env).unwrap()
}

fn user() -> UserSecret {
    UserSecret::new(&[7; 32], "a test").unwrap()
}

/// The environment with these variables.
fn variables(pairs: &[(&str, &str)]) -> impl Fn(&str) -> Option<String> {
    let pairs: Vec<(String, String)> = pairs.iter().map(|(n, v)| ((*n).to_owned(), (*v).to_owned())).collect();
    move |name| pairs.iter().find(|(known, _)| known == name).map(|(_, value)| value.clone())
}

/// The section of a job with this file.
fn with_file(path: &Path) -> Cluster {
    Cluster { job_secret: JobSecretSource::File, job_secret_file: Some(path.to_owned()), ..Cluster::default() }
}

#[test]
fn each_job_has_keys_of_its_own_and_all_have_the_names_of_the_user() {
    let user = user();
    let derived = |pairs: &[(&str, &str)]| {
        let mut cluster = Cluster { job_secret: JobSecretSource::Derived, ..Cluster::default() };
        cluster.job = identify(&cluster, &variables(pairs)).unwrap();
        JobSecret::load(&cluster, &user, &nothing).unwrap()
    };
    let members = vec!["n1".to_owned(), "n2".to_owned()];
    let jobs = [
        JobSecret::of_user(&user),
        job_of_file_bytes(&user),
        derived(&[("SLURM_JOB_ID", "7")]),
        derived(&[("SLURM_JOB_ID", "8")]),
        derived(&[("SLURM_JOB_ID", "7"), ("SLURM_CLUSTER_NAME", "alps")]),
        // Numbers begin again, and a job that was put back in the queue keeps its number.
        derived(&[("SLURM_JOB_ID", "7"), ("SLURM_JOB_START_TIME", "1")]),
        derived(&[("PBS_JOBID", "7")]),
        derived(&[("LSB_JOBID", "7"), ("LSB_JOBINDEX", "1")]),
        derived(&[("LSB_JOBID", "7"), ("LSB_JOBINDEX", "2")]),
        derived(&[("MONARCH_JOB_ID", "7"), ("SLURM_JOB_ID", "7")]),
    ];
    type Key = fn(&JobSecret) -> [u8; 32];
    let keys: [Key; 4] = [JobSecret::connections, JobSecret::gossip, JobSecret::tls, JobSecret::tags];
    let all: BTreeSet<[u8; 32]> = jobs.iter().flat_map(|job| keys.map(|key| key(job))).collect();
    assert_eq!(all.len(), jobs.len() * keys.len(), "no key of a job is one of another");
    let ports: BTreeSet<u16> = jobs.iter().map(|job| job.port(&members)).collect();
    assert!(ports.len() >= jobs.len() - 1, "{ports:?}");
    // The seed, and so what copies are called, does not depend on the job.
    assert_eq!(user.seed(), UserSecret::new(&[7; 32], "a test").unwrap().seed());
    assert_eq!(derived(&[("SLURM_JOB_ID", " 7 ")]).gossip(), derived(&[("SLURM_JOB_ID", "7")]).gossip());
    let other = UserSecret::new(&[8; 32], "a test").unwrap();
    assert_ne!(JobSecret::numbered(&user, "7").tls(), JobSecret::numbered(&other, "7").tls());
    assert_ne!(job_of_file_bytes(&user).tls(), job_of_file_bytes(&other).tls(), "a node needs both secrets");
}

#[test]
fn a_job_without_a_number_is_refused_with_the_variables_that_were_looked_for() {
    let derived = Cluster { job_secret: JobSecretSource::Derived, ..Cluster::default() };
    let errors = [
        identify(&derived, &variables(&[("SLURM_JOB_ID", " "), ("SLURM_CLUSTER_NAME", "alps")])).unwrap_err(),
        JobSecret::load(&derived, &user(), &variables(&[("SLURM_JOB_ID", "7")])).unwrap_err(),
    ];
    for error in errors.map(|error| error.to_string()) {
        for fragment in ["cluster.job_secret is derived", "MONARCH_JOB_ID, SLURM_JOB_ID, PBS_JOBID", "none or file"] {
            assert!(error.contains(fragment), "no `{fragment}` in {error}");
        }
    }
    assert_eq!(identify(&Cluster::default(), &variables(&[("SLURM_JOB_ID", "7")])).unwrap(), None);
}

/// The one file of a job, made by whichever node comes first.
#[test]
fn of_the_nodes_of_a_job_one_makes_its_file_and_all_have_the_same_keys() {
    for _ in 0..20 {
        let dir = tempfile::tempdir().unwrap();
        let (path, user, barrier) = (dir.path().join("job-7"), user(), Barrier::new(16));
        let cluster = with_file(&path);
        let found: BTreeSet<[u8; 32]> = thread::scope(|scope| {
            let node = || {
                barrier.wait();
                JobSecret::load(&cluster, &user, &nothing).unwrap().connections()
            };
            let threads: Vec<_> = (0..16).map(|_| scope.spawn(node)).collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).collect()
        });
        assert_eq!(found.len(), 1);
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1, "nothing else is left");
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        // Handed out in the environment, the same secret is the same.
        let text = fs::read_to_string(&path).unwrap();
        let pairs = [(JOB_VARIABLE, text.as_str())];
        let env = variables(&pairs);
        let by_variable = JobSecret::load(&Cluster::default(), &user, &env).unwrap();
        assert!(found.contains(&by_variable.connections()));
        assert!(!found.contains(&JobSecret::of_user(&user).connections()));
    }
}

#[test]
fn a_file_of_the_job_that_others_could_know_is_refused_by_name() {
    let dir = tempfile::tempdir().unwrap();
    let error = |name: &str| {
        let error = JobSecret::load(&with_file(&dir.path().join(name)), &user(), &nothing).unwrap_err();
        error.to_string()
    };
    write(&dir.path().join("open"), "0123456789abcdef", 0o604);
    let open = error("open");
    assert!(open.contains("/open is open to others") && open.contains("chmod 600"), "{open}");
    write(&dir.path().join("short"), "0123", 0o600);
    assert!(error("short").contains("/short holds a secret of 4 bytes"), "{}", error("short"));
    let none = error("none/job");
    for fragment in ["cannot make the secret", "/none/job", "cluster.job_secret_file", JOB_VARIABLE] {
        assert!(none.contains(fragment), "no `{fragment}` in {none}");
    }
    let short = variables(&[(JOB_VARIABLE, "0123")]);
    let error = JobSecret::load(&Cluster::default(), &user(), &short).unwrap_err().to_string();
    assert!(error.starts_with("MONARCH_CLUSTER_JOB_SECRET holds a secret of 4 bytes"), "{error}");
    assert_eq!(identify(&Cluster::default(), &short).unwrap_err().to_string(), error);
}

#[test]
fn what_identifies_a_job_shows_no_secret() {
    let text = "a job's own secret";
    let shown = identify(&Cluster::default(), &variables(&[(JOB_VARIABLE, text)])).unwrap().unwrap();
    assert!(shown.starts_with("MONARCH_CLUSTER_JOB_SECRET (") && !shown.contains(text), "{shown}");
    let other = identify(&Cluster::default(), &variables(&[(JOB_VARIABLE, "another job's secret")])).unwrap();
    assert_ne!(other, Some(shown));
    assert_eq!(identify(&with_file(Path::new("/s/7")), &nothing).unwrap().as_deref(), Some("/s/7"));
}

#[test]
fn a_rotation_gives_other_keys_and_keeps_what_copies_are_called() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("secret");
    // As text, as bytes, in several lines, with blanks at its ends.
    let secrets: [&[u8]; 4] = [b"sixteen bytes...", &[0xff; 20], b"two lines of\na secret", b"  blanks at its ends  "];
    for text in secrets {
        fs::write(&path, text).unwrap();
        fs::set_permissions(&path, Permissions::from_mode(0o600)).unwrap();
        let load = || UserSecret::load(Some(&path), &nothing).unwrap();
        let mut all = vec![load()];
        for _ in 0..80 {
            assert_eq!(UserSecret::rotate(Some(&path), &nothing).unwrap(), path);
            all.push(load());
        }
        assert!(all.iter().all(|secret| secret.seed() == all[0].seed()), "{text:?}");
        let keys: BTreeSet<[u8; 32]> = all.iter().map(|secret| JobSecret::of_user(secret).connections()).collect();
        assert_eq!(keys.len(), all.len(), "no key is one of before");
        // However often: the new secret, and the one that names copies.
        let now = fs::read_to_string(&path).unwrap();
        assert!(now.lines().count() == 2 && now.lines().nth(1).unwrap().starts_with("former"), "{now}");
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1, "nothing else is left");
        // In the environment, the same text is the same secret.
        let env = |name: &str| (name == VARIABLE).then(|| now.clone());
        let by_variable = UserSecret::load(None, &env).unwrap();
        assert_eq!(
            (by_variable.seed(), by_variable.current().derive("x")),
            (load().seed(), load().current().derive("x"))
        );
    }
}

/// By hand, as the documentation says: the new secret, and behind it those of before.
#[test]
fn of_several_former_secrets_the_last_one_names_copies() {
    let of = |text: &str| UserSecret::new(text.as_bytes(), "a test");
    let (first, second, third) = ("the first secret", "the second secret", "the third secret");
    let all = of(&format!("{third}\r\nformer: {second}\r\nformer: {first}\r\n")).unwrap();
    assert_eq!(all.seed(), of(first).unwrap().seed());
    assert_eq!(all.current().derive("x"), of(third).unwrap().current().derive("x"));
    let error = |text: &str| of(text).unwrap_err().to_string();
    assert!(error(&format!("{third}\nformer: short")).starts_with("`former` in a test holds a secret of 5 bytes"));
    assert!(error(&format!("short\nformer: {first}")).starts_with("a test holds a secret of 5 bytes"));
    assert!(error(&format!("former: {first}")).starts_with("a test holds a secret of 0 bytes"));
    assert!(error(&format!("{third}\nformer-hex: xyz")).contains("something else than hexadecimal digits"));
}

/// A reader meanwhile, on whichever node, finds a whole file.
#[test]
fn while_secrets_are_rotated_every_reader_finds_the_seed() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("secret");
    let seed = UserSecret::load(Some(&path), &nothing).unwrap().seed();
    let over = std::sync::atomic::AtomicBool::new(false);
    thread::scope(|scope| {
        let rotate = || (0..40).for_each(|_| drop(UserSecret::rotate(Some(&path), &nothing).unwrap()));
        let rotating = [scope.spawn(rotate), scope.spawn(rotate)];
        let read = || {
            while !over.load(std::sync::atomic::Ordering::Relaxed) {
                assert_eq!(UserSecret::load(Some(&path), &nothing).unwrap().seed(), seed);
            }
        };
        let reading = [scope.spawn(read), scope.spawn(read)];
        rotating.into_iter().for_each(|thread| thread.join().unwrap());
        over.store(true, std::sync::atomic::Ordering::Relaxed);
        reading.into_iter().for_each(|thread| thread.join().unwrap());
    });
    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1, "nothing else is left");
}

#[test]
fn what_cannot_be_rotated_is_refused_and_stays() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("secret");
    let error = |env: &dyn Fn(&str) -> Option<String>| UserSecret::rotate(Some(&path), env).unwrap_err().to_string();
    assert!(error(&nothing).starts_with("there is no secret at "), "{}", error(&nothing));
    write(&path, "0123456789abcdef", 0o644);
    assert!(error(&nothing).contains("is open to others"), "{}", error(&nothing));
    // Its digits would be more than are read.
    fs::write(&path, [0xff; 3000]).unwrap();
    fs::set_permissions(&path, Permissions::from_mode(0o600)).unwrap();
    assert!(error(&nothing).contains("longer than any secret"), "{}", error(&nothing));
    assert_eq!(fs::read(&path).unwrap(), [0xff; 3000]);
    write(&path, "0123456789abcdef", 0o600);
    let env = |name: &str| (name == VARIABLE).then(|| "0123456789abcdef".to_owned());
    assert!(error(&env).contains("MONARCH_CLUSTER_SECRET") && error(&env).contains("`former: `"), "{}", error(&env));
    assert_eq!(fs::read_to_string(&path).unwrap(), "0123456789abcdef");
    assert!(UserSecret::rotate(None, &nothing).unwrap_err().to_string().contains("HOME"));
}
