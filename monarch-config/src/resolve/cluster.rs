//! The section `cluster`. Which nodes there are is found later, in the job:
//! `monarch_cluster::discovery::discover`.

use std::path::PathBuf;
use std::time::Duration;

use super::super::context::Context;
use super::super::error::{ConfigError, ErrorKind};
use super::super::given::{Given, Location};
use super::super::hostlist::{MAX_NAMES, parse_nodes};
use super::super::key::Key;
use super::super::model::{Cluster, Discovery, JobSecretSource, MAX_BATCH_FILES};
use super::super::origin::Origin;
use super::super::paths;
use super::super::raw::{RawCluster, RawNodes};
use super::super::units::HOUR;
use super::super::units::{MIB, TIB};

const LEAST_TIMEOUT: Duration = Duration::from_millis(10);
const MOST_TIMEOUT: Duration = Duration::from_mins(1);

pub(super) fn resolve(cx: &mut Context<'_>, raw: &RawCluster) -> Result<Cluster, ConfigError> {
    let default = Cluster::default();
    let discovery = cx.or("cluster.discovery", raw.discovery.as_ref(), default.discovery)?;
    let job_secret = cx.or("cluster.job_secret", raw.job_secret.as_ref(), default.job_secret)?;
    let limit = |key: &str, given| cx.limit(key, given, MIB..=TIB);
    let cluster = Cluster {
        discovery,
        nodes: nodes(cx, raw.nodes.as_ref(), discovery)?,
        dns: dns(cx, raw, discovery)?,
        placement: cx.or("cluster.placement", raw.placement.as_ref(), default.placement)?,
        listen: cx.get(&Key::new("cluster.listen"), raw.listen.as_ref())?,
        port: port(cx, raw)?,
        secret_file: path(cx, "cluster.secret_file", raw.secret_file.as_ref())?,
        job_secret,
        job_secret_file: job_secret_file(cx, raw, job_secret)?,
        encryption: cx.or("cluster.encryption", raw.encryption.as_ref(), default.encryption)?,
        join_timeout: cx.within(
            "cluster.join_timeout",
            raw.join_timeout.as_ref(),
            default.join_timeout,
            Duration::ZERO..=HOUR,
        )?,
        peer_timeout: cx.within(
            "cluster.peer_timeout",
            raw.peer_timeout.as_ref(),
            default.peer_timeout,
            LEAST_TIMEOUT..=MOST_TIMEOUT,
        )?,
        bandwidth_limit: limit("cluster.bandwidth_limit", raw.bandwidth_limit.as_ref())?,
        peer_bandwidth_limit: limit("cluster.peer_bandwidth_limit", raw.peer_bandwidth_limit.as_ref())?,
        batch_files: cx.within(
            "cluster.batch_files",
            raw.batch_files.as_ref(),
            default.batch_files,
            1..=MAX_BATCH_FILES,
        )?,
        transient_share: cx.within(
            "cluster.transient_share",
            raw.transient_share.as_ref(),
            default.transient_share,
            0.01..=0.9,
        )?,
        ..default
    };
    forgotten(cx, &cluster);
    Ok(cluster)
}

/// A section without the setting that makes anything of it.
fn forgotten(cx: &mut Context<'_>, cluster: &Cluster) {
    let key = Key::new("cluster.discovery");
    let others = Cluster { discovery: Discovery::None, ..Cluster::default() } != *cluster;
    if others && *cx.layers.origins.get(&key) == Origin::Default {
        cx.warn(&key, "is none, so this node shares with no other node; write auto to have the nodes of the job found");
    }
}

