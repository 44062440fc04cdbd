//! The secret of a job: what its nodes prove to each other, and encrypt with.
//!
//! * Without a secret of its own (`cluster.job_secret: none`) the job has the user's.
//! * `derived`: HMAC-SHA256 of the job's number under the user's secret. Every node computes it
//!   alike, and a key of one job reveals nothing about those of another.
//! * `file`, or the variable `MONARCH_CLUSTER_JOB_SECRET`: HMAC-SHA256 of what these hold under the
//!   user's secret. So a node needs both secrets: one with another secret of the user would call
//!   copies by other names, and is refused instead.

use super::error::{Holder, JOB_VARIABLE, SecretError};
use super::file::SecretFile;
use super::{Secret, UserSecret, first, job_number};
use monarch_config::{Cluster, JobSecretSource};

/// Ports that are derived: below those that the kernel gives to outgoing connections (from 32768 on
/// Linux).
pub(super) const PORTS: std::ops::RangeInclusive<u16> = 20_000..=29_999;

/// The secret of a job, the same on all of its nodes.
#[derive(Clone, Debug)]
pub struct JobSecret(pub(super) Secret);

impl JobSecret {
    /// Loads or derives the secret of a job. Makes the file of a job that is missing, and waits at
    /// most 10 s for one that another node has made to be seen here.
    ///
    /// # Errors
    /// It is too short, another user could have read it, its file cannot be read or made, or the
    /// job has no number.
    pub fn load(
        cluster: &Cluster,
        user: &UserSecret,
        env: &dyn Fn(&str) -> Option<String>,
    ) -> Result<Self, SecretError> {
        if let Some(given) = given(env)? {
            return Ok(Self::given(user, &given));
        }
        match cluster.job_secret {
            JobSecretSource::None => Ok(Self::of_user(user)),
            JobSecretSource::Derived => {
                cluster.job.as_deref().map(|job| Self::numbered(user, job)).ok_or_else(job_number::none)
            }
            JobSecretSource::File => {
                let path = cluster.job_secret_file.as_deref().ok_or(SecretError::NoJobFile)?;
                let secret = Secret(SecretFile { path, holder: Holder::Job }.load()?);
                Ok(Self::given(user, &secret))
            }
        }
    }

    /// Derives the secret of the job with this number.
    #[must_use]
    pub fn numbered(user: &UserSecret, job: &str) -> Self {
        Self::derived(user, b"number", job.as_bytes())
    }

    /// Derives the secret of the job that was given this one.
    fn given(user: &UserSecret, secret: &Secret) -> Self {
        Self::derived(user, b"given", &secret.0)
    }

    fn derived(user: &UserSecret, kind: &[u8], from: &[u8]) -> Self {
        Self(Secret(user.current().code(&[b"monarch-cluster-job", kind, from]).to_vec()))
    }

    /// Takes the user's secret for the job's.
    #[must_use]
    pub fn of_user(user: &UserSecret) -> Self {
        Self(user.current().clone())
    }

    /// Returns the key of the proofs by which connections begin.
    #[must_use]
    pub fn connections(&self) -> [u8; 32] {
        self.0.derive("wire")
    }

    /// Returns the key of gossip.
    #[must_use]
    pub fn gossip(&self) -> [u8; 32] {
        self.0.derive("gossip")
    }

    /// Returns the seed of the key that both ends of an encrypted connection have.
    #[must_use]
    pub fn tls(&self) -> [u8; 32] {
        self.0.derive("tls")
    }

    /// Returns the key of the tags of bytes of files.
    #[must_use]
    pub fn tags(&self) -> [u8; 32] {
        self.0.derive("tags")
    }

    /// Returns the port of a job with these members, so that jobs of one user on the same nodes
    /// seldom meet: 20000 to 29999. The order does not matter. The members are those that every
    /// node knows: [`Cluster::agreed`](monarch_config::Cluster::agreed).
    #[must_use]
    pub fn port(&self, members: &[String]) -> u16 {
        let mut parts: Vec<&[u8]> = members.iter().map(String::as_bytes).collect();
        parts.sort_unstable();
        parts.insert(0, b"monarch-cluster-port");
        let many = u64::from(PORTS.end() - PORTS.start()) + 1;
        PORTS.start() + u16::try_from(first(&self.0.code(&parts)) % many).unwrap_or_default()
    }
}

/// Returns what tells the keys of this job from those of other jobs, without being secret: `None`
/// where all jobs of the user have the same.
///
/// # Errors
/// The secret in the variable is too short, or the job has no number.
pub fn identify(cluster: &Cluster, env: &dyn Fn(&str) -> Option<String>) -> Result<Option<String>, SecretError> {
    if let Some(given) = given(env)? {
        let print = given.derive("fingerprint");
        let print = data_encoding::HEXLOWER.encode(print.get(..8).unwrap_or_default());
        return Ok(Some(format!("{JOB_VARIABLE} ({print})")));
    }
    match cluster.job_secret {
        JobSecretSource::None => Ok(None),
        JobSecretSource::Derived => job_number::of(env).map(Some).ok_or_else(job_number::none),
        JobSecretSource::File => Ok(cluster.job_secret_file.as_ref().map(|path| path.display().to_string())),
    }
}

/// Returns the job's secret from the environment.
fn given(env: &dyn Fn(&str) -> Option<String>) -> Result<Option<Secret>, SecretError> {
    let text = env(JOB_VARIABLE).filter(|text| !text.is_empty());
    text.map(|text| Secret::new(text.trim_end_matches('\n').as_bytes(), JOB_VARIABLE)).transpose()
}
