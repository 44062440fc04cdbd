//! Lines that shells evaluate. (The crate `shlex` quotes for sh alone, and not for csh and fish.)

use clap::ValueEnum;
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};

/// A shell, by the language that it reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Shell {
    /// sh, bash, dash, ksh, zsh
    Sh,
    /// csh, tcsh
    Csh,
    /// fish
    Fish,
}

impl Shell {
    /// Returns a line that evaluates the output of `command`. The command gets the shell's process
    /// number as an argument.
    pub(crate) fn evaluate(self, command: &[OsString]) -> Vec<u8> {
        let words: Vec<Vec<u8>> = command.iter().map(|w| self.quoted(w)).collect();
        let (before, behind) = match self {
            Self::Sh => ("eval \"$(", " --for $$)\";\n"),
            // (csh takes the status of what is in the quotes for that of `eval`, and its `-e` does
            // not regard `||`.)
            Self::Csh => ("eval `sh -c '\"$@\" || :' sh ", " --for $$`;\n"),
            Self::Fish => ("", " --for $fish_pid | source;\n"),
        };
        [before.as_bytes(), &words.join(&b' '), behind.as_bytes()].concat()
    }

    /// Returns a line that does nothing but end with this status: the shell continues, unless it
    /// ends at the first command that fails (`set -e`).
    pub(crate) fn fail(self, code: u8) -> Vec<u8> {
        match self {
            Self::Sh => format!("(exit {code});\n"),
            Self::Csh | Self::Fish => format!("sh -c 'exit {code}';\n"),
        }
        .into_bytes()
    }

    /// Returns a line that sets environment variables.
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

    /// Returns lines that undo what `monarch env` has set. Other preloaded libraries stay.
    pub(crate) fn unset(self) -> Vec<u8> {
        let mut line = self.forget("MONARCH_CTL");
        line.extend(self.forget("MONARCH_JOB"));
        line.extend(self.forget(monarch_core::agent::foreign_changes::VARIABLE));
        line.extend(self.without("LD_PRELOAD", crate::job::shim::NAME));
        line.extend(self.without("LD_AUDIT", crate::job::libraries::NAME));
        line
    }

    /// Returns a line that takes a library out of a variable that lists libraries.
    fn without(self, variable: &str, library: &str) -> Vec<u8> {
        let list = std::env::var_os(variable).unwrap_or_default();
        let others: Vec<&[u8]> = list
            .as_bytes()
            .split(|&c| c == b':' || c == b' ')
            .filter(|l| !l.is_empty() && !l.ends_with(library.as_bytes()))
            .collect();
        if others.is_empty() {
            return self.forget(variable);
        }
        self.set(&[(variable, OsString::from_vec(others.join(&b':')))])
    }

    /// Returns a line that unsets a variable.
    pub(crate) fn forget(self, name: &str) -> Vec<u8> {
        let unset = match self {
            Self::Sh => "unset",
            Self::Csh => "unsetenv",
            Self::Fish => "set -e",
        };
        format!("{unset} {name};\n").into_bytes()
    }

    /// Returns a word in single quotes.
    fn quoted(self, word: &OsStr) -> Vec<u8> {
        let mut out = vec![b'\''];
        for &c in word.as_bytes() {
            match (self, c) {
                (Self::Sh | Self::Csh, b'\'') => out.extend_from_slice(b"'\\''"),
                // csh expands history within single quotes.
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

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Command;

    fn has(program: &str) -> bool {
        Command::new(program).args(["-c", "true"]).output().is_ok_and(|o| o.status.success())
    }

    /// Runs a script in a shell. Returns its output.
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
