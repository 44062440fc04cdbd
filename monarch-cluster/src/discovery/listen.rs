//! Where this node listens for others: one address, never all of them.

use std::net::{IpAddr, Ipv4Addr};

use super::address::best_first;
use super::error::DiscoveryError;
use super::local::Local;
use monarch_config::Cluster;
use monarch_config::listen::{Listen, host_and_port};

/// The address to listen on: what `cluster.listen` says, or where this node's name leads. Never all
/// addresses; one that only this node reaches if no member is anywhere else.
///
/// # Errors
/// No address of this node fits, or it could not be reached.
pub fn listen_address(cluster: &Cluster, local: &dyn Local) -> Result<IpAddr, DiscoveryError> {
    let Some(me) = cluster.members.get(cluster.me) else {
        return Ok(Ipv4Addr::LOCALHOST.into());
    };
    let address = match &cluster.listen {
        Some(text) => asked(text, me, local)?,
        None => by_name(cluster, me, local)?,
    };
    if address.is_loopback() && elsewhere(cluster, local).is_some() {
        return Err(DiscoveryError::Loopback { address });
    }
    Ok(address)
}

/// The address that fits `cluster.listen`; of several, the one that the own name leads to.
fn asked(text: &str, me: &str, local: &dyn Local) -> Result<IpAddr, DiscoveryError> {
    let listen = Listen::parse(text)?;
    if let Listen::Address(address) = listen
        && local.is_local(address)
    {
        return Ok(address);
    }
    let all = local.addresses();
    let fit = all.iter().filter(|(name, address)| listen.holds(name, *address)).map(|(_, address)| *address).collect();
    let fit = best_first(fit);
    let named = local.resolve(host_and_port(me).0).unwrap_or_default();
    let found = fit.iter().find(|address| named.contains(address)).or(fit.first()).copied();
    found.ok_or_else(|| {
        let shown: Vec<String> = all.iter().map(|(name, address)| format!("{address} ({name})")).collect();
        DiscoveryError::NoInterface { listen: text.to_owned(), addresses: shown.join(", ") }
    })
}

/// Where the own name leads, or the host name (a pod's is in its `/etc/hosts` before DNS has it).
/// Some nodes know themselves only as 127.0.1.1 (Debian's `/etc/hosts`), or by the address that a
/// gateway has: then the address from which another member is reached.
fn by_name(cluster: &Cluster, me: &str, local: &dyn Local) -> Result<IpAddr, DiscoveryError> {
    let of_here = |name: &str| -> Vec<IpAddr> {
        let named = local.resolve(name).unwrap_or_default();
        best_first(named).into_iter().filter(|address| local.is_local(*address)).collect()
    };
    let own = of_here(host_and_port(me).0);
    let hosts = if own.is_empty() { local.hostname().map(|name| of_here(&name)) } else { None };
    if let Some(address) = own.iter().chain(hosts.iter().flatten()).find(|address| !address.is_loopback()) {
        return Ok(*address);
    }
    let there = elsewhere(cluster, local);
    let routed = there.and_then(|peer| local.source_for(peer)).filter(|address| !address.is_loopback());
    let alone = own.first().filter(|_| there.is_none()).copied();
    routed.or(alone).ok_or_else(|| DiscoveryError::NoAddress { me: me.to_owned() })
}

/// An address of another member that is not on this node.
fn elsewhere(cluster: &Cluster, local: &dyn Local) -> Option<IpAddr> {
    let others = cluster.members.iter().enumerate().filter(|(at, _)| *at != cluster.me);
    others.map(|(_, member)| host_and_port(member).0).find_map(|host| {
        let found = best_first(local.resolve(host).unwrap_or_default());
        found.into_iter().find(|address| !address.is_loopback())
    })
}
