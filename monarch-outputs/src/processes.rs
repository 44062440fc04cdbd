//! Processes that write staged files.
//!
//! A process is known by its number, the boot in which it ran, and the ticks of the kernel's clock
//! at which it began. Where a record does not tell these (a process without `/proc`, an older
//! shim), it has the time of day, which may be set forward or back: that is asked only when the
//! record is read, and for processes that are not known.

use crate::plan::Opener;
use crate::sys::now_ns;
use std::collections::HashMap;

/// Most processes that are remembered.
const MAX_PROCESSES: usize = 10_000;

/// A process that runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Running {
    /// When it began, in clock ticks since the node was started.
    began_ticks: u64,
}

impl Running {
    /// The process of a number. One that is ending has lost its descriptors, and goes on as a
    /// zombie until its parent has asked for its status.
    fn find(pid: u32) -> Option<Self> {
        const PF_EXITING: u64 = 4;
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
        // The name of the program, in parentheses, may have spaces.
        let fields: Vec<&str> = stat.rsplit_once(')')?.1.split_ascii_whitespace().collect();
        let number = |at: usize| fields.get(at).and_then(|field| field.parse::<u64>().ok()).unwrap_or(0);
        let (state, flags, began_ticks) = (fields.first().copied().unwrap_or("Z"), number(6), number(19));
        (!matches!(state, "Z" | "X") && flags & PF_EXITING == 0).then_some(Self { began_ticks })
    }

    /// Whether it began before a time of day, as the clock has it now.
    fn began_before(self, time_ns: u64) -> bool {
        const SLACK_NS: u64 = 2_000_000_000;
        let since_boot_ns =
            self.began_ticks.saturating_mul(1_000_000_000) / rustix::param::clock_ticks_per_second().max(1);
        let up = rustix::time::clock_gettime(rustix::time::ClockId::Boottime);
        let up_ns = (up.tv_sec as u64).saturating_mul(1_000_000_000).saturating_add(up.tv_nsec as u64);
        let began_ns = now_ns().saturating_sub(up_ns).saturating_add(since_boot_ns);
        time_ns == 0 || began_ns <= time_ns.saturating_add(SLACK_NS)
    }
}

/// When a process that runs began, in ticks of the kernel's clock since the node was started.
#[must_use]
pub fn began_ticks(pid: u32) -> Option<u64> {
    Running::find(pid).map(|process| process.began_ticks)
}

/// Processes that have opened staged files.
#[derive(Debug, Default)]
pub struct Openers {
    /// The boot in which this agent runs.
    boot: u32,
    /// Processes whose records do not say when they began.
    known: HashMap<u32, Running>,
}

impl Openers {
    /// None yet. `boot`: the number of this boot, [`monarch_abi::outputs::state::State::boot`].
    #[must_use]
    pub fn new(boot: u32) -> Self {
        Self { boot, known: HashMap::new() }
    }

    /// The boot in which this agent runs.
    #[must_use]
    pub const fn boot(&self) -> u32 {
        self.boot
    }

    /// A record was read just now that the process wrote at a time.
    pub fn saw(&mut self, opener: &Opener, time_ns: u64) {
        let pid = opener.pid;
        if opener.began_ticks != 0 || self.known.contains_key(&pid) {
            return;
        }
        if self.known.len() >= MAX_PROCESSES {
            self.known.clear();
        }
        if let Some(process) = Running::find(pid).filter(|process| process.began_before(time_ns)) {
            self.known.insert(pid, process);
        }
    }

    /// Whether a process that opened a file at a time still runs: one with its number that began
    /// later is another. The clock of the day counts only where the record does not say when the
    /// process began, and it was not seen before.
    pub fn is_alive(&mut self, opener: &Opener, opened_ns: u64) -> bool {
        let Opener { pid, boot, began_ticks } = *opener;
        let found = Running::find(pid);
        if began_ticks != 0 {
            return boot == self.boot && found == Some(Running { began_ticks });
        }
        match self.known.get(&pid) {
            Some(known) if found == Some(*known) => return true,
            Some(_) => drop(self.known.remove(&pid)),
            None => {}
        }
        found.is_some_and(|process| process.began_before(opened_ns))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOUR_NS: u64 = 3_600_000_000_000;

    /// A process whose record says only its number.
    fn unknown(pid: u32) -> Opener {
        Opener { pid, boot: 0, began_ticks: 0 }
    }

    #[test]
    fn a_process_whose_record_says_when_it_began_lives_whatever_the_clock_says() {
        let mut openers = Openers::new(3);
        let began_ticks = Running::find(std::process::id()).unwrap().began_ticks;
        let own = Opener { pid: std::process::id(), boot: 3, began_ticks };
        // The clock was set forward, or back, since the file was opened.
        for opened_ns in [now_ns() - HOUR_NS, now_ns() + HOUR_NS, 1] {
            assert!(openers.is_alive(&own, opened_ns));
        }
        openers.saw(&own, 1);
        assert!(openers.known.is_empty(), "it need not be remembered");
    }

    #[test]
    fn a_process_with_the_number_of_one_that_has_ended_is_another_one() {
        let mut openers = Openers::new(3);
        let began_ticks = Running::find(std::process::id()).unwrap().began_ticks;
        let own = Opener { pid: std::process::id(), boot: 3, began_ticks };
        let earlier = Opener { began_ticks: began_ticks - 1, ..own };
        // As if the clock had been set forward since: by it, the process of today is the older one.
        assert!(!openers.is_alive(&earlier, now_ns() + HOUR_NS));
        assert!(!openers.is_alive(&Opener { boot: 4, ..own }, now_ns()), "a process of another boot");
    }

    #[test]
    fn a_process_that_was_seen_lives_when_the_clock_is_set_forward() {
        let own = unknown(std::process::id());
        let mut openers = Openers::new(3);
        // As if the clock were an hour further now than when the process opened the file.
        let opened_ns = now_ns() - HOUR_NS;
        assert!(!openers.is_alive(&own, opened_ns), "this process is not an hour old");
        openers.saw(&own, opened_ns);
        assert!(!openers.is_alive(&own, opened_ns), "it was not seen in time");
        openers.saw(&own, now_ns());
        assert!(openers.is_alive(&own, opened_ns));
    }

    #[test]
    fn a_process_that_ended_is_not_alive() {
        let mut child = std::process::Command::new("sleep").arg("60").spawn().unwrap();
        let mut openers = Openers::new(3);
        let opened_ns = now_ns();
        let began_ticks = Running::find(child.id()).unwrap().began_ticks;
        let known = Opener { pid: child.id(), boot: 3, began_ticks };
        let both = [known, unknown(child.id())];
        openers.saw(&both[1], opened_ns);
        assert!(both.iter().all(|opener| openers.is_alive(opener, opened_ns)));
        child.kill().unwrap();
        while Running::find(child.id()).is_some() {
            std::thread::yield_now();
        }
        assert!(!both.iter().any(|opener| openers.is_alive(opener, opened_ns)), "a zombie");
        child.wait().unwrap();
        assert!(!both.iter().any(|opener| openers.is_alive(opener, opened_ns)));
        let own = std::process::id();
        openers.known.insert(own, Running { began_ticks: 1 });
        assert!(!openers.is_alive(&unknown(own), 1), "another process has its number");
        assert!(openers.known.is_empty());
    }
}
