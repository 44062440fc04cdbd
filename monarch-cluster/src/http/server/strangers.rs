//! Places for connections that have not authenticated.
//!
//! Any host that reaches the port may open connections and send nothing. So these have places of
//! their own, fewer than there are for nodes of the job, and a new one is always let in: where
//! there are too many, of its address or in all, another one is closed for it. First that is the
//! oldest of those that have sent nothing, then the oldest of all. A node of the job authenticates
//! within a round trip, and has left these places before it is the oldest.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use tokio::sync::Notify;

/// Most strangers of one address at a time.
const MAX_PER_ADDRESS: usize = 64;
/// Most strangers at a time. Each takes a descriptor.
pub const MAX_STRANGERS: usize = 256;

/// All that are there, the oldest first.
#[derive(Debug, Default)]
pub(super) struct Strangers(Mutex<Here>);

#[derive(Debug, Default)]
struct Here {
    next: u64,
    by_age: BTreeMap<u64, (IpAddr, Arc<One>)>,
}

#[derive(Debug, Default)]
struct One {
    /// Whether it has sent a request.
    spoke: AtomicBool,
    goes: Notify,
}

/// A connection in one of these places.
#[derive(Debug)]
pub(super) struct Stranger {
    all: Arc<Strangers>,
    number: u64,
    one: Arc<One>,
}

impl Strangers {
    /// Lets one more in, for which another one goes if there are too many.
    pub(super) fn admit(all: &Arc<Self>, from: IpAddr) -> Stranger {
        let mut here = all.here();
        let of_it = here.by_age.values().filter(|(at, _)| *at == from).count();
        let leaves = match () {
            () if of_it >= MAX_PER_ADDRESS => here.first_to_go(Some(from)),
            () if here.by_age.len() >= MAX_STRANGERS => here.first_to_go(None),
            () => None,
        };
        if let Some((_, one)) = leaves.and_then(|number| here.by_age.remove(&number)) {
            one.goes.notify_one();
        }
        let (number, one) = (here.next, Arc::<One>::default());
        here.next += 1;
        here.by_age.insert(number, (from, Arc::clone(&one)));
        Stranger { all: Arc::clone(all), number, one }
    }

    fn here(&self) -> std::sync::MutexGuard<'_, Here> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Here {
    fn first_to_go(&self, of: Option<IpAddr>) -> Option<u64> {
        let these = || self.by_age.iter().filter(|(_, (at, _))| of.is_none_or(|of| of == *at));
        let silent = these().find(|(_, (_, one))| !one.spoke.load(Ordering::Relaxed));
        silent.or_else(|| these().next()).map(|(number, _)| *number)
    }
}

impl Stranger {
    /// Waits until it has to go for another one; for ever, if it is known before.
    pub(super) fn is_to_go(&self) -> impl Future<Output = ()> + use<> {
        let one = Arc::clone(&self.one);
        async move { one.goes.notified().await }
    }

    /// It has sent a request.
    pub(super) fn spoke(&self) {
        self.one.spoke.store(true, Ordering::Relaxed);
    }
}

impl Drop for Stranger {
    fn drop(&mut self) {
        self.all.here().by_age.remove(&self.number);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address(n: usize) -> IpAddr {
        std::net::Ipv4Addr::new(10, 0, 0, n as u8).into()
    }

    /// The numbers of those that are still there.
    fn left(all: &Arc<Strangers>) -> Vec<u64> {
        all.here().by_age.keys().copied().collect()
    }

    #[test]
    fn the_oldest_that_has_sent_nothing_goes_first() {
        let all = Arc::<Strangers>::default();
        let mut here: Vec<_> = (0..MAX_PER_ADDRESS).map(|_| Strangers::admit(&all, address(1))).collect();
        here[0].spoke();
        here[2].spoke();
        here.extend((0..2).map(|_| Strangers::admit(&all, address(1))));
        assert_eq!(left(&all)[..3], [0, 2, 4]);
        here.iter().for_each(Stranger::spoke);
        here.push(Strangers::admit(&all, address(1)));
        assert_eq!(left(&all)[..3], [2, 4, 5]);
        // Of another address there is room, and none is closed.
        here.push(Strangers::admit(&all, address(2)));
        assert_eq!(left(&all).len(), MAX_PER_ADDRESS + 1);
        drop(here);
        assert!(left(&all).is_empty());
    }

    #[test]
    fn many_addresses_take_no_more_than_all_places() {
        let all = Arc::<Strangers>::default();
        let here: Vec<_> = (0..MAX_STRANGERS + 30).map(|n| Strangers::admit(&all, address(n % 200))).collect();
        assert_eq!(left(&all), (30..30 + MAX_STRANGERS as u64).collect::<Vec<_>>());
        drop(here);
    }
}
