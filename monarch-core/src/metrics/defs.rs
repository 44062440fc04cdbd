//! Every metric: `docs/METRICS.md` is made of this file, and nothing can be recorded that is not
//! here.
//!
//! Names follow Prometheus' rules: base units, `_total` for what only grows. Counters of readers
//! live in shared memory and outlive an agent that was killed; those of the agent begin at 0 with
//! it.

use super::declare::{Counter, Declared, Durations, Gauge, Label, Seconds, labels, metrics};
use super::declare::{Unit, Unit::Bytes, Unit::Flag, Unit::Of};

labels! {
    /// Version of Monarch.
    VERSION = "version";
    /// The setting `placement.policy`.
    POLICY = "policy";
    /// Copy engine of prefetch: `uring`, `threads`, or `auto`.
    ENGINE = "engine";
    /// Real path of a root, or of an output root.
    ROOT = "root";
    /// Name of a tier.
    TIER = "tier";
    /// Holder of directories: `own` (this node, for all nodes of the job) or `others` (copies of
    /// what other nodes hold).
    HOLDER = "holder";
    /// State: of a root `scanning`, `ready`, `failed`; of prefetch `idle`, `running`, `slowed`,
    /// `pfs_fails`, `tiers_rest`, `memory_pressure`; of other nodes `expected`, `up`, `suspect`,
    /// `left`, `gone`.
    STATE = "state";
    /// Source of an open: `tier` (an existing copy), `waited` (a copy that the reader waited for),
    /// `chunks` (the PFS's descriptor, whose reads are served from chunks as they arrive), in
    /// figures of epochs also `pfs`.
    SERVED = "served";
    /// Why an open went to the PFS: `absent` (no copy yet), `no_room` (no space in the tiers, or
    /// the policy values other copies more), `refused` (a pause after a failure, or after a recent
    /// change), `changed` (since the scan, or not readable), `written` (by the job), `deadline` (a
    /// wait timed out, or the agent was down), `unknown` (not in the index), `flags` (writing,
    /// `O_DIRECT`), `vanished` (the copy was removed), `large` (the copy of a large file was not
    /// complete in time), `other_mount` (the process has another mount there).
    REASON = "reason";
    /// Source of a read: `copy` or `pfs`.
    FROM = "from";
    /// Kind of call: `stat` (attributes, access) or `list` (a directory).
    CALL = "call";
    /// Whether readers waited for the copy (`demand`) or not (`ahead`).
    ASKED = "asked";
    /// Which side failed: `pfs` or `tier`.
    SIDE = "side";
    /// Why copies were dropped: `space` (`keep_free`, memory, `monarch evict`) or `replaced` (the
    /// policy preferred others).
    CAUSE = "cause";
    /// Direction of a move: to `faster` or `slower` tiers.
    TO = "to";
    /// Caller: `copies` or `scans`.
    CALLER = "caller";
    /// Source of bytes: `pfs`, `node` (another node of the cluster) or `packed` (a compressed copy
    /// on this node).
    ORIGIN = "origin";
    /// Unit of a copy: `file` (as a whole) or `chunk` (of a large file).
    PIECE = "piece";
    /// Queue of files: `demand` (readers wait), `node` (readers wait, and another node has the
    /// file), `retry` (tried again next), `paused` (tried again after a pause).
    LINE = "line";
    /// Kind of files under way: `pfs` (files from the PFS or a packed copy), `node` (files from
    /// other nodes), `ahead` (those of both without a waiting reader).
    WAY = "way";
    /// Which epoch: `current`, or `last` (the last complete one).
    EPOCH = "epoch";
    /// Name of another node.
    PEER = "peer";
    /// Why requests of other nodes were refused, such as `unauthenticated`, `bad_proof`,
    /// `no_member`, `forged`, `unencrypted`, `encrypted`, `slow`.
    REFUSAL = "reason";
}

