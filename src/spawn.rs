//! Starting an agent: its own session, its own log, nothing inherited from the job.

use monarch_core::agent::place;
use monarch_core::config::Config;
use std::fs::OpenOptions;
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};

/// Starts an agent for `config`. The result tells, when asked, whether it has ended and why.
pub(crate) fn agent(config: &Config) -> io::Result<Box<dyn FnMut() -> Option<String>>> {
    let json = serde_json::to_vec(config)?;
    let key = place::agent_key(config);
    let dir = place::bases(config).iter().find_map(|b| place::make(b, &key).ok());
    let log = match dir {
        Some(d) => Stdio::from(
            OpenOptions::new()
                .create(true)
                .append(true)
                .mode(0o600)
                .custom_flags(libc::O_NOFOLLOW)
                .open(d.join(place::LOG))?,
        ),
        None => Stdio::null(),
    };
    let mut command = Command::new(std::env::current_exe()?);
    command.arg("agent").stdin(Stdio::piped()).stdout(Stdio::null()).stderr(log).current_dir("/");
    command.env_remove("LD_PRELOAD").env_remove("MONARCH_CTL").env_remove("MONARCH_CONFIG");
    // SAFETY: only async-signal-safe calls between fork and exec.
    unsafe {
        command.pre_exec(|| {
            libc::setsid();
            // Descriptors of the job stay with the job.
            libc::syscall(libc::SYS_close_range, 3, u32::MAX, libc::CLOSE_RANGE_CLOEXEC);
            // All processors that the cgroup allows, not those a launcher bound one rank to.
            let mut all: libc::cpu_set_t = std::mem::zeroed();
            for cpu in 0..libc::CPU_SETSIZE as usize {
                libc::CPU_SET(cpu, &mut all);
            }
            libc::sched_setaffinity(0, size_of::<libc::cpu_set_t>(), &raw const all);
            // Signals that the job ignores or blocks are not ours.
            let mut none: libc::sigset_t = std::mem::zeroed();
            libc::sigemptyset(&raw mut none);
            libc::sigprocmask(libc::SIG_SETMASK, &raw const none, std::ptr::null_mut());
            for signal in [libc::SIGHUP, libc::SIGINT, libc::SIGQUIT] {
                libc::signal(signal, libc::SIG_IGN);
            }
            Ok(())
        });
    }
    let mut child = command.spawn()?;
    if let Some(mut stdin) = child.stdin.take() {
        let _ = stdin.write_all(&json);
    }
    Ok(Box::new(move || match child.try_wait() {
        Ok(Some(status)) => Some(format!("it ended with {status}")),
        _ => None,
    }))
}
