//! The text of `monarch config show`: lines with the origins of their values.

use std::path::Path;

use super::super::choice::OneOf;
use super::super::given::{Kind, Ratio, Size};
use super::super::model::{Root, Tier};
use super::super::origin::{Origin, Origins};

/// Comments begin in this column, unless the value is longer.
const COLUMN: usize = 44;

/// The configuration as far as it is written.
pub(super) struct Page<'a> {
    pub(super) out: String,
    pub(super) origins: &'a Origins,
}

impl Page<'_> {
    /// Begins a section.
    pub(super) fn section(&mut self, name: &str) {
        self.out.push_str(name);
        self.out.push_str(":\n");
    }

    /// A value of a section, under the last step of its key.
    pub(super) fn set(&mut self, key: &str, value: &str) {
        let name = key.rsplit('.').next().unwrap_or(key);
        self.line("  ", name, value, key);
    }

    /// A value under `name`, with the origin of `key`.
    pub(super) fn line(&mut self, indent: &str, name: &str, value: &str, key: &str) {
        self.comment(&format!("{indent}{name}: {value}"), key);
    }

    /// A line of text, with the origin of `key` behind it.
    pub(super) fn comment(&mut self, text: &str, key: &str) {
        let origin: &Origin = self.origins.of(key);
        self.out.push_str(&format!("{text:COLUMN$} # {origin}\n"));
    }

    /// Whether a layer sets a value, or it was derived.
    pub(super) fn has_origin(&self, key: &str) -> bool {
        *self.origins.of(key) != Origin::Default
    }

    /// The roots, with their aliases.
    pub(super) fn roots(&mut self, roots: &[Root]) {
        if roots.is_empty() {
            return self.set("dataset.roots", "[]");
        }
        self.out.push_str("  roots:\n");
        for (at, root) in roots.iter().enumerate() {
            let key = format!("dataset.roots[{at}]");
            if root.aliases.is_empty() {
                self.comment(&format!("    - {}", quoted(&root.path)), &key);
                continue;
            }
            self.line("    - ", "path", &quoted(&root.path), &key);
            self.out.push_str("      aliases:\n");
            for (index, alias) in root.aliases.iter().enumerate() {
                self.comment(&format!("        - {}", quoted(alias)), &format!("{key}.aliases[{index}]"));
            }
        }
    }

    /// The tiers, fastest first.
    pub(super) fn tiers(&mut self, tiers: &[Tier]) {
        for (at, tier) in tiers.iter().enumerate() {
            let key = |name: &str| format!("tiers[{at}].{name}");
            self.line("  - ", "name", &tier.name, &key("name"));
            self.line("    ", "path", &quoted(&tier.path), &key("path"));
            self.line("    ", "capacity", &Size::show(&tier.capacity), &key("capacity"));
            self.line("    ", "allow_network", &tier.allow_network.to_string(), &key("allow_network"));
            self.line("    ", "keep_free", &Size::show(&tier.keep_free), &key("keep_free"));
            self.line("    ", "persist", &OneOf::show(&tier.persist), &key("persist"));
            self.line("    ", "compression", &OneOf::show(&tier.compression), &key("compression"));
            self.line("    ", "min_ratio", &Ratio::show(&tier.min_ratio), &key("min_ratio"));
            self.line(
                "    ",
                "decompression_share",
                &Size::show(&tier.decompression_share),
                &key("decompression_share"),
            );
        }
    }
}

/// A path as a YAML scalar.
pub(super) fn quoted(path: &Path) -> String {
    scalar(&path.to_string_lossy())
}

/// A text as a YAML scalar; a JSON string is one, whatever it holds.
pub(super) fn scalar(text: &str) -> String {
    let plain = |c: char| c.is_alphanumeric() || "/._-+=@,".contains(c);
    if text.chars().all(plain) { text.to_owned() } else { serde_json::Value::from(text).to_string() }
}
