//! A network of several nodes on one machine: a namespace for each node and one for the switch that
//! joins them.
//!
//! Nothing in the namespace of the caller changes: no address, route or link. A link is a veth
//! whose far end is a port of the switch's bridge, so that a cut link loses packets as a pulled
//! cable does: neither end is notified. Names carry the process id, so that tests can run side by
//! side and the next run knows the leftovers of a killed one ([`super::leftovers`]).
//!
//! Processes enter by `nsenter --net`, not by `ip netns exec`: that makes a mount namespace, too,
//! which hides mounts made later.

use crate::leftovers;
use std::io::Write;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Mutex, PoisonError};

/// Least burst of a shaped link in bytes: a packet as the kernel hands it over before segmentation
/// is up to 64 KiB.
const MIN_BURST_BYTES: u64 = 128 << 10;

/// How a link is slowed down.
#[derive(Clone, Copy, Default)]
struct Shape {
    mbit: Option<u64>,
    micros: Option<u64>,
}

struct Link {
    shape: Shape,
    deleted: bool,
}

/// A network of nodes. Dropping it ends every process in its namespaces and removes them.
pub struct Net {
    serial: u8,
    links: Mutex<Vec<Link>>,
}

impl Net {
    /// A network of `n` nodes; `None`, with a line about it, for other users than root.
    pub fn up(n: usize) -> Option<Self> {
        static SERIAL: AtomicU8 = AtomicU8::new(0);
        if !rustix::process::geteuid().is_root() {
            println!("skipped: network namespaces need root");
            return None;
        }
        assert!((1..=200).contains(&n), "1 to 200 nodes");
        // `ip netns add` is not safe against another one at the same time.
        let _alone = leftovers::lock();
        leftovers::clear();
        let links = (0..n).map(|_| Link { shape: Shape::default(), deleted: false }).collect();
        let net = Self { serial: SERIAL.fetch_add(1, Ordering::Relaxed), links: Mutex::new(links) };
        net.make(n);
        Some(net)
    }

    fn make(&self, n: usize) {
        let switch = self.switch();
        ip(&format!("netns add {switch}"));
        ip(&format!("-n {switch} link add br0 type bridge"));
        ip(&format!("-n {switch} link set br0 up"));
        for i in 0..n {
            let node = self.name(i);
            ip(&format!("netns add {node}"));
            ip(&format!("-n {switch} link add p{i} type veth peer name eth0 netns {node}"));
            ip(&format!("-n {switch} link set p{i} master br0 up"));
            ip(&format!("-n {node} addr add {}/24 dev eth0", self.address(i)));
            ip(&format!("-n {node} link set eth0 up"));
            ip(&format!("-n {node} link set lo up"));
        }
    }

    fn switch(&self) -> String {
        format!("{}{}-{}-sw", leftovers::NAMESPACE_PREFIX, std::process::id(), self.serial)
    }

    /// The namespace of a node.
    pub fn name(&self, node: usize) -> String {
        format!("{}{}-{}-{node}", leftovers::NAMESPACE_PREFIX, std::process::id(), self.serial)
    }

    /// The address of a node.
    pub fn address(&self, node: usize) -> String {
        format!("10.{}.{}.{}", 16 + std::process::id() % 200, self.serial, node + 1)
    }

    /// A command that runs in a node's namespace.
    pub fn inside(&self, node: usize, program: impl AsRef<std::ffi::OsStr>) -> Command {
        let mut c = Command::new("nsenter");
        c.arg(format!("--net=/run/netns/{}", self.name(node))).arg(program);
        c
    }

    /// The processes in a node's namespace whose command line `is` accepts.
    pub fn processes(&self, node: usize, is: impl Fn(&[&str]) -> bool) -> Vec<i32> {
        leftovers::processes(&self.name(node), is)
    }

    /// Limits both directions of a node's link to `mbit` Mbit/s.
    pub fn rate(&self, node: usize, mbit: u64) {
        assert!(self.reshape(node, |s| s.mbit = Some(mbit)), "tbf: this kernel cannot limit the rate of a link");
    }

    /// Delays every packet from and to a node by `micros` microseconds. False, with a line about
    /// it, where the kernel has no netem.
    pub fn delay(&self, node: usize, micros: u64) -> bool {
        let done = self.reshape(node, |s| s.micros = Some(micros));
        if !done {
            self.reshape(node, |s| s.micros = None);
            println!("skipped: this kernel has no netem, links cannot be delayed");
        }
        done
    }

    /// The link is as fast as at the start.
    pub fn unshaped(&self, node: usize) {
        self.reshape(node, |s| *s = Shape::default());
    }

