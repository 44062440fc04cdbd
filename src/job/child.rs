//! The job's process: started, signalled, waited for.
//!
//! `run` passes on the signals that other processes send. Signals of the terminal reach the job
//! directly, because it stays in the terminal's process group. As process 1, `run` reaps all
//! orphans. When `run` is killed, the job is killed as well, as if the signal had reached the job.

use super::found;
use anyhow::Result;
use monarch_core::cluster::secret;
use monarch_rawcalls::trap::Installer;
use std::ffi::OsString;
use std::io;
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicI32, Ordering};
use std::time::Duration;

/// How the job ended.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Ended {
    /// With this status.
    Exited(i32),
    /// By this signal.
    Killed(i32),
}

/// Signals that are passed on.
const FORWARDED: [i32; 8] = [
    libc::SIGTERM,
    libc::SIGINT,
    libc::SIGHUP,
    libc::SIGQUIT,
    libc::SIGUSR1,
    libc::SIGUSR2,
    libc::SIGCONT,
    libc::SIGALRM,
];

fn signals(all: &[i32]) -> libc::sigset_t {
    // SAFETY: plain initialisation.
    unsafe {
        let mut set: libc::sigset_t = std::mem::zeroed();
        libc::sigemptyset(&raw mut set);
        for s in all {
            libc::sigaddset(&raw mut set, *s);
        }
        set
    }
}

/// The signals that this process waits for instead of being interrupted.
fn signal_set() -> libc::sigset_t {
    signals(&[&FORWARDED[..], &[libc::SIGCHLD]].concat())
}

/// A running job.
#[derive(Debug)]
pub(crate) struct Child {
    pid: i32,
}

/// Blocks the signals that are passed on. The caller calls this before it starts any thread. Sets
/// the default action for SIGCHLD: were it ignored, the kernel would reap the job, and its exit
/// status would be lost.
pub(crate) fn block_signals() {
    let set = signal_set();
    // SAFETY: blocks signals of this thread; no handler is set.
    unsafe {
        libc::sigprocmask(libc::SIG_BLOCK, &raw const set, std::ptr::null_mut());
        libc::signal(libc::SIGCHLD, libc::SIG_DFL);
    }
}

/// The signals by which a user or a batch system ends a job.
const ENDING: [i32; 4] = [libc::SIGINT, libc::SIGTERM, libc::SIGHUP, libc::SIGQUIT];

/// Waits for a signal that ends a job, `pause` at most. The caller has called [`block_signals`].
pub(crate) fn take_signal(pause: Duration) -> Option<i32> {
    let set = signals(&ENDING);
    let t = libc::timespec {
        tv_sec: libc::time_t::try_from(pause.as_secs()).unwrap_or(libc::time_t::MAX),
        tv_nsec: pause.subsec_nanos().into(),
    };
    // SAFETY: waits for signals that are blocked; the buffers are ours, and no information is asked
    // for.
    let signal = unsafe { libc::sigtimedwait(&raw const set, std::ptr::null_mut(), &raw const t) };
    (signal > 0).then_some(signal)
}

/// Drops the signals that have come and that end a job.
pub(crate) fn drop_signals() {
    while take_signal(Duration::ZERO).is_some() {}
}

/// Whether SIGTERM has come since [`block_signals`].
pub(crate) fn is_told_to_end() -> bool {
    // SAFETY: the buffer is ours.
    unsafe {
        let mut pending: libc::sigset_t = std::mem::zeroed();
        libc::sigpending(&raw mut pending);
        libc::sigismember(&raw const pending, libc::SIGTERM) == 1
    }
}

/// The first signal that asked this process to end, for a command that says what it leaves. A
/// second one ends the process at once.
#[derive(Debug)]
pub(crate) struct EndSignal(Arc<AtomicI32>);

impl EndSignal {
    /// Waits for SIGINT, SIGTERM and SIGHUP from now on, on a thread of its own. The caller has no
    /// other threads yet. Signals that the process was started to ignore stay ignored.
    pub(crate) fn watch() -> Self {
        let received = Arc::<AtomicI32>::default();
        let set = signals(&[libc::SIGINT, libc::SIGTERM, libc::SIGHUP]);
        // SAFETY: blocks signals of this thread and of those that it starts.
        unsafe { libc::sigprocmask(libc::SIG_BLOCK, &raw const set, std::ptr::null_mut()) };
        let seen = received.clone();
        let wait = move || {
            loop {
                let mut signal = 0;
                // SAFETY: the buffers are ours.
                if unsafe { libc::sigwait(&raw const set, &raw mut signal) } != 0 {
                    continue;
                }
                if seen.swap(signal, Ordering::AcqRel) != 0 {
                    // SAFETY: ends this process, whose main thread may wait for the PFS.
                    unsafe { libc::_exit(128 + signal) };
                }
            }
        };
        // (Without the thread, the signals wait until the process ends.)
        let _ = std::thread::Builder::new().name("signals".to_owned()).spawn(wait);
        Self(received)
    }

