//! A machine for tests: it answers what it was set up to.

use std::cell::Cell;
use std::collections::HashMap;
use std::io;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::local::Local;

/// A made-up machine; without anything, it has no name, no address but loopback, and knows no other
/// host.
#[derive(Clone, Debug, Default)]
pub struct FakeLocal {
    hostname: Option<String>,
    names: HashMap<String, Vec<IpAddr>>,
    interfaces: Vec<(String, IpAddr)>,
    route: Option<IpAddr>,
    /// Seconds that have been waited, and how many it takes until names lead anywhere.
    waited: Cell<u64>,
    names_after: u64,
    files: HashMap<PathBuf, String>,
}

impl FakeLocal {
    /// Calls it so.
    #[must_use]
    pub fn called(mut self, name: &str) -> Self {
        self.hostname = Some(name.to_owned());
        self
    }

    /// Has a name lead to addresses; what is no address is left out.
    #[must_use]
    pub fn name(mut self, name: &str, addresses: &[&str]) -> Self {
        let addresses = addresses.iter().filter_map(|text| text.parse().ok()).collect();
        self.names.insert(name.to_owned(), addresses);
        self
    }

    /// Gives it an interface with an address.
    #[must_use]
    pub fn interface(mut self, name: &str, address: &str) -> Self {
        self.interfaces.extend(address.parse().ok().map(|address| (name.to_owned(), address)));
        self
    }

    /// Reaches all others from this address.
    #[must_use]
    pub fn route(mut self, address: &str) -> Self {
        self.route = address.parse().ok();
        self
    }

    /// Knows no names until this number of seconds was waited.
    #[must_use]
    pub const fn names_after(mut self, seconds: u64) -> Self {
        self.names_after = seconds;
        self
    }

    /// Has a file.
    #[must_use]
    pub fn file(mut self, path: &str, text: &str) -> Self {
        self.files.insert(path.into(), text.to_owned());
        self
    }
}

impl Local for FakeLocal {
    fn hostname(&self) -> Option<String> {
        self.hostname.clone()
    }

    fn resolve(&self, host: &str) -> io::Result<Vec<IpAddr>> {
        if let Ok(address) = host.parse() {
            return Ok(vec![address]);
        }
        let known = self.names.get(host).filter(|_| self.waited.get() >= self.names_after);
        known.cloned().ok_or_else(|| io::ErrorKind::NotFound.into())
    }

    fn addresses(&self) -> Vec<(String, IpAddr)> {
        self.interfaces.clone()
    }

    fn source_for(&self, _: IpAddr) -> Option<IpAddr> {
        self.route
    }

    fn read(&self, path: &Path) -> io::Result<String> {
        self.files.get(path).cloned().ok_or_else(|| io::ErrorKind::NotFound.into())
    }

    fn wait(&self, time: Duration) {
        self.waited.set(self.waited.get() + time.as_secs());
    }
}
