//! Throughput and processor time of serving files to other nodes, compared with nginx.
//!
//!     cargo bench -p monarch-cluster --bench peer -- 2 5 3
//!
//! The numbers are client threads, seconds for each measurement and rounds. Files of 100 KB (1,000
//! of them) and of 64 MiB (four, fetched in ranges of 8 MiB) are in the page cache: in /dev/shm, or
//! in the directory `MONARCH_BENCH_DIR`. Each server runs in processes of its own with two threads
//! or workers, so that its processor time is separate from that of the clients. `agent` and `nginx`
//! have the same plain client; `peer` is the agent with Monarch's own client. With `tls` behind the
//! name all of that is encrypted, by AES-128-GCM in TLS 1.3 for both servers. The rounds alternate;
//! a line is the median of a server's rounds, and its ratios to `nginx` and to `nginx tls`. The
//! last lines are the times of sequential requests from one thread, for a file of 100 KB and for an
//! answer without a body, of a connection with its first request, and the processor time of tags
//! and of the checksum that they replace.
//!
//! The servers listen at 127.0.0.1, or at the address `MONARCH_BENCH_LISTEN` inside the network
//! namespace `MONARCH_BENCH_NETNS`, so that what lies between can have the rate of a real link.
#![allow(clippy::print_stdout, reason = "a benchmark")]

use monarch_cluster::http::{
    Answer, Answering, Handler, Key, Options, Peer, PeerOptions, Request, Senders, Server, Tls, auth, session::Session,
};
use monarch_cluster::tag::TagKey;
use rustix::fs::{Mode, OFlags};
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::{ClientConfig, ClientConnection, DigitallySignedStruct, SignatureScheme, StreamOwned};
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

fn encryption(tls: bool) -> Option<Tls> {
    tls.then(|| Tls::new(&[1; 32]).ok()).flatten()
}

fn serve(dir: &str, address: &str, tls: bool) -> Result<(), Box<dyn std::error::Error>> {
    let options = Options { encryption: encryption(tls), ..Options::new("o", key(), format!("{address}:0").parse()?) };
    let server = Server::start(options, Arc::new(Files(dir.into())), None)?;
    println!("{}", server.addr());
    io::stdin().read_to_end(&mut Vec::new())?;
    Ok(())
}

/// Takes the key of nginx, whatever it is.
#[derive(Debug)]
struct TakesAny;

impl ServerCertVerifier for TakesAny {
    fn verify_server_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        Ok(HandshakeSignatureValid::assertion())
    }

    fn verify_tls13_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        Ok(HandshakeSignatureValid::assertion())
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        vec![SignatureScheme::ECDSA_NISTP256_SHA256, SignatureScheme::ED25519]
    }
}

/// A socket that is read in large pieces, as the library asks for small ones.
struct Pieces(io::BufReader<TcpStream>);

impl Read for Pieces {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        self.0.read(buf)
    }
}

impl Write for Pieces {
    fn write(&mut self, buf: &[u8]) -> io::Result<usize> {
        self.0.get_mut().write(buf)
    }

