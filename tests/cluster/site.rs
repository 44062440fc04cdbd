//! The surroundings that the nodes of a cluster share: directories, network, settings.

use crate::net::Net;
use std::cell::RefCell;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;

/// Contents of the configuration files.
pub struct Configuration {
    pub tier_size: String,
    pub placement: Option<String>,
    pub alone: bool,
    /// Further lines of the section `cluster`.
    pub cluster: Vec<String>,
}

/// The surroundings of all nodes.
pub struct Site {
    pub configuration: Configuration,
    /// Directory of the tiers of all nodes.
    pub tiers: PathBuf,
    /// A directory in memory.
    pub memory: PathBuf,
    /// A directory on disk that all nodes see, outside the data set.
    pub shared: PathBuf,
    /// What jobs read.
    pub root: PathBuf,
    /// Settings of Monarch for every node, `KEY=VALUE`.
    pub settings: Vec<String>,
    /// Directories that nodes find in the place of the PFS.
    pub mounted: RefCell<Vec<(usize, PathBuf)>>,
    pub nodes: usize,
    pub net: Net,
}

impl Site {
    /// The directory that a node finds in the place of the PFS.
    pub fn mounted(&self, node: usize) -> Option<PathBuf> {
        self.mounted.borrow().iter().find(|(n, _)| *n == node).map(|(_, dir)| dir.clone())
    }

    /// The secret, in a file that only its owner may read.
    pub fn secret(&self, name: &str) -> PathBuf {
        let path = self.shared.join(name);
        if !path.exists() {
            let text: String = name.bytes().cycle().take(32).map(|b| format!("{b:02x}")).collect();
            fs::write(&path, text + "\n").expect("own file");
            fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).expect("own file");
        }
        path
    }

    /// The section `cluster` of a node's configuration; empty for nodes that are alone.
    pub fn section(&self, secret: &str) -> String {
        if self.configuration.alone {
            return String::new();
        }
        let nodes: Vec<String> = (0..self.nodes).map(|i| self.net.address(i)).collect();
        let mut lines = vec![
            "discovery: static".to_owned(),
            format!("nodes: [{}]", nodes.join(", ")),
            format!("secret_file: {}", self.secret(secret).display()),
        ];
        lines.extend(self.configuration.placement.iter().map(|p| format!("placement: {p}")));
        lines.extend(self.configuration.cluster.iter().cloned());
        lines.iter().fold("cluster:\n".to_owned(), |text, line| text + "  " + line + "\n")
    }
}
