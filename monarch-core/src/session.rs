//! A job without the command line and without the preload library, for programs that link this
//! crate.
//!
//! A session attaches to the agent that serves the same tiers on this node. When there is none, an
//! agent runs in threads of this process and ends with the session; if jobs of other processes use
//! it by then, they start another agent, which takes over.
//!
//! ```no_run
//! use monarch_core::config::{self, Overrides, SystemProbe};
//! use monarch_core::session::Session;
//!
//! let given = Overrides { roots: vec!["/scratch/imagenet".into()], tiers: vec!["/dev/shm:8GiB".into()], ..Overrides::default() };
//! let config = config::load(None, std::env::vars_os(), &given, &SystemProbe)?.config;
//! let session = Session::start(&config)?;
//! session.prefetch(&["/scratch/imagenet/val"])?;
//! let opened = session.open("/scratch/imagenet/train/n01440764/n01440764_10026.JPEG")?;
//! println!("{} bytes, {:?}", opened.file.metadata()?.len(), opened.place);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

use crate::agent::client::{self, Client, ClientError, Joining, Starting};
use crate::agent::protocol::{Range, Request, Status, Tally};
use crate::agent::server::Agent;
use crate::agent::start::StartError;
use crate::config::{Config, SiteSettings};
use crate::reader::{Explanation, Opened, Reader, ReaderError, Verdict};
use std::io;
use std::path::Path;
use std::sync::mpsc::{Receiver, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Why a session cannot do something.
#[derive(Debug, thiserror::Error)]
pub enum SessionError {
    /// The site has switched Monarch off on this node, for this reason.
    #[error("{0}")]
    SwitchedOff(String),
    /// There is no agent, or it does not answer.
    #[error(transparent)]
    Agent(#[from] ClientError),
    /// The agent's shared memory cannot be used.
    #[error(transparent)]
    Reader(#[from] ReaderError),
    /// A path is not in the index.
    #[error("{path}: {verdict}")]
    Path {
        /// The path.
        path: std::path::PathBuf,
        /// Why.
        verdict: Verdict,
    },
    /// The index did not appear in time.
    #[error("no index after {0:?}: the root is still being scanned, or cannot be")]
    NoIndex(Duration),
}

/// A job. Dropping it detaches it from the agent.
#[derive(Debug)]
pub struct Session {
    // The hosted agent is dropped first: while this job is attached, the agent can tell from the
    // number of jobs whether there are other jobs.
    _hosted: Option<Hosted>,
    client: Mutex<Client>,
    reader: Reader,
}

impl Session {
    /// Attaches to the agent for `config`, or starts an agent in this process. Roots are scanned in
    /// the background.
    ///
    /// # Errors
    /// [`SessionError::SwitchedOff`] while the site has switched Monarch off,
    /// [`SessionError::Agent`] when no agent can be started or it cannot serve these roots,
    /// [`SessionError::Reader`] when its shared memory cannot be mapped.
    pub fn start(config: &Config) -> Result<Self, SessionError> {
        if let Some(why) = SiteSettings::load().off {
            return Err(SessionError::SwitchedOff(why));
        }
        let mut hosted = None;
        let joined = client::attach_or_start(config, Joining::default(), || match Hosted::start(config) {
            Ok((new, ended)) => {
                hosted = Some(new);
                Ok(Watched::Running(ended))
            }
            // Another process may just be starting an agent.
            Err(HostError::Start(e)) => Ok(Watched::Failed(i32::from(e.exit_code()), e.to_string())),
            Err(HostError::Io(e)) => Err(e),
        })?;
        let reader = Reader::open(&joined.attached.control)?.counting_in(joined.attached.counter_group);
        Ok(Self { client: Mutex::new(joined.client), reader, _hosted: hosted })
    }

    /// Waits until all roots have an index. Before that, files are opened on the parallel file
    /// system.
    ///
    /// # Errors
    /// [`SessionError::NoIndex`] when that takes longer than `patience`.
    pub fn wait_for_index(&self, patience: Duration) -> Result<(), SessionError> {
        let start = Instant::now();
        while !self.status()?.roots.iter().all(|r| r.state == "ready") {
            if start.elapsed() > patience {
                return Err(SessionError::NoIndex(patience));
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        Ok(())
    }

    /// Opens a file for reading: its copy if it exists or the agent makes it in time, otherwise the
    /// file itself.
    ///
    /// # Errors
    /// Those of a plain open.
    pub fn open(&self, path: impl AsRef<Path>) -> io::Result<Opened> {
        self.reader.open_file(path.as_ref())
    }

    /// Explains what an open of a path would do now.
    pub fn explain(&self, path: impl AsRef<Path>) -> Explanation {
        self.reader.explain(path.as_ref())
    }

    /// Has files, and all files below directories, copied in the background, after the files that
    /// readers wait for. Files on tape are fetched only when they are named themselves.
    ///
    /// # Errors
    /// [`SessionError::Path`] for a path that is not in the index; then no file is fetched.
    pub fn prefetch(&self, paths: &[impl AsRef<Path>]) -> Result<Tally, SessionError> {
        self.request(&Request::Prefetch { ranges: self.ranges(paths)? })
    }

    /// Drops the copies of files and of all files below directories. A process that has a copy open
    /// keeps it.
    ///
    /// # Errors
    /// As [`Session::prefetch`].
    pub fn evict(&self, paths: &[impl AsRef<Path>]) -> Result<Tally, SessionError> {
        self.request(&Request::Evict { ranges: self.ranges(paths)?, unclaimed: false, copies: Vec::new() })
    }

    /// Returns the agent's status.
    ///
    /// # Errors
    /// When it does not answer.
    pub fn status(&self) -> Result<Status, SessionError> {
        Ok(self.client().status().map_err(ClientError::Io)?)
    }

    /// Returns the reader of the agent's shared memory.
    #[must_use]
    pub const fn reader(&self) -> &Reader {
        &self.reader
    }

    fn ranges(&self, paths: &[impl AsRef<Path>]) -> Result<Vec<Range>, SessionError> {
        let range = |path: &Path| {
            self.reader.range(path).map_err(|verdict| SessionError::Path { path: path.to_owned(), verdict })
        };
        paths.iter().map(|p| range(p.as_ref())).collect()
    }

    fn request(&self, request: &Request) -> Result<Tally, SessionError> {
        Ok(self.client().tally(request)?)
    }

    fn client(&self) -> std::sync::MutexGuard<'_, Client> {
        self.client.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// An agent in threads of this process.
#[derive(Debug)]
struct Hosted {
    agent: Arc<Agent>,
    thread: Option<JoinHandle<()>>,
}

/// A hosted agent as [`client::attach_or_start`] watches it.
enum Watched {
    /// It runs until a message arrives.
    Running(Receiver<String>),
    /// It did not start: the exit status that an agent's process would have, and the reason.
    Failed(i32, String),
}

impl Starting for Watched {
    fn ended(&mut self) -> Option<(i32, String)> {
        match self {
            Self::Running(ended) => Some((1, ended.try_recv().ok()?)),
            Self::Failed(code, why) => Some((*code, why.clone())),
        }
    }
}

#[derive(Debug, thiserror::Error)]
enum HostError {
    #[error(transparent)]
    Start(#[from] StartError),
    #[error(transparent)]
    Io(#[from] io::Error),
}

impl Hosted {
    /// Starts an agent. Returns a channel that gets a message when the agent has ended.
    fn start(config: &Config) -> Result<(Self, Receiver<String>), HostError> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().max_blocking_threads(32).build()?;
        let agent = Agent::start(config)?;
        let (served, (send, ended)) = (agent.clone(), channel());
        let work = move || {
            let end = runtime.block_on(served.serve());
            let _ = send.send(end.map_or_else(|e| e.to_string(), |end| format!("it ended ({end:?})")));
            // Does not wait for threads that hang in a call to the PFS.
            runtime.shutdown_background();
        };
        let thread = std::thread::Builder::new().name("monarch-agent".to_owned()).spawn(work)?;
        Ok((Self { agent, thread: Some(thread) }, ended))
    }
}

impl Drop for Hosted {
    fn drop(&mut self) {
        self.agent.resign();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}
