//! Places for connections that have not authenticated.
//!
//! Any host that reaches the port may open connections and send nothing. So these have places of
//! their own, fewer than there are for nodes of the job, and a new one is always let in: where
//! there are too many, of its address or in all, another one is closed for it: of its address, or
//! of the addresses that have most. First that is the oldest of those that have sent nothing, then
//! the oldest of all. A node of the job authenticates within a few round trips, and has left these
//! places before it is the oldest.

use std::collections::{BTreeMap, HashMap};
use std::net::IpAddr;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::sync::Notify;

/// Most strangers of one address at a time.
const MAX_PER_ADDRESS: usize = 64;
/// Most strangers at a time. Each takes a descriptor.
pub const MAX_STRANGERS: usize = 256;
/// Most strangers that had to go and are not closed yet, while further ones are taken.
const MAX_GOING: usize = 32;
/// How long no connection is taken where there are more of those.
const GOING_PAUSE: Duration = Duration::from_millis(1);

/// All that are there, the oldest first.
#[derive(Debug, Default)]
pub(super) struct Strangers {
    here: Mutex<Here>,
    /// Those that are open, also if they have to go.
    open: AtomicUsize,
}

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
            () if of_it >= MAX_PER_ADDRESS => here.first_to_go(&|at| at == from),
            () if here.by_age.len() >= MAX_STRANGERS => here.first_of_a_crowd(),
            () => None,
        };
        if let Some((_, one)) = leaves.and_then(|number| here.by_age.remove(&number)) {
            one.goes.notify_one();
        }
        let (number, one) = (here.next, Arc::<One>::default());
        here.next += 1;
        here.by_age.insert(number, (from, Arc::clone(&one)));
        all.open.fetch_add(1, Ordering::Relaxed);
        Stranger { all: Arc::clone(all), number, one }
    }

    /// Waits until those that had to go are closed, but for a few: the descriptors of strangers are
    /// bounded whatever the server's threads are busy with.
    pub(super) async fn closed(&self) {
        while self.open.load(Ordering::Relaxed) > MAX_STRANGERS + MAX_GOING {
            tokio::time::sleep(GOING_PAUSE).await;
        }
    }

    fn here(&self) -> std::sync::MutexGuard<'_, Here> {
        self.here.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Here {
    /// The first of the addresses that have most: where one sender takes all places, it makes room.
    fn first_of_a_crowd(&self) -> Option<u64> {
        let mut counts = HashMap::<IpAddr, usize>::with_capacity(self.by_age.len());
        self.by_age.values().for_each(|(at, _)| *counts.entry(*at).or_default() += 1);
        let most = counts.values().max()?;
        self.first_to_go(&|at| counts.get(&at) == Some(most))
    }

    fn first_to_go(&self, of: &dyn Fn(IpAddr) -> bool) -> Option<u64> {
        let these = || self.by_age.iter().filter(|(_, (at, _))| of(*at));
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
        self.all.open.fetch_sub(1, Ordering::Relaxed);
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

    /// Found by sixteen addresses that opened 9,000 connections a second: now and then a node's own
    /// one was closed for them.
    #[test]
    fn a_lone_connection_is_not_closed_for_those_of_a_crowd() {
        let all = Arc::<Strangers>::default();
        let _lone = Strangers::admit(&all, address(200));
        let here: Vec<_> = (0..4 * MAX_STRANGERS).map(|n| Strangers::admit(&all, address(n % 16))).collect();
        here.iter().for_each(Stranger::spoke);
        let _more: Vec<_> = (0..MAX_STRANGERS).map(|n| Strangers::admit(&all, address(n % 16))).collect();
        assert_eq!((left(&all)[0], left(&all).len()), (0, MAX_STRANGERS));
    }

    #[tokio::test]
    async fn no_further_ones_are_taken_while_many_are_not_closed_yet() {
        let all = Arc::<Strangers>::default();
        let mut here: Vec<_> =
            (0..MAX_STRANGERS + MAX_GOING).map(|n| Strangers::admit(&all, address(n % 200))).collect();
        all.closed().await;
        here.push(Strangers::admit(&all, address(1)));
        let wait = GOING_PAUSE * 10;
        assert!(tokio::time::timeout(wait, all.closed()).await.is_err(), "one too many");
        here.swap_remove(0);
        tokio::time::timeout(wait, all.closed()).await.unwrap();
    }
}
