//! [`LowerRooms`]: the rooms below, from which the threads take their work.

use crate::tiering::access::Access;
use crate::tiering::compression::Compression;
use crate::tiering::copy::Copying;
use crate::tiering::copy::fetching::Fetching;
use crate::tiering::core::shared::Shared;
use crate::tiering::policy::policy_handle::PolicyHandle;
use crate::tiering::queue::Queue;
use crate::tiering::residency::Residency;
use crate::tiering::status::Reports;
use std::sync::Arc;

/// The rooms below `schedule` that it uses.
pub(crate) struct LowerRooms<'a> {
    pub(crate) shared: &'a Shared,
    pub(crate) policy: &'a Arc<PolicyHandle>,
    pub(crate) queue: &'a Queue,
    pub(crate) residency: &'a Residency,
    pub(crate) access: &'a Access,
    pub(crate) compression: &'a Compression,
    pub(crate) fetching: &'a Fetching,
    pub(crate) copying: &'a Copying,
    pub(crate) reports: &'a Reports,
}
