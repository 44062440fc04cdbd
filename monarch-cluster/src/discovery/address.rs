//! Where a member is: a name, an IPv4 or IPv6 address, with or without a port of its own.

use std::io;
use std::net::{IpAddr, SocketAddr};

use super::error::DiscoveryError;
use super::local::Local;
use monarch_config::listen::host_and_port;

/// The addresses of a member, at its own port or else at `port`; never none, the one where it
/// listens by default first.
///
/// # Errors
/// No address is known for it.
pub fn resolve_addresses(member: &str, port: u16, local: &dyn Local) -> Result<Vec<SocketAddr>, DiscoveryError> {
    let (host, own) = host_and_port(member);
    let found = local.resolve(host).and_then(|found| {
        let found = best_first(found);
        if found.is_empty() { Err(io::Error::other("it leads to no address")) } else { Ok(found) }
    });
    let found = found.map_err(|error| DiscoveryError::Unresolved { member: member.to_owned(), error })?;
    Ok(found.into_iter().map(|address| SocketAddr::new(address, own.unwrap_or(port))).collect())
}

/// In the order in which they are tried; addresses that stand for all interfaces are left out.
pub(super) fn best_first(mut found: Vec<IpAddr>) -> Vec<IpAddr> {
    found.retain(|address| !address.is_unspecified() && !address.is_multicast());
    found.sort_by_key(|address| (rank(*address), *address));
    found.dedup();
    found
}

/// How far others reach it.
fn rank(address: IpAddr) -> u8 {
    match address {
        _ if address.is_loopback() => 3,
        IpAddr::V4(v4) if v4.is_link_local() => 2,
        IpAddr::V6(v6) if v6.is_unicast_link_local() => 2,
        IpAddr::V4(_) => 0,
        IpAddr::V6(_) => 1,
    }
}

#[cfg(test)]
mod tests {
    use super::super::FakeLocal;
    use super::*;

    #[test]
    fn hosts_and_ports() {
        for (member, host, port) in [
            ("node1", "node1", None),
            ("node1:7000", "node1", Some(7000)),
            ("node1:0", "node1:0", None),
            ("node1:70000", "node1:70000", None),
            ("10.0.0.1:80", "10.0.0.1", Some(80)),
            ("::1", "::1", None),
            ("[::1]", "::1", None),
            ("[::1]:80", "::1", Some(80)),
            ("", "", None),
            (":", ":", None),
        ] {
            assert_eq!(host_and_port(member), (host, port), "{member}");
        }
    }

    #[test]
    fn members_are_reached_at_their_own_port_or_the_common_one() {
        let local = FakeLocal::default()
            .name("a", &["::1", "fd00::1", "127.0.1.1", "10.0.0.9", "0.0.0.0"])
            .name("b", &["0.0.0.0"]);
        let found = resolve_addresses("a", 7, &local).unwrap();
        let texts: Vec<String> = found.iter().map(ToString::to_string).collect();
        assert_eq!(texts, ["10.0.0.9:7", "[fd00::1]:7", "127.0.1.1:7", "[::1]:7"]);
        assert_eq!(resolve_addresses("[fd00::2]:9", 7, &local).unwrap()[0].to_string(), "[fd00::2]:9");
        for bad in ["b", "c"] {
            let error = resolve_addresses(bad, 7, &local).unwrap_err().to_string();
            assert!(error.contains("no address is known for the node") && error.contains("/etc/hosts"), "{error}");
        }
    }
}
