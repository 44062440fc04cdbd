//! `monarch env`: the environment of a job whose command cannot be written behind `monarch run`.
//!
//! It prints one command for the shell that asked: to evaluate what `monarch hold` prints. That
//! takes the place of `run` (it is the job as far as the agent is concerned, and starts the agent
//! again when it dies) for as long as that shell lives, and prints the variables once the job is
//! served. The shell itself fills in its process number: whoever calls us may be a subshell that
//! ends at once. Nothing is started here: a job that comes and goes would have the root scanned
//! twice.

use crate::args::ConfigArgs;
use crate::{job, say};
use anyhow::Result;
use clap::{Args, ValueEnum};
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

#[derive(Debug, Args)]
pub(crate) struct EnvArgs {
    #[command(flatten)]
    config: ConfigArgs,
    /// For which shell
    #[arg(long, value_enum, default_value_t = Shell::Sh)]
    shell: Shell,
    /// When the shell has ended, write what was saved to this file as JSON
    #[arg(long, value_name = "FILE")]
    report: Option<PathBuf>,
    /// Print what takes it back: commands started after that read the parallel file system
    #[arg(long)]
    off: bool,
    /// Print what ends it: takes it back, writes the report, and waits until nothing is left in
    /// memory. The last line of a batch script, which the batch system ends together with all
    /// that it has started
    #[arg(long, conflicts_with = "off")]
    end: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Shell {
    /// sh, bash, dash, ksh, zsh
    Sh,
    /// csh, tcsh
    Csh,
    /// fish
    Fish,
}

pub(crate) fn main(args: &EnvArgs) -> Result<ExitCode> {
    if args.off {
        say::out_bytes(&args.shell.unset())?;
        return Ok(ExitCode::SUCCESS);
    }
    if args.end {
        let hold = [std::env::current_exe()?.into_os_string(), "hold".into(), "--end".into()];
        say::out_bytes(&[args.shell.unset(), args.shell.evaluate(&hold)].concat())?;
        return Ok(ExitCode::SUCCESS);
    }
    if job::is_disabled() {
        return Ok(ExitCode::SUCCESS);
    }
    // For its mistakes and warnings: `hold` is told not to repeat them.
    if let Err(code) = job::config(&args.config, &[], false) {
        return Ok(code);
    }
    let mut hold = vec![std::env::current_exe()?.into_os_string(), "hold".into(), "--shell".into()];
    hold.extend(args.shell.to_possible_value().map(|v| OsString::from(v.get_name())));
    hold.extend(args.config.words());
    if let Some(report) = &args.report {
        job::check_report(report);
        hold.extend(["--report".into(), std::path::absolute(report)?.into_os_string()]);
    }
    say::out_bytes(&args.shell.evaluate(&hold))?;
    Ok(ExitCode::SUCCESS)
}

impl Shell {
    /// A line that evaluates what a command prints, which is given the shell's process number.
    fn evaluate(self, command: &[OsString]) -> Vec<u8> {
        let words: Vec<Vec<u8>> = command.iter().map(|w| self.quoted(w)).collect();
        let (before, behind) = match self {
            Self::Sh => ("eval \"$(", " --for $$)\";\n"),
            Self::Csh => ("eval `", " --for $$`;\n"),
            Self::Fish => ("", " --for $fish_pid | source;\n"),
        };
        [before.as_bytes(), &words.join(&b' '), behind.as_bytes()].concat()
    }

    /// A line that sets environment variables.
    pub(crate) fn set(self, variables: &[(&str, OsString)]) -> Vec<u8> {
        let mut line = Vec::new();
        for (name, value) in variables {
            let set = match self {
                Self::Sh => format!("export {name}="),
                Self::Csh => format!("setenv {name} "),
                Self::Fish => format!("set -gx {name} "),
            };
            line.extend(set.into_bytes());
            line.extend(self.quoted(value));
            line.extend_from_slice(b"; ");
        }
        line.push(b'\n');
        line
    }

    /// Takes the variables back. What else was preloaded stays.
    fn unset(self) -> Vec<u8> {
        let others: Vec<Vec<u8>> = std::env::var_os("LD_PRELOAD")
            .unwrap_or_default()
            .as_bytes()
            .split(|&c| c == b':' || c == b' ')
            .filter(|l| !l.is_empty() && !l.ends_with(crate::job::shim::NAME.as_bytes()))
            .map(<[u8]>::to_vec)
            .collect();
        let rest = OsString::from_vec(others.join(&b':'));
        let mut line = self.forget("MONARCH_CTL");
        line.extend(self.forget(monarch_core::agent::foreign_changes::VARIABLE));
        if rest.is_empty() {
            line.extend(self.forget("LD_PRELOAD"));
        } else {
            line.extend(self.set(&[("LD_PRELOAD", rest)]));
        }
        line
    }

