//! What a tier leaves free on its file system.

use super::context::Context;
use super::error::{ConfigError, ErrorKind};
use super::key::Key;
use super::model::{Amount, Medium};
use super::site::Site;
use super::units::{GIB, MIB, about, share};

/// The bytes left free for other programs: as given, or the default.
pub(super) fn keep_free_of(
    cx: &mut Context<'_>,
    key: &Key,
    given: Option<Amount>,
    site: &Site,
) -> Result<u64, ConfigError> {
    let total = site.fs.total;
    let Some(amount) = given else {
        let default = if site.medium == Medium::Memory { 0 } else { (share(total, 0.05) / MIB * MIB).min(GIB) };
        cx.derived(
            key,
            if site.medium == Medium::Memory { "in memory" } else { "5% of the file system, at most 1GiB" },
        );
        return Ok(default);
    };
    let keep_free = amount.of(total);
    if keep_free >= total {
        let message = format!(
            "{} leaves nothing for copies: the file system of {} holds {}",
            about(keep_free),
            site.path.display(),
            about(total)
        );
        return Err(cx.error(ErrorKind::OutOfBounds, key, message, "write less, such as 5% or 1GiB"));
    }
    Ok(keep_free)
}
