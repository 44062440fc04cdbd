//! Processes that write staged files.

use crate::sys::now_ns;

/// Whether a process that opened a file at a time still runs: one with its number that began later
/// is another. One that is ending has lost its descriptors, and goes on as a zombie until its
/// parent has asked for its status.
#[must_use]
pub fn is_alive(pid: u32, opened_ns: u64) -> bool {
    const SLACK_NS: u64 = 2_000_000_000;
    const PF_EXITING: u64 = 4;
    let Ok(stat) = std::fs::read_to_string(format!("/proc/{pid}/stat")) else { return false };
    // The name of the program, in parentheses, may have spaces.
    let fields: Vec<&str> =
        stat.rsplit_once(')').map(|(_, rest)| rest.split_ascii_whitespace().collect()).unwrap_or_default();
    let number = |at: usize| fields.get(at).and_then(|field| field.parse::<u64>().ok()).unwrap_or(0);
    let (state, flags, ticks) = (fields.first().copied().unwrap_or("Z"), number(6), number(19));
    if matches!(state, "Z" | "X") || flags & PF_EXITING != 0 {
        return false;
    }
    let since_boot_ns = ticks.saturating_mul(1_000_000_000) / rustix::param::clock_ticks_per_second().max(1);
    let up = rustix::time::clock_gettime(rustix::time::ClockId::Boottime);
    let up_ns = (up.tv_sec as u64).saturating_mul(1_000_000_000).saturating_add(up.tv_nsec as u64);
    let began_ns = now_ns().saturating_sub(up_ns).saturating_add(since_boot_ns);
    opened_ns == 0 || began_ns <= opened_ns.saturating_add(SLACK_NS)
}
