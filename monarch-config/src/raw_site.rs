//! The file of the site as written.
//!
//! The doc comments here are the reference for administrators: they become the descriptions in
//! `docs/site.schema.json`.

use schemars::JsonSchema;
use serde::Deserialize;

use super::given::{Count, Given, OrNone, Pattern, Rate, Size, Text, Toggle};
use super::raw::RawConfig;

/// Settings of a site for all users of a node: /etc/monarch/monarch.yaml. It must belong to root,
/// and neither it nor its directory may be writable by group or others.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
#[schemars(title = "Monarch site settings")]
pub(super) struct RawSite {
    /// Whether jobs are served. With false, `monarch run` runs its command without Monarch, and
    /// within a second new processes of running jobs read the PFS. Default true.
    pub(super) enabled: Option<Given<Toggle>>,
    /// What users read while enabled is false, such as a ticket or a date.
    pub(super) reason: Option<Given<Text>>,
    /// Settings that hold where a user gives none: every setting of a configuration file.
    pub(super) defaults: Option<RawConfig>,
    /// What no user's setting exceeds: a value above a cap is lowered to it.
    pub(super) caps: Option<RawCaps>,
}

/// What no user's setting exceeds.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub(super) struct RawCaps {
    /// How the PFS is read.
    pub(super) source: Option<RawSourceCaps>,
    /// Where copies are kept.
    pub(super) tiers: Option<RawTierCaps>,
    /// The index of names and attributes.
    pub(super) index: Option<RawIndexCaps>,
    /// What is read.
    pub(super) dataset: Option<RawDatasetCaps>,
    /// What is staged.
    pub(super) outputs: Option<RawOutputCaps>,
    /// How what jobs write is copied to the PFS.
    pub(super) drain: Option<RawDrainCaps>,
}

/// How the PFS is read.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub(super) struct RawSourceCaps {
    /// Most requests in flight at the PFS from one agent. 1 to 1024.
    pub(super) max_inflight: Option<Given<Count>>,
    /// Most that one agent reads from the PFS in a second, such as 500MiB/s. At least 1MiB/s.
    pub(super) bandwidth_limit: Option<Given<OrNone<Rate>>>,
    /// Most PFS operations that one agent starts in a second. 1 to 1000000.
    pub(super) iops_limit: Option<Given<OrNone<Count>>>,
}

/// Where copies are kept.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub(super) struct RawTierCaps {
    /// Most space that copies take in one tier. At least 1MiB.
    pub(super) capacity: Option<Given<Size>>,
    /// Most space that copies take in all tiers of an agent together. The slowest tiers are lowered
    /// first; a tier with less than 1MiB left is not used. At least 1MiB.
    pub(super) total_capacity: Option<Given<Size>>,
}

/// The index of names and attributes.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub(super) struct RawIndexCaps {
    /// Most memory that the index takes. At least 1MiB.
    pub(super) max_memory: Option<Given<Size>>,
}

/// What is read.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub(super) struct RawDatasetCaps {
    /// Directories, absolute, that are no roots, nor is any directory below or above them; `*` and
    /// `?` stand for characters of one name. Links are followed before they are compared.
    pub(super) forbidden_roots: Option<Vec<Given<Pattern>>>,
}

/// What is staged.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub(super) struct RawOutputCaps {
    /// Directories, absolute, below which nothing is staged, nor below any directory above them;
    /// `*` and `?` stand for characters of one name. Links are followed before they are compared.
    pub(super) forbidden_roots: Option<Vec<Given<Pattern>>>,
    /// Most bytes of an output root that are not published. At least 1MiB.
    pub(super) max_pending: Option<Given<Size>>,
}

/// How what jobs write is copied to the PFS.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub(super) struct RawDrainCaps {
    /// Most that one agent writes to the PFS in a second, such as 500MiB/s. At least 1MiB/s.
    pub(super) bandwidth_limit: Option<Given<OrNone<Rate>>>,
}
