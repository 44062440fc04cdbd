//! Parses the flags of `simulate`: sizes, rates, capacities, made-up workloads. Each error names
//! its remedy.

use bytesize::ByteSize;
use monarch_policies::sim::{Calls, Mix, Shuffle, Synthetic, Workload};
use std::time::Duration;

type Parsed<T> = Result<T, String>;

/// Capacity of a tier.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Room {
    /// A share of the bytes of the data set.
    Share(f64),
    Bytes(u64),
}

/// Capacities of a node's tiers, fastest first.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Capacity {
    /// As it was given.
    pub(super) label: String,
    tiers: Vec<Room>,
}

impl Capacity {
    /// Bytes of each tier.
    pub(super) fn bytes(&self, work: &Workload) -> Vec<u64> {
        let bytes = |room: &Room| match room {
            Room::Share(share) => (work.bytes() as f64 * share).round() as u64,
            Room::Bytes(bytes) => *bytes,
        };
        self.tiers.iter().map(bytes).collect()
    }
}

pub(super) fn capacity(text: &str) -> Parsed<Capacity> {
    let tiers = text.split('+').map(room).collect::<Parsed<Vec<Room>>>()?;
    Ok(Capacity { label: text.to_owned(), tiers })
}

fn room(text: &str) -> Parsed<Room> {
    let remedy = || {
        format!(
            "`{text}` is not a capacity; write a share of the data set above 0%, such as 25%, or a size, such as 400GiB"
        )
    };
    let room = match text.strip_suffix('%') {
        Some(share) => {
            share.trim().parse().ok().filter(|s: &f64| s.is_finite() && *s > 0.0).map(|s| Room::Share(s / 100.0))
        }
        None => text.parse::<ByteSize>().ok().filter(|b| b.as_u64() > 0).map(|b| Room::Bytes(b.as_u64())),
    };
    room.ok_or_else(remedy)
}

pub(super) fn size(text: &str) -> Parsed<u64> {
    let size = text.parse::<ByteSize>().ok().map(|b| b.as_u64()).filter(|b| *b > 0);
    size.ok_or_else(|| format!("`{text}` is not a size; write 110KB or 4MiB"))
}

/// Bytes per second.
pub(super) fn bandwidth(text: &str) -> Parsed<f64> {
    if text == "unlimited" {
        return Ok(f64::INFINITY);
    }
    let amount = text.strip_suffix("/s").and_then(|t| size(t).ok());
    amount.map(|b| b as f64).ok_or_else(|| format!("`{text}` is not a bandwidth; write 10GB/s or unlimited"))
}

/// Calls per second.
pub(super) fn rate(text: &str) -> Parsed<f64> {
    if text == "unlimited" {
        return Ok(f64::INFINITY);
    }
    let (number, factor) = match text.strip_suffix('k') {
        Some(number) => (number, 1e3),
        None => (text, 1.0),
    };
    let rate = number.parse().ok().map(|n: f64| n * factor).filter(|n| n.is_finite() && *n > 0.0);
    rate.ok_or_else(|| format!("`{text}` is not a number of calls per second; write 100000, 100k or unlimited"))
}

pub(super) fn time(text: &str) -> Parsed<Duration> {
    humantime::parse_duration(text).map_err(|_| format!("`{text}` is not a time; write 1ms, 250us or 0s"))
}

/// Metadata calls before and after the reads.
pub(super) fn calls(text: &str) -> Parsed<Calls> {
    let parts = text.split_once('+').and_then(|(b, a)| Some(Calls { before: b.parse().ok()?, after: a.parse().ok()? }));
    parts.ok_or_else(|| format!("`{text}` does not say how many calls; write BEFORE+AFTER the reads, such as 2+0"))
}

pub(super) fn on_off(text: &str) -> Parsed<bool> {
    match text {
        "on" => Ok(true),
        "off" => Ok(false),
        _ => Err(format!("`{text}` is neither on nor off")),
    }
}

pub(super) fn nodes(text: &str) -> Parsed<u32> {
    let nodes = text.parse().ok().filter(|n| (1..=100_000).contains(n));
    nodes.ok_or_else(|| format!("`{text}` is not a number of nodes; write one between 1 and 100000"))
}

/// A policy, or all of them.
pub(super) fn policy(text: &str) -> Parsed<String> {
    if text == "all" || monarch_policies::NAMES.contains(&text) {
        return Ok(text.to_owned());
    }
    Err(format!("there is no policy `{text}`; write all, or some of {}", monarch_policies::NAMES.join(", ")))
}

/// `key=value,...`; what is not given is as of [`Synthetic::default`].
pub(super) fn synthetic(text: &str) -> Parsed<Synthetic> {
    let mut made = Synthetic::default();
    for pair in text.split(',').map(str::trim).filter(|p| !p.is_empty()) {
        let (key, value) = pair
            .split_once('=')
            .ok_or_else(|| format!("`{pair}` has no value; write KEY=VALUE,..., such as files=100000,size=110KB"))?;
        set(&mut made, key, value).map_err(|why| format!("{key}: {why}"))?;
    }
    Ok(made)
}

