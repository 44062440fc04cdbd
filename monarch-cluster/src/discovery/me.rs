//! Which of the members this node is.
//!
//! In this order: the member that `cluster.listen` is the address of (several agents on one
//! machine, in tests, have nothing else to tell them apart); the name that the job gives this node,
//! then its host name, in full, then without the domain; its number in the job; the members whose
//! addresses are this node's. The last one asks DNS for every member, so it comes last.

use std::net::IpAddr;

use super::error::DiscoveryError;
use super::local::Local;
use monarch_config::Cluster;
use monarch_config::listen::host_and_port;

/// Names of the list that a message shows.
const MAX_NAMES_SHOWN: usize = 6;

/// Finds this node among the members; `names` and `rank` are what the job says about it.
pub(super) fn find(
    members: &[String],
    names: &[String],
    rank: Option<usize>,
    config: &Cluster,
    local: &dyn Local,
) -> Result<usize, DiscoveryError> {
    let listen: Option<IpAddr> = config.listen.as_deref().and_then(|text| text.parse().ok());
    let is_listen = |host: &str| listen.is_some() && host.parse().ok() == listen;
    if let Some(at) = only(members, config.port, is_listen)? {
        return Ok(at);
    }
    let names: Vec<String> = names.iter().cloned().chain(local.hostname()).collect();
    for name in &names {
        let full = only(members, config.port, |host| host.eq_ignore_ascii_case(name))?;
        let found = if full.is_none() { only(members, config.port, |host| alike(host, name))? } else { full };
        if let Some(at) = found {
            return Ok(at);
        }
    }
    if let Some(rank) = rank.filter(|rank| *rank < members.len()) {
        return Ok(rank);
    }
    let here = |host: &str| local.resolve(host).is_ok_and(|found| found.iter().any(|address| local.is_local(*address)));
    only(members, config.port, here)?.ok_or_else(|| not_listed(members, &names))
}

/// The only member whose host is the one; of several, the only one with this node's port.
fn only(members: &[String], port: Option<u16>, is_it: impl Fn(&str) -> bool) -> Result<Option<usize>, DiscoveryError> {
    let mut found: Vec<usize> = (0..members.len()).filter(|at| is_it(host_and_port(&members[*at]).0)).collect();
    if found.len() > 1 && port.is_some() {
        let with_port: Vec<usize> = found.iter().copied().filter(|at| host_and_port(&members[*at]).1 == port).collect();
        found = if with_port.is_empty() { found } else { with_port };
    }
    match found.as_slice() {
        [] => Ok(None),
        [at] => Ok(Some(*at)),
        [a, b, ..] => Err(DiscoveryError::Twice { first: members[*a].clone(), second: members[*b].clone() }),
    }
}

/// Whether one is the other without its domain.
fn alike(a: &str, b: &str) -> bool {
    let is_address = |name: &str| name.parse::<IpAddr>().is_ok();
    let short = |name: &str| name.split('.').next().unwrap_or_default().to_ascii_lowercase();
    let one_is_short = !a.contains('.') || !b.contains('.');
    one_is_short && !is_address(a) && !is_address(b) && short(a) == short(b)
}

fn not_listed(members: &[String], names: &[String]) -> DiscoveryError {
    let mut list = members.iter().take(MAX_NAMES_SHOWN).map(String::as_str).collect::<Vec<_>>().join(", ");
    if members.len() > MAX_NAMES_SHOWN {
        list.push_str(&format!(", ... ({} in all)", members.len()));
    }
    let names = if names.is_empty() { "nothing, as it has no name".to_owned() } else { names.join(", ") };
    DiscoveryError::NotListed { list, names }
}
