//! Bytes a second.

use super::support::*;
use crate::http::*;
use std::sync::Arc;
use std::time::Instant;

/// Bytes a second that `threads` get together, each with a name of its own or all with one.
fn rate(server: &Server, threads: usize, one_name: bool) -> f64 {
    let start = Instant::now();
    let each = |at: usize| {
        let my_name = if one_name { "z".to_owned() } else { format!("z{at}") };
        let peer = Peer::new(PeerOptions { my_name, ..peer_options(server.addr()) }).unwrap();
        (0..4).map(|_| peer.get("/shared", None, 0, max_wait()).unwrap().bytes(u64::MAX).unwrap().len()).sum::<usize>()
    };
    let total: usize = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..threads).map(|at| scope.spawn(move || each(at))).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).sum()
    });
    total as f64 / start.elapsed().as_secs_f64()
}

/// Never above the limit, and close to it in one of five turns: a busy machine may not get there in
/// each.
fn close(limit: u64, rate: impl Fn() -> f64) {
    let mut seen = vec![];
    let reached = (0..5).any(|_| {
        let share = rate() / limit as f64;
        assert!(share < 1.1, "{share} of the limit");
        seen.push(share);
        share > 0.9
    });
    assert!(reached, "{seen:?} of the limit");
}

#[test]
fn all_together_stay_within_the_limit_of_the_node() {
    let limit = 12 << 20;
    let server = serve(Options { bandwidth_limit: Some(limit), ..options() });
    close(limit, || rate(&server, 2, false));
}

#[test]
fn the_connections_of_one_peer_share_its_limit() {
    let limit = 12 << 20;
    let server = serve(Options { peer_bandwidth_limit: Some(limit), ..options() });
    close(limit, || rate(&server, 2, true));
}

#[test]
fn peers_do_not_share_each_others_limit() {
    let limit = 6 << 20;
    let server = serve(Options { peer_bandwidth_limit: Some(limit), ..options() });
    close(limit * 3, || rate(&server, 3, false));
}

#[test]
fn a_limit_is_no_silence() {
    let server =
        Server::start(Options { bandwidth_limit: Some(1 << 20), ..options() }, Arc::new(Double::new()), None).unwrap();
    let peer = peer(server.addr());
    for _ in 0..6 {
        let part = peer.get("/shared", Some(0..256 << 10), 0, max_wait()).unwrap();
        assert_eq!(part.bytes(u64::MAX).unwrap().len(), 256 << 10);
    }
}
