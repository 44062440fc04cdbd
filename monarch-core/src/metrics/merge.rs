//! One page of the pages of several agents: each series gets a label with its agent, and series of
//! one metric follow each other, as Prometheus' text format asks for.

use std::collections::BTreeMap;
use std::fmt::Write;

/// The label that every series has: which agent of the node it is about.
const AGENT_LABEL: &str = "agent";

/// A metric of a page: the lines that describe it, and its series.
#[derive(Default)]
struct Block<'a> {
    head: Vec<&'a str>,
    series: Vec<&'a str>,
}

/// Gives every series of a page the label of its agent.
pub(crate) fn labelled(page: &str, agent: &str) -> String {
    let mut out = String::with_capacity(page.len() * 3 / 2);
    for line in page.lines() {
        // A name has neither a brace nor a space.
        let end = line.find(['{', ' ']).unwrap_or(line.len());
        let (name, rest) = line.split_at(end);
        // (Writing to a string does not fail.)
        let _ = match rest.strip_prefix('{') {
            _ if line.starts_with('#') => writeln!(out, "{line}"),
            Some(rest) => writeln!(out, "{name}{{{AGENT_LABEL}=\"{agent}\",{rest}"),
            None => writeln!(out, "{name}{{{AGENT_LABEL}=\"{agent}\"}}{rest}"),
        };
    }
    out
}

/// One page of several, sorted by metric. Of texts that describe a metric the first stays: agents
/// of another version may have other ones.
pub(crate) fn merged(pages: &[String]) -> String {
    let mut blocks = BTreeMap::<&str, Block<'_>>::new();
    for page in pages {
        let mut name = "";
        let mut described = false;
        for line in page.lines() {
            let text = line.strip_prefix("# HELP ").or_else(|| line.strip_prefix("# TYPE "));
            if let Some(text) = text {
                let of = text.split(' ').next().unwrap_or_default();
                if of != name {
                    (name, described) = (of, blocks.contains_key(of));
                }
                let block = blocks.entry(name).or_default();
                if !described {
                    block.head.push(line);
                }
            } else if !line.is_empty() {
                blocks.entry(name).or_default().series.push(line);
            }
        }
    }
    let lines = blocks.into_values().flat_map(|block| block.head.into_iter().chain(block.series));
    lines.fold(String::new(), |all, line| all + line + "\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn series_of_two_agents_stand_together_each_with_its_label() {
        let page = |n: u32| {
            format!(
                "# HELP a_total What a is.\n# TYPE a_total counter\na_total {n}\n# TYPE b_seconds histogram\n\
                 b_seconds_bucket{{le=\"1\"}} {n}\nb_seconds_count {n}\n"
            )
        };
        let pages = [labelled(&page(1), "0-aa"), labelled(&page(2), "0-bb")];
        let expected = "# HELP a_total What a is.\n# TYPE a_total counter\na_total{agent=\"0-aa\"} 1\na_total{agent=\"0-bb\"} 2\n\
                        # TYPE b_seconds histogram\nb_seconds_bucket{agent=\"0-aa\",le=\"1\"} 1\nb_seconds_count{agent=\"0-aa\"} 1\n\
                        b_seconds_bucket{agent=\"0-bb\",le=\"1\"} 2\nb_seconds_count{agent=\"0-bb\"} 2\n";
        assert_eq!(merged(&pages), expected);
        assert_eq!(merged(&pages[..1]), pages[0]);
    }

    #[test]
    fn a_label_whose_value_has_braces_and_spaces_stays_as_it_is() {
        let series = "m{root=\"/a {b} c\"} 1";
        assert_eq!(labelled(series, "1-x"), "m{agent=\"1-x\",root=\"/a {b} c\"} 1\n");
    }
}
