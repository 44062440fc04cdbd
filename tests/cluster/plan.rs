//! The description of a cluster, and how it is brought up.

use crate::harness::built;
use crate::leftovers;
use crate::net::Net;
use crate::reads::Data;
use crate::site::{Configuration, Site};
use crate::world::Cluster;
use slowfs::{CacheMode, Slowfs};
use std::cell::{Cell, RefCell};
use std::fs;
use std::time::Duration;

type Shape = Box<dyn FnOnce(slowfs::Builder) -> slowfs::Builder>;

/// A description of a cluster.
pub struct Plan {
    nodes: usize,
    data: Data,
    placement: Option<String>,
    alone: bool,
    disk: bool,
    tier_size: String,
    pfs: Shape,
    set: Vec<String>,
    cluster: Vec<String>,
}

impl Plan {
    pub(crate) fn new(nodes: usize) -> Self {
        Self {
            nodes,
            data: Data { files: 60, dirs: 4, size: 40_000 },
            placement: None,
            alone: false,
            disk: false,
            tier_size: "64MiB".to_owned(),
            pfs: Box::new(|b| b),
            set: std::env::var("MONARCH_CLUSTER_SET")
                .map_or_else(|_| vec![], |s| s.split(',').map(str::to_owned).collect()),
            cluster: vec![],
        }
    }

    /// Number of files.
    pub fn files(mut self, files: usize) -> Self {
        self.data.files = files;
        self
    }
    /// Their mean size.
    pub fn size(mut self, size: usize) -> Self {
        self.data.size = size;
        self
    }
    /// Number of directories that they lie in.
    pub fn dirs(mut self, dirs: usize) -> Self {
        self.data.dirs = dirs;
        self
    }
    /// `sharded`, `replicated` or `hybrid`.
    pub fn placement(self, placement: &str) -> Self {
        Self { placement: Some(placement.to_owned()), ..self }
    }
    /// Without the section `cluster`: nodes that know nothing of each other.
    pub fn alone(self) -> Self {
        Self { alone: true, ..self }
    }
    /// Tiers on disk instead of in memory.
    pub fn disk(self) -> Self {
        Self { disk: true, ..self }
    }
    /// Capacity of every node's tier.
    pub fn tier_size(self, size: &str) -> Self {
        Self { tier_size: size.to_owned(), ..self }
    }
    /// Options of the slow file system, over those of the harness.
    pub fn pfs(self, shape: impl FnOnce(slowfs::Builder) -> slowfs::Builder + 'static) -> Self {
        Self { pfs: Box::new(shape), ..self }
    }
    /// A setting of Monarch for every node, `KEY=VALUE`.
    pub fn set(mut self, setting: &str) -> Self {
        self.set.push(setting.to_owned());
        self
    }
    /// A line of the section `cluster`, such as `peer_timeout: 500ms`.
    pub fn cluster(mut self, line: &str) -> Self {
        self.cluster.push(line.to_owned());
        self
    }

    /// Brings it up; `None`, with a line about it, where that is not allowed.
    pub fn build(self) -> Option<Cluster> {
        let net = Net::up(self.nodes)?;
        let prefix = format!("{}{}-", leftovers::DIRECTORY_PREFIX, std::process::id());
        let made = |place: &str| tempfile::Builder::new().prefix(&prefix).tempdir_in(place).expect("own directory");
        let (disk, shm) = (made("/tmp"), made("/dev/shm"));
        let (backing, root) = (disk.path().join("data"), disk.path().join("pfs"));
        for dir in [&backing, &root] {
            fs::create_dir(dir).expect("own directory");
        }
        let b = Slowfs::builder(&backing, &root).program(built("slowfs")).allow_other();
        let b = b.meta_latency(Duration::ZERO).data_latency(Duration::ZERO);
        let b = (self.pfs)(b.cache(CacheMode::Direct).attr_ttl(Duration::from_secs(600)));
        let nodes = self.nodes;
        let tiers = if self.disk { disk.path() } else { shm.path() }.to_owned();
        let site = Site {
            configuration: Configuration {
                tier_size: self.tier_size,
                placement: self.placement,
                alone: self.alone,
                cluster: self.cluster,
            },
            tiers,
            memory: shm.path().to_owned(),
            shared: disk.path().to_owned(),
            root,
            settings: self.set,
            mounted: RefCell::default(),
            nodes,
            net,
        };
        let c = Cluster {
            site,
            data: self.data,
            serial: Cell::new(0),
            pfs: b.spawn().expect("slowfs"),
            backing,
            disk,
            shm,
        };
        c.make("1");
        (0..nodes).for_each(|i| c.node(i).prepare());
        Some(c)
    }
}
