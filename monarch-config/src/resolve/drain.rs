//! The section `drain`.

use super::super::context::Context;
use super::super::error::ConfigError;
use super::super::given::{Kind, Rate};
use super::super::key::Key;
use super::super::model::Drain;
use super::super::raw::RawDrain;
use super::super::units::{MIB, TIB};

pub(super) fn resolve(cx: &mut Context<'_>, raw: &RawDrain) -> Result<Drain, ConfigError> {
    const KEY: &str = "drain.bandwidth_limit";
    let limit = cx.limit(KEY, raw.bandwidth_limit.as_ref(), MIB..=TIB)?;
    let cap = cx.caps.drain_bandwidth.clone();
    Ok(Drain { bandwidth_limit: cx.capped_limit(&Key::new(KEY), limit, cap.as_ref(), Rate::show) })
}
