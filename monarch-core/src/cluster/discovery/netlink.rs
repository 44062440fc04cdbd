//! The addresses of this node's interfaces, asked of the kernel as `getifaddrs` does (netlink,
//! `RTM_GETADDR`; rtnetlink(7)).
//!
//! The C library's call hands out pointers; a request of 24 bytes and its answer need none.

use std::io::{self, Read};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::time::Duration;

use rustix::net::netdevice::index_to_name;
use socket2::{Domain, Protocol, Socket, Type};

const HEADER: usize = 16;
const IFADDRMSG: usize = 8;
const NLMSG_ERROR: u16 = 2;
const NLMSG_DONE: u16 = 3;
const RTM_NEWADDR: u16 = 20;
const RTM_GETADDR: u16 = 22;
/// A request, and all that there is for it.
const REQUEST_DUMP: u16 = 0x301;
/// The own address of a link between two ends; elsewhere the same as `IFA_ADDRESS`.
const IFA_LOCAL: u16 = 2;
const IFA_ADDRESS: u16 = 1;

/// Each address with the name of its interface.
pub(super) fn addresses() -> io::Result<Vec<(String, IpAddr)>> {
    let raw = Socket::new(Domain::from(libc::AF_NETLINK), Type::RAW, Some(Protocol::from(libc::NETLINK_ROUTE)))?;
    raw.set_read_timeout(Some(Duration::from_secs(1)))?;
    raw.send(&request())?;
    let namer = Socket::new(Domain::UNIX, Type::DGRAM, None)?;
    let (mut found, mut answer) = (Vec::new(), vec![0; 64 << 10]);
    loop {
        let len = (&raw).read(&mut answer)?;
        let mut rest = answer.get(..len).unwrap_or_default();
        while let Some((kind, body, after)) = message(rest) {
            match kind {
                NLMSG_DONE => return Ok(found),
                NLMSG_ERROR => return Err(io::ErrorKind::Unsupported.into()),
                RTM_NEWADDR => found.extend(
                    address(body).and_then(|(index, address)| Some((index_to_name(&namer, index).ok()?, address))),
                ),
                _ => {}
            }
            rest = after;
        }
        if len == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
    }
}

/// All addresses of all families.
fn request() -> Vec<u8> {
    let len = u32::try_from(HEADER + IFADDRMSG).unwrap_or_default();
    let mut request = len.to_ne_bytes().to_vec();
    request.extend(RTM_GETADDR.to_ne_bytes());
    request.extend(REQUEST_DUMP.to_ne_bytes());
    // Sequence, sender, and a body that asks for no family above others.
    request.extend([0; 8 + IFADDRMSG]);
    request
}

/// The first message of an answer, without its header, and what comes after it.
fn message(answer: &[u8]) -> Option<(u16, &[u8], &[u8])> {
    let len = usize::try_from(u32_at(answer, 0)?).ok()?;
    let body = answer.get(HEADER..len)?;
    Some((u16_at(answer, 4)?, body, answer.get(len.next_multiple_of(4)..).unwrap_or_default()))
}

/// Interface and address of a message about one.
fn address(body: &[u8]) -> Option<(u32, IpAddr)> {
    let index = u32_at(body, 4)?;
    let mut attributes = body.get(IFADDRMSG..)?;
    let mut found = None;
    while let (Some(len), Some(kind)) = (u16_at(attributes, 0), u16_at(attributes, 2)) {
        let value = attributes.get(4..usize::from(len))?;
        if kind == IFA_LOCAL || kind == IFA_ADDRESS && found.is_none() {
            found = ip(value).or(found);
        }
        attributes = attributes.get(usize::from(len).next_multiple_of(4)..).unwrap_or_default();
    }
    found.map(|address| (index, address))
}

fn ip(value: &[u8]) -> Option<IpAddr> {
    let v4 = <[u8; 4]>::try_from(value).map(|bytes| Ipv4Addr::from(bytes).into());
    v4.or_else(|_| <[u8; 16]>::try_from(value).map(|bytes| Ipv6Addr::from(bytes).into())).ok()
}

fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    bytes.get(at..at + 4)?.try_into().ok().map(u32::from_ne_bytes)
}

fn u16_at(bytes: &[u8], at: usize) -> Option<u16> {
    bytes.get(at..at + 2)?.try_into().ok().map(u16::from_ne_bytes)
}
