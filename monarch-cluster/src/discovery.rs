//! Which nodes a job has, from the environment that it was started in, and which of them this one
//! is.
//!
//! | module | what it does |
//! |---|---|
//! | `found` | what a list of nodes says |
//! | `sources` | the list of nodes of each kind of job |
//! | `torchrun` | jobs of which only the first node is known |
//! | `me` | which of the nodes this one is |
//! | `address` | where a member is, and where to listen |
//! | `local` | what is asked of the machine, with a double |
//!
//! [`discover`] reads variables and files that launchers leave, and fills in the members of the
//! configuration. All nodes read the same list in the same order, so they need not agree on
//! anything. Nothing is sent to another node: names are looked up only where a node does not find
//! itself by its own name.
//!
//! A node that takes itself for alone, or for another one, reads from the PFS what other nodes
//! have; it looks like a slow job. So a list without this node is an error, and so is a launcher
//! that was named and is not there; only `auto` may find nothing.

mod address;
mod error;
mod fake;
mod found;
mod listen;
mod local;
mod me;
mod sources;
#[cfg(test)]
mod tests;
mod torchrun;

pub use address::resolve_addresses;
pub use error::DiscoveryError;
pub use fake::FakeLocal;
pub use listen::listen_address;
pub use local::{Env, Local, SystemLocal};
pub use monarch_config::hostlist::{HostlistError, MAX_LENGTH, MAX_NAME, MAX_NAMES, parse_hostlist, parse_nodes};
pub use monarch_config::listen::{Listen, ListenError, host_and_port};

use crate::secret;
use found::Found;
use monarch_config::{Cluster, Discovery};
use std::time::{Duration, Instant};

/// How long a name in DNS is waited for to lead to this node.
const DNS_TIMEOUT: Duration = Duration::from_secs(30);
/// How often the name is looked up meanwhile.
const DNS_LOOKUP_PERIOD: Duration = Duration::from_secs(1);

/// Finds the nodes of the job, and fills in `members`, `me`, `expected`, `partial` and `job`.
///
/// `env` is the environment of the job, usually of this process; `local` the machine, usually
/// [`SystemLocal`].
///
/// # Errors
/// There is no list where one was asked for, it cannot be read, or this node is not in it. The job
/// is to have keys of its own, and has no number.
pub fn discover(config: &mut Cluster, env: &Env<'_>, local: &dyn Local) -> Result<(), DiscoveryError> {
    find_nodes(config, env, local)?;
    config.job = if config.is_alone() { None } else { secret::identify(config, env)? };
    Ok(())
}

fn find_nodes(config: &mut Cluster, env: &Env<'_>, local: &dyn Local) -> Result<(), DiscoveryError> {
    let found = match config.discovery {
        Discovery::None => None,
        Discovery::Auto => sources::auto(env, local)?,
        Discovery::Static => Some(sources::of_nodes(&config.nodes)?),
        Discovery::Slurm => Some(sources::slurm(env)?.ok_or(sources::NO_SLURM)?),
        Discovery::Mpi => Some(sources::lists(env, local)?.ok_or(sources::NO_LIST)?),
        Discovery::Torchrun => Some(torchrun::find(env, local)?.ok_or(torchrun::NO_TORCHRUN)?),
        Discovery::Dns => return by_dns(config, local),
    };
    fill_in(config, found.unwrap_or_default(), local)
}

/// The same by a name in DNS, which may lead to this node only some seconds after it has started.
fn by_dns(config: &mut Cluster, local: &dyn Local) -> Result<(), DiscoveryError> {
    let name = config.dns.clone().unwrap_or_default();
    let mut waited = Duration::ZERO;
    loop {
        let start = Instant::now();
        let found = sources::dns(&name, local).and_then(|found| fill_in(config, found, local));
        waited += start.elapsed();
        match found {
            Err(DiscoveryError::Unresolved { .. } | DiscoveryError::NotListed { .. }) if waited < DNS_TIMEOUT => {
                local.wait(DNS_LOOKUP_PERIOD);
                waited += DNS_LOOKUP_PERIOD;
            }
            other => return other,
        }
    }
}

fn fill_in(config: &mut Cluster, found: Found, local: &dyn Local) -> Result<(), DiscoveryError> {
    let Found { members, names, rank, expected, partial, origin } = found;
    let members = sources::checked(members, &origin, expected == 0)?;
    config.me = match members.len() {
        // No node to be mistaken for; a name in DNS may still lead to another node alone, while
        // others start.
        0 | 1 if !partial && config.discovery != Discovery::Dns => 0,
        _ => me::find(&members, &names, rank, config, local)?,
    };
    config.expected = expected.max(members.len());
    config.partial = partial;
    config.members = members;
    Ok(())
}
