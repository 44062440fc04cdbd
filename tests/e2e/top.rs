//! `monarch top` on a terminal and in a pipe.

use crate::harness::{Job, World};
use bytesize::ByteSize;
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use rustix::termios::{self, LocalModes, Termios, Winsize};
use std::fs::File;
use std::io::{Read, Write};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// How long a screen may take to show something.
const SHOW_TIMEOUT: Duration = Duration::from_secs(60);

/// A command on a terminal of its own.
struct Screen {
    child: Child,
    master: File,
    /// Kept open: otherwise the modes could not be read after the command has ended.
    line: File,
    before: Termios,
    drawn: Arc<Mutex<vt100::Parser>>,
}

/// The modes that programs change.
fn modes(t: &Termios) -> impl PartialEq + std::fmt::Debug {
    (t.input_modes, t.output_modes, t.control_modes, t.local_modes)
}

impl Screen {
    fn start(mut command: Command, columns: u16, lines: u16) -> Self {
        let master = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC).unwrap();
        grantpt(&master).unwrap();
        unlockpt(&master).unwrap();
        let name = ptsname(&master, Vec::new()).unwrap();
        let path = std::path::Path::new(std::ffi::OsStr::from_bytes(name.as_bytes())).to_owned();
        let line = File::options().read(true).write(true).open(path).unwrap();
        let size = Winsize { ws_row: lines, ws_col: columns, ws_xpixel: 0, ws_ypixel: 0 };
        termios::tcsetwinsize(&line, size).unwrap();
        let before = termios::tcgetattr(&line).unwrap();
        let end = || Stdio::from(line.try_clone().unwrap());
        command.stdin(end()).stdout(end()).stderr(end()).process_group(0);
        command.env("TERM", "xterm-256color").env("LC_ALL", "C.UTF-8").env_remove("NO_COLOR");
        let child = command.spawn().unwrap();
        let master = File::from(master);
        let drawn = Arc::new(Mutex::new(vt100::Parser::new(lines, columns, 0)));
        let (mut from, to) = (master.try_clone().unwrap(), drawn.clone());
        std::thread::spawn(move || {
            let mut buf = [0; 65536];
            while let Ok(n @ 1..) = from.read(&mut buf) {
                to.lock().unwrap().process(&buf[..n]);
            }
        });
        Self { child, master, line, before, drawn }
    }

    fn shown(&self) -> String {
        self.drawn.lock().unwrap().screen().contents()
    }

    #[track_caller]
    fn until(&self, what: &str, done: impl Fn(&str) -> bool) {
        let deadline = Instant::now() + SHOW_TIMEOUT;
        while !done(&self.shown()) {
            assert!(Instant::now() < deadline, "no {what} on the screen:\n{}", self.shown());
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    #[track_caller]
    fn until_shown(&self, text: &str) {
        self.until(text, |shown| shown.contains(text));
    }

    fn press(&mut self, keys: &str) {
        self.master.write_all(keys.as_bytes()).unwrap();
    }

    fn resize(&self, columns: u16, lines: u16) {
        self.drawn.lock().unwrap().screen_mut().set_size(lines, columns);
        let size = Winsize { ws_row: lines, ws_col: columns, ws_xpixel: 0, ws_ypixel: 0 };
        termios::tcsetwinsize(&self.line, size).unwrap();
        // The kernel signals the foreground group of a controlling terminal only.
        self.signal(libc::SIGWINCH);
    }

    fn signal(&self, signal: i32) {
        let pid = i32::try_from(self.child.id()).unwrap();
        // SAFETY: our own child, not reaped yet.
        unsafe { libc::kill(pid, signal) };
    }

    /// Whether the command has taken the terminal.
    fn is_taken(&self) -> bool {
        let now = termios::tcgetattr(&self.line).unwrap();
        let is_raw = !now.local_modes.intersects(LocalModes::ICANON | LocalModes::ECHO);
        is_raw && self.drawn.lock().unwrap().screen().alternate_screen()
    }

    /// Waits for the end; the terminal must be as it was.
    #[track_caller]
    fn end(mut self) -> ExitStatus {
        let status = self.child.wait().unwrap();
        assert_eq!(modes(&termios::tcgetattr(&self.line).unwrap()), modes(&self.before));
        let deadline = Instant::now() + SHOW_TIMEOUT;
        loop {
            // What was written last may still be on its way.
            let (is_alternate, is_hidden) = {
                let drawn = self.drawn.lock().unwrap();
                (drawn.screen().alternate_screen(), drawn.screen().hide_cursor())
            };
            if !is_alternate && !is_hidden {
                return status;
            }
            assert!(Instant::now() < deadline, "alternate screen: {is_alternate}, hidden cursor: {is_hidden}");
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Reads all files below argv[1] in two epochs that it announces, and waits for its input to end.
const READS: &str = "import ctypes,os,sys\nfor epoch in range(2):\n    \
     ctypes.CDLL(None).monarch_epoch_begin(ctypes.c_long(epoch + 1))\n    \
     for d,_,names in os.walk(sys.argv[1]):\n        \
     for n in names: open(os.path.join(d,n),'rb').read()\n\
     print('read',flush=True); sys.stdin.read()";

#[test]
fn a_screen_shows_a_job_and_gives_the_terminal_back() {
    let mut w = World::plan().files(40).size(100_000).args(&["--plain", "--exact"]).build();
    let mut job = w.start_indexed(&Job::new("python3").args(["-c", READS]).arg(w.root()));
    job.until_written("read");
    w.settle();
    let mut top = w.monarch("top");
    top.args(["--interval", "0.2"]);
    let mut screen = Screen::start(top, 100, 30);
    let root = w.root().display().to_string();
    screen.until_shown(&root);
    // Epochs, the same as in `monarch status`.
    w.until("two epochs", |s| s.roots[0].epochs.iter().map(|e| (e.number, e.complete)).eq([(1, true), (2, false)]));
    for epoch in &w.agent().unwrap().roots[0].epochs {
        let state = if epoch.complete { "" } else { " so far" };
        screen.until_shown(&format!("epoch {}{state}: {} opens in ", epoch.number, epoch.opens));
    }
    let tier = w.agent().unwrap().tiers.remove(0);
    screen.until("the tier", |shown| {
        let line = shown.lines().find(|l| l.contains(&ByteSize(tier.capacity).to_string())).unwrap_or_default();
        line.contains(&ByteSize(tier.used).to_string()) && line.contains(&tier.name) && line.ends_with(" 40")
    });
    // Rates, once there are two samples.
    screen.until("rates", |shown| shown.contains("from the PFS            0 B          0  0 calls/s"));
    screen.until_shown("nothing is left to prefetch");
    assert!(screen.is_taken());

    screen.press("s");
    screen.until_shown("roots by files");
    screen.press("r");
    screen.until_shown("roots by files, reversed");
    screen.press("j");
    screen.until("the selected root", |shown| shown.lines().any(|l| l.starts_with("> ")));
    screen.press("?");
    screen.until_shown("served by a copy");
    screen.press("?p");
    screen.until_shown("PAUSED");
    screen.press(" ");
    screen.until("continued", |shown| !shown.contains("PAUSED"));
    // A narrow screen leaves columns out.
    screen.resize(60, 16);
    screen.until("a narrow screen", |shown| shown.contains("SIZE") && !shown.contains("FILES"));
    screen.press("q");
    assert!(screen.end().success());
    job.end().good();
}

#[test]
fn the_end_of_the_agent_is_shown_and_a_signal_gives_the_terminal_back() {
    let mut w = World::plan().files(5).args(&["--plain"]).build();
    w.settle();
    let pid = w.agent().unwrap().pid;
    let mut top = w.monarch("top");
    top.args(["--interval", "0.2"]);
    let screen = Screen::start(top, 100, 30);
    screen.until_shown(&format!("agent {pid}: 1 job,"));
    w.release();
    screen.until_shown(&format!("agent {pid} has ended"));
    screen.until_shown("waiting for the next one");
    // Another one appears by itself.
    w.keep();
    w.until("another agent", |s| s.pid != pid);
    let next = w.agent().unwrap().pid;
    screen.until_shown(&format!("agent {next}: 1 job,"));
    screen.signal(libc::SIGTERM);
    assert_eq!(screen.end().signal(), Some(libc::SIGTERM));
}

/// The state of a process: `T` when it is stopped.
fn state(pid: u32) -> char {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
    stat.rsplit_once(") ").unwrap().1.chars().next().unwrap()
}

#[test]
fn ctrl_z_gives_the_terminal_back_and_the_shell_continues_it() {
    let mut w = World::plan().files(5).args(&["--plain"]).build();
    w.settle();
    let mut top = w.monarch("top");
    top.args(["--interval", "0.2"]);
    let mut screen = Screen::start(top, 100, 30);
    let root = w.root().display().to_string();
    screen.until_shown(&root);
    screen.press("\x1a");
    screen.until("a stopped process", |_| state(screen.child.id()) == 'T');
    assert!(!screen.is_taken() && modes(&termios::tcgetattr(&screen.line).unwrap()) == modes(&screen.before));
    screen.signal(libc::SIGCONT);
    screen.until("it again", |shown| shown.contains(&root) && screen.is_taken());
    screen.press("\x03");
    assert!(screen.end().success());
}

#[test]
fn a_pipe_gets_tables_with_the_figures_of_status() {
    let mut w = World::plan().files(40).size(100_000).args(&["--plain", "--exact"]).build();
    let said = |command: &mut Command| {
        let out = command.output().unwrap();
        let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
        (text(out.stdout), text(out.stderr), out.status.code())
    };
    let none = "monarch: no agent of yours is running on this node; an agent ends 3 s after its last job\n";
    for words in [&["--once"][..], &[], &["--count", "2"]] {
        assert_eq!(said(w.monarch("top").args(words)), (String::new(), none.to_owned(), Some(4)));
    }

    w.settle();
    let mut job = w.start(&Job::new("python3").args(["-c", READS]).arg(w.root()));
    job.until_written("read");
    let status = w.agent().unwrap();
    let (table, errors, code) = said(w.monarch("top").args(["--interval", "0.1"]));
    assert_eq!((errors.as_str(), code), ("", Some(0)));
    assert!(!table.contains('\x1b'), "{table}");
    let line = |text: &str| table.lines().find(|l| l.contains(text)).unwrap_or_else(|| panic!("no {text}: {table}"));
    assert!(line(&format!("agent {}: 2 jobs", status.pid)).contains("policy first_epoch"), "{table}");
    let root = line(&w.root().display().to_string());
    assert!(root.contains(" 40 ") && root.contains(&ByteSize(40 * 100_000).to_string()), "{table}");
    for epoch in &status.roots[0].epochs {
        // (That of the last one may have grown.)
        assert!(table.contains(&format!("epoch {}", epoch.number)), "{table}");
    }
    let tier = &status.tiers[0];
    assert!(line(&tier.path.display().to_string()).contains(&ByteSize(tier.used).to_string()), "{table}");
    assert!(line("from tiers").contains("0 B"), "{table}");

    let (tables, _, code) = said(w.monarch("top").args(["--interval", "0.1", "--count", "3"]));
    assert_eq!((tables.matches("TRAFFIC").count(), code), (3, Some(0)), "{tables}");
    let (_, errors, code) = said(w.monarch("top").args(["--once", "--root"]).arg(w.scratch()));
    assert!(errors.contains("no agent of yours on this node serves ") && code == Some(4), "{errors}");
    let (table, _, code) = said(w.monarch("top").args(["--once", "--interval", "0.1", "--root"]).arg(w.root()));
    assert!(table.contains("from the PFS") && code == Some(0), "{table}");
    job.end().good();
}
