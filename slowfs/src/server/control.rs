//! The control socket's server: a thread per connection, one JSON line in, one out. See
//! [`crate::protocol`].

use std::io::{self, BufRead, BufReader, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::sync::Arc;
use std::thread;

use serde_json::{Value, json};

use super::Server;
use crate::mutation::{self, When};
use crate::protocol::Command;

/// Serves the socket until the process ends; `stop` is called for `unmount`.
pub(super) fn serve(
    listener: UnixListener,
    server: Arc<Server>,
    stop: impl Fn() + Clone + Send + 'static,
) -> io::Result<()> {
    thread::Builder::new().name("slowfs-control".into()).spawn(move || {
        for stream in listener.incoming().flatten() {
            let (server, stop) = (Arc::clone(&server), stop.clone());
            let connection = thread::Builder::new().name("slowfs-client".into());
            // Without a thread the connection is dropped, which the client sees.
            let _ = connection.spawn(move || converse(&stream, &server, &stop));
        }
    })?;
    Ok(())
}

fn converse(stream: &UnixStream, server: &Server, stop: &dyn Fn()) -> io::Result<()> {
    let mut writer = stream;
    for line in BufReader::new(stream).lines() {
        let line = line?;
        let command = serde_json::from_str::<Command>(&line);
        let unmount = matches!(command, Ok(Command::Unmount));
        let answer = match command.map_err(|e| e.to_string()).and_then(|c| obey(server, c).map_err(|e| e.to_string())) {
            Ok(mut answer) => {
                answer["ok"] = true.into();
                answer
            }
            Err(error) => json!({ "ok": false, "error": error }),
        };
        writer.write_all(format!("{answer}\n").as_bytes())?;
        if unmount {
            stop();
        }
    }
    Ok(())
}

/// Does what a command asks for, and returns its answer.
fn obey(server: &Server, command: Command) -> io::Result<Value> {
    match command {
        Command::Counters => return Ok(json!({ "counters": server.backing.counters.snapshot() })),
        Command::Paths => return Ok(json!({ "paths": server.backing.paths.snapshot() })),
        Command::Options => return Ok(json!({ "options": server.backing.options.settings() })),
        Command::Faults => return Ok(json!({ "faults": server.faults.list() })),
        Command::Set(settings) => {
            server.backing.options.apply(&settings);
            return Ok(json!({ "options": server.backing.options.settings() }));
        }
        Command::Reset => {
            server.backing.counters.reset();
            server.backing.paths.reset();
        }
        Command::Fault(spec) => server.faults.add(spec),
        Command::Clear => {
            server.faults.clear();
            server.backing.armed.clear();
            server.stalls.release();
        }
        Command::Mutate(spec) if spec.when == When::Now => mutation::apply(&server.backing.root, &spec)?,
        Command::Mutate(spec) => server.backing.armed.add(spec),
        Command::Unmount => {}
    }
    Ok(json!({}))
}
