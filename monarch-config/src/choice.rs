//! Settings that take one of a few words.

use std::marker::PhantomData;

use schemars::{Schema, json_schema};

use super::checks::AbsentRule;
use super::error::{ErrorKind, wrong};
use super::given::Kind;
use super::model::{
    Compression, Consistency, Direct, Discovery, Distributed, Encryption, Engine, Extent, Follow, JobSecretSource,
    Libraries, LogLevel, OutputSync, Persist, Policy, RawCalls, Spread, Trust, WorkingSets,
};
use super::suggest::nearest;
use super::units::Parsed;

/// A type whose values have names in the configuration.
pub(super) trait Choice: Copy + PartialEq + 'static {
    /// What is chosen, for messages.
    const WHAT: &'static str;
    /// All values under their names.
    const WORDS: &'static [(&'static str, Self)];
    /// Words that a later version will know.
    const LATER: &'static [&'static str] = &[];
}

impl Choice for Consistency {
    const WHAT: &'static str = "consistency";
    const WORDS: &'static [(&'static str, Self)] =
        &[("immutable", Self::Immutable), ("close-to-open", Self::CloseToOpen)];
}

impl Choice for AbsentRule {
    const WHAT: &'static str = "rule for names that the index lacks";
    const WORDS: &'static [(&'static str, Self)] =
        &[("auto", Self::Auto), ("kernel", Self::Kernel), ("checked", Self::Checked), ("index", Self::Index)];
}

impl Choice for Extent {
    const WHAT: &'static str = "extent of prefetching";
    const WORDS: &'static [(&'static str, Self)] = &[("auto", Self::Auto), ("all", Self::All)];
}

impl Choice for WorkingSets {
    const WHAT: &'static str = "way to treat working sets";
    const WORDS: &'static [(&'static str, Self)] = &[("auto", Self::Auto), ("off", Self::Off)];
}

impl Choice for Distributed {
    const WHAT: &'static str = "way to treat what the index has no memory for";
    const WORDS: &'static [(&'static str, Self)] = &[("off", Self::Off), ("auto", Self::Auto)];
}

impl Choice for Follow {
    const WHAT: &'static str = "way to treat links that leave a root";
    const WORDS: &'static [(&'static str, Self)] = &[("auto", Self::Auto), ("off", Self::Off)];
}

impl Choice for Libraries {
    const WHAT: &'static str = "way to treat shared libraries";
    const WORDS: &'static [(&'static str, Self)] = &[("auto", Self::Auto), ("on", Self::On), ("off", Self::Off)];
}

impl Choice for RawCalls {
    const WHAT: &'static str = "way to treat raw system calls";
    const WORDS: &'static [(&'static str, Self)] = &[("off", Self::Off), ("seccomp", Self::Seccomp)];
}

impl Choice for OutputSync {
    const WHAT: &'static str = "meaning of fsync";
    const WORDS: &'static [(&'static str, Self)] = &[("local", Self::Local), ("publish", Self::Publish)];
}

impl Choice for Policy {
    const WHAT: &'static str = "placement policy";
    const WORDS: &'static [(&'static str, Self)] = &Self::ALL;
}

impl Choice for Engine {
    const WHAT: &'static str = "copy engine";
    const WORDS: &'static [(&'static str, Self)] =
        &[("auto", Self::Auto), ("uring", Self::Uring), ("threads", Self::Threads)];
}

impl Choice for Direct {
    const WHAT: &'static str = "way of reading past the page cache";
    const WORDS: &'static [(&'static str, Self)] = &[("auto", Self::Auto), ("true", Self::Yes), ("false", Self::No)];
}

impl Choice for Persist {
    const WHAT: &'static str = "life of copies";
    const WORDS: &'static [(&'static str, Self)] = &[("node", Self::Node), ("job", Self::Job)];
}

impl Choice for Compression {
    const WHAT: &'static str = "compression";
    const WORDS: &'static [(&'static str, Self)] =
        &[("none", Self::None), ("lz4", Self::Lz4), ("zstd", Self::Zstd), ("auto", Self::Auto)];
}

impl Choice for Trust {
    const WHAT: &'static str = "trust";
    const WORDS: &'static [(&'static str, Self)] = &[("verify", Self::Verify), ("frozen", Self::Frozen)];
}

impl Choice for LogLevel {
    const WHAT: &'static str = "log level";
    const WORDS: &'static [(&'static str, Self)] = &[
        ("off", Self::Off),
        ("error", Self::Error),
        ("warn", Self::Warn),
        ("info", Self::Info),
        ("debug", Self::Debug),
        ("trace", Self::Trace),
    ];
}

impl Choice for Discovery {
    const WHAT: &'static str = "way to find nodes";
    const WORDS: &'static [(&'static str, Self)] = &[
        ("none", Self::None),
        ("auto", Self::Auto),
        ("static", Self::Static),
        ("slurm", Self::Slurm),
        ("mpi", Self::Mpi),
        ("torchrun", Self::Torchrun),
        ("dns", Self::Dns),
    ];
}

impl Choice for Spread {
    const WHAT: &'static str = "placement over nodes";
    const WORDS: &'static [(&'static str, Self)] =
        &[("sharded", Self::Sharded), ("replicated", Self::Replicated), ("hybrid", Self::Hybrid)];
}

impl Choice for Encryption {
    const WHAT: &'static str = "encryption between nodes";
    const WORDS: &'static [(&'static str, Self)] = &[("none", Self::None), ("tls", Self::Tls)];
}

impl Choice for JobSecretSource {
    const WHAT: &'static str = "source of the job's secret";
    const WORDS: &'static [(&'static str, Self)] =
        &[("none", Self::None), ("derived", Self::Derived), ("file", Self::File)];
}

/// The kind of a setting that takes one word of `C`.
#[derive(Clone, Debug)]
pub(super) struct OneOf<C>(PhantomData<C>);

impl<C: Choice> Kind for OneOf<C> {
    type Out = C;

    fn parse(text: &str) -> Parsed<C> {
        if let Some((_, value)) = C::WORDS.iter().find(|(word, _)| *word == text) {
            return Ok(*value);
        }
        let words: Vec<&str> = C::WORDS.iter().map(|(word, _)| *word).collect();
        let remedy = match words.as_slice() {
            [only] => format!("write {only}, or leave the line out"),
            words => format!("write one of: {}", words.join(", ")),
        };
        if C::LATER.contains(&text) {
            return Err((ErrorKind::NotYet, wrong(format!("`{text}` is not available yet"), remedy)));
        }
        let remedy =
            nearest(text, &words).map_or(remedy.clone(), |word| format!("did you mean {word}? Otherwise {remedy}"));
        Err((ErrorKind::WrongType, wrong(format!("there is no {} called `{text}`", C::WHAT), remedy)))
    }

    fn show(value: &C) -> String {
        C::WORDS.iter().find(|(_, known)| known == value).map_or_else(String::new, |(word, _)| (*word).to_owned())
    }

    fn schema() -> Schema {
        let words: Vec<&str> = C::WORDS.iter().map(|(word, _)| *word).collect();
        json_schema!({ "enum": words })
    }
}
