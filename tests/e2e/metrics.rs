//! Metrics of a real agent, got as Prometheus and node_exporter get them.

use crate::harness::World;
use monarch_core::agent::protocol::Status;
use std::collections::BTreeMap;
use std::fs;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;

const FILES: u64 = 60;
const FILE_BYTES: u64 = 40_000;

/// A page: the value of each series.
type Page = BTreeMap<String, f64>;

fn fetch(url: &str) -> String {
    let (address, path) = url.strip_prefix("http://").unwrap().split_once('/').unwrap();
    let mut stream = TcpStream::connect(address).unwrap();
    write!(stream, "GET /{path} HTTP/1.1\r\nHost: {address}\r\nAccept: text/plain\r\n\r\n").unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    let (head, page) = answer.split_once("\r\n\r\n").unwrap();
    assert!(head.starts_with("HTTP/1.1 200 OK\r\n") && head.contains("text/plain; version=0.0.4"), "{head}");
    page.to_owned()
}

/// Every line is a comment of its metric or a series with a number; no series is there twice.
#[track_caller]
fn parse(text: &str) -> Page {
    let mut page = Page::new();
    let (mut of, mut agents) = (String::new(), String::new());
    for line in text.lines() {
        if let Some(rest) = line.strip_prefix("# TYPE ").or_else(|| line.strip_prefix("# HELP ")) {
            rest.split(' ').next().unwrap().clone_into(&mut of);
            continue;
        }
        let (series, value) = line.rsplit_once(' ').unwrap_or_else(|| panic!("not a series: {line}"));
        let name = series.split('{').next().unwrap();
        let part = name.strip_prefix(of.as_str());
        assert!(part.is_some_and(|p| ["", "_bucket", "_sum", "_count"].contains(&p)), "{line} below {of}");
        let value = value.parse().unwrap_or_else(|_| panic!("not a number: {line}"));
        // Each has the label of its agent.
        let (agent, rest) = series[name.len()..]
            .strip_prefix("{agent=\"")
            .and_then(|rest| rest.split_once('"'))
            .unwrap_or_else(|| panic!("no agent: {line}"));
        assert!(agents.is_empty() || agents == agent, "two agents: {line}");
        agent.clone_into(&mut agents);
        let series = match rest.strip_prefix(',') {
            Some(rest) => format!("{name}{{{rest}"),
            None => name.to_owned(),
        };
        assert!(page.insert(series, value).is_none(), "twice: {line}");
    }
    assert!(page.len() > 100, "{text}");
    page
}

/// A page, and the status when neither jobs nor agent moved.
#[track_caller]
fn at_rest(w: &World, page: impl Fn() -> String) -> (Page, Status) {
    for _ in 0..100 {
        let before = w.agent().unwrap();
        let page = page();
        let after = w.agent().unwrap();
        if (&before.counters, &before.agent) == (&after.counters, &after.agent)
            && before.roots[0].epochs == after.roots[0].epochs
        {
            return (parse(&page), after);
        }
    }
    panic!("it never rests: {:#?}", w.agent());
}

/// Asserts that figures which `monarch status` shows, too, are the same on the page.
#[track_caller]
fn agree(page: &Page, s: &Status) {
    let root = s.roots[0].path.display();
    let sum = |name: &str| -> f64 { page.iter().filter(|(k, _)| k.starts_with(name)).map(|(_, v)| v).sum() };
    let reasons = [
        "absent",
        "refused",
        "no_room",
        "changed",
        "written",
        "deadline",
        "unknown",
        "flags",
        "vanished",
        "large",
        "other_mount",
    ];
    let to_pfs: u64 = reasons.iter().map(|r| s.counters[*r]).sum();
    let same = |series: &str, value: f64| {
        let on_page = page.get(series).unwrap_or_else(|| panic!("no {series}: {page:#?}"));
        assert!((on_page - value).abs() < 1e-6, "{series}: {on_page} on the page, {value} in the status");
    };
    same("monarch_opens_total{served=\"tier\"}", s.counters["hits"] as f64);
    same("monarch_opens_total{served=\"waited\"}", s.counters["waited"] as f64);
    assert!((sum("monarch_opens_pfs_total{") - to_pfs as f64).abs() < 0.5, "{to_pfs}: {page:#?}");
    same("monarch_hit_bytes_total", s.counters["hit_bytes"] as f64);
    same("monarch_reader_wait_seconds_total", s.counters["wait_us"] as f64 / 1e6);
    same("monarch_metadata_served_total{call=\"stat\"}", s.counters["stats"] as f64);
    same("monarch_copies_total{asked=\"ahead\"}", s.agent["copied_ahead"] as f64);
    same("monarch_copies_total{asked=\"demand\"}", s.agent["copied_on_demand"] as f64);
    same("monarch_copied_bytes_total", s.agent["bytes_copied"] as f64);
    let tier = &s.tiers[0];
    same(&format!("monarch_tier_capacity_bytes{{tier=\"{}\"}}", tier.name), tier.capacity as f64);
    same(&format!("monarch_tier_used_bytes{{tier=\"{}\"}}", tier.name), tier.used as f64);
    same(&format!("monarch_tier_copies{{tier=\"{}\"}}", tier.name), tier.files as f64);
    same(&format!("monarch_root_files{{root=\"{root}\"}}"), s.roots[0].files as f64);
    same(&format!("monarch_root_opens_total{{root=\"{root}\"}}"), s.roots[0].opens as f64);
    let (current, last) = (s.roots[0].epochs.last().unwrap(), s.roots[0].epochs.iter().rfind(|e| e.complete).unwrap());
    same(&format!("monarch_epoch_number{{root=\"{root}\"}}"), f64::from(current.number));
    same(&format!("monarch_epoch_opens{{root=\"{root}\",epoch=\"current\",served=\"tier\"}}"), current.local as f64);
    same(&format!("monarch_epoch_seconds{{root=\"{root}\",epoch=\"last\"}}"), last.seconds);
}

