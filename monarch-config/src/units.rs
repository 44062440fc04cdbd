//! Sizes, rates, percentages and durations as people write them.
//!
//! A bare number is refused: `capacity: 400` is a mistake far more often than it means 400 bytes.
//! `KiB`, `MiB`, `GiB`, `TiB` are powers of 1024; `kB`, `MB`, `GB`, `TB` (and a bare `K`, `M`, `G`,
//! `T`) are powers of 1000, as on the disk's label.

use std::time::Duration;

use bytesize::ByteSize;

use super::error::{ErrorKind, Wrong, wrong};

/// Bound of most durations.
pub(super) const HOUR: Duration = Duration::from_hours(1);
/// 1024 bytes.
pub(super) const KIB: u64 = 1 << 10;
/// 1024 KiB.
pub(super) const MIB: u64 = 1 << 20;
/// 1024 MiB.
pub(super) const GIB: u64 = 1 << 30;
/// 1024 GiB.
pub(super) const TIB: u64 = 1 << 40;

/// A value, or what is wrong with the text.
pub(super) type Parsed<T> = Result<T, (ErrorKind, Wrong)>;

fn unit(message: String, remedy: impl Into<String>) -> (ErrorKind, Wrong) {
    (ErrorKind::WrongUnit, wrong(message, remedy))
}

/// A size in bytes: `4MiB`, `1.5 TB`, `0`.
pub(super) fn size(text: &str) -> Parsed<u64> {
    if text == "0" {
        return Ok(0);
    }
    if text.bytes().all(|byte| byte.is_ascii_digit()) && !text.is_empty() {
        return Err(unit(
            format!("`{text}` is a size without a unit"),
            format!("write what is meant, such as {text}MiB or {text}GiB"),
        ));
    }
    if let Some(amount) = text.strip_suffix("/s") {
        return Err(unit(format!("`{text}` is a rate, and this is a size"), format!("write {}", amount.trim())));
    }
    if text.ends_with('%') {
        return Err(unit(format!("`{text}` is a share, and this is a size"), "write a size, such as 400GiB"));
    }
    match text.parse::<ByteSize>() {
        Ok(size) if !text.starts_with('-') => Ok(size.as_u64()),
        _ => Err(unit(
            format!("`{text}` is not a size"),
            "write a number and a unit, such as 512KiB, 4MiB, 400GiB or 1.5TB",
        )),
    }
}

/// Bytes per second: `500MiB/s`.
pub(super) fn rate(text: &str) -> Parsed<u64> {
    let remedy = "write bytes per second, such as 500MiB/s or 2GB/s";
    let Some(amount) = text.strip_suffix("/s") else {
        return Err(unit(format!("`{text}` is not a rate"), remedy));
    };
    if amount.to_ascii_lowercase().ends_with("bit") {
        return Err(unit(format!("`{text}` counts bits, and this counts bytes"), remedy));
    }
    match size(amount.trim()) {
        Ok(0) => {
            Err(unit(format!("`{text}` would stop all copying"), "write none for no limit, or a rate such as 500MiB/s"))
        }
        Ok(rate) => Ok(rate),
        Err(_) => Err(unit(format!("`{text}` is not a rate"), remedy)),
    }
}

/// A share: `5%`, as a fraction; 0 excluded, 100 % included.
pub(super) fn percent(text: &str) -> Option<Parsed<f64>> {
    let number = text.strip_suffix('%')?.trim().parse::<f64>();
    Some(match number {
        Ok(share) if share > 0.0 && share <= 100.0 => Ok(share / 100.0),
        _ => Err(unit(format!("`{text}` is not a share"), "write a percentage above 0% and at most 100%, or a size")),
    })
}

/// A duration: `50ms`, `2s`, `1m 30s`, `30d`.
pub(super) fn duration(text: &str) -> Parsed<Duration> {
    let text = text.trim();
    if text != "0" && text.parse::<f64>().is_ok() {
        return Err(unit(
            format!("`{text}` is a duration without a unit"),
            format!("write what is meant, such as {text}s or {text}ms"),
        ));
    }
    humantime::parse_duration(text).map_err(|_| {
        unit(format!("`{text}` is not a duration"), "write a number and a unit, such as 50ms, 2s or 1m 30s")
    })
}

