//! The `slowfs` command: mounts the stand-in, or talks to one that is mounted (`slowfs ctl`).

use std::process::ExitCode;

fn main() -> ExitCode {
    match slowfs::cli::run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("slowfs: {error}");
            ExitCode::FAILURE
        }
    }
}
