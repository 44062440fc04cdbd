//! Whether the settings of a second job allow it to share the agent.

use crate::config::{Config, Tier};

/// Why a second job cannot share this agent.
pub(super) fn conflict(ours: &Config, theirs: &Config) -> Option<String> {
    let nodes = |c: &Config| (c.cluster.members.clone(), c.cluster.placement);
    if nodes(ours) != nodes(theirs) {
        let list = |c: &Config| match c.cluster.members.as_slice() {
            [] | [_] => "none".to_owned(),
            [first, .., last] => format!("{} ({first} to {last}, {:?})", c.cluster.members.len(), c.cluster.placement),
        };
        return Some(format!(
            "another job of yours uses these tiers and shares copies with other nodes: {}; this job: {}; let one end first, or give \
             them different tier directories",
            list(ours),
            list(theirs)
        ));
    }
    if ours.cluster.job != theirs.cluster.job {
        let keys = |c: &Config| c.cluster.job.clone().unwrap_or_else(|| "those of all jobs".to_owned());
        return Some(format!(
            "another job of yours uses these tiers with other keys between its nodes (cluster.job_secret): {}; this job: {}; let one end \
             first, or give them different tier directories",
            keys(ours),
            keys(theirs)
        ));
    }
    for (a, b) in ours.tiers.iter().zip(&theirs.tiers) {
        let capacity_differs = a.capacity != b.capacity && !(a.capacity_is_default && b.capacity_is_default);
        let of = |t: &Tier| (t.path.clone(), t.keep_free, t.persist, t.compression, t.min_ratio);
        if capacity_differs || of(a) != of(b) {
            return Some(format!(
                "another job of yours uses these tiers with other settings: {} {} with capacity {}, keep_free {}, \
                 persist {} and compression {}, this job asks for {} {} with {}, {}, {} and {}; give both jobs the same tiers, or different directories",
                a.name,
                a.path.display(),
                bytesize::ByteSize(a.capacity),
                bytesize::ByteSize(a.keep_free),
                a.persist,
                a.compression,
                b.name,
                b.path.display(),
                bytesize::ByteSize(b.capacity),
                bytesize::ByteSize(b.keep_free),
                b.persist,
                b.compression,
            ));
        }
    }
    None
}
