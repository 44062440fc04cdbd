//! Throughput and processor time of serving files to other nodes, compared with nginx.
//!
//!     cargo bench -p monarch-cluster --bench peer -- 2 5 3
//!
//! The numbers are client threads, seconds for each measurement and rounds. Files of 100 KB (1,000
//! of them) and of 64 MiB (four, fetched in ranges of 8 MiB) are in /dev/shm. Each server runs in
//! processes of its own with two threads or workers, so that its processor time is separate from
//! that of the clients. `agent` and `nginx` have the same plain client; `peer` is the agent with
//! Monarch's own client. The rounds alternate; a line is the median of a server's rounds. The last
//! lines are the times of sequential requests from one thread, for a file of 100 KB and for an
//! answer without a body, and the processor time of tags and of the checksum that they replace.
#![allow(clippy::print_stdout, reason = "a benchmark")]

use monarch_cluster::http::{
    Answer, Answering, Handler, Key, Options, Peer, PeerOptions, Request, Server, auth, session::Session,
};
use monarch_cluster::tag::TagKey;
use rustix::fs::{Mode, OFlags};
use std::io::{self, BufRead, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

const SMALL: (usize, u64) = (1000, 100_000);
const LARGE: (usize, u64) = (4, 64 << 20);
const PART: u64 = 8 << 20;

/// Opens and stats the file for each request, as nginx does.
struct Files(PathBuf);

impl Files {
    fn open(&self, request: &Request) -> io::Result<Answer> {
        let path = self.0.join(request.path.trim_start_matches('/'));
        let fd = rustix::fs::open(path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())?;
        let len = rustix::fs::fstat(&fd)?.st_size as u64;
        Ok(Answer::file(Arc::new(fd), 0, len, request.range))
    }
}

impl Handler for Files {
    fn answer<'a>(&'a self, _peer: &'a str, request: Request) -> Answering<'a> {
        Box::pin(async move { self.open(&request).unwrap_or_else(|_| Answer::status(404)) })
    }
}

fn key() -> Key {
    Key::new([1; 32])
}

fn serve(dir: &str) -> Result<(), Box<dyn std::error::Error>> {
    let options = Options::new("o", key(), "127.0.0.1:0".parse()?);
    let server = Server::start(options, Arc::new(Files(dir.into())), None)?;
    println!("{}", server.addr());
    io::stdin().read_to_end(&mut Vec::new())?;
    Ok(())
}

/// A minimal client, the same for both servers but for what the agent asks for: a session.
struct Plain {
    stream: TcpStream,
    session: Option<Session>,
    buf: Vec<u8>,
}

impl Plain {
    fn new(addr: SocketAddr, login: bool) -> io::Result<Self> {
        let stream = TcpStream::connect(addr)?;
        stream.set_nodelay(true)?;
        let mut plain = Self { stream, session: None, buf: vec![0; 1 << 20] };
        if login {
            let (_, head) = plain.ask("HEAD", "/", "")?;
            let value =
                head.split("WWW-Authenticate: ").nth(1).and_then(|rest| rest.lines().next()).unwrap_or_default();
            let nonce = auth::parse_challenge(value).map_err(io::Error::other)?;
            let cnonce = auth::Nonce::random()?;
            let exchange = auth::Exchange { nonce, cnonce, client: "z", server: "o" };
            let credentials = auth::Credentials { node: "z".into(), nonce, cnonce, mac: exchange.proof(&key()) };
            plain.session = Some(Session::new(&exchange, &key(), auth::Side::Client));
            plain.ask("HEAD", "/small/0", &format!("Authorization: {credentials}\r\n"))?;
        }
        Ok(plain)
    }

    fn ask(&mut self, method: &str, path: &str, lines: &str) -> io::Result<(u64, String)> {
        let mut request = format!("{method} {path} HTTP/1.1\r\nHost: x\r\n{lines}").into_bytes();
        match &mut self.session {
            Some(session) => session.outgoing.seal(&mut request),
            None => request.extend(b"\r\n"),
        }
        self.stream.write_all(&request)?;
        let mut have = 0;
        let end = loop {
            match self.stream.read(&mut self.buf[have..])? {
                0 => return Err(io::ErrorKind::UnexpectedEof.into()),
                got => have += got,
            }
            if let Some(at) = self.buf[..have].windows(4).position(|four| four == b"\r\n\r\n") {
                break at + 4;
            }
        };
        let head = String::from_utf8_lossy(&self.buf[..end]).into_owned();
        let len = head.split("Content-Length: ").nth(1).and_then(|rest| rest.lines().next()?.parse().ok()).unwrap_or(0);
        let mut left = if method == "HEAD" { 0 } else { len - (have - end) as u64 };
        while left > 0 {
            let most = self.buf.len().min(left as usize);
            match self.stream.read(&mut self.buf[..most])? {
                0 => return Err(io::ErrorKind::UnexpectedEof.into()),
                got => left -= got as u64,
            }
        }
        Ok((len, head))
    }
}

fn by_peer(peer: &Peer, path: &str, range: Option<std::ops::Range<u64>>, buf: &mut [u8]) -> io::Result<u64> {
    let mut response = peer.get(path, range, 0, Duration::from_secs(10)).map_err(io::Error::other)?;
    while response.read(buf)? > 0 {}
    Ok(response.len())
}

#[derive(Clone, Copy, PartialEq)]
enum Who {
    Nginx,
    Agent,
    Peer,
}

struct Contender {
    who: Who,
    addr: SocketAddr,
    pids: Vec<u32>,
}

/// Seconds of processor time that the threads of the processes have used.
fn cpu(pids: &[u32]) -> f64 {
    let threads = pids.iter().filter_map(|pid| std::fs::read_dir(format!("/proc/{pid}/task")).ok()).flatten().flatten();
    let ran = |thread: std::fs::DirEntry| -> Option<f64> {
        std::fs::read_to_string(thread.path().join("schedstat")).ok()?.split(' ').next()?.parse().ok()
    };
    threads.filter_map(ran).sum::<f64>() / 1e9
}

fn work(contender: &Contender, large: bool, thread: usize, until: Instant) -> io::Result<u64> {
    let peer = Peer::new(peer_options(contender.addr)).map_err(io::Error::other)?;
    let mut plain = Plain::new(contender.addr, contender.who != Who::Nginx)?;
    let (mut total, mut turn, mut buf) = (0, thread * 37, vec![0; 1 << 20]);
    while Instant::now() < until {
        turn += 1;
        let (path, range) = if large {
            let part = (turn / LARGE.0) as u64 % (LARGE.1 / PART);
            (format!("/large/{}", turn % LARGE.0), Some(part * PART..(part + 1) * PART))
        } else {
            (format!("/small/{}", turn % SMALL.0), None)
        };
        total += if contender.who == Who::Peer {
            by_peer(&peer, &path, range, &mut buf)?
        } else {
            let line =
                range.map_or(String::new(), |range| format!("Range: bytes={}-{}\r\n", range.start, range.end - 1));
            plain.ask("GET", &path, &line)?.0
        };
    }
    Ok(total)
}

fn peer_options(addr: SocketAddr) -> PeerOptions {
    let (my_name, its_name) = ("z".to_owned(), "o".to_owned());
    PeerOptions { addr, my_name, its_name, key: key(), peer_timeout: Duration::from_secs(5), idle: 8 }
}

/// MB a second, and seconds of the server's processor time for each GB.
fn measure(contender: &Contender, large: bool, threads: usize, seconds: f64) -> io::Result<(f64, f64)> {
    let (start, before) = (Instant::now(), cpu(&contender.pids));
    let until = start + Duration::from_secs_f64(seconds);
    let total: u64 = std::thread::scope(|scope| {
        let all: Vec<_> =
            (0..threads).map(|thread| scope.spawn(move || work(contender, large, thread, until))).collect();
        all.into_iter()
            .map(|one| one.join().unwrap_or_else(|_| Err(io::ErrorKind::Other.into())))
            .sum::<io::Result<u64>>()
    })?;
    let took = start.elapsed().as_secs_f64();
    Ok((total as f64 / 1e6 / took, (cpu(&contender.pids) - before) / (total as f64 / 1e9)))
}

/// Median microseconds of a request with and without a body.
fn latency(contender: &Contender) -> io::Result<(f64, f64)> {
    let peer = Peer::new(peer_options(contender.addr)).map_err(io::Error::other)?;
    let mut plain = Plain::new(contender.addr, contender.who != Who::Nginx)?;
    let mut buf = vec![0; 1 << 20];
    let (mut get, mut head) = (Vec::new(), Vec::new());
    for turn in 0..4000 {
        let path = format!("/small/{}", turn % SMALL.0);
        let start = Instant::now();
        if contender.who == Who::Peer {
            by_peer(&peer, &path, None, &mut buf)?;
        } else {
            plain.ask("GET", &path, "")?;
        }
        get.push(start.elapsed().as_secs_f64() * 1e6);
        let start = Instant::now();
        if contender.who == Who::Peer {
            peer.head(&path, Duration::from_secs(10)).map_err(io::Error::other)?;
        } else {
            plain.ask("HEAD", &path, "")?;
        }
        head.push(start.elapsed().as_secs_f64() * 1e6);
    }
    Ok((median(get), median(head)))
}

/// Seconds for each GB of a tag, as the receiver of 100 KB makes it, and of the unkeyed checksum
/// that it made before there were tags: medians of nine rounds in turns.
fn digests() -> (f64, f64) {
    let (bytes, key) = (vec![7; SMALL.1 as usize], TagKey::new([3; 32]));
    let timed = |work: &dyn Fn()| {
        let start = Instant::now();
        (0..2000).for_each(|_| work());
        start.elapsed().as_secs_f64() / (2000.0 * SMALL.1 as f64 / 1e9)
    };
    let tag = || {
        let mut tagger = key.of_file([1; 16], 2, &(0..SMALL.1));
        tagger.update(std::hint::black_box(&bytes));
        std::hint::black_box(tagger.finish());
    };
    let sum = || {
        std::hint::black_box(xxhash_rust::xxh3::xxh3_64(std::hint::black_box(&bytes)));
    };
    let (tags, sums) = (0..9).map(|_| (timed(&tag), timed(&sum))).unzip();
    (median(tags), median(sums))
}

fn median(mut of: Vec<f64>) -> f64 {
    of.sort_by(f64::total_cmp);
    of.get(of.len() / 2).copied().unwrap_or(0.0)
}

fn make_files(dir: &Path) -> io::Result<()> {
    for (name, (count, len)) in [("small", SMALL), ("large", LARGE)] {
        std::fs::create_dir_all(dir.join(name))?;
        for at in 0..count {
            std::fs::write(dir.join(name).join(at.to_string()), vec![at as u8; len as usize])?;
        }
    }
    Ok(())
}

fn start_agent(dir: &Path) -> Result<(Child, SocketAddr), Box<dyn std::error::Error>> {
    let mut child = Command::new(std::env::current_exe()?)
        .args([std::ffi::OsStr::new("serve"), dir.as_os_str()])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()?;
    let mut line = String::new();
    io::BufReader::new(child.stdout.take().ok_or("no stdout")?).read_line(&mut line)?;
    Ok((child, line.trim().parse()?))
}

fn start_nginx(dir: &Path, port: u16) -> Result<(Child, Contender), Box<dyn std::error::Error>> {
    let root = dir.display();
    let conf = format!(
        "daemon off; worker_processes 2; pid {root}/nginx.pid; error_log {root}/error.log;\n\
         events {{ worker_connections 256; }}\n\
         http {{ access_log off; sendfile on; tcp_nopush on; keepalive_requests 100000000;\n\
         client_body_temp_path {root}/t; proxy_temp_path {root}/t; fastcgi_temp_path {root}/t; uwsgi_temp_path {root}/t;\n\
         scgi_temp_path {root}/t; server {{ listen 127.0.0.1:{port}; root {root}; }} }}\n"
    );
    let file = dir.join("nginx.conf");
    std::fs::write(&file, conf)?;
    // The workers run as nobody.
    Command::new("chmod").args(["-R", "a+rX"]).arg(dir).status()?;
    let child = Command::new("nginx").arg("-c").arg(&file).stderr(Stdio::null()).spawn()?;
    std::thread::sleep(Duration::from_millis(700));
    let children = std::fs::read_to_string(format!("/proc/{0}/task/{0}/children", child.id()))?;
    let pids = children.split_whitespace().filter_map(|pid| pid.parse().ok()).collect();
    Ok((child, Contender { who: Who::Nginx, addr: SocketAddr::from(([127, 0, 0, 1], port)), pids }))
}

fn compare(contenders: &[Contender], threads: usize, seconds: f64, rounds: usize) -> io::Result<()> {
    let name = |contender: &Contender| match contender.who {
        Who::Nginx => "nginx",
        Who::Agent => "agent",
        Who::Peer => "peer",
    };
    for large in [false, true] {
        let mut all = vec![(Vec::new(), Vec::new()); contenders.len()];
        for _ in 0..rounds {
            for (contender, to) in contenders.iter().zip(&mut all) {
                let (rate, cpu) = measure(contender, large, threads, seconds)?;
                to.0.push(rate);
                to.1.push(cpu);
            }
        }
        for (contender, (rates, cpus)) in contenders.iter().zip(all) {
            let what = if large { "64 MiB" } else { "100 KB" };
            let least = rates.iter().copied().fold(f64::INFINITY, f64::min);
            let most = rates.iter().copied().fold(0.0, f64::max);
            let (rate, cpu) = (median(rates), median(cpus));
            println!("{what}  {:<6} {rate:>7.0} MB/s ({least:.0}..{most:.0})  server {cpu:.3} s/GB", name(contender));
        }
    }
    for contender in contenders {
        let (get, head) = latency(contender)?;
        println!("one by one  {:<6} 100 KB in {get:.0} us, no body in {head:.0} us", name(contender));
    }
    let (tag, sum) = digests();
    println!("a tag of 100 KB {tag:.3} s/GB, XXH3 {sum:.3} s/GB");
    Ok(())
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let args: Vec<String> = std::env::args().skip(1).filter(|arg| arg != "--bench").collect();
    if let [first, dir] = args.as_slice()
        && first == "serve"
    {
        return serve(dir);
    }
    let number = |at: usize, default: usize| args.get(at).and_then(|arg| arg.parse().ok()).unwrap_or(default);
    let (threads, seconds, rounds) = (number(0, 2), number(1, 5), number(2, 3));
    let dir = tempfile::tempdir_in("/dev/shm")?;
    make_files(dir.path())?;
    let (mut agent, addr) = start_agent(dir.path())?;
    let mut contenders = Vec::new();
    let nginx = start_nginx(dir.path(), 18_431);
    let mut nginx = match nginx {
        Ok((child, contender)) => {
            contenders.push(contender);
            Some(child)
        }
        Err(err) => {
            println!("without nginx: {err}");
            None
        }
    };
    contenders.push(Contender { who: Who::Agent, addr, pids: vec![agent.id()] });
    contenders.push(Contender { who: Who::Peer, addr, pids: vec![agent.id()] });
    let result = compare(&contenders, threads, seconds as f64, rounds);
    if let Some(child) = &mut nginx {
        // SIGTERM, not SIGKILL: nginx then ends its workers.
        Command::new("kill").arg(child.id().to_string()).status()?;
        child.wait()?;
    }
    drop(agent.stdin.take());
    agent.wait()?;
    Ok(result?)
}