#[test]
fn a_page_and_a_file_of_metrics_agree_with_the_status_and_with_the_pfs() {
    let dir = tempfile::tempdir().unwrap();
    let plan = World::plan().files(FILES as usize).size(FILE_BYTES as usize).args(&["--plain", "--exact"]).patient();
    let plan = plan.set("source.chunk_threshold=16MiB").set("metrics.listen=127.0.0.1:0").set("metrics.interval=1s");
    let mut w = plan.set(&format!("metrics.textfile={}", dir.path().display())).build();
    w.settle();
    w.run(&w.python("passes.py").args(["--epochs", "3"]).arg(w.root())).good();
    w.until("all opens counted", |s| s.roots[0].epochs.iter().map(|e| e.opens).sum::<u64>() >= 3 * FILES);
    let status = w.agent().unwrap();
    let url = status.metrics.url.expect("an address");
    let (page, status) = at_rest(&w, || fetch(&url));
    agree(&page, &status);
    // The counts of the PFS's server itself.
    let pfs = w.pfs().counters().unwrap();
    assert_eq!(page["monarch_pfs_open_seconds_count"] as u64, pfs.opens(), "{pfs:?}");
    assert_eq!(page["monarch_pfs_read_bytes_total"] as u64, FILES * FILE_BYTES, "{pfs:?}");
    assert!(page["monarch_pfs_calls_total{caller=\"copies\"}"] as u64 >= 3 * FILES, "an open, a read, a question each");
    assert!(page["monarch_pfs_calls_total{caller=\"scans\"}"] >= 1.0);
    assert_eq!(page["monarch_copy_seconds_count{origin=\"pfs\",piece=\"file\"}"] as u64, FILES);
    assert_eq!(page["monarch_copy_seconds_bucket{origin=\"pfs\",piece=\"file\",le=\"+Inf\"}"] as u64, FILES);
    // The file has the same figures, is readable for other users, and no other file lies beside it.
    let file = status.metrics.textfile.expect("a file");
    assert_eq!(fs::metadata(&file).unwrap().permissions().mode() & 0o777, 0o644);
    w.until("a file as new as the page", |_| {
        let text = fs::read_to_string(&file).unwrap();
        let same = |series: &str| parse(&text).get(series) == page.get(series);
        same("monarch_opens_total{served=\"tier\"}") && same("monarch_copied_bytes_total")
    });
    let names: Vec<PathBuf> = fs::read_dir(dir.path()).unwrap().map(|e| e.unwrap().path()).collect();
    assert!(names.iter().all(|n| *n == file || n.file_name().unwrap().to_string_lossy().starts_with('.')), "{names:?}");
    let shown = String::from_utf8(w.monarch("status").output().unwrap().stdout).unwrap();
    assert!(shown.contains(&format!("metrics  {url}\n")) && shown.contains(&file.display().to_string()), "{shown}");
    w.release();
    let deadline = std::time::Instant::now() + std::time::Duration::from_secs(30);
    while file.exists() {
        assert!(std::time::Instant::now() < deadline, "the file is there after its agent");
        std::thread::sleep(std::time::Duration::from_millis(20));
    }
    assert!(TcpStream::connect(url.split('/').nth(2).unwrap()).is_err(), "somebody still listens");
}