    fn reshape(&self, node: usize, change: impl FnOnce(&mut Shape)) -> bool {
        let mut links = self.links();
        change(&mut links[node].shape);
        let shape = links[node].shape;
        let ends = [(self.name(node), "eth0".to_owned()), (self.switch(), format!("p{node}"))];
        ends.iter().all(|(ns, dev)| shaped(ns, dev, shape))
    }

    /// Packets from and to the node are lost; neither end is notified.
    pub fn cut(&self, node: usize) {
        ip(&format!("-n {} link set p{node} down", self.switch()));
    }

    /// Ends a [`Net::cut`].
    pub fn join(&self, node: usize) {
        ip(&format!("-n {} link set p{node} up", self.switch()));
    }

    /// Every fourth packet of more than 1,000 bytes that the node sends by TCP arrives with one
    /// byte changed, and no checksum shows it: as between the checksums of a link and those of TCP.
    /// (A veth hands packets on without ever checking their sums.)
    pub fn corrupt(&self, node: usize) {
        let table = "table ip corrupt {\n chain output {\n type filter hook output priority 0;\n \
                     ip protocol tcp ip length > 1000 numgen random mod 4 == 0 @nh,5600,8 set 0x5a\n }\n}\n";
        self.nft(node, table);
    }

    /// Ends a [`Net::corrupt`].
    pub fn sound(&self, node: usize) {
        self.nft(node, "delete table ip corrupt\n");
    }

    #[track_caller]
    fn nft(&self, node: usize, rules: &str) {
        let mut c = self.inside(node, "nft");
        let child = c.args(["-f", "-"]).stdin(Stdio::piped()).stderr(Stdio::piped()).spawn();
        let mut child = child.expect("nsenter (Debian: util-linux)");
        child.stdin.take().expect("its input").write_all(rules.as_bytes()).expect("nft (Debian: nftables)");
        let out = child.wait_with_output().expect("nft");
        assert!(out.status.success(), "nft (Debian: nftables): {}", String::from_utf8_lossy(&out.stderr));
    }

    /// The node is lost: its link goes first, then all of its processes at once, then its
    /// namespace.
    pub fn delete(&self, node: usize) {
        let name = self.name(node);
        let gone = std::mem::replace(&mut self.links()[node].deleted, true);
        if !gone {
            ip(&format!("-n {} link del p{node}", self.switch()));
            leftovers::end(&name);
            ip(&format!("netns del {name}"));
        }
    }

    /// Whether a node was deleted.
    pub fn is_deleted(&self, node: usize) -> bool {
        self.links()[node].deleted
    }

    fn links(&self) -> std::sync::MutexGuard<'_, Vec<Link>> {
        self.links.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Net {
    fn drop(&mut self) {
        let there: Vec<usize> = self.links().iter().enumerate().filter(|(_, l)| !l.deleted).map(|(i, _)| i).collect();
        let names = there.into_iter().map(|i| self.name(i)).chain([self.switch()]);
        names.for_each(|name| leftovers::remove(&name));
    }
}

/// Replaces the queueing disciplines of one end of a link.
fn shaped(namespace: &str, device: &str, shape: Shape) -> bool {
    let tc = |words: &str| {
        let mut c = Command::new("nsenter");
        c.arg(format!("--net=/run/netns/{namespace}")).arg("tc").args(words.split(' '));
        c.output().is_ok_and(|o| o.status.success())
    };
    // Fails when there is none.
    tc(&format!("qdisc del dev {device} root"));
    let rate = shape.mbit.map(|mbit| {
        let burst = (mbit * 1_000_000 / 8 / 250).max(MIN_BURST_BYTES);
        format!("tbf rate {mbit}mbit burst {burst} latency 20ms")
    });
    let delay = shape.micros.map(|us| format!("netem delay {us}us limit 100000"));
    match (rate, delay) {
        (None, None) => true,
        (Some(one), None) | (None, Some(one)) => tc(&format!("qdisc add dev {device} root handle 1: {one}")),
        (Some(rate), Some(delay)) => {
            tc(&format!("qdisc add dev {device} root handle 1: {rate}"))
                && tc(&format!("qdisc add dev {device} parent 1: handle 10: {delay}"))
        }
    }
}

/// Runs `ip` with these words.
#[track_caller]
fn ip(words: &str) {
    let out = Command::new("ip").args(words.split(' ')).output().expect("ip (Debian: iproute2)");
    assert!(out.status.success(), "ip {words}: {}", String::from_utf8_lossy(&out.stderr));
}
