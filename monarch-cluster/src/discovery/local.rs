//! What is asked of the machine: its name, its addresses, where names lead.

use std::io::{self, Read};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, ToSocketAddrs, UdpSocket};
use std::path::Path;
use std::time::Duration;

use monarch_config::hostlist::MAX_LENGTH;

/// A look-up of environment variables.
pub type Env<'a> = dyn Fn(&str) -> Option<String> + 'a;

/// The machine.
pub trait Local {
    /// Its host name.
    fn hostname(&self) -> Option<String>;
    /// The addresses that a name leads to; an address leads to itself.
    ///
    /// # Errors
    /// It leads nowhere, or no server answers.
    fn resolve(&self, host: &str) -> io::Result<Vec<IpAddr>>;
    /// The addresses of its interfaces, with their names.
    fn addresses(&self) -> Vec<(String, IpAddr)>;
    /// Whether it has this address.
    fn is_local(&self, address: IpAddr) -> bool {
        address.is_loopback() || self.addresses().iter().any(|(_, own)| *own == address)
    }
    /// The address from which it reaches another one.
    fn source_for(&self, peer: IpAddr) -> Option<IpAddr>;
    /// The text of a file of hosts.
    ///
    /// # Errors
    /// It cannot be read, or is too long for one.
    fn read(&self, path: &Path) -> io::Result<String>;
    /// Lets time pass: names come to lead somewhere.
    fn wait(&self, time: Duration) {
        std::thread::sleep(time);
    }
}

/// The machine that this process runs on.
#[derive(Clone, Copy, Debug, Default)]
pub struct SystemLocal;

impl Local for SystemLocal {
    fn hostname(&self) -> Option<String> {
        let name = rustix::system::uname().nodename().to_string_lossy().into_owned();
        Some(name).filter(|name| !name.is_empty())
    }

    fn resolve(&self, host: &str) -> io::Result<Vec<IpAddr>> {
        if let Ok(address) = host.parse() {
            return Ok(vec![address]);
        }
        Ok((host, 0).to_socket_addrs()?.map(|found| found.ip()).collect())
    }

    fn addresses(&self) -> Vec<(String, IpAddr)> {
        interfaces().unwrap_or_default()
    }

    /// Where the kernel does not list them, only an own address can be bound (unless
    /// `ip_nonlocal_bind` is set: so it comes second).
    fn is_local(&self, address: IpAddr) -> bool {
        match interfaces() {
            _ if address.is_loopback() => true,
            Ok(own) if !own.is_empty() => own.iter().any(|(_, own)| *own == address),
            _ => !address.is_unspecified() && UdpSocket::bind((address, 0)).is_ok(),
        }
    }

    /// Connecting a datagram socket sends nothing: the kernel looks up the route and sets the
    /// source.
    fn source_for(&self, peer: IpAddr) -> Option<IpAddr> {
        let any: IpAddr = if peer.is_ipv4() { Ipv4Addr::UNSPECIFIED.into() } else { Ipv6Addr::UNSPECIFIED.into() };
        let socket = UdpSocket::bind((any, 0)).ok()?;
        socket.connect((peer, 9)).ok()?;
        socket.local_addr().ok().map(|found| found.ip()).filter(|address| !address.is_unspecified())
    }

    fn read(&self, path: &Path) -> io::Result<String> {
        let mut text = String::new();
        std::fs::File::open(path)?.take(MAX_LENGTH as u64 + 1).read_to_string(&mut text)?;
        if text.len() > MAX_LENGTH {
            return Err(io::Error::other("it is too long for a list of nodes"));
        }
        Ok(text)
    }
}

/// Each address with the name of its interface.
fn interfaces() -> io::Result<Vec<(String, IpAddr)>> {
    // An address may have a label behind the name of its interface (`eth0:1`), which is not a name.
    let named = |found: if_addrs::Interface| {
        let address = found.ip();
        (found.name.split(':').next().unwrap_or_default().to_owned(), address)
    };
    Ok(if_addrs::get_if_addrs()?.into_iter().map(named).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_machine_answers() {
        let localhost: IpAddr = Ipv4Addr::LOCALHOST.into();
        let elsewhere: IpAddr = Ipv4Addr::new(192, 0, 2, 1).into();
        assert!(SystemLocal.is_local(localhost) && !SystemLocal.is_local(elsewhere));
        assert_eq!(SystemLocal.source_for(localhost), Some(localhost));
        assert_eq!(SystemLocal.resolve("127.0.0.1").unwrap(), [localhost]);
        assert!(SystemLocal.hostname().is_some());
        let interfaces = SystemLocal.addresses();
        assert!(interfaces.is_empty() || interfaces.contains(&("lo".to_owned(), localhost)), "{interfaces:?}");
        assert!(SystemLocal.read(Path::new("/dev/zero")).is_err());
    }
}
