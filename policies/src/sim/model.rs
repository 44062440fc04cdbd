//! Costs of the PFS, the links of the nodes, tiers and computing. All times are those of an idle
//! system; the simulation adds the waiting.
//!
//! The PFS has two stations, each a queue in order of arrival: servers of metadata, where a call
//! takes `1 / pfs_rate` and is answered `pfs_latency` later, and the shared bandwidth for data. A
//! node's link passes on what comes from the PFS while it comes (cut-through), so that the slower
//! of the two decides, not their sum.

use std::time::Duration;

/// Metadata calls of one read of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Calls {
    /// Before the first byte (open, and a stat where the reader asks for the size).
    pub before: u32,
    /// After the last byte (the check that the file is still the same; a close that the reader
    /// waits for).
    pub after: u32,
}

/// A tier of every node.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct TierModel {
    /// From the open of a copy to its first byte.
    pub latency: Duration,
    /// Bytes per second, of reads and of writes of copies together.
    pub bandwidth: f64,
}

/// Costs of the simulated system. Fields: 14, because each is a cost that can be set alone.
#[derive(Clone, Debug, PartialEq)]
pub struct Model {
    /// Of a metadata call on an idle PFS.
    pub pfs_latency: Duration,
    /// Of a read call, before its first byte.
    pub pfs_read_latency: Duration,
    /// Metadata calls per second of all servers together (infinite: no queue).
    pub pfs_rate: f64,
    /// Bytes per second that all nodes share.
    pub pfs_bandwidth: f64,
    /// Bytes per second of a node's link to the PFS.
    pub link: f64,
    /// Most bytes of a read call of the agent (`source.io_size`).
    pub agent_io: u64,
    /// Most bytes of a read call of the application.
    pub app_io: u64,
    /// Metadata calls of a copy: the agent opens, and stats the open file when all is read.
    pub agent_calls: Calls,
    /// Metadata calls when the application reads the PFS itself: open and stat.
    pub app_calls: Calls,
    /// Tiers, fastest first; the last one stands for those that are not named.
    pub tiers: Vec<TierModel>,
    /// Time that a rank computes on a batch, or after an access of a trace (there, `None` takes the
    /// recorded gaps).
    pub compute: Option<Duration>,
    /// Copies at a time per node, above which nothing is fetched ahead (`source.max_inflight`).
    pub inflight: usize,
    /// Whether fewer are fetched ahead while opens take much longer than they did at best
    /// (`source.backoff`).
    pub backoff: bool,
    /// Whether all ranks of all nodes wait for each other after each batch.
    pub sync: bool,
}

impl Default for Model {
    fn default() -> Self {
        Self {
            pfs_latency: Duration::from_millis(1),
            pfs_read_latency: Duration::from_millis(1),
            pfs_rate: 100_000.0,
            pfs_bandwidth: 10e9,
            link: 12e9,
            agent_io: 4 << 20,
            app_io: 4 << 20,
            agent_calls: Calls { before: 1, after: 1 },
            app_calls: Calls { before: 2, after: 0 },
            tiers: vec![TierModel { latency: Duration::from_micros(30), bandwidth: 5e9 }],
            compute: Some(Duration::from_millis(100)),
            inflight: 64,
            backoff: true,
            sync: true,
        }
    }
}

/// Nanoseconds; a simulation begins at 0.
pub(super) type Time = u64;

pub(super) fn nanos(d: Duration) -> Time {
    u64::try_from(d.as_nanos()).unwrap_or(Time::MAX)
}

/// Time that `amount` takes at a rate of `per_second`.
pub(super) fn takes(amount: u64, per_second: f64) -> Time {
    (amount as f64 * 1e9 / per_second).round() as Time
}

/// One server and the queue in front of it. Requests must come in order of time.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Station {
    free: Time,
}

impl Station {
    /// When service begins and ends.
    pub(super) fn serve(&mut self, arrives: Time, takes: Time) -> (Time, Time) {
        let start = self.free.max(arrives);
        self.free = start + takes;
        (start, self.free)
    }
}

/// The PFS and the links of all nodes to it.
#[derive(Debug)]
pub(super) struct Pfs<'a> {
    model: &'a Model,
    call_takes: Time,
    call_latency: Time,
    read_latency: Time,
    metadata: Station,
    data: Station,
    links: Vec<Station>,
}

impl<'a> Pfs<'a> {
    pub(super) fn new(model: &'a Model, nodes: usize) -> Self {
        Self {
            model,
            call_takes: takes(1, model.pfs_rate),
            call_latency: nanos(model.pfs_latency),
            read_latency: nanos(model.pfs_read_latency),
            metadata: Station::default(),
            data: Station::default(),
            links: vec![Station::default(); nodes],
        }
    }

    /// When a metadata call that is made now is answered.
    pub(super) fn call(&mut self, now: Time) -> Time {
        self.metadata.serve(now, self.call_takes).1 + self.call_latency
    }

    /// When the last byte of a read call that is made now has arrived.
    pub(super) fn read(&mut self, now: Time, node: u32, bytes: u64) -> Time {
        let (start, sent) = self.data.serve(now, takes(bytes, self.model.pfs_bandwidth));
        let (_, passed_on) = self.links[node as usize].serve(start, takes(bytes, self.model.link));
        sent.max(passed_on) + self.read_latency
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_station_serves_in_order_and_is_idle_when_no_request_waits() {
        let mut s = Station::default();
        assert_eq!([s.serve(5, 10), s.serve(6, 10), s.serve(100, 1)], [(5, 15), (15, 25), (100, 101)]);
    }

    #[test]
    fn the_slower_of_pfs_and_link_decides() {
        let model = Model { pfs_bandwidth: 1e9, link: 0.5e9, pfs_read_latency: Duration::ZERO, ..Model::default() };
        let mut pfs = Pfs::new(&model, 2);
        assert_eq!(pfs.read(0, 0, 1000), 2000, "its link");
        assert_eq!(pfs.read(0, 1, 1000), 1000 + 2000, "behind the other node's bytes, then its link");
        assert_eq!(pfs.read(0, 0, 1000), 2000 + 2000);
    }
}
