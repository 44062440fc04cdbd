//! Sentences about snapshots: for the log, the command line and reports.

use crate::shown::ShowPath;
use crate::snapshot::{Ahead, Epoch, NearPurge, RootStatus};
use std::fmt;

impl RootStatus {
    /// Notices for the user about its files, one line each.
    #[must_use]
    pub fn notices(&self) -> Vec<String> {
        let tape = (self.released > 0).then(|| {
            let (n, bytes) = (self.released, bytesize::ByteSize(self.released_bytes));
            format!("{n} files ({bytes}) released to tape: fetched on demand only")
        });
        let software = (self.software > 0).then(|| {
            let (n, bytes) = (self.software, bytesize::ByteSize(self.software_bytes));
            format!(
                "{n} files ({bytes}) of software: copied when they are opened, not ahead; `monarch stage` copies all"
            )
        });
        let set = (self.working_set > 0).then(|| {
            let (n, bytes) = (self.working_set, bytesize::ByteSize(self.working_set_bytes));
            format!("{n} files ({bytes}) that the last job opened first: fetched first")
        });
        let links = self.links_out_dir.as_ref().map(|dir| {
            let (n, dir) = (self.links_out, dir.shown());
            format!("links lead out of the root to {dir}, which is not served ({n}); add --root {dir}")
        });
        let purge = self.near_purge.map(|near| near.to_string());
        tape.into_iter().chain(links).chain(software).chain(set).chain(purge).collect()
    }
}

impl fmt::Display for Epoch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = if self.complete { "" } else { " so far" };
        write!(f, "epoch {}{state}: {} opens in {:.1} s", self.number, self.opens, self.seconds)?;
        if let Some(share) = self.local_percent() {
            write!(f, ", {share} local")?;
        }
        if self.pfs > 0 {
            write!(f, ", {} at the PFS ({})", self.pfs, bytesize::ByteSize(self.pfs_bytes))?;
        }
        if self.waited > 0 {
            write!(f, ", waited {:.1} s for {}", self.wait_s, self.waited)?;
        }
        if self.chunked > 0 {
            write!(f, ", {} in chunks", self.chunked)?;
        }
        if self.bytes_copied > 0 {
            write!(f, "; {} copied", bytesize::ByteSize(self.bytes_copied))?;
        }
        Ok(())
    }
}

impl fmt::Display for NearPurge {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { files, oldest_days, purge_days } = self;
        write!(
            f,
            "{files} files have not been read on the PFS for up to {oldest_days} days, and this site removes them after \
             {purge_days} (source.purge_age): ask it to keep them, or move the data set to storage that is not purged"
        )
    }
}

impl fmt::Display for Ahead {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ms = |us: u64| {
            if us < 10_000 { format!("{:.1} ms", us as f64 / 1000.0) } else { format!("{} ms", us / 1000) }
        };
        match self {
            Self::Idle => f.write_str("nothing is left to prefetch"),
            Self::Running => f.write_str("prefetching goes on at full pace"),
            Self::Slowed { divisor, opens_us, best_us } => write!(
                f,
                "prefetching slowed to 1/{divisor}: opens at the PFS take {}, {} at best",
                ms(*opens_us),
                ms(*best_us)
            ),
            Self::PfsFails { next_try_s } => {
                write!(f, "prefetching held back: the PFS fails; next try in {next_try_s} s")
            }
            Self::TiersRest => {
                f.write_str("prefetching held back: no tier takes copies (their disks are full, or an error)")
            }
            Self::MemoryPressure { percent, stopped: true } => {
                write!(f, "prefetching held back: the job waits for memory {percent} % of the time")
            }
            Self::MemoryPressure { percent, stopped: false } => {
                write!(f, "prefetching one file at a time: the job waits for memory {percent} % of the time")
            }
        }
    }
}

impl Ahead {
    /// Why prefetching is held up, if it is.
    #[must_use]
    pub fn trouble(&self) -> Option<String> {
        (!matches!(self, Self::Idle | Self::Running)).then(|| self.to_string())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The report of a job that had ended spoke of its last epoch as of one in progress.
    #[test]
    fn the_last_epoch_of_a_job_that_ended_is_not_called_unfinished() {
        let e = Epoch { number: 3, opens: 10_000, local: 9989, seconds: 1.0, ..Epoch::default() };
        assert_eq!(e.to_string(), "epoch 3 so far: 10000 opens in 1.0 s, 99.8 % local");
        assert_eq!(e.when(true).to_string(), "epoch 3: 10000 opens in 1.0 s, 99.8 % local");
        // "0.0 % local" was said of files that copies had served in chunks.
        let chunked = Epoch { local: 0, opens: 6, chunked: 6, ..e };
        assert_eq!(chunked.to_string(), "epoch 3 so far: 6 opens in 1.0 s, 6 in chunks");
        assert!(
            Epoch { local: 3, opens: 9, ..chunked }
                .to_string()
                .contains("9 opens in 1.0 s, 100.0 % local, 6 in chunks")
        );
    }

    #[test]
    fn what_holds_up_prefetching_is_told_with_its_figures() {
        let slowed = Ahead::Slowed { divisor: 4, opens_us: 480_900, best_us: 12_000 };
        assert_eq!(slowed.to_string(), "prefetching slowed to 1/4: opens at the PFS take 480 ms, 12 ms at best");
        let fails = Ahead::PfsFails { next_try_s: 7 };
        assert_eq!(fails.trouble().as_deref(), Some("prefetching held back: the PFS fails; next try in 7 s"));
        let pressure = Ahead::MemoryPressure { percent: 34, stopped: false };
        assert_eq!(pressure.to_string(), "prefetching one file at a time: the job waits for memory 34 % of the time");
        assert_eq!((Ahead::Idle.trouble(), Ahead::Running.trouble()), (None, None));
        let json = serde_json::to_value(&slowed).unwrap();
        assert_eq!((json["state"].as_str(), json["divisor"].as_u64()), (Some("slowed"), Some(4)));
        assert_eq!(serde_json::from_value::<Ahead>(json).unwrap(), slowed);
    }
}