    /// Returns the signal, if one has come.
    pub(crate) fn received(&self) -> Option<i32> {
        Some(self.0.load(Ordering::Acquire)).filter(|signal| *signal != 0)
    }
}

impl Child {
    /// Starts the command `words` with the environment of this process and `env`, without the
    /// secrets of user and job; with a filter for raw system calls, if there is one.
    pub(crate) fn start(words: &[OsString], env: &[(&str, OsString)], filter: Option<Installer>) -> io::Result<Self> {
        let Some((program, args)) = words.split_first() else { return Err(io::ErrorKind::InvalidInput.into()) };
        let mut command = Command::new(program);
        for secret in secret::VARIABLES {
            command.env_remove(secret);
        }
        command.args(args).envs(env.iter().map(|(k, v)| (k, v)));
        let run = std::process::id();
        // SAFETY: only async-signal-safe calls between fork and exec.
        unsafe {
            command.pre_exec(move || {
                die_with(run);
                found::restore();
                if let Some(filter) = &filter {
                    filter.install();
                }
                Ok(())
            });
        }
        let child = command.spawn()?;
        Ok(Self { pid: i32::try_from(child.id()).unwrap_or(0) })
    }

    /// Waits until the job has ended, and calls `idle` every 200 ms or less.
    pub(crate) fn wait(&self, mut idle: impl FnMut()) -> Result<Ended> {
        let set = signal_set();
        loop {
            if let Some(end) = self.reap()? {
                return Ok(end);
            }
            let pause = Duration::from_millis(200);
            let t = libc::timespec { tv_sec: 0, tv_nsec: pause.subsec_nanos().into() };
            // SAFETY: waits for signals that are blocked; the buffers are ours.
            let (signal, info) = unsafe {
                let mut info: libc::siginfo_t = std::mem::zeroed();
                (libc::sigtimedwait(&raw const set, &raw mut info, &raw const t), info)
            };
            if signal > 0 && signal != libc::SIGCHLD && info.si_code <= 0 {
                // Sent by a process (kill, tgkill, sigqueue); the kernel's own have a positive
                // code.
                // SAFETY: our own child, not reaped yet.
                unsafe { libc::kill(self.pid, signal) };
            }
            idle();
        }
    }

    /// Reaps the job if it has ended; as process 1 also orphans.
    fn reap(&self) -> Result<Option<Ended>> {
        let waited = if std::process::id() == 1 { -1 } else { self.pid };
        loop {
            let mut status = 0;
            // SAFETY: the buffer is ours.
            let pid = unsafe { libc::waitpid(waited, &raw mut status, libc::WNOHANG) };
            if pid == self.pid {
                if libc::WIFSIGNALED(status) {
                    return Ok(Some(Ended::Killed(libc::WTERMSIG(status))));
                }
                return Ok(Some(Ended::Exited(libc::WEXITSTATUS(status))));
            }
            if pid <= 0 {
                let e = io::Error::last_os_error();
                if pid < 0 && e.kind() != io::ErrorKind::Interrupted {
                    return Err(e.into());
                }
                return Ok(None);
            }
        }
    }
}

/// Has the kernel kill this process when its parent `run` ends, even by SIGKILL. The kernel watches
/// the thread that forked: here the first thread of `run`, which lasts as long as the process.
/// Async-signal-safe.
fn die_with(run: u32) {
    // SAFETY: plain calls on this process.
    unsafe {
        if libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) != 0 {
            return;
        }
        // It may be dead already, and then no signal comes. (0: the parent is outside of this
        // namespace of processes.)
        let parent = libc::getppid();
        if parent != 0 && u32::try_from(parent) != Ok(run) {
            libc::raise(libc::SIGKILL);
        }
    }
}

/// Ends this process as the job has ended.
pub(crate) fn end_like(end: Ended) -> std::process::ExitCode {
    match end {
        Ended::Exited(code) => std::process::ExitCode::from(u8::try_from(code & 0xff).unwrap_or(1)),
        Ended::Killed(signal) => {
            // SAFETY: restores the default action, forbids a core file of this process beside the
            // job's, and sends the signal.
            unsafe {
                let none = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
                libc::setrlimit(libc::RLIMIT_CORE, &raw const none);
                libc::signal(signal, libc::SIG_DFL);
                let mut set: libc::sigset_t = std::mem::zeroed();
                libc::sigemptyset(&raw mut set);
                libc::sigaddset(&raw mut set, signal);
                libc::sigprocmask(libc::SIG_UNBLOCK, &raw const set, std::ptr::null_mut());
                libc::kill(libc::getpid(), signal);
            }
            // Process 1 is not killed by its own signals.
            std::process::ExitCode::from(u8::try_from(128 + signal).unwrap_or(255))
        }
    }
}