fn set(made: &mut Synthetic, key: &str, value: &str) -> Parsed<()> {
    match key {
        "files" => made.files = number(value, 1, u32::MAX - 1)?,
        "size" => made.size = size(value)?,
        "mix" => made.mix = Some(mix(value)?),
        "epochs" => made.epochs = number(value, 1, 10_000)?,
        "shuffle" => made.shuffle = shuffle(value)?,
        "ranks" => made.ranks = number(value, 1, 1024)?,
        "workers" => made.workers = number(value, 0, 1024)?,
        "batch" => made.batch = number(value, 1, u32::MAX)?,
        "ahead" => made.ahead = number(value, 1, 1024)?,
        _ => {
            return Err(
                "no such key; keys are files, size, mix, epochs, shuffle, ranks, workers, batch, ahead".to_owned()
            );
        }
    }
    Ok(())
}

fn number(text: &str, least: u32, most: u32) -> Parsed<u32> {
    let number = text.parse().ok().filter(|n| (least..=most).contains(n));
    number.ok_or_else(|| format!("`{text}` is not a number between {least} and {most}"))
}

/// Orders by name.
const SHUFFLES: [(&str, Shuffle); 4] =
    [("global", Shuffle::Global), ("local", Shuffle::Local), ("fixed", Shuffle::Fixed), ("none", Shuffle::None)];

fn shuffle(text: &str) -> Parsed<Shuffle> {
    let found = SHUFFLES.iter().find(|(name, _)| *name == text).map(|(_, shuffle)| *shuffle);
    found.ok_or_else(|| format!("`{text}` is not an order; write global, local, fixed or none"))
}

pub(super) fn shuffle_name(shuffle: Shuffle) -> &'static str {
    SHUFFLES.iter().find(|(_, s)| *s == shuffle).map_or("", |(name, _)| name)
}

fn mix(text: &str) -> Parsed<Mix> {
    let parts = text.split_once(':').and_then(|(share, of)| {
        let share = share.parse().ok().filter(|s: &f64| *s > 0.0 && *s < 1.0)?;
        Some(Mix { share, size: size(of).ok()? })
    });
    parts.ok_or_else(|| format!("`{text}` is not SHARE:SIZE; write 0.5:10MB for half of the bytes in files of 10 MB"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_workload_is_read_key_by_key() {
        let text = "files=1000, size=100KB,mix=0.5:10MB,epochs=2,shuffle=local,ranks=2,workers=0,batch=8,ahead=3";
        let expected = Synthetic {
            files: 1000,
            size: 100_000,
            mix: Some(Mix { share: 0.5, size: 10_000_000 }),
            epochs: 2,
            shuffle: Shuffle::Local,
            ranks: 2,
            workers: 0,
            batch: 8,
            ahead: 3,
        };
        assert_eq!(synthetic(text), Ok(expected));
        assert_eq!(synthetic(""), Ok(Synthetic::default()));
        for (wrong, said) in [
            ("files", "has no value"),
            ("fils=1", "keys are files"),
            ("files=0", "files: `0` is not a number between 1"),
            ("size=1parsec", "size: `1parsec` is not a size"),
            ("mix=2:1MB", "mix: `2:1MB` is not SHARE:SIZE"),
            ("shuffle=yes", "write global, local, fixed or none"),
        ] {
            let why = synthetic(wrong).expect_err(wrong);
            assert!(why.contains(said), "{wrong}: {why}");
        }
    }

    #[test]
    fn capacities_are_shares_or_sizes_of_one_tier_or_more() {
        let work = Workload::synthetic(&Synthetic { files: 10, size: 1000, ..Synthetic::default() }, 1);
        let bytes = |text| capacity(text).map(|c| c.bytes(&work));
        assert_eq!(bytes("25%"), Ok(vec![2500]));
        assert_eq!(bytes("5%+1KiB"), Ok(vec![500, 1024]));
        for wrong in ["0", "0%", "-1%", "NaN%", "x", "", "1%+"] {
            assert!(bytes(wrong).is_err_and(|why| why.contains("write a share")), "{wrong}");
        }
    }

    #[test]
    fn rates_and_calls_have_units() {
        assert_eq!((bandwidth("10GB/s"), bandwidth("unlimited")), (Ok(1e10), Ok(f64::INFINITY)));
        assert!(bandwidth("10GB").is_err() && bandwidth("0B/s").is_err());
        assert_eq!((rate("100k"), rate("5")), (Ok(1e5), Ok(5.0)));
        assert!(rate("0").is_err() && rate("-1").is_err());
        assert_eq!(calls("2+1"), Ok(Calls { before: 2, after: 1 }));
        assert!(calls("3").is_err() && time("soon").is_err() && on_off("yes").is_err() && nodes("0").is_err());
    }
}