#[test]
fn an_agent_runs_without_a_port_in_use_and_takes_it_when_it_is_free() {
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap();
    let dir = tempfile::tempdir().unwrap();
    let plan = World::plan().set(&format!("metrics.listen={address}"));
    let mut w = plan.set(&format!("metrics.textfile={}/none/monarch.prom", dir.path().display())).build();
    w.settle();
    w.same(&w.python("passes.py").args(["--epochs", "2"]).arg(w.root()));
    let status = w.agent().unwrap();
    let trouble = status.metrics.trouble.expect("a word about the port");
    assert!(trouble.contains(&address.to_string()) && status.metrics.url.is_none(), "{trouble}");
    assert!(status.counters["hits"] > 0, "{:?}", status.counters);
    let shown = String::from_utf8(w.monarch("status").output().unwrap().stdout).unwrap();
    assert!(shown.contains(&format!("notice   no metrics: cannot listen at {address}")), "{shown}");
    let log = w.log();
    assert_eq!(log.matches("no metrics over HTTP (metrics.listen)").count(), 1, "{log}");
    assert_eq!(log.matches("metrics cannot be written (metrics.textfile)").count(), 1, "{log}");
    drop(taken);
    w.until("the port", |s| s.metrics.url.is_some());
    let page = parse(&fetch(&w.agent().unwrap().metrics.url.unwrap()));
    assert_eq!(page["monarch_jobs"] as u64, 1);
}

/// The agents of a world.
fn agents(w: &World) -> Vec<Status> {
    let out = w.monarch("status").arg("--json").output().unwrap();
    let all: Vec<Status> = serde_json::from_slice(&out.stdout).unwrap_or_default();
    all.into_iter().filter(|s| s.runtime_dir.starts_with(w.runtime())).collect()
}

#[test]
fn the_agents_of_two_jobs_share_a_port_and_its_page_has_the_figures_of_both() {
    let free = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = free.local_addr().unwrap();
    drop(free);
    let mut w = World::plan().files(4).set(&format!("metrics.listen={address}")).build();
    w.keep();
    w.until("the port", |s| s.metrics.url.is_some());
    let url = w.agent().unwrap().metrics.url.unwrap();
    // A second job, with other tiers and so with an agent of its own.
    let second = w.scratch().join("second tier");
    let mut words = w.words();
    let tier = words.iter().position(|word| word == "--tier").unwrap();
    words[tier + 1] = format!("{}:64MiB", second.display()).into();
    let mut c = w.monarch("run");
    c.arg("--quiet").args(words).args(["--", "sh", "-c", "echo kept; cat"]);
    let mut job = crate::harness::Running::new(c);
    job.until_written("kept");
    w.until("both agents", |_| agents(&w).iter().filter(|s| s.metrics.url.as_ref() == Some(&url)).count() == 2);
    assert_eq!(agents(&w).iter().filter(|s| s.metrics.shared).count(), 1, "{:#?}", agents(&w));
    let jobs = |page: &str| page.lines().filter(|line| line.starts_with("monarch_jobs{agent=")).count();
    w.until("both agents on the page", |_| jobs(&fetch(&url)) == 2);
    // Every metric is described once, and its series follow each other.
    let page = fetch(&url);
    let mut described = std::collections::HashSet::new();
    let of = |line: &str| line.strip_prefix("# TYPE ").map(|rest| rest.split(' ').next().unwrap().to_owned());
    assert!(page.lines().filter_map(of).all(|name| described.insert(name)), "{page}");
    let series: std::collections::HashSet<&str> =
        page.lines().filter_map(|l| l.rsplit_once(' ')).map(|l| l.0).collect();
    assert_eq!(series.len(), page.lines().count(), "no line is there twice: {page}");
    // When the agent that has the port ends, the other one takes it.
    w.release();
    let deadline = std::time::Instant::now() + std::time::Duration::from_secs(60);
    while agents(&w).first().is_none_or(|s| s.metrics.shared || s.metrics.url.as_ref() != Some(&url))
        || agents(&w).len() != 1
    {
        assert!(std::time::Instant::now() < deadline, "{:#?}", agents(&w));
        std::thread::sleep(std::time::Duration::from_millis(50));
    }
    assert_eq!(jobs(&fetch(&url)), 1);
    job.end().good();
}

#[test]
fn an_agent_publishes_no_metrics_unless_configured() {
    let mut w = World::plan().build();
    w.keep();
    w.until("an agent", |s| s.roots[0].state == "ready");
    let status = w.agent().unwrap();
    assert_eq!(status.metrics, Default::default());
    let sockets = fs::read_dir(format!("/proc/{}/fd", status.pid)).unwrap().flatten();
    let inodes: Vec<String> = sockets
        .filter_map(|fd| {
            fs::read_link(fd.path()).ok()?.to_str()?.strip_prefix("socket:[")?.strip_suffix(']').map(str::to_owned)
        })
        .collect();
    for table in ["tcp", "tcp6"] {
        let listening = fs::read_to_string(format!("/proc/{}/net/{table}", status.pid)).unwrap();
        let ours =
            listening.lines().filter(|l| l.split_whitespace().nth(9).is_some_and(|n| inodes.iter().any(|i| i == n)));
        assert_eq!(ours.count(), 0, "{listening}");
    }
}
