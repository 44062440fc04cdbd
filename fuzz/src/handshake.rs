//! Handshakes of TLS between nodes, and what comes behind them: with ends that know the secret, and
//! with ends that do not; as it was sent, changed on its way, or made of random bytes.

use super::input::{Input, patch};
use monarch_core::cluster::http::{ALPN, EndInMemory, Tls, read_all_over_tls};
use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::time::Duration;

/// Turns in which both ends send: a handshake takes three.
const TURNS: usize = 5;
/// How long the client waits for bytes that do not come.
const LIMIT: Duration = Duration::from_secs(5);

thread_local! {
    static JOB: Tls = Tls::new(&[1; 32]).expect("a key");
    static OTHER_JOB: Tls = Tls::new(&[2; 32]).expect("a key");
}

/// An end is proven only if it knows the secret and speaks the protocol, and a client reads nothing
/// that its server did not send.
pub(crate) fn handshake(bytes: &[u8]) {
    let mut input = Input(bytes);
    let how = input.u8();
    match how % 4 {
        0 => raw(&mut input),
        1 | 2 => between(&mut input, how & 4 == 0),
        _ => reading(&mut input),
    }
}

/// Changes some bytes of what an end sends; whether it did.
fn change(input: &mut Input<'_>, flight: &mut Vec<u8>) -> bool {
    let before = flight.clone();
    let how = input.u8();
    for _ in 0..(how & 3) {
        if !flight.is_empty() {
            patch(input, flight);
        }
    }
    if how & 4 != 0 {
        flight.truncate(usize::from(input.u16()));
    }
    if how & 8 != 0 {
        flight.extend_from_slice(input.part());
    }
    *flight != before
}

/// Random bytes to ends of both kinds.
fn raw(input: &mut Input<'_>) {
    JOB.with(|job| {
        let ends = [EndInMemory::server(job), EndInMemory::client(job, &[ALPN])];
        for mut end in ends.into_iter().flatten() {
            let _ = end.send();
            let mut rest = *input;
            while !rest.is_empty() && end.receive(rest.part()).is_ok() {
                let _ = end.send();
            }
            assert!(!end.is_proven());
        }
    });
}

/// Two ends, of one job or of two.
fn between(input: &mut Input<'_>, one_job: bool) {
    let offered = [&[ALPN][..], &[], &[b"monarch/3"], &[b"h2", ALPN]][usize::from(input.u8() % 4)];
    let speaks = offered.contains(&ALPN);
    let (server, client) = JOB.with(|job| {
        let client = |of: &Tls| EndInMemory::client(of, offered).expect("settings");
        let client = if one_job { client(job) } else { OTHER_JOB.with(client) };
        (EndInMemory::server(job).expect("settings"), client)
    });
    let (mut server, mut client, mut changed, mut is_broken) = (server, client, false, false);
    for _ in 0..TURNS {
        for is_client in [true, false] {
            let (from, to) = if is_client { (&mut client, &mut server) } else { (&mut server, &mut client) };
            let mut flight = from.send();
            changed |= change(input, &mut flight);
            is_broken |= to.receive(&flight).is_err();
        }
        if is_broken {
            break;
        }
    }
    let both = server.is_proven() && client.is_proven();
    assert!(one_job || !server.is_proven() && !client.is_proven(), "an end without the secret is proven");
    assert!(speaks || !server.is_proven() && !client.is_proven(), "an end without the protocol is proven");
    assert!(changed || both == (one_job && speaks), "what was not changed is taken");
}

/// Reads what has come; 0 at the end. (The fuzzer's clock is a signal.)
fn read_some(from: &mut TcpStream, buf: &mut [u8]) -> usize {
    loop {
        match from.read(buf) {
            Err(e) if e.kind() == ErrorKind::Interrupted => {}
            read => return read.unwrap_or(0),
        }
    }
}

/// The client's end of a node, and a server that knows the secret. What the server sends after the
/// handshake is changed.
fn reading(input: &mut Input<'_>) {
    let job = JOB.with(Clone::clone);
    let (here, there) = UnixStream::pair().expect("two sockets");
    // (As such it writes without a signal when the client has closed its end.)
    let [mut here, there] = [here, there].map(|end| TcpStream::from(OwnedFd::from(end)));
    let mut server = EndInMemory::server(&job).expect("settings");
    let client =
        std::thread::spawn(move || read_all_over_tls(&job, there, LIMIT).expect("a socket takes a time limit"));
    let (mut buf, mut sent, mut changed) = ([0; 4096], Vec::new(), false);
    let is_early = input.u8() & 1 != 0;
    while !server.is_proven() {
        let got = read_some(&mut here, &mut buf);
        if got == 0 || server.receive(&buf[..got]).is_err() {
            break;
        }
        let mut flight = server.send();
        changed |= is_early && change(input, &mut flight);
        if here.write_all(&flight).is_err() || changed {
            break;
        }
    }
    if server.is_proven() {
        for _ in 0..8 {
            let piece = input.part();
            sent.extend_from_slice(piece);
            let _ = server.write(piece);
            let mut flight = server.send();
            changed |= change(input, &mut flight);
            if here.write_all(&flight).is_err() || input.is_empty() {
                break;
            }
        }
    }
    let _ = here.shutdown(std::net::Shutdown::Write);
    let _ = here.read_to_end(&mut Vec::new());
    let read = client.join().expect("the client does not panic");
    match read {
        Some(read) => {
            assert!(sent.starts_with(&read), "bytes that were not sent");
            assert!(changed || read == sent, "what was not changed is read");
        }
        None => assert!(changed, "the server knows the secret"),
    }
}
