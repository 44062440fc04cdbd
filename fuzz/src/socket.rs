//! Lines of the agent's control socket: requests of the command line, and replies of the agent.

use monarch_core::agent::protocol::{Reply, Request, RootStatus};
use std::io::BufRead;

/// Parses each line of `bytes` as a request and as a reply.
pub(crate) fn socket(bytes: &[u8]) {
    for line in bytes.lines().map_while(Result::ok) {
        if let Ok(request) = serde_json::from_str::<Request>(&line) {
            let told = serde_json::to_string(&request).expect("a request is JSON");
            let again: Request = serde_json::from_str(&told).expect("what was written is read");
            assert_eq!(serde_json::to_string(&again).expect("a request is JSON"), told);
        }
        if let Ok(reply) = serde_json::from_str::<Reply>(&line) {
            let told = serde_json::to_string(&reply).expect("a reply is JSON");
            serde_json::from_str::<Reply>(&told).expect("what was written is read");
            if let Reply::Status(status) = reply {
                let epochs = status.roots.iter().flat_map(|root| &root.epochs).map(ToString::to_string);
                let told = status.roots.iter().flat_map(RootStatus::notices).chain(epochs).count();
                let _ = (told, status.prefetch.trouble());
            }
        }
    }
}
