//! The secret of a job: what its nodes prove to each other, and encrypt with.

use super::{Secret, UserSecret, first};

/// Ports that are derived: below those that the kernel gives to outgoing connections (from 32768 on
/// Linux).
pub(super) const PORTS: std::ops::RangeInclusive<u16> = 20_000..=29_999;

/// The secret of a job, the same on all of its nodes.
#[derive(Clone, Debug)]
pub struct JobSecret(pub(super) Secret);

impl JobSecret {
    /// Takes the user's secret for the job's.
    #[must_use]
    pub fn of_user(user: &UserSecret) -> Self {
        Self(user.0.clone())
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
        let mut parts: Vec<&[u8]> = members.iter().map(|member| member.as_bytes()).collect();
        parts.sort_unstable();
        parts.insert(0, b"monarch-cluster-port");
        let many = u64::from(PORTS.end() - PORTS.start()) + 1;
        PORTS.start() + u16::try_from(first(&self.0.code(&parts)) % many).unwrap_or_default()
    }
}