metrics! {
    /// Always 1; its labels describe the agent.
    Gauge AGENT_INFO = "monarch_agent_info", Flag, [VERSION, POLICY, ENGINE];
    /// How long the agent has been running.
    Gauge UPTIME = "monarch_agent_uptime_seconds", Unit::Seconds, [];
    /// Starts of an agent on the shared memory of these jobs: 1, plus 1 for each restart.
    Gauge INCARNATION = "monarch_agent_incarnation", Of("starts"), [];
    /// Jobs attached now.
    Gauge JOBS = "monarch_jobs", Of("jobs"), [];
    /// Jobs that attached since the agent started.
    Counter JOBS_ATTACHED = "monarch_jobs_attached_total", Of("jobs"), [];

    /// Opens below the roots that were served without a read of the PFS by the process.
    Counter OPENS = "monarch_opens_total", Of("opens"), [SERVED];
    /// Opens below the roots that went to the PFS.
    Counter PFS_OPENS = "monarch_opens_pfs_total", Of("opens"), [REASON];
    /// Size of the files that were opened as copies.
    Counter HIT_BYTES = "monarch_hit_bytes_total", Bytes, [];
    /// Bytes of mappings and streams of complete copies of large files; how much of them was read
    /// is not known.
    Counter MAPPED_BYTES = "monarch_mapped_bytes_total", Bytes, [];
    /// Size of the large files that were opened as complete copies; how much of them was read is
    /// not known.
    Counter WHOLE_LARGE_BYTES = "monarch_whole_large_bytes_total", Bytes, [];
    /// Directories compared with the PFS ahead of processes that look for names that are not there.
    Counter LISTING_CHECKS = "monarch_listing_checks_total", Of("checks"), [];
    /// Size of the files that were opened at the PFS.
    Counter MISS_BYTES = "monarch_miss_bytes_total", Bytes, [];
    /// How long readers waited for copies, all together.
    Seconds READER_WAIT = "monarch_reader_wait_seconds_total", Unit::Seconds, [];
    /// Metadata calls that were answered from shared memory, and that the PFS was spared.
    Counter METADATA = "monarch_metadata_served_total", Of("calls"), [CALL];
    /// Metadata calls below the roots that the kernel answered.
    Counter METADATA_KERNEL = "monarch_metadata_kernel_total", Of("calls"), [];
    /// Checks at opens whether an entry on the PFS is still that of the index (`close-to-open`).
    Counter CHECKS = "monarch_identity_checks_total", Of("calls"), [];
    /// Checks whether a directory on the PFS is still as listed, before its listing says that a
    /// name is not there (`dataset.absent`).
    Counter ABSENT_CHECKS = "monarch_absent_checks_total", Of("calls"), [];
    /// Reads of large files whose copy was not complete.
    Counter CHUNK_READS = "monarch_chunk_reads_total", Of("reads"), [FROM];
    /// Bytes of reads of large files whose copy was not complete.
    Counter CHUNK_READ_BYTES = "monarch_chunk_read_bytes_total", Bytes, [FROM];

    /// Whether a root is in a state.
    Gauge ROOT_STATE = "monarch_root_state", Flag, [ROOT, STATE];
    /// Entries of a root's index, so far.
    Gauge ROOT_ENTRIES = "monarch_root_entries", Of("entries"), [ROOT];
    /// Regular files of a root.
    Gauge ROOT_FILES = "monarch_root_files", Of("files"), [ROOT];
    /// Bytes of a root's files.
    Gauge ROOT_BYTES = "monarch_root_bytes", Bytes, [ROOT];
    /// Memory of a root's index.
    Gauge ROOT_INDEX_BYTES = "monarch_root_index_bytes", Bytes, [ROOT];
    /// Jobs that use a root now.
    Gauge ROOT_JOBS = "monarch_root_jobs", Of("jobs"), [ROOT];
    /// Opens below a root.
    Counter ROOT_OPENS = "monarch_root_opens_total", Of("opens"), [ROOT];
    /// Files of a root that look released to tape.
    Gauge ROOT_RELEASED = "monarch_root_released_files", Of("files"), [ROOT];
    /// Bytes of files of a root that look released to tape.
    Gauge ROOT_RELEASED_BYTES = "monarch_root_released_bytes", Bytes, [ROOT];
    /// Files of a root that the site will soon remove (`source.purge_age`).
    Gauge ROOT_NEAR_PURGE = "monarch_root_near_purge_files", Of("files"), [ROOT];

    /// Number of the present epoch, from 1 or as the job counts.
    Gauge EPOCH_NUMBER = "monarch_epoch_number", Of("epochs"), [ROOT];
    /// How long an epoch took, or has taken so far.
    Gauge EPOCH_SECONDS = "monarch_epoch_seconds", Unit::Seconds, [ROOT, EPOCH];
    /// Opens in an epoch.
    Gauge EPOCH_OPENS = "monarch_epoch_opens", Of("opens"), [ROOT, EPOCH, SERVED];
    /// Size of the files that were opened in an epoch.
    Gauge EPOCH_BYTES = "monarch_epoch_opened_bytes", Bytes, [ROOT, EPOCH];
    /// Size of the files that were opened at the PFS in an epoch.
    Gauge EPOCH_PFS_BYTES = "monarch_epoch_pfs_bytes", Bytes, [ROOT, EPOCH];
    /// How long readers waited for copies in an epoch, all together.
    Gauge EPOCH_WAIT = "monarch_epoch_wait_seconds", Unit::Seconds, [ROOT, EPOCH];
    /// Files copied during an epoch (of all roots).
    Gauge EPOCH_COPIED = "monarch_epoch_copied_files", Of("files"), [ROOT, EPOCH];
    /// Bytes copied during an epoch (of all roots).
    Gauge EPOCH_COPIED_BYTES = "monarch_epoch_copied_bytes", Bytes, [ROOT, EPOCH];
    /// Bytes that the PFS sent for copies; those of other nodes and of packed copies are left out.
    Counter SOURCE_BYTES = "monarch_copied_source_bytes_total", Bytes, [];
    /// Whole files copied from the PFS.
    Counter PFS_COPIES = "monarch_pfs_copied_files_total", Of("files"), [];
    /// Time that copies of whole files from the PFS took, all together.
    Seconds PFS_COPY_SECONDS = "monarch_pfs_copying_seconds_total", Unit::Seconds, [];

    /// Copies completed.
    Counter COPIES = "monarch_copies_total", Of("copies"), [ASKED];
    /// Bytes copied into tiers, from the PFS or another node.
    Counter COPIED_BYTES = "monarch_copied_bytes_total", Bytes, [];
    /// Chunks of large files that were copied into tiers.
    Counter COPIED_CHUNKS = "monarch_copied_chunks_total", Of("chunks"), [];
    /// Copies of an earlier agent or job that were adopted.
    Counter ADOPTED = "monarch_copies_adopted_total", Of("copies"), [];
    /// Adopted copies that were first read and compared with their checksums.
    Counter VERIFIED = "monarch_copies_verified_total", Of("copies"), [];
    /// Files that were refused a copy for now: no space, not requested by the policy, or a pause
    /// after a failure.
    Counter REFUSED = "monarch_files_refused_total", Of("files"), [];
    /// Files that were refused because they had just been changed.
    Counter UNSETTLED = "monarch_files_unsettled_total", Of("files"), [];
    /// Files that were found changed, and are left to the PFS.
    Counter CHANGED = "monarch_files_changed_total", Of("files"), [];
    /// Copies that failed.
    Counter ERRORS = "monarch_copy_errors_total", Of("errors"), [SIDE];
    /// Copies that another program removed or damaged.
    Counter DAMAGED = "monarch_copies_damaged_total", Of("copies"), [];
    /// Copies that were dropped.
    Counter DROPPED = "monarch_copies_dropped_total", Of("copies"), [CAUSE];
    /// Copies that moved between tiers.
    Counter MOVED = "monarch_copies_moved_total", Of("copies"), [TO];
    /// Copies that were compressed.
    Counter PACKED = "monarch_copies_packed_total", Of("copies"), [];
    /// Copies that were decompressed from compressed copies.
    Counter DECODED = "monarch_copies_decoded_total", Of("copies"), [ASKED];
    /// Hints of jobs.
    Counter HINTS = "monarch_hints_total", Of("hints"), [];
    /// Large files whose chunks are being fetched.
    Gauge FILLING = "monarch_filling_files", Of("files"), [];
    /// Bytes of their chunks that have arrived.
    Gauge FILLING_BYTES = "monarch_filling_bytes", Bytes, [];
    /// Duration of copies, from the claim of a file (or the assignment of a chunk) to its
    /// publication.
    Durations COPY_SECONDS = "monarch_copy_seconds", Unit::Seconds, [ORIGIN, PIECE];

    /// Calls of the agent to the PFS: opens, reads and identity checks of copies, or calls of
    /// scans.
    Counter PFS_CALLS = "monarch_pfs_calls_total", Of("calls"), [CALLER];
    /// Bytes that the agent read from the PFS.
    Counter PFS_READ_BYTES = "monarch_pfs_read_bytes_total", Bytes, [];
    /// Duration of opens at the PFS.
    Durations PFS_OPEN_SECONDS = "monarch_pfs_open_seconds", Unit::Seconds, [];
    /// Moving mean of recent opens at the PFS, which `source.backoff` uses.
    Gauge PFS_OPEN_RECENT = "monarch_pfs_open_recent_seconds", Unit::Seconds, [];
    /// Fastest open at the PFS so far.
    Gauge PFS_OPEN_BEST = "monarch_pfs_open_best_seconds", Unit::Seconds, [];

    /// Files in a queue.
    Gauge QUEUE = "monarch_queue_files", Of("files"), [LINE];
    /// Files under way.
    Gauge INFLIGHT = "monarch_inflight_files", Of("files"), [WAY];
    /// Whether prefetch is in a state.
    Gauge PREFETCH_STATE = "monarch_prefetch_state", Flag, [STATE];
    /// Divisor of the number of files that are prefetched at a time: 1 at full speed.
    Gauge PREFETCH_DIVISOR = "monarch_prefetch_divisor", Of("parts"), [];
    /// Share of the last 10 s in which a task of the job waited for memory, as the kernel measures
    /// it (PSI); 0 where it does not.
    Gauge MEMORY_PRESSURE = "monarch_memory_pressure_ratio", Of("ratio"), [];
    /// Time for which `prefetch.max_memory_pressure` has narrowed prefetch or held it back.
    Seconds PRESSURE_SECONDS = "monarch_prefetch_memory_pressure_seconds_total", Unit::Seconds, [];
    /// Files under way from the PFS, demands included, above which prefetch starts no further file:
    /// at this number the PFS reaches its full throughput.
    Gauge PREFETCH_WIDTH = "monarch_prefetch_width_files", Of("files"), [];

    /// Quota of a tier.
    Gauge TIER_CAPACITY = "monarch_tier_capacity_bytes", Bytes, [TIER];
    /// Bytes in use of a tier.
    Gauge TIER_USED = "monarch_tier_used_bytes", Bytes, [TIER];
    /// Bytes of a tier that are reserved for copies being written.
    Gauge TIER_RESERVED = "monarch_tier_reserved_bytes", Bytes, [TIER];
    /// Copies in a tier.
    Gauge TIER_COPIES = "monarch_tier_copies", Of("copies"), [TIER];
    /// Compressed copies in a tier.
    Gauge TIER_PACKED = "monarch_tier_packed_copies", Of("copies"), [TIER];
    /// Bytes of the files of compressed copies.
    Gauge TIER_PACKED_BYTES = "monarch_tier_packed_file_bytes", Bytes, [TIER];
    /// Bytes that compressed copies use in a tier.
    Gauge TIER_PACKED_STORED = "monarch_tier_packed_stored_bytes", Bytes, [TIER];
    /// Whether a tier accepts no copies: its disk is full, an error, or the job's memory is short.
    Gauge TIER_RESTING = "monarch_tier_resting", Flag, [TIER];

    /// Entries below an output root that are not published: files, deletions, symbolic links.
    Gauge OUTPUT_PENDING = "monarch_outputs_pending", Of("entries"), [ROOT];
    /// Bytes of the files among them.
    Gauge OUTPUT_PENDING_BYTES = "monarch_outputs_pending_bytes", Bytes, [ROOT];
    /// Staged files that processes have open for writing.
    Gauge OUTPUT_OPEN = "monarch_outputs_open_files", Of("files"), [ROOT];
    /// Age of the oldest entry that is not published; 0 when nothing is pending.
    Gauge OUTPUT_OLDEST = "monarch_outputs_oldest_seconds", Unit::Seconds, [ROOT];
    /// Whether an error keeps files from being published.
    Gauge OUTPUT_HELD = "monarch_outputs_held", Flag, [ROOT];
    /// Whether the PFS refuses what is pending, as with a full quota: creates give the error, too.
    Gauge OUTPUT_REFUSED = "monarch_outputs_refused", Flag, [ROOT];
    /// Bytes of published files that are kept as clean copies.
    Gauge OUTPUT_CLEAN = "monarch_outputs_clean_bytes", Bytes, [ROOT];
    /// Files that were published.
    Counter OUTPUT_PUBLISHED = "monarch_outputs_published_total", Of("files"), [ROOT];
    /// Bytes of those files.
    Counter OUTPUT_PUBLISHED_BYTES = "monarch_outputs_published_bytes_total", Bytes, [ROOT];
    /// Files that were written to the PFS itself, because the tier had no space.
    Counter OUTPUT_NO_SPACE = "monarch_outputs_no_space_total", Of("files"), [ROOT];
    /// Time that creates of files waited for space.
    Seconds OUTPUT_WAITED = "monarch_outputs_waited_seconds_total", Unit::Seconds, [ROOT];

    /// Directories in memory that the index does not hold (`index.distributed`).
    Gauge NAMES_DIRECTORIES = "monarch_names_directories", Of("directories"), [HOLDER];
    /// Memory that they take.
    Gauge NAMES_BYTES = "monarch_names_bytes", Bytes, [HOLDER];
    /// Whether changes of the job have left all such directories to the PFS.
    Gauge NAMES_CLOSED = "monarch_names_closed", Flag, [];
    /// Such directories that this node has read from the PFS.
    Counter NAMES_READ = "monarch_names_read_total", Of("directories"), [];
    /// Questions of processes about them.
    Counter NAMES_ASKED = "monarch_names_questions_total", Of("questions"), [];
    /// Those that were answered; the PFS was asked for the others.
    Counter NAMES_ANSWERED = "monarch_names_answered_total", Of("questions"), [];

    /// Other nodes of the job, by their state as this node sees it.
    Gauge PEERS = "monarch_peers", Of("nodes"), [STATE];
    /// Requests that another node answered with bytes; each file of a batch counts as one.
    Counter PEER_RECEIVED = "monarch_peer_received_total", Of("requests"), [PEER];
    /// Bytes of those answers.
    Counter PEER_RECEIVED_BYTES = "monarch_peer_received_bytes_total", Bytes, [PEER];
    /// Requests of another node that were answered with bytes; each file of a batch counts as one.
    Counter PEER_SENT = "monarch_peer_sent_total", Of("requests"), [PEER];
    /// Bytes of those answers.
    Counter PEER_SENT_BYTES = "monarch_peer_sent_bytes_total", Bytes, [PEER];
    /// Requests that another node did not answer, or not with the requested bytes.
    Counter PEER_FAILED = "monarch_peer_failed_total", Of("requests"), [PEER];
    /// Answers of other nodes whose bytes arrived damaged.
    Counter PEER_DAMAGED = "monarch_peer_damaged_total", Of("answers"), [];
    /// Bytes of large files that this node passed on, instead of the node that was asked for them.
    Counter PEER_RELAYED_BYTES = "monarch_peer_relayed_bytes_total", Bytes, [];
    /// Requests for several small files that other nodes answered.
    Counter PEER_BATCHES = "monarch_peer_batches_total", Of("requests"), [];
    /// Files that came in those answers.
    Counter PEER_BATCHED_FILES = "monarch_peer_batched_files_total", Of("files"), [];
    /// Requests of other nodes that were answered, with any answer.
    Counter PEER_REQUESTS = "monarch_peer_requests_total", Of("requests"), [];
    /// Requests of other nodes that were refused.
    Counter PEER_REFUSED = "monarch_peer_refused_total", Of("requests"), [REFUSAL];
    /// Connections of other nodes that are open now.
    Gauge PEER_CONNECTIONS = "monarch_peer_connections", Of("connections"), [];
}

