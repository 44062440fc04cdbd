//! Processes that open staged files, as the records name them.

use monarch_abi::outputs::record::Header;

/// A process of the job. Its number is given to another one some time after its end: with the boot
/// and the begin it is that of one process only.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Opener {
    /// Its number.
    pub pid: u32,
    /// The boot of the node in which it ran; 0: not known.
    pub boot: u32,
    /// When it began, in ticks of the kernel's clock since the node was started; 0: not known.
    pub began_ticks: u64,
}

impl Opener {
    /// The process that has written a record.
    #[must_use]
    pub const fn of(header: &Header) -> Self {
        Self { pid: header.pid, boot: header.boot, began_ticks: header.began_ticks }
    }

    /// Whether this is the other one, as far as both are known.
    #[must_use]
    pub const fn is(&self, other: &Self) -> bool {
        let is_unknown = self.began_ticks == 0 || other.began_ticks == 0;
        self.pid == other.pid && (is_unknown || self.began_ticks == other.began_ticks && self.boot == other.boot)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_with_the_number_of_another_is_not_that_one() {
        let opener = Opener { pid: 7, boot: 3, began_ticks: 100 };
        assert!(opener.is(&opener));
        for other in [Opener { pid: 8, ..opener }, Opener { boot: 4, ..opener }, Opener { began_ticks: 101, ..opener }]
        {
            assert!(!opener.is(&other), "{other:?}");
        }
        // A record of the first version.
        assert!(opener.is(&Opener { pid: 7, boot: 0, began_ticks: 0 }));
    }
}
