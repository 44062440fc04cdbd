//! Processes that write staged files.
//!
//! A process is known by its number and the ticks of the kernel's clock at which it began. Records
//! have the time of day, which may be set forward or back: it is asked only when the record is
//! read, and for processes that are not known.

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

/// Processes that have opened staged files.
#[derive(Debug, Default)]
pub struct Openers {
    known: HashMap<u32, Running>,
}

impl Openers {
    /// A record was read just now that the process wrote at a time.
    pub fn saw(&mut self, pid: u32, time_ns: u64) {
        if self.known.contains_key(&pid) {
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
    /// later is another. Of a process that was seen, whatever the clock has been set to since.
    pub fn is_alive(&mut self, pid: u32, opened_ns: u64) -> bool {
        let found = Running::find(pid);
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

    #[test]
    fn a_process_that_was_seen_lives_when_the_clock_is_set_forward() {
        let (own, hour_ns) = (std::process::id(), 3_600_000_000_000);
        let mut openers = Openers::default();
        // As if the clock were an hour further now than when the process opened the file.
        let opened_ns = now_ns() - hour_ns;
        assert!(!openers.is_alive(own, opened_ns), "this process is not an hour old");
        openers.saw(own, opened_ns);
        assert!(!openers.is_alive(own, opened_ns), "it was not seen in time");
        openers.saw(own, now_ns());
        assert!(openers.is_alive(own, opened_ns));
    }

    #[test]
    fn a_process_that_ended_or_whose_number_another_has_is_not_alive() {
        let mut child = std::process::Command::new("sleep").arg("60").spawn().unwrap();
        let mut openers = Openers::default();
        let opened_ns = now_ns();
        openers.saw(child.id(), opened_ns);
        assert!(openers.is_alive(child.id(), opened_ns));
        child.kill().unwrap();
        while Running::find(child.id()).is_some() {
            std::thread::yield_now();
        }
        assert!(!openers.is_alive(child.id(), opened_ns), "a zombie");
        child.wait().unwrap();
        assert!(!openers.is_alive(child.id(), opened_ns));
        let own = std::process::id();
        openers.known.insert(own, Running { began_ticks: 1 });
        assert!(!openers.is_alive(own, 1), "another process has its number");
        assert!(openers.known.is_empty());
    }
}
