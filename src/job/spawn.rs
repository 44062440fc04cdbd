//! Starts processes of Monarch that outlive the process that starts them, above all the agent. They
//! have a session of their own and inherit nothing of the job. A pipe carries the messages of an
//! agent that has no log yet.

use monarch_core::agent::client::Starting;
use monarch_core::config::Config;
use std::io::{self, Read, Write};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Child, Command, Stdio};
use std::sync::{Mutex, PoisonError};

/// An agent's process.
pub(crate) struct Started(Option<Child>);

/// Agents that this process has started: it has to reap them when they end.
static CHILDREN: Mutex<Vec<Child>> = Mutex::new(Vec::new());

/// Reaps agents that have ended.
pub(crate) fn reap() {
    CHILDREN.lock().unwrap_or_else(PoisonError::into_inner).retain_mut(|c| matches!(c.try_wait(), Ok(None)));
}

impl Drop for Started {
    fn drop(&mut self) {
        CHILDREN.lock().unwrap_or_else(PoisonError::into_inner).extend(self.0.take());
    }
}

impl Starting for Started {
    fn ended(&mut self) -> Option<(i32, String)> {
        let child = self.0.as_mut()?;
        let (code, mut why) = match child.try_wait() {
            Ok(None) => return None,
            Ok(Some(s)) => (s.code().or(s.signal()).unwrap_or(1), format!("it ended with {s}")),
            // As process 1, `run` may have reaped it already.
            Err(_) => (1, "it ended".to_owned()),
        };
        let mut said = String::new();
        if let Some(mut out) = child.stdout.take() {
            let _ = out.read_to_string(&mut said);
        }
        if let Some(line) = said.lines().last().filter(|l| !l.trim().is_empty()) {
            line.trim().clone_into(&mut why);
        }
        Some((code, why))
    }
}

/// Starts an agent for `config`.
pub(crate) fn agent(config: &Config) -> io::Result<Started> {
    let json = serde_json::to_vec(config)?;
    let mut command = Command::new(std::env::current_exe()?);
    command.arg("agent");
    apart(&mut command);
    let mut child = command.spawn()?;
    if let Some(mut stdin) = child.stdin.take() {
        let _ = stdin.write_all(&json);
    }
    Ok(Started(Some(child)))
}

/// Sets up a command of Monarch: a session of its own, pipes to this process, and nothing inherited
/// from the job.
pub(crate) fn apart(command: &mut Command) -> &mut Command {
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null()).current_dir("/");
    command
        .env_remove("LD_PRELOAD")
        .env_remove("LD_AUDIT")
        .env_remove("MONARCH_CTL")
        .env_remove("MONARCH_JOB")
        .env_remove(monarch_core::agent::foreign_changes::VARIABLE)
        .env_remove("MONARCH_CONFIG");
    // SAFETY: only async-signal-safe calls between fork and exec.
    unsafe { command.pre_exec(leave_the_job) };
    command
}

/// Removes what the process has inherited from the job. Async-signal-safe.
fn leave_the_job() -> io::Result<()> {
    // SAFETY: plain system calls on this process, with buffers of ours.
    unsafe {
        libc::setsid();
        libc::dup2(1, 2);
        // Descriptors of the job stay with the job.
        if libc::syscall(libc::SYS_close_range, 3, u32::MAX, libc::CLOSE_RANGE_CLOEXEC) != 0 {
            mark_descriptors();
        }
        // All processors of the cgroup, and not those that a launcher has bound a rank to.
        let mut all: libc::cpu_set_t = std::mem::zeroed();
        for cpu in 0..libc::CPU_SETSIZE as usize {
            libc::CPU_SET(cpu, &mut all);
        }
        libc::sched_setaffinity(0, size_of::<libc::cpu_set_t>(), &raw const all);
        // The agent does not inherit the signals that the job ignores or blocks.
        let mut none: libc::sigset_t = std::mem::zeroed();
        libc::sigemptyset(&raw mut none);
        libc::sigprocmask(libc::SIG_SETMASK, &raw const none, std::ptr::null_mut());
        for signal in [libc::SIGHUP, libc::SIGINT, libc::SIGQUIT] {
            libc::signal(signal, libc::SIG_IGN);
        }
    }
    Ok(())
}

/// Marks each descriptor to be closed by exec: before Linux 5.11, and under filters that refuse
/// close_range. Async-signal-safe, hence without allocation and without a directory stream.
///
/// # Safety
/// The process is about to exec.
unsafe fn mark_descriptors() {
    let mut buf = [0u64; 512];
    // SAFETY: the buffer is ours and as long as said; entries are read within what the kernel says
    // it wrote.
    unsafe {
        let mark = |fd: i32| libc::fcntl(fd, libc::F_SETFD, libc::FD_CLOEXEC);
        let dir = libc::open(c"/proc/self/fd".as_ptr(), libc::O_RDONLY | libc::O_DIRECTORY | libc::O_CLOEXEC);
        if dir < 0 {
            for fd in 3..65_536 {
                mark(fd);
            }
            return;
        }
        loop {
            let n = libc::syscall(libc::SYS_getdents64, dir, buf.as_mut_ptr(), size_of_val(&buf));
            let Some(len @ 1..) = usize::try_from(n).ok() else { break };
            let bytes = std::slice::from_raw_parts(buf.as_ptr().cast::<u8>(), len);
            let mut at = 0;
            // inode 8, offset 8, length of the entry 2, type 1, name.
            while let Some(&[a, b]) = bytes.get(at + 16..at + 18).and_then(|l| l.first_chunk()) {
                let entry = usize::from(u16::from_ne_bytes([a, b]));
                let name = bytes.get(at + 19..at + entry).unwrap_or(&[]);
                let digits = name.iter().take_while(|c| c.is_ascii_digit());
                let fd = digits.fold(0i32, |v, c| v.saturating_mul(10).saturating_add(i32::from(c - b'0')));
                if fd > 2 {
                    mark(fd);
                }
                at += entry.max(1);
            }
        }
        libc::close(dir);
    }
}