    fn write_vectored(&mut self, bufs: &[io::IoSlice<'_>]) -> io::Result<usize> {
        self.0.get_mut().write_vectored(bufs)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

trait Duplex: Read + Write {}
impl<T: Read + Write> Duplex for T {}

/// A connection to nginx or to the agent, with TLS if it has any.
fn connect(contender: &Contender) -> io::Result<Box<dyn Duplex>> {
    let socket = TcpStream::connect(contender.addr)?;
    socket.set_nodelay(true)?;
    let config = match contender.who {
        Who::Nginx | Who::Agent | Who::Peer => return Ok(Box::new(socket)),
        Who::AgentTls | Who::PeerTls => Tls::new(&[1; 32]).map_err(io::Error::other)?.client_config().clone(),
        Who::NginxTls => {
            let provider = rustls::crypto::CryptoProvider {
                cipher_suites: vec![rustls::crypto::ring::cipher_suite::TLS13_AES_128_GCM_SHA256],
                ..rustls::crypto::ring::default_provider()
            };
            let config = ClientConfig::builder_with_provider(Arc::new(provider))
                .with_protocol_versions(&[&rustls::version::TLS13])
                .map_err(io::Error::other)?
                .dangerous()
                .with_custom_certificate_verifier(Arc::new(TakesAny))
                .with_no_client_auth();
            Arc::new(config)
        }
    };
    let name = ServerName::try_from("localhost").map_err(io::Error::other)?;
    let tls = ClientConnection::new(config, name).map_err(io::Error::other)?;
    Ok(Box::new(StreamOwned::new(tls, Pieces(io::BufReader::with_capacity(64 << 10, socket)))))
}

/// A minimal client, the same for both servers but for what the agent asks for: a session.
struct Plain {
    stream: Box<dyn Duplex>,
    session: Option<Session>,
    buf: Vec<u8>,
}

impl Plain {
    fn new(contender: &Contender) -> io::Result<Self> {
        let mut plain = Self { stream: connect(contender)?, session: None, buf: vec![0; 1 << 20] };
        if !matches!(contender.who, Who::Nginx | Who::NginxTls) {
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
        self.stream.flush()?;
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
    NginxTls,
    Agent,
    Peer,
    AgentTls,
    PeerTls,
}

impl Who {
    fn name(self) -> &'static str {
        match self {
            Self::Nginx => "nginx",
            Self::NginxTls => "nginx tls",
            Self::Agent => "agent",
            Self::Peer => "peer",
            Self::AgentTls => "agent tls",
            Self::PeerTls => "peer tls",
        }
    }

    fn is_peer(self) -> bool {
        matches!(self, Self::Peer | Self::PeerTls)
    }
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
    let peer = Peer::new(peer_options(contender)).map_err(io::Error::other)?;
    let mut plain = Plain::new(contender)?;
    let (mut total, mut turn, mut buf) = (0, thread * 37, vec![0; 1 << 20]);
    while Instant::now() < until {
        turn += 1;
        let (path, range) = if large {
            let part = (turn / LARGE.0) as u64 % (LARGE.1 / PART);
            (format!("/large/{}", turn % LARGE.0), Some(part * PART..(part + 1) * PART))
        } else {
            (format!("/small/{}", turn % SMALL.0), None)
        };
        total += if contender.who.is_peer() {
            by_peer(&peer, &path, range, &mut buf)?
        } else {
            let line =
                range.map_or(String::new(), |range| format!("Range: bytes={}-{}\r\n", range.start, range.end - 1));
            plain.ask("GET", &path, &line)?.0
        };
    }
    Ok(total)
}

fn peer_options(contender: &Contender) -> PeerOptions {
    let (my_name, its_name) = ("z".to_owned(), "o".to_owned());
    let (addr, encryption) = (contender.addr, encryption(contender.who == Who::PeerTls));
    let (key, senders, peer_timeout) = (key(), Senders::default(), Duration::from_secs(5));
    PeerOptions { addr, my_name, its_name, key, encryption, peer_timeout, idle: 8, senders }
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

/// Median microseconds of a request with and without a body, and of a connection with one.
fn latency(contender: &Contender) -> io::Result<(f64, f64, f64)> {
    let peer = Peer::new(peer_options(contender)).map_err(io::Error::other)?;
    let mut plain = Plain::new(contender)?;
    let mut buf = vec![0; 1 << 20];
    let (mut get, mut head) = (Vec::new(), Vec::new());
    let mut open = Vec::new();
    for turn in 0..4000 {
        let path = format!("/small/{}", turn % SMALL.0);
        let start = Instant::now();
        if contender.who.is_peer() {
            by_peer(&peer, &path, None, &mut buf)?;
        } else {
            plain.ask("GET", &path, "")?;
        }
        get.push(start.elapsed().as_secs_f64() * 1e6);
        let start = Instant::now();
        if contender.who.is_peer() {
            peer.head(&path, Duration::from_secs(10)).map_err(io::Error::other)?;
        } else {
            plain.ask("HEAD", &path, "")?;
        }
        head.push(start.elapsed().as_secs_f64() * 1e6);
    }
    for _ in 0..500 {
        let start = Instant::now();
        if contender.who.is_peer() {
            let peer = Peer::new(peer_options(contender)).map_err(io::Error::other)?;
            peer.head("/small/0", Duration::from_secs(10)).map_err(io::Error::other)?;
        } else {
            Plain::new(contender)?.ask("HEAD", "/small/0", "")?;
        }
        open.push(start.elapsed().as_secs_f64() * 1e6);
    }
    Ok((median(get), median(head), median(open)))
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

/// A command that runs where the servers are to be.
fn inside(program: &std::ffi::OsStr) -> Command {
    match std::env::var_os("MONARCH_BENCH_NETNS") {
        Some(namespace) => {
            let mut command = Command::new("ip");
            command.args(["netns", "exec"]).arg(namespace).arg(program);
            command
        }
        None => Command::new(program),
    }
}

fn address() -> String {
    std::env::var("MONARCH_BENCH_LISTEN").unwrap_or_else(|_| "127.0.0.1".to_owned())
}

fn start_agent(dir: &Path, tls: bool) -> Result<(Child, SocketAddr), Box<dyn std::error::Error>> {
    let mut child = inside(std::env::current_exe()?.as_os_str())
        .args([std::ffi::OsStr::new("serve"), dir.as_os_str()])
        .args([address(), tls.to_string()])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()?;
    let mut line = String::new();
    io::BufReader::new(child.stdout.take().ok_or("no stdout")?).read_line(&mut line)?;
    Ok((child, line.trim().parse()?))
}

fn start_nginx(dir: &Path, port: u16) -> Result<(Child, [Contender; 2]), Box<dyn std::error::Error>> {
    let (root, address) = (dir.display(), address());
    let key =
        ["req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-subj", "/CN=localhost"];
    let mut openssl = Command::new("openssl");
    openssl.args(key).arg("-keyout").arg(dir.join("key")).arg("-out").arg(dir.join("cert")).stderr(Stdio::null());
    if !openssl.status()?.success() {
        return Err("openssl makes no key for nginx".into());
    }
    let conf = format!(
        "daemon off; worker_processes 2; pid {root}/nginx.pid; error_log {root}/error.log;\n\
         events {{ worker_connections 256; }}\n\
         http {{ access_log off; sendfile on; tcp_nopush on; keepalive_requests 100000000;\n\
         client_body_temp_path {root}/t; proxy_temp_path {root}/t; fastcgi_temp_path {root}/t; uwsgi_temp_path {root}/t;\n\
         scgi_temp_path {root}/t; server {{ listen {address}:{port}; root {root}; }}\n\
         server {{ listen {address}:{} ssl; root {root}; ssl_protocols TLSv1.3;\n\
         ssl_certificate {root}/cert; ssl_certificate_key {root}/key; ssl_session_tickets off;\n\
         ssl_conf_command Ciphersuites TLS_AES_128_GCM_SHA256; }} }}\n",
        port + 1
    );
    let file = dir.join("nginx.conf");
    std::fs::write(&file, conf)?;
    // The workers run as nobody.
    Command::new("chmod").args(["-R", "a+rX"]).arg(dir).status()?;
    let child = inside("nginx".as_ref()).arg("-c").arg(&file).stderr(Stdio::null()).spawn()?;
    std::thread::sleep(Duration::from_millis(700));
    let children = std::fs::read_to_string(format!("/proc/{0}/task/{0}/children", child.id()))?;
    let pids: Vec<u32> = children.split_whitespace().filter_map(|pid| pid.parse().ok()).collect();
    let at = |who, port: u16| {
        Ok::<_, std::net::AddrParseError>(Contender {
            who,
            addr: format!("{address}:{port}").parse()?,
            pids: pids.clone(),
        })
    };
    Ok((child, [at(Who::Nginx, port)?, at(Who::NginxTls, port + 1)?]))
}

fn compare(contenders: &[Contender], threads: usize, seconds: f64, rounds: usize) -> io::Result<()> {
    for large in [false, true] {
        let mut all = vec![(Vec::new(), Vec::new()); contenders.len()];
        for _ in 0..rounds {
            for (contender, to) in contenders.iter().zip(&mut all) {
                let (rate, cpu) = measure(contender, large, threads, seconds)?;
                to.0.push(rate);
                to.1.push(cpu);
            }
        }
        let medians: Vec<(f64, f64)> = all.iter().map(|(r, c)| (median(r.clone()), median(c.clone()))).collect();
        let against = |who, (rate, cpu): (f64, f64)| {
            let at = contenders.iter().position(|contender| contender.who == who);
            at.map_or_else(String::new, |at| format!("{:.2} {:.2}", rate / medians[at].0, cpu / medians[at].1))
        };
        for ((contender, (rates, _)), (rate, cpu)) in contenders.iter().zip(&all).zip(&medians) {
            let what = if large { "64 MiB" } else { "100 KB" };
            let least = rates.iter().copied().fold(f64::INFINITY, f64::min);
            let most = rates.iter().copied().fold(0.0, f64::max);
            let (plain, tls) = (against(Who::Nginx, (*rate, *cpu)), against(Who::NginxTls, (*rate, *cpu)));
            println!(
                "{what}  {:<9} {rate:>6.0} MB/s ({least:.0}..{most:.0})  server {cpu:.3} s/GB  to nginx {plain}, nginx tls {tls}",
                contender.who.name()
            );
        }
    }
    for contender in contenders {
        let (get, head, open) = latency(contender)?;
        let name = contender.who.name();
        println!("one by one  {name:<9} 100 KB in {get:.0} us, no body in {head:.0} us, connection {open:.0} us");
    }
    let (tag, sum) = digests();
    println!("a tag of 100 KB {tag:.3} s/GB, XXH3 {sum:.3} s/GB");
    Ok(())
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let args: Vec<String> = std::env::args().skip(1).filter(|arg| arg != "--bench").collect();
    if let [first, dir, address, tls] = args.as_slice()
        && first == "serve"
    {
        return serve(dir, address, tls == "true");
    }
    let number = |at: usize, default: usize| args.get(at).and_then(|arg| arg.parse().ok()).unwrap_or(default);
    let (threads, seconds, rounds) = (number(0, 2), number(1, 5), number(2, 3));
    let dir = tempfile::tempdir_in(std::env::var_os("MONARCH_BENCH_DIR").unwrap_or_else(|| "/dev/shm".into()))?;
    make_files(dir.path())?;
    let (mut agent, addr) = start_agent(dir.path(), false)?;
    let (mut encrypting, tls_addr) = start_agent(dir.path(), true)?;
    let mut contenders = Vec::new();
    let nginx = start_nginx(dir.path(), 18_431);
    let mut nginx = match nginx {
        Ok((child, both)) => {
            contenders.extend(both);
            Some(child)
        }
        Err(err) => {
            println!("without nginx: {err}");
            None
        }
    };
    for (who, addr, server) in [
        (Who::Agent, addr, &agent),
        (Who::Peer, addr, &agent),
        (Who::AgentTls, tls_addr, &encrypting),
        (Who::PeerTls, tls_addr, &encrypting),
    ] {
        contenders.push(Contender { who, addr, pids: vec![server.id()] });
    }
    let result = compare(&contenders, threads, seconds as f64, rounds);
    if let Some(child) = &mut nginx {
        // SIGTERM, not SIGKILL: nginx then ends its workers.
        Command::new("kill").arg(child.id().to_string()).status()?;
        child.wait()?;
    }
    for server in [&mut agent, &mut encrypting] {
        drop(server.stdin.take());
        server.wait()?;
    }
    Ok(result?)
}
