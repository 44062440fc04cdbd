//! Where a node listens, as `cluster.listen` says it, and how members are written: a host with or
//! without a port.

use std::net::{IpAddr, SocketAddr};

/// A text that is neither an interface, nor a subnet, nor an address.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ListenError {
    /// All interfaces.
    #[error("{0} stands for all interfaces, those that strangers reach too")]
    All(String),
    /// It has a port, which does not belong there.
    #[error("{0} has a port, which belongs in cluster.port")]
    Port(String),
    /// Something else.
    #[error("`{0}` is not an interface, a subnet or an address")]
    Neither(String),
}

/// `cluster.listen` as meant.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Listen {
    /// This address.
    Address(IpAddr),
    /// An address of this node in this subnet: its network and the bits that count.
    Subnet(IpAddr, u8),
    /// An address of this interface.
    Interface(String),
}

impl Listen {
    /// Reads `ib0`, `10.0.0.0/8` or `10.0.0.7`.
    ///
    /// # Errors
    /// It is none of those, or stands for all interfaces.
    pub fn parse(text: &str) -> Result<Self, ListenError> {
        let neither = || ListenError::Neither(text.to_owned());
        if let Ok(address) = text.parse::<IpAddr>() {
            let all = address.is_unspecified();
            return if all { Err(ListenError::All(text.to_owned())) } else { Ok(Self::Address(address)) };
        }
        if let Some((network, bits)) = text.split_once('/') {
            let network: IpAddr = network.parse().map_err(|_| neither())?;
            let most = if network.is_ipv4() { 32 } else { 128 };
            return match bits.parse::<u8>() {
                Ok(0) => Err(ListenError::All(text.to_owned())),
                Ok(bits) if bits <= most => Ok(Self::Subnet(network, bits)),
                _ => Err(neither()),
            };
        }
        if host_and_port(text).1.is_some() || text.parse::<SocketAddr>().is_ok() {
            return Err(ListenError::Port(text.to_owned()));
        }
        // What the kernel allows: IFNAMSIZ without the closing zero.
        let plain = |b: u8| b.is_ascii_graphic() && !b"/[],*".contains(&b);
        let fits = (1..=15).contains(&text.len()) && text.bytes().all(plain);
        if fits { Ok(Self::Interface(text.to_owned())) } else { Err(neither()) }
    }

    /// Whether an address of this node, on this interface, fits.
    #[must_use]
    pub fn holds(&self, interface: &str, address: IpAddr) -> bool {
        match self {
            Self::Address(asked) => *asked == address,
            Self::Interface(name) => name == interface,
            Self::Subnet(network, bits) => in_subnet(*network, *bits, address),
        }
    }
}

fn in_subnet(network: IpAddr, bits: u8, address: IpAddr) -> bool {
    let differ = |a: u128, b: u128, width: u32| (a ^ b).checked_shr(width - u32::from(bits)).unwrap_or(0);
    match (network, address) {
        (IpAddr::V4(a), IpAddr::V4(b)) => differ(a.to_bits().into(), b.to_bits().into(), 32) == 0,
        (IpAddr::V6(a), IpAddr::V6(b)) => differ(a.to_bits(), b.to_bits(), 128) == 0,
        _ => false,
    }
}

/// Host and port of a member: `node1`, `node1:7000`, `10.0.0.1`, `fe80::1`, `[fe80::1]:7000`.
#[must_use]
pub fn host_and_port(member: &str) -> (&str, Option<u16>) {
    if member.parse::<IpAddr>().is_ok() {
        return (member, None);
    }
    let (host, port) = match member.rsplit_once(':') {
        Some((host, port)) if port.bytes().all(|b| b.is_ascii_digit()) => (host, port.parse().ok().filter(|n| *n > 0)),
        _ => (member, None),
    };
    let inner = host.strip_prefix('[').and_then(|rest| rest.strip_suffix(']'));
    match (inner, port) {
        (Some(inner), _) => (inner, port),
        (None, Some(_)) if !host.contains(':') => (host, port),
        _ => (member, None),
    }
}
