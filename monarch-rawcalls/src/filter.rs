//! The program that the kernel runs at each system call of the job.
//!
//! ```text
//! another machine's calls (i386), x32   -> allow
//! a number that is not in the table     -> allow; the kernel knows that without running it
//! the sixth argument is the shim's mark -> allow
//! otherwise                             -> notify
//! ```

use crate::calls::NUMBERS;
use libc::sock_filter;
use monarch_abi::raw_calls::OWN_CALL;

/// This machine's calls, as the kernel calls them; `None` for machines that are not supported.
const MACHINE: Option<u32> = if cfg!(target_arch = "x86_64") {
    Some(0xC000_003E)
} else if cfg!(target_arch = "aarch64") {
    Some(0xC000_00B7)
} else {
    None
};
/// Numbers from here on are those of x32.
const X32: u32 = 0x4000_0000;

/// Offsets in `seccomp_data`.
const NR: u32 = 0;
const ARCH: u32 = 4;
const ARG_5: u32 = 16 + 5 * 8;

const LOAD: u16 = (libc::BPF_LD | libc::BPF_W | libc::BPF_ABS) as u16;
const IF_EQUAL: u16 = (libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K) as u16;
const IF_AT_LEAST: u16 = (libc::BPF_JMP | libc::BPF_JGE | libc::BPF_K) as u16;
const RETURN: u16 = (libc::BPF_RET | libc::BPF_K) as u16;

const fn step(code: u16, k: u32) -> sock_filter {
    sock_filter { code, jt: 0, jf: 0, k }
}

const fn jump(code: u16, k: u32, then: usize, otherwise: usize) -> sock_filter {
    sock_filter { code, jt: then as u8, jf: otherwise as u8, k }
}

/// Returns the program; `None` on machines whose calls are not known.
#[must_use]
pub(crate) fn program() -> Option<Vec<sock_filter>> {
    let machine = MACHINE?;
    let n = NUMBERS.len();
    // Behind the numbers: allow, then the four steps that look at the mark, then notify and allow.
    let mut all =
        vec![step(LOAD, ARCH), jump(IF_EQUAL, machine, 0, n + 2), step(LOAD, NR), jump(IF_AT_LEAST, X32, n, 0)];
    for (at, nr) in NUMBERS.iter().enumerate() {
        all.push(jump(IF_EQUAL, u32::try_from(*nr).ok()?, n - at, 0));
    }
    // The halves of a word lie as the machine has them: both are little-endian.
    let (low, high) = (OWN_CALL as u32, (OWN_CALL >> 32) as u32);
    all.extend([
        step(RETURN, libc::SECCOMP_RET_ALLOW),
        step(LOAD, ARG_5),
        jump(IF_EQUAL, low, 0, 2),
        step(LOAD, ARG_5 + 4),
        jump(IF_EQUAL, high, 1, 0),
        step(RETURN, libc::SECCOMP_RET_USER_NOTIF),
        step(RETURN, libc::SECCOMP_RET_ALLOW),
    ]);
    Some(all)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Runs the program as the kernel would.
    fn verdict(program: &[sock_filter], nr: u32, arch: u32, mark: u64) -> u32 {
        let data = |offset: u32| match offset {
            NR => nr,
            ARCH => arch,
            ARG_5 => mark as u32,
            x if x == ARG_5 + 4 => (mark >> 32) as u32,
            x => panic!("offset {x}"),
        };
        let (mut at, mut word) = (0, 0);
        loop {
            let s = program[at];
            at += 1;
            let jump = |holds: bool| usize::from(if holds { s.jt } else { s.jf });
            match s.code {
                LOAD => word = data(s.k),
                IF_EQUAL => at += jump(word == s.k),
                IF_AT_LEAST => at += jump(word >= s.k),
                RETURN => return s.k,
                code => panic!("code {code}"),
            }
        }
    }

    #[test]
    fn changing_calls_are_notified_and_no_others() {
        let program = program().unwrap();
        for nr in 0..600 {
            let is_listed = NUMBERS.contains(&i64::from(nr));
            let expected = if is_listed { libc::SECCOMP_RET_USER_NOTIF } else { libc::SECCOMP_RET_ALLOW };
            assert_eq!(verdict(&program, nr, MACHINE.unwrap(), 0), expected, "{nr}");
        }
        for nr in [libc::SYS_openat, libc::SYS_read, libc::SYS_write, libc::SYS_newfstatat, libc::SYS_close] {
            assert!(!NUMBERS.contains(&nr));
        }
    }

    #[test]
    fn other_machines_x32_and_calls_of_the_shim_pass() {
        let program = program().unwrap();
        let nr = u32::try_from(libc::SYS_unlinkat).unwrap();
        let machine = MACHINE.unwrap();
        assert_eq!(verdict(&program, nr, 0x4000_0003, 0), libc::SECCOMP_RET_ALLOW);
        assert_eq!(verdict(&program, nr | X32, machine, 0), libc::SECCOMP_RET_ALLOW);
        assert_eq!(verdict(&program, nr, machine, OWN_CALL), libc::SECCOMP_RET_ALLOW);
        for almost in [OWN_CALL ^ 1, OWN_CALL ^ 1 << 40, OWN_CALL & 0xffff_ffff, OWN_CALL >> 32 << 32] {
            assert_eq!(verdict(&program, nr, machine, almost), libc::SECCOMP_RET_USER_NOTIF);
        }
    }

    #[test]
    fn every_listed_call_is_decoded() {
        for nr in NUMBERS {
            assert!(crate::calls::decode(nr, [0; 6]).is_some(), "{nr}");
        }
    }
}