/// A duration exactly; [`duration`] reads it back. Whole days stay days, and are not given in
/// months of 30.44 days.
pub(super) fn time(value: Duration) -> String {
    const DAY: u64 = 86_400;
    let whole_days = value.subsec_nanos() == 0 && value.as_secs() >= DAY && value.as_secs().is_multiple_of(DAY);
    if whole_days { format!("{}d", value.as_secs() / DAY) } else { humantime::format_duration(value).to_string() }
}

/// A size exactly, in the largest binary unit that divides it; [`size`] reads it back.
pub(super) fn exact(bytes: u64) -> String {
    let units = [(TIB, "TiB"), (GIB, "GiB"), (MIB, "MiB"), (KIB, "KiB")];
    match units.iter().find(|(unit, _)| bytes != 0 && bytes.is_multiple_of(*unit)) {
        Some((unit, name)) => format!("{}{name}", bytes / unit),
        None if bytes == 0 => "0".to_owned(),
        None => format!("{bytes}B"),
    }
}

/// A size for people, to one decimal.
#[expect(clippy::cast_precision_loss, reason = "for people")]
pub(super) fn about(bytes: u64) -> String {
    let units = [(TIB, "TiB"), (GIB, "GiB"), (MIB, "MiB"), (KIB, "KiB")];
    match units.iter().find(|(unit, _)| bytes >= *unit) {
        Some((unit, name)) => {
            let text = format!("{:.1}", bytes as f64 / *unit as f64);
            format!("{}{name}", text.trim_end_matches(".0"))
        }
        None => format!("{bytes}B"),
    }
}

/// A fraction of a size.
#[expect(
    clippy::cast_precision_loss,
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "a share is not exact"
)]
pub(super) fn share(of: u64, fraction: f64) -> u64 {
    (of as f64 * fraction) as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_and_rates() {
        assert_eq!(size("4MiB"), Ok(4 * MIB));
        assert_eq!(size("1.5 TB"), Ok(1_500_000_000_000));
        assert_eq!(size("8g"), Ok(8_000_000_000));
        assert_eq!(rate("500MiB/s"), Ok(500 * MIB));
        for bad in ["400", "400 GB/s", "5%", "-1GiB", "big", "", "4XB"] {
            assert_eq!(size(bad).unwrap_err().0, ErrorKind::WrongUnit, "{bad}");
        }
        for bad in ["500MiB", "4Gbit/s", "0/s", "5/s", "none/s"] {
            assert_eq!(rate(bad).unwrap_err().0, ErrorKind::WrongUnit, "{bad}");
        }
    }

    #[test]
    fn durations_and_shares() {
        assert_eq!(duration("1m 30s"), Ok(Duration::from_secs(90)));
        assert_eq!(duration("30d"), Ok(Duration::from_hours(720)));
        for (text, shown) in [("60d", "60d"), ("36h", "1day 12h"), ("50ms", "50ms"), ("0s", "0s"), ("2days", "2d")] {
            assert_eq!(time(duration(text).unwrap()), shown);
            assert_eq!(duration(shown), duration(text));
        }
        for bad in ["10", "2.5", "soon", "", "-1s", "5 parsecs"] {
            assert_eq!(duration(bad).unwrap_err().0, ErrorKind::WrongUnit, "{bad}");
        }
        assert_eq!(percent("5%"), Some(Ok(0.05)));
        assert_eq!(percent("5"), None);
        for bad in ["0%", "101%", "x%", "NaN%", "-3%"] {
            assert!(percent(bad).unwrap().is_err(), "{bad}");
        }
    }

    #[test]
    fn an_exact_size_is_read_back() {
        for bytes in [0, 1, 1023, KIB, 5 * MIB + 1, 400 * GIB, 200_000_000_000, 3 * TIB] {
            assert_eq!(size(&exact(bytes)), Ok(bytes));
        }
        assert_eq!((about(GIB + GIB / 2), about(GIB), about(7)), ("1.5GiB".into(), "1GiB".into(), "7B".into()));
    }
}