/// The nodes as written, each entry known to be sound and all of them together not too many.
fn nodes(cx: &Context<'_>, raw: Option<&RawNodes>, discovery: Discovery) -> Result<Vec<String>, ConfigError> {
    let key = Key::new("cluster.nodes");
    let entries: Vec<String> = match raw {
        None => Vec::new(),
        Some(RawNodes::Text(text)) => cx.get(&key, Some(text))?.into_iter().collect(),
        Some(RawNodes::List(list)) => {
            let each = list.iter().enumerate().map(|(at, entry)| cx.get(&key.index(at), Some(entry)));
            each.collect::<Result<Vec<_>, _>>()?.into_iter().flatten().collect()
        }
    };
    match (discovery, entries.is_empty()) {
        (Discovery::Static, true) => Err(cx.error(
            ErrorKind::Missing,
            &key,
            "no node is named, and discovery is static",
            "name all nodes, such as nodes: \"node[01-08]\", or write discovery: auto",
        )),
        (Discovery::Static, false) | (_, true) => {
            let many: usize = entries.iter().filter_map(|entry| parse_nodes(entry).ok()).map(|names| names.len()).sum();
            if many > MAX_NAMES {
                let message = format!("{many} nodes are named, and at most {MAX_NAMES} can be");
                return Err(cx.error(ErrorKind::OutOfBounds, &key, message, "check the ranges"));
            }
            Ok(entries)
        }
        (_, false) => Err(useless(cx, "nodes", "discovery", "static")),
    }
}

fn dns(cx: &Context<'_>, raw: &RawCluster, discovery: Discovery) -> Result<Option<String>, ConfigError> {
    let key = Key::new("cluster.dns");
    match (discovery, cx.get(&key, raw.dns.as_ref())?) {
        (Discovery::Dns, None) => Err(cx.error(
            ErrorKind::Missing,
            &key,
            "no name is given, and discovery is dns",
            "add the name whose addresses are the nodes, such as dns: workers.training.svc",
        )),
        (Discovery::Dns, name) => Ok(name),
        (_, None) => Ok(None),
        (_, Some(_)) => Err(useless(cx, "dns", "discovery", "dns")),
    }
}

/// Something that only another word `with` of the setting `of` would use.
fn useless(cx: &Context<'_>, name: &str, of: &str, with: &str) -> ConfigError {
    let key = Key::new(&format!("cluster.{name}"));
    let message = format!("cluster.{name} is for {of} {with}, and {of} is another one");
    cx.error(ErrorKind::OutOfBounds, &key, message, format!("write {of}: {with}, or leave {name} out"))
}

fn port(cx: &Context<'_>, raw: &RawCluster) -> Result<Option<u16>, ConfigError> {
    let Some(given) = &raw.port else { return Ok(None) };
    let key = Key::new("cluster.port");
    let port = cx.get(&key, Some(given))?.unwrap_or_default();
    u16::try_from(port).ok().filter(|port| *port >= 1024).map(Some).ok_or_else(|| {
        let message = format!("{port} is not a port from 1024 to 65535");
        cx.error(
            ErrorKind::OutOfBounds,
            &key,
            message,
            "write such a port, the same on all nodes, or leave the line out: it is derived",
        )
    })
}

fn job_secret_file(
    cx: &Context<'_>,
    raw: &RawCluster,
    job_secret: JobSecretSource,
) -> Result<Option<PathBuf>, ConfigError> {
    const KEY: &str = "cluster.job_secret_file";
    match (job_secret, path(cx, KEY, raw.job_secret_file.as_ref())?) {
        (JobSecretSource::File, None) => Err(cx.error(
            ErrorKind::Missing,
            &Key::new("cluster.job_secret"),
            "is file, and cluster.job_secret_file names none",
            "name a file that all nodes of the job see, another one for each job, such as /scratch/me/secret-1234; or write job_secret: derived",
        )),
        (JobSecretSource::File, path) => Ok(path),
        (_, None) => Ok(None),
        (_, Some(_)) => Err(useless(cx, "job_secret_file", "job_secret", "file")),
    }
}

fn path(cx: &Context<'_>, key: &str, raw: Option<&Given<Location>>) -> Result<Option<PathBuf>, ConfigError> {
    let key = Key::new(key);
    let path = cx.get(&key, raw)?;
    path.map(|path| paths::clean(cx, ErrorKind::WrongType, &key, &path)).transpose()
}
