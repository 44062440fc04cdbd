//! [`CodecChoice`]: chooses the codec of a file under `compression: auto`: learned by suffix, from
//! trials on units of the files themselves.
//!
//! A full tier saves reads of the PFS. With ratio `r` it holds `r` times its bytes, and each of
//! these costs its decompression `d` instead of its read from the PFS `p`: it saves `r * (p - d)`.
//! zstd is chosen where it saves [`MIN_ZSTD_GAIN_PERCENT`] more than LZ4, LZ4 otherwise, and
//! neither where neither reaches `min_ratio`.

use crate::tier::Codec;
use std::collections::HashMap;

/// What a byte from the PFS costs a reader, in nanoseconds: a PFS that other jobs use delivers
/// 100 MB/s to it.
const PFS_NS_PER_BYTE: u64 = 10;
/// Percent that a tier with zstd has to save more than one with LZ4.
const MIN_ZSTD_GAIN_PERCENT: u64 = 10;
/// Trials of a suffix after which its choice counts as known.
const TRIALS_UNTIL_KNOWN: u64 = 8;
/// One file in this many of a known suffix is tried again.
const RETRY_DIVISOR: u64 = 64;
/// Trials after which recent ones count more.
const MAX_TRIALS: u64 = 64;
/// Suffixes that are learned.
const MAX_SUFFIXES: usize = 1024;
/// A unit alone shrinks a little less than the file that it is part of.
const UNIT_SLACK: f64 = 1.05;

/// What a codec made of the bytes of a trial.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Tried {
    /// Compressed bytes.
    pub(crate) stored: u64,
    /// Processor time of decompression.
    pub(crate) decompress_ns: u64,
}

/// Both codecs, tried on the same bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Trial {
    pub(crate) bytes: u64,
    /// By [`Codec::at`].
    pub(crate) by_codec: [Tried; Codec::ALL.len()],
}

impl Trial {
    fn add(&mut self, other: &Self) {
        self.bytes += other.bytes;
        for (sum, of) in self.by_codec.iter_mut().zip(&other.by_codec) {
            sum.stored += of.stored;
            sum.decompress_ns += of.decompress_ns;
        }
    }

    fn halve(&mut self) {
        self.bytes /= 2;
        for of in &mut self.by_codec {
            of.stored /= 2;
            of.decompress_ns /= 2;
        }
    }

    /// Nanoseconds of reads of the PFS that the copies of these bytes save, if the tier has space
    /// for them.
    fn saved_ns(&self, codec: Codec) -> u128 {
        u128::from((self.bytes * PFS_NS_PER_BYTE).saturating_sub(self.by_codec[codec.at()].decompress_ns))
    }

    /// How many times smaller the codec makes the bytes.
    pub(crate) fn ratio(&self, codec: Codec) -> f64 {
        self.bytes as f64 / self.by_codec[codec.at()].stored.max(1) as f64
    }

    fn reaches(&self, codec: Codec, min_ratio: f64) -> bool {
        self.by_codec[codec.at()].stored as f64 * min_ratio <= self.bytes as f64 * UNIT_SLACK
    }

    /// The codec that these bytes should have; `None`: neither reaches `min_ratio`.
    pub(crate) fn choice(&self, min_ratio: f64) -> Option<Codec> {
        let [lz4, zstd] = Codec::ALL.map(|codec| self.reaches(codec, min_ratio));
        let stored = |codec: Codec| u128::from(self.by_codec[codec.at()].stored);
        // By the byte of the tier: saved / stored.
        let with_zstd = self.saved_ns(Codec::Zstd) * stored(Codec::Lz4) * 100;
        let with_lz4 = self.saved_ns(Codec::Lz4) * stored(Codec::Zstd) * u128::from(100 + MIN_ZSTD_GAIN_PERCENT);
        match (lz4, zstd) {
            (true, true) if with_zstd >= with_lz4 => Some(Codec::Zstd),
            (true, _) => Some(Codec::Lz4),
            (false, true) => Some(Codec::Zstd),
            (false, false) => None,
        }
    }
}

/// Totals over the trials of a suffix.
#[derive(Clone, Copy, Debug, Default)]
struct Learned {
    trials: u64,
    sum: Trial,
    /// Files since it is known.
    files: u64,
}

/// Totals by suffix, as of the [`ratio_estimator`](super::ratio_estimator).
#[derive(Debug, Default)]
pub(crate) struct CodecChoice(HashMap<[u8; 8], Learned>);

impl CodecChoice {
    /// The codec of the next file of this suffix. `None` if it has to be tried first: the suffix is
    /// not known, or known not to shrink, or it is time to look again.
    pub(crate) fn known(&mut self, suffix: [u8; 8], min_ratio: f64) -> Option<Codec> {
        let of = self.0.get_mut(&suffix).filter(|of| of.trials >= TRIALS_UNTIL_KNOWN)?;
        of.files += 1;
        if of.files.is_multiple_of(RETRY_DIVISOR) { None } else { of.sum.choice(min_ratio) }
    }

    /// The totals of a suffix that its last trial has made known.
    pub(crate) fn just_known(&self, suffix: [u8; 8]) -> Option<&Trial> {
        self.0.get(&suffix).filter(|of| of.trials == TRIALS_UNTIL_KNOWN && of.files == 0).map(|of| &of.sum)
    }