#[cfg(test)]
mod tests {
    use super::super::declare::{Kind, Unit};
    use super::ALL;
    use std::collections::BTreeSet;

    #[test]
    fn names_follow_the_rules_of_prometheus() {
        for m in ALL {
            let plain = |c: char| c.is_ascii_lowercase() || c == '_';
            assert!(m.name.starts_with("monarch_") && m.name.chars().all(plain), "{}", m.name);
            let (total, base) = (m.name.ends_with("_total"), m.name.trim_end_matches("_total"));
            assert_eq!(total, m.kind == Kind::Counter, "{}: _total is for counters", m.name);
            for (unit, suffix) in [(Unit::Bytes, "_bytes"), (Unit::Seconds, "_seconds")] {
                assert_eq!(base.ends_with(suffix), m.unit == unit, "{}: its unit is {:?}", m.name, m.unit);
            }
            assert!(!["_bucket", "_sum", "_count", "_info_total"].iter().any(|s| m.name.ends_with(s)), "{}", m.name);
            assert!(m.meaning.ends_with('.') && !m.meaning.contains('\n'), "{}: {}", m.name, m.meaning);
        }
    }

    #[test]
    fn no_name_is_declared_twice() {
        let names: BTreeSet<&str> = ALL.iter().map(|m| m.name).collect();
        assert_eq!(names.len(), ALL.len());
        for m in ALL {
            let labels: BTreeSet<&str> = m.labels.iter().map(|l| l.name).collect();
            assert_eq!(labels.len(), m.labels.len(), "{}", m.name);
            // Names that Prometheus gives to what it scrapes.
            assert!(!["job", "instance", "le", "quantile"].iter().any(|l| labels.contains(l)), "{}", m.name);
        }
    }
}
