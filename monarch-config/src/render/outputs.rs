//! The list `outputs`.

use super::super::choice::OneOf;
use super::super::given::{Kind, Size, Time};
use super::super::model::OutputRoot;
use super::page::{Page, quoted, scalar};

/// Writes the list.
pub(super) fn outputs(page: &mut Page<'_>, outputs: &[OutputRoot]) {
    if outputs.is_empty() {
        return page.line("", "outputs", "[]", "outputs");
    }
    page.section("outputs");
    for (at, output) in outputs.iter().enumerate() {
        let key = |name: &str| format!("outputs[{at}].{name}");
        let set = |page: &mut Page<'_>, name: &str, value: &str| page.line("    ", name, value, &key(name));
        // The path alone has the origin of the element.
        let path = if page.has_origin(&key("path")) { key("path") } else { format!("outputs[{at}]") };
        page.line("  - ", "path", &quoted(&output.path), &path);
        let aliases: Vec<String> = output.aliases.iter().map(|alias| quoted(alias)).collect();
        list(page, "aliases", &aliases, &key("aliases"));
        set(page, "tier", &output.tier);
        set(page, "volatile", &output.volatile.to_string());
        set(page, "fsync", &OneOf::show(&output.fsync));
        let through: Vec<String> = output.through.iter().map(|pattern| scalar(pattern)).collect();
        list(page, "through", &through, &key("through"));
        set(page, "max_pending", &Size::show(&output.max_pending));
        set(page, "peer_wait", &Time::show(&output.peer_wait));
    }
}

/// Writes a list of texts. Elements have the origin of the list if they have none of their own.
fn list(page: &mut Page<'_>, name: &str, elements: &[String], key: &str) {
    if elements.is_empty() {
        return page.line("    ", name, "[]", key);
    }
    page.out.push_str(&format!("    {name}:\n"));
    for (at, element) in elements.iter().enumerate() {
        let own = format!("{key}[{at}]");
        let key = if page.has_origin(&own) { &own } else { key };
        page.comment(&format!("      - {element}"), key);
    }
}