    /// Notes a trial; the codec of the file that was tried, by all trials of its suffix. `None`: it
    /// is not compressed.
    pub(crate) fn learn(&mut self, suffix: [u8; 8], trial: &Trial, min_ratio: f64) -> Option<Codec> {
        if self.0.len() >= MAX_SUFFIXES && !self.0.contains_key(&suffix) {
            return trial.choice(min_ratio);
        }
        let of = self.0.entry(suffix).or_default();
        of.trials += 1;
        of.sum.add(trial);
        if of.trials >= MAX_TRIALS {
            of.trials /= 2;
            of.sum.halve();
        }
        of.sum.choice(min_ratio)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const KB: u64 = 1000;

    /// A trial of 100 KB: the compressed bytes, and the microseconds of decompression.
    fn trial(lz4: (u64, u64), zstd: (u64, u64)) -> Trial {
        let tried = |(stored, us)| Tried { stored, decompress_ns: us * 1000 };
        Trial { bytes: 100 * KB, by_codec: [tried(lz4), tried(zstd)] }
    }

    #[test]
    fn zstd_is_chosen_where_what_it_holds_more_saves_more_than_its_decompression_costs() {
        for (lz4, zstd, choice, what) in [
            ((39 * KB, 40), (27 * KB, 130), Some(Codec::Zstd), "text"),
            ((37 * KB, 40), (18 * KB, 140), Some(Codec::Zstd), "padded floats"),
            ((40 * KB, 40), (38 * KB, 130), Some(Codec::Lz4), "nearly the same ratio"),
            ((39 * KB, 40), (27 * KB, 500), Some(Codec::Lz4), "slow to decompress"),
            ((39 * KB, 40), (27 * KB, 2000), Some(Codec::Lz4), "slower than the PFS"),
            ((99 * KB, 10), (80 * KB, 200), Some(Codec::Zstd), "entropy coding only"),
            ((80 * KB, 10), (88 * KB, 200), Some(Codec::Lz4), "repeated blocks of noise"),
            ((99 * KB, 10), (92 * KB, 200), None, "weights"),
            ((100 * KB, 10), (100 * KB, 10), None, "pictures"),
        ] {
            assert_eq!(trial(lz4, zstd).choice(1.2), choice, "{what}");
        }
        // It holds 10 % more, and decompresses as fast: the least that counts.
        assert_eq!(trial((33 * KB, 10), (30 * KB, 10)).choice(1.2), Some(Codec::Zstd));
        assert_eq!(trial((33 * KB - 1, 10), (30 * KB, 10)).choice(1.2), Some(Codec::Lz4));
    }

    #[test]
    fn a_suffix_is_tried_eight_times_and_then_now_and_then() {
        let (mut choice, txt) = (CodecChoice::default(), *b"txt\0\0\0\0\0");
        let text = trial((39 * KB, 40), (27 * KB, 130));
        for _ in 0..TRIALS_UNTIL_KNOWN {
            assert_eq!(choice.known(txt, 1.2), None);
            assert!(choice.just_known(txt).is_none());
            assert_eq!(choice.learn(txt, &text, 1.2), Some(Codec::Zstd));
        }
        assert_eq!(choice.just_known(txt).map(|sum| sum.bytes), Some(TRIALS_UNTIL_KNOWN * 100 * KB));
        let tried = (0..RETRY_DIVISOR * 3).filter(|_| choice.known(txt, 1.2).is_none()).count();
        assert_eq!(tried, 3);
        assert_eq!(choice.known(txt, 1.2), Some(Codec::Zstd));
        assert_eq!(choice.known(*b"csv\0\0\0\0\0", 1.2), None);
    }

    #[test]
    fn a_suffix_whose_files_change_gets_another_codec() {
        let (mut choice, bin) = (CodecChoice::default(), *b"bin\0\0\0\0\0");
        let noise = trial((100 * KB, 10), (100 * KB, 10));
        for _ in 0..TRIALS_UNTIL_KNOWN {
            assert_eq!(choice.learn(bin, &noise, 1.2), None);
        }
        // It is tried whenever the estimator lets a file of it through.
        assert_eq!(choice.known(bin, 1.2), None);
        let text = trial((39 * KB, 40), (27 * KB, 130));
        let after = (1..500).find(|_| choice.learn(bin, &text, 1.2).is_some()).unwrap();
        assert!(after < 10, "{after}");
        let even = trial((30 * KB, 40), (29 * KB, 130));
        let after = (1..500).find(|_| choice.learn(bin, &even, 1.2) == Some(Codec::Lz4)).unwrap();
        assert!(after < 100, "{after}");
    }

    #[test]
    fn suffixes_beyond_those_that_are_learned_are_tried_each_time() {
        let mut choice = CodecChoice::default();
        let text = trial((39 * KB, 40), (27 * KB, 130));
        for n in 0..MAX_SUFFIXES as u64 {
            choice.learn(n.to_le_bytes(), &text, 1.2);
        }
        for _ in 0..20 {
            assert_eq!(choice.known([255; 8], 1.2), None);
            assert_eq!(choice.learn([255; 8], &text, 1.2), Some(Codec::Zstd));
        }
        assert_eq!(choice.0.len(), MAX_SUFFIXES);
    }
}