    /// A line that takes a variable away.
    pub(crate) fn forget(self, name: &str) -> Vec<u8> {
        let unset = match self {
            Self::Sh => "unset",
            Self::Csh => "unsetenv",
            Self::Fish => "set -e",
        };
        format!("{unset} {name};\n").into_bytes()
    }

    /// A word in single quotes.
    fn quoted(self, word: &OsStr) -> Vec<u8> {
        let mut out = vec![b'\''];
        for &c in word.as_bytes() {
            match (self, c) {
                (Self::Sh | Self::Csh, b'\'') => out.extend_from_slice(b"'\\''"),
                // History is expanded even there.
                (Self::Csh, b'!') => out.extend_from_slice(b"\\!"),
                (Self::Csh, b'\n') => out.extend_from_slice(b"\\\n"),
                (Self::Fish, b'\'' | b'\\') => out.extend_from_slice(&[b'\\', c]),
                _ => out.push(c),
            }
        }
        out.push(b'\'');
        out
    }
}

impl ConfigArgs {
    /// The same arguments once more, for a process that may have another working directory.
    fn words(&self) -> Vec<OsString> {
        let absolute = |p: &Path| std::path::absolute(p).unwrap_or_else(|_| p.to_owned()).into_os_string();
        let mut out = Vec::new();
        let mut add = |flag: &str, value: OsString| out.extend([OsString::from(flag), value]);
        if let Some(file) = &self.config {
            add("--config", absolute(file));
        }
        let overrides = self.overrides();
        overrides.roots.into_iter().for_each(|r| add("--root", r.into_os_string()));
        overrides.tiers.into_iter().for_each(|t| add("--tier", t.into()));
        overrides.set.into_iter().for_each(|(k, v)| add("--set", format!("{k}={v}").into()));
        out
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Command;

    fn has(program: &str) -> bool {
        Command::new(program).args(["-c", "true"]).output().is_ok_and(|o| o.status.success())
    }

    /// What a shell makes of a script.
    fn run(program: &str, script: Vec<u8>) -> String {
        let out = Command::new(program).arg("-c").arg(OsString::from_vec(script)).output().unwrap();
        String::from_utf8(out.stdout).unwrap()
    }

    #[test]
    fn shells_read_what_was_written() {
        let odd = "a b'c\\d!e$f`g\"h*\u{fc}";
        let shells =
            [(Shell::Sh, "sh"), (Shell::Sh, "bash"), (Shell::Sh, "zsh"), (Shell::Csh, "tcsh"), (Shell::Fish, "fish")];
        for (shell, program) in shells {
            if !has(program) {
                assert!(program != "sh", "a shell is always there");
                continue;
            }
            let mut script = shell.set(&[("X", odd.into()), ("Y", "y".into())]);
            script.extend_from_slice(b"printf '%s|%s' \"$X\" \"$Y\"\n");
            assert_eq!(run(program, script), format!("{odd}|y"), "{program}");
            // The command's words arrive, and what it prints is evaluated by the shell itself.
            let printed = match shell {
                Shell::Sh => "export X='%s' PID=%s;",
                Shell::Csh => "setenv X '%s'; setenv PID %s;",
                Shell::Fish => "set -gx X '%s'; set -gx PID %s;",
            };
            let command = ["sh", "-c", "printf \"$1\" \"$2\" \"$4\"", "sh", printed, "a b c"].map(OsString::from);
            let mut script = shell.evaluate(&command);
            let pid = if shell == Shell::Fish { "$fish_pid" } else { "$$" };
            script.extend_from_slice(format!("printf '%s|%s|%s' \"$X\" $PID {pid}\n").as_bytes());
            let said = run(program, script);
            let parts: Vec<&str> = said.split('|').collect();
            assert!(parts[0] == "a b c" && parts[1] == parts[2] && !parts[1].is_empty(), "{program}: {said}");
        }
    }

    #[test]
    fn nothing_is_set_when_nobody_holds_the_job() {
        let mut script = b"set -eu; unset X; ".to_vec();
        script.extend(Shell::Sh.evaluate(&["false".into()]));
        script.extend_from_slice(b"printf '%s.' \"${X-none}\"");
        assert_eq!(run("sh", script), "none.");
    }
}
