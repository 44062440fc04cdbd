//! Copies that jobs with one secret have left, jobs that come with another one, and jobs with keys
//! of their own.

use monarch_core::cluster::secret::UserSecret;
use monarch_core::config::{self, Config, JobSecretSource, Overrides, Persist, SystemProbe};
use monarch_core::reader::Verdict;
use monarch_core::session::Session;
use monarch_core::tier::TierDir;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// How long an agent may take to copy a few files, or to end, on a busy machine.
const MAX_WAIT: Duration = Duration::from_secs(60);
/// Time in which a node that never starts owns files.
const JOIN_TIMEOUT: Duration = Duration::from_millis(100);
const FILES: usize = 8;

/// The configuration of one node of two, with a root of a few files and a tier below `dir`.
fn config(dir: &Path) -> Config {
    let make = |name: &str| {
        let path = dir.join(name);
        std::fs::DirBuilder::new().mode(0o700).recursive(true).create(&path).expect("a directory of the test");
        path
    };
    let (root, tier, runtime) = (make("root"), make("tier"), make("runtime"));
    for file in (0..FILES).map(|n| root.join(format!("file-{n}"))).filter(|file| !file.exists()) {
        std::fs::write(file, "data").expect("a file of the test");
    }
    let overrides =
        Overrides { roots: vec![root], tiers: vec![format!("{}:64MiB", tier.display())], ..Overrides::default() };
    let mut config = config::load(None, std::iter::empty(), &overrides, &SystemProbe).expect("it is valid").config;
    config.runtime_dir = Some(runtime);
    config.dataset.min_file_age = Duration::ZERO;
    config.tiers.iter_mut().for_each(|tier| tier.persist = Persist::Node);
    let cluster = &mut config.cluster;
    cluster.members = vec!["127.0.0.1".to_owned(), "127.0.0.2".to_owned()];
    (cluster.expected, cluster.listen) = (2, Some("127.0.0.1".to_owned()));
    (cluster.join_timeout, cluster.secret_file) = (JOIN_TIMEOUT, Some(dir.join("secret")));
    config
}

fn files(config: &Config) -> Vec<PathBuf> {
    (0..FILES).map(|n| config.dataset.roots[0].path.join(format!("file-{n}"))).collect()
}

/// Number of files of which a session has a copy.
fn hits(session: &Session, config: &Config) -> usize {
    files(config).iter().filter(|file| matches!(session.explain(file).verdict, Verdict::Hit)).count()
}

fn until(what: &str, mut is: impl FnMut() -> bool) {
    let began = Instant::now();
    while !is() {
        assert!(began.elapsed() < MAX_WAIT, "waited too long for {what}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// Ends a session, and waits for the end of its agent.
fn end(session: Session, config: &Config) {
    drop(session);
    let tier = config.tiers.first().expect("one tier");
    until("the end of the agent", || TierDir::open(&tier.name, &tier.path, tier.capacity, tier.keep_free).is_ok());
}

/// A job that leaves a copy of each file.
fn leave_copies(config: &Config) {
    let session = Session::start(config).expect("an agent in this process");
    session.wait_for_index(MAX_WAIT).expect("an index");
    // (Copies of another node's files are not kept for the next job.)
    std::thread::sleep(JOIN_TIMEOUT * 2);
    let root = &config.dataset.roots.first().expect("one root").path;
    session.prefetch(&[root]).expect("a request");
    until("the copies", || hits(&session, config) == FILES);
    end(session, config);
}

/// Files of which the next job has a copy before any file was opened or prefetched.
fn found(config: &Config) -> usize {
    let mut config = config.clone();
    config.prefetch.enabled = false;
    let session = Session::start(&config).expect("an agent in this process");
    session.wait_for_index(MAX_WAIT).expect("an index");
    let mut found = 0;
    let began = Instant::now();
    while found < FILES && began.elapsed() < Duration::from_secs(2) {
        found = hits(&session, &config);
        std::thread::sleep(Duration::from_millis(10));
    }
    end(session, &config);
    found
}

#[test]
fn after_a_rotation_the_next_job_finds_all_copies_and_after_another_secret_none() {
    let dir = tempfile::tempdir().expect("a directory");
    let config = config(dir.path());
    leave_copies(&config);
    let secret = dir.path().join("secret");
    let before = std::fs::read(&secret).expect("the secret");
    for _ in 0..2 {
        UserSecret::rotate(Some(&secret), &|_| None).expect("another secret");
        assert_ne!(std::fs::read(&secret).expect("the secret"), before);
        assert_eq!(found(&config), FILES);
    }
    std::fs::remove_file(&secret).expect("removed");
    assert_eq!(found(&config), 0);
}

#[test]
fn a_job_with_keys_of_its_own_finds_the_copies_of_other_jobs() {
    let dir = tempfile::tempdir().expect("a directory");
    let mut config = config(dir.path());
    leave_copies(&config);
    config.cluster.job_secret = JobSecretSource::Derived;
    for job in ["SLURM_JOB_ID=7", "SLURM_JOB_ID=8"] {
        config.cluster.job = Some(job.to_owned());
        assert_eq!(found(&config), FILES, "{job}");
    }
}

/// One agent cannot have the keys of both.
#[test]
fn a_second_job_with_other_keys_does_not_attach_to_the_agent_of_the_first() {
    let dir = tempfile::tempdir().expect("a directory");
    let mut config = config(dir.path());
    config.cluster.job_secret = JobSecretSource::Derived;
    config.cluster.job = Some("SLURM_JOB_ID=7".to_owned());
    let first = Session::start(&config).expect("an agent in this process");
    let mut other = config.clone();
    other.cluster.job = Some("SLURM_JOB_ID=8".to_owned());
    let error = Session::start(&other).expect_err("the agent has other keys").to_string();
    for fragment in ["other keys between its nodes (cluster.job_secret)", "SLURM_JOB_ID=7; this job: SLURM_JOB_ID=8"] {
        assert!(error.contains(fragment), "no `{fragment}` in {error}");
    }
    // Another step of the same job does.
    drop(Session::start(&config).expect("the same keys"));
    end(first, &config);
}
