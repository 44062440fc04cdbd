//! Shares in percent, rounded down: 100 % is all.

/// Formats `part` of `of` in percent, rounded down to a tenth.
#[must_use]
pub fn percent(part: u64, of: u64) -> String {
    let tenths = (1000 * u128::from(part)).checked_div(u128::from(of)).unwrap_or(0);
    format!("{}.{} %", tenths / 10, tenths % 10)
}
