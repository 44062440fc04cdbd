//! What `benches/strangers.py` needs of Monarch's own client; see there.
//!
//!     strangers ask ADDRESS ME ITS_NAME WIRE_KEY TLS_KEY|none SECONDS
//!     strangers knock ADDRESS ME ITS_NAME WIRE_KEY TLS_KEY|none SECONDS
//!
//! `ask` is a proven peer: requests of 1,000 bytes over one connection that is kept, and, in turns,
//! with a new connection, 2 ms between them. It prints the medians, the 99th percentiles and the
//! largest times in microseconds. `knock` opens connections as fast as it can, on two threads, with
//! keys that are not the job's, and prints how many.
#![allow(clippy::print_stdout, clippy::print_stderr, reason = "a benchmark")]

use monarch_cluster::http::{Key, Peer, PeerOptions, Senders, Tls, WireError};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// How long an answer is waited for.
const MAX_WAIT: Duration = Duration::from_secs(10);
/// Between two requests of the proven peer.
const PAUSE: Duration = Duration::from_millis(2);

fn key(hex: &str) -> Option<[u8; 32]> {
    let bytes: Option<Vec<u8>> = (0..32).map(|at| u8::from_str_radix(hex.get(2 * at..2 * at + 2)?, 16).ok()).collect();
    bytes?.try_into().ok()
}

fn options(words: &[String]) -> Option<PeerOptions> {
    let [address, me, its_name, wire, tls, ..] = words else { return None };
    let encryption = if tls == "none" { None } else { Some(Tls::new(&key(tls)?).ok()?) };
    Some(PeerOptions {
        addr: address.parse().ok()?,
        my_name: me.clone(),
        its_name: its_name.clone(),
        key: Key::new(key(wire)?),
        encryption,
        peer_timeout: Duration::from_secs(5),
        idle: 1,
        senders: Senders::default(),
    })
}

/// Microseconds of a request and of its answer.
fn request(peer: &Peer) -> Result<f64, WireError> {
    let start = Instant::now();
    let answer = peer.get("/v1/probe?1000", None, 0, MAX_WAIT)?;
    let _ = answer.bytes(1000);
    Ok(start.elapsed().as_secs_f64() * 1e6)
}

/// Median, 99th percentile, largest.
fn summary(mut times: Vec<f64>) -> String {
    times.sort_by(f64::total_cmp);
    let at = |part: usize| times.get((times.len() * part / 100).min(times.len().saturating_sub(1))).copied();
    format!("[{:.0}, {:.0}, {:.0}]", at(50).unwrap_or(0.0), at(99).unwrap_or(0.0), at(100).unwrap_or(0.0))
}

fn ask(options: &PeerOptions, until: Instant) -> Result<(), WireError> {
    let (kept, mut failed) = (Peer::new(options.clone())?, 0);
    let (mut over_kept, mut over_new) = (Vec::new(), Vec::new());
    while Instant::now() < until {
        let new = Peer::new(options.clone())?;
        for (peer, times) in [(&kept, &mut over_kept), (&new, &mut over_new)] {
            match request(peer) {
                Ok(time) => times.push(time),
                Err(err) => {
                    failed += 1;
                    eprintln!("{err}");
                }
            }
            std::thread::sleep(PAUSE);
        }
    }
    let count = over_kept.len() + over_new.len();
    let (kept, new) = (summary(over_kept), summary(over_new));
    println!("{{\"requests\": {count}, \"failed\": {failed}, \"kept\": {kept}, \"new\": {new}}}");
    Ok(())
}

fn knock(options: &PeerOptions, until: Instant) {
    let count = AtomicU64::new(0);
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                while Instant::now() < until {
                    let opened = Peer::new(options.clone()).map(|peer| request(&peer).is_ok());
                    assert!(!opened.is_ok_and(|opened| opened), "a wrong secret was taken");
                    count.fetch_add(1, Ordering::Relaxed);
                }
            });
        }
    });
    println!("{}", count.into_inner());
}

fn main() {
    let words: Vec<String> = std::env::args().skip(1).filter(|word| word != "--bench").collect();
    let rest = words.get(1..).unwrap_or_default();
    let seconds = rest.get(5).and_then(|word| word.parse().ok()).map(Duration::from_secs_f64);
    match (words.first().map(String::as_str), options(rest), seconds) {
        (Some("ask"), Some(options), Some(time)) => {
            if let Err(err) = ask(&options, Instant::now() + time) {
                eprintln!("{err}");
            }
        }
        (Some("knock"), Some(options), Some(time)) => knock(&options, Instant::now() + time),
        _ => println!("run benches/strangers.py"),
    }
}
