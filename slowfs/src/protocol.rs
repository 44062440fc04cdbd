//! The control socket: a Unix stream, one JSON command per line, one JSON answer per line.
//!
//! An answer is `{"ok":true, ...}` or `{"ok":false,"error":"..."}`.
//!
//! | command | answer |
//! |---|---|
//! | `{"cmd":"counters"}` | `"counters"`: an object of [`Counters`](crate::Counters) |
//! | `{"cmd":"paths"}` | `"paths"`: relative path to [`PathCounts`](crate::PathCounts), files that were touched |
//! | `{"cmd":"reset"}` | all counts are zero |
//! | `{"cmd":"options"}` | `"options"`: [`Settings`] in force |
//! | `{"cmd":"set","meta_latency":"2ms","bandwidth":"115MiB/s"}` | the same, after the change |
//! | `{"cmd":"fault","kind":"eio","ops":["read"],"path":"a/*","count":1,"after":2}` | a rule is appended |
//! | `{"cmd":"faults"}` | `"faults"`: the rules with `seen` and `hit` |
//! | `{"cmd":"clear"}` | no rules, no waiting mutations; stalled calls are answered |
//! | `{"cmd":"mutate","path":"a/b","kind":"replace_same","when":"after_read:1"}` | done, or waiting for its moment |
//! | `{"cmd":"unmount"}` | the mount ends |

use std::io::{self, BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::{FaultSpec, MutateSpec, Settings};

/// A command.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(tag = "cmd", rename_all = "snake_case")]
pub enum Command {
    /// Totals per operation.
    Counters,
    /// Counts per file.
    Paths,
    /// All counts to zero.
    Reset,
    /// The options in force.
    Options,
    /// Change options.
    Set(Settings),
    /// Append a fault rule.
    Fault(FaultSpec),
    /// List the fault rules.
    Faults,
    /// Remove rules and waiting mutations, release stalled calls.
    Clear,
    /// Change a file behind the mount's back.
    Mutate(MutateSpec),
    /// End the mount.
    Unmount,
}

/// Sends one command and returns the answer's object; an answer `"ok":false` is an error.
///
/// # Errors
/// The socket's errors, an answer that is no JSON, or the server's refusal.
pub fn call(socket: &Path, command: &Command, timeout: Duration) -> io::Result<Value> {
    let mut stream = UnixStream::connect(socket)?;
    stream.set_read_timeout(Some(timeout))?;
    stream.set_write_timeout(Some(timeout))?;
    let mut line = serde_json::to_string(command)?;
    line.push('\n');
    stream.write_all(line.as_bytes())?;
    let mut answer = String::new();
    BufReader::new(stream).read_line(&mut answer)?;
    let value: Value = serde_json::from_str(&answer)?;
    match value.get("ok").and_then(Value::as_bool) {
        Some(true) => Ok(value),
        _ => Err(io::Error::other(value.get("error").and_then(Value::as_str).unwrap_or("no answer").to_string())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_parse_as_documented() {
        for text in [
            r#"{"cmd":"counters"}"#,
            r#"{"cmd":"set","meta_latency":"2ms","bandwidth":"115MiB/s","cache":"keep","flush":true}"#,
            r#"{"cmd":"fault","kind":"eio","ops":["read"],"path":"a/*","count":1,"after":2}"#,
            r#"{"cmd":"mutate","path":"a/b","kind":"replace_same","when":"after_read:1"}"#,
        ] {
            assert!(serde_json::from_str::<Command>(text).is_ok(), "{text}");
        }
        for text in [r#"{"cmd":"set","metalatency":"2ms"}"#, r#"{"cmd":"fault","kind":"eio","ops":["reed"]}"#] {
            assert!(serde_json::from_str::<Command>(text).is_err(), "{text}");
        }
    }
}
