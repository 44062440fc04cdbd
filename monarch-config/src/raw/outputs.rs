//! The lists and sections about what jobs write, as written.

use std::fmt;

use schemars::JsonSchema;
use serde::Deserialize;
use serde::de::value::MapAccessDeserializer;
use serde::de::{Deserializer, Error, MapAccess, Visitor};

use super::super::choice::OneOf;
use super::super::given::{Given, Location, Name, NamePattern, OrNone, Rate, SizeOrShare, Time, Toggle};
use super::super::model::OutputSync;

/// A directory below which what the job writes is staged, alone or with its settings.
#[derive(Debug, JsonSchema)]
#[schemars(untagged)]
pub(in super::super) enum RawOutput {
    /// The directory.
    Path(Given<Location>),
    /// The directory with its settings.
    Named(Box<RawNamedOutput>),
}

/// A directory below which what the job writes is staged, with its settings.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
#[schemars(extend("required" = ["path"]))]
pub(in super::super) struct RawNamedOutput {
    /// The directory, absolute; it has to exist. It may be a root of the data set, or lie in one,
    /// or hold one.
    pub(in super::super) path: Option<Given<Location>>,
    /// Other spellings that lead to the same directory: symbolic links, bind mounts. Absolute.
    /// Default: none.
    pub(in super::super) aliases: Option<Vec<Given<Location>>>,
    /// Name of the tier that holds the files until they are published. Default: the fastest tier on
    /// a disk; with `volatile`, the fastest tier.
    pub(in super::super) tier: Option<Given<Name>>,
    /// Whether files may be staged in memory, where they are lost with the node, or when the job's
    /// processes are killed for their memory, until they are published; `fsync` then promises
    /// nothing beyond the process. Required for a tier in memory. Default false.
    pub(in super::super) volatile: Option<Given<Toggle>>,
    /// What fsync waits for: local (the file is on the tier's disk, and survives a crash of the
    /// node) or publish (the file, if it is closed, and all that the job did before are on the
    /// PFS). Default local.
    pub(in super::super) fsync: Option<Given<OneOf<OutputSync>>>,
    /// Names of files that are not staged, with `*`, `?` and `[...]` as in a shell: files that are
    /// appended to, shared, or locked. A list replaces the default, which is *.log, *.out, *.err,
    /// *.csv, *.jsonl, events.out.tfevents.*, *.db*, *.sqlite*, *-journal, *-wal, *.lock*, *.pid.
    pub(in super::super) through: Option<Vec<Given<NamePattern>>>,
    /// Most bytes that are not published, as a size or a share of the tier's capacity: a file that
    /// is created beyond waits until earlier ones are published, and is then written to the PFS
    /// itself. Default 50%; at least 1MiB.
    pub(in super::super) max_pending: Option<Given<SizeOrShare>>,
    /// Where nodes share: how long a call waits for another node to publish a name that it has
    /// written and the PFS does not have yet. Then the name is not found. 0s: such names are not
    /// asked for. Default 60s; at most 1h.
    pub(in super::super) peer_wait: Option<Given<Time>>,
}

impl<'de> Deserialize<'de> for RawOutput {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(PathOrNamed)
    }
}

/// By hand, because serde's untagged enums lose both the place and the reason of a mistake.
struct PathOrNamed;

impl<'de> Visitor<'de> for PathOrNamed {
    type Value = RawOutput;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a path, or a path with settings")
    }

    fn visit_str<E: Error>(self, path: &str) -> Result<RawOutput, E> {
        Given::deserialize(serde::de::value::StrDeserializer::new(path)).map(RawOutput::Path)
    }

    fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<RawOutput, A::Error> {
        RawNamedOutput::deserialize(MapAccessDeserializer::new(map)).map(|named| RawOutput::Named(Box::new(named)))
    }
}

/// How what jobs write is copied to the PFS.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub(in super::super) struct RawDrain {
    /// Limit of what this node writes to the PFS, of all output roots together, such as 500MiB/s.
    /// Default none; at least 1MiB/s.
    pub(in super::super) bandwidth_limit: Option<Given<OrNone<Rate>>>,
}
