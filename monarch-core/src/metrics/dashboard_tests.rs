//! What `configs/grafana/monarch.json` and `configs/prometheus/alerts.yaml` ask for is declared:
//! every metric of every query, with every label.

use super::declare::{Declared, Kind};
use super::defs::ALL;
use serde_json::Value;
use std::collections::BTreeSet;

/// Words of PromQL that a query may use besides names and labels.
const FUNCTIONS: &[&str] = &[
    "sum",
    "min",
    "max",
    "avg",
    "count",
    "rate",
    "increase",
    "changes",
    "histogram_quantile",
    "clamp_min",
    "label_values",
];
/// Words before a list of labels in parentheses.
const GROUPINGS: &[&str] = &["by", "without", "on", "ignoring", "group_left", "group_right"];
/// Labels that Prometheus, or the page, adds to everything.
const ADDED: &[&str] = &["instance", "job", "agent"];

#[derive(Clone, Debug, PartialEq)]
enum Token {
    Word(String),
    Text,
    Sign(char),
}

/// Words, texts and signs of a query; numbers are left out.
fn tokens(query: &str) -> Vec<Token> {
    let mut found = Vec::new();
    let mut rest = query.chars().peekable();
    while let Some(c) = rest.next() {
        if c == '"' {
            while rest.next().is_some_and(|c| c != '"') {}
            found.push(Token::Text);
        } else if c.is_ascii_alphabetic() || c == '_' || c == '$' {
            let mut word = String::from(c);
            while let Some(c) = rest.next_if(|c| c.is_ascii_alphanumeric() || *c == '_' || *c == ':') {
                word.push(c);
            }
            found.push(Token::Word(word));
        } else if c.is_ascii_digit() {
            while rest.next_if(|c| c.is_ascii_alphanumeric() || *c == '.').is_some() {}
        } else if !c.is_whitespace() {
            found.push(Token::Sign(c));
        }
    }
    found
}

/// The metric that a name of a series belongs to.
fn declared(series: &str) -> Option<&'static Declared> {
    ALL.iter().copied().find(|m| match m.kind {
        Kind::Histogram => {
            ["_bucket", "_sum", "_count"].iter().any(|suffix| series.strip_suffix(suffix) == Some(m.name))
        }
        Kind::Counter | Kind::Gauge => series == m.name,
    })
}

/// Labels that a series may have.
fn labels(series: &str, of: &Declared) -> BTreeSet<&'static str> {
    let bucket = series.ends_with("_bucket").then_some("le");
    of.labels.iter().map(|l| l.name).chain(ADDED.iter().copied()).chain(bucket).collect()
}

/// What is wrong with a query; otherwise the metrics that it names, and the labels that its result
/// has at most.
fn check(query: &str) -> Result<(BTreeSet<&'static str>, BTreeSet<&'static str>), String> {
    let tokens = tokens(query);
    let (mut named, mut known) = (BTreeSet::new(), BTreeSet::new());
    let (mut grouped, mut at) = (Vec::new(), 0);
    while let Some(token) = tokens.get(at) {
        at += 1;
        let Token::Word(word) = token else { continue };
        let until = |close: char| tokens[at..].iter().position(|t| *t == Token::Sign(close)).map(|n| at + n);
        let words = |to: usize| {
            tokens[at..to].iter().filter_map(|t| if let Token::Word(w) = t { Some(w.clone()) } else { None })
        };
        if word.starts_with("monarch_") {
            let of = declared(word).ok_or_else(|| format!("{word} is not declared"))?;
            let labels = labels(word, of);
            if tokens.get(at) == Some(&Token::Sign('{')) {
                let end = until('}').ok_or("an open brace")?;
                if let Some(wrong) = words(end).find(|label| !labels.contains(label.as_str())) {
                    return Err(format!("{word} has no label {wrong}"));
                }
                at = end;
            }
            named.insert(of.name);
            known.extend(labels);
        } else if GROUPINGS.contains(&word.as_str()) {
            let end = until(')').ok_or("an open parenthesis")?;
            grouped.extend(words(end));
            at = end;
        } else if !FUNCTIONS.contains(&word.as_str()) && !word.starts_with('$') && !ADDED.contains(&word.as_str()) {
            return Err(format!("{word} is neither a metric nor a known function"));
        }
    }
    match grouped.iter().find(|label| !known.contains(label.as_str())) {
        Some(wrong) => Err(format!("nothing here has the label {wrong}")),
        None => Ok((named, known)),
    }
}

/// Queries of a dashboard with the legends of what they give.
fn queries(value: &Value, found: &mut Vec<(String, String)>) {
    match value {
        Value::Object(map) => {
            let text = |key: &str| map.get(key).and_then(Value::as_str).unwrap_or_default().to_owned();
            if map.contains_key("expr") {
                found.push((text("expr"), text("legendFormat")));
            } else if text("query").contains('(') {
                found.push((text("query"), String::new()));
            }
            map.values().for_each(|v| queries(v, found));
        }
        Value::Array(all) => all.iter().for_each(|v| queries(v, found)),
        _ => {}
    }
}

fn dashboard() -> Value {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../configs/grafana/monarch.json");
    serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap()
}

#[test]
fn every_query_names_declared_metrics_with_their_labels() {
    let mut all = Vec::new();
    queries(&dashboard(), &mut all);
    let mut named = BTreeSet::new();
    for (query, legend) in &all {
        let (metrics, labels) = check(query).unwrap_or_else(|why| panic!("{why}: {query}"));
        assert!(!metrics.is_empty(), "{query}");
        named.extend(metrics);
        for part in legend.split("{{").skip(1) {
            let label = part.split("}}").next().unwrap().trim();
            assert!(labels.contains(label), "no label {label} for the legend of {query}");
        }
    }
    assert!(all.len() >= 40 && named.len() >= 40, "{} queries of {} metrics", all.len(), named.len());
}

#[test]
fn every_alert_names_declared_metrics_with_their_labels() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../configs/prometheus/alerts.yaml");
    let text = std::fs::read_to_string(path).unwrap();
    let expressions: Vec<&str> = text.lines().filter_map(|line| line.trim().strip_prefix("expr: ")).collect();
    assert!(expressions.len() >= 14, "{text}");
    // That of the textfile collector is about a metric of node_exporter.
    for query in expressions.iter().filter(|query| !query.contains("node_textfile_mtime_seconds")) {
        let (metrics, _) = check(query).unwrap_or_else(|why| panic!("{why}: {query}"));
        assert!(!metrics.is_empty(), "{query}");
    }
    // Each fires in a test, and in another one it does not.
    let tests = std::fs::read_to_string(path.replace("alerts.yaml", "alerts_test.yaml")).unwrap();
    for name in text.lines().filter_map(|line| line.trim().strip_prefix("- alert: ")) {
        for what in ["fires", "does not fire"] {
            assert!(tests.contains(&format!("- name: {name} {what}\n")), "{name} {what}");
        }
    }
}

#[test]
fn panels_have_places_and_numbers_of_their_own() {
    let board = dashboard();
    let panels = board["panels"].as_array().unwrap();
    let ids: BTreeSet<u64> = panels.iter().map(|p| p["id"].as_u64().unwrap()).collect();
    assert_eq!(ids.len(), panels.len());
    let place = |p: &Value| ["x", "y", "w", "h"].map(|k| p["gridPos"][k].as_u64().unwrap());
    for (n, a) in panels.iter().map(place).enumerate() {
        assert!(a[0] + a[2] <= 24, "{a:?}");
        let meets = |b: &[u64; 4]| a[0] < b[0] + b[2] && b[0] < a[0] + a[2] && a[1] < b[1] + b[3] && b[1] < a[1] + a[3];
        assert!(!panels.iter().skip(n + 1).map(place).any(|b| meets(&b)), "{}", panels[n]["title"]);
    }
}

#[test]
fn mistakes_in_queries_are_found() {
    let wrong = |query: &str, why: &str| assert_eq!(check(query).unwrap_err(), why, "{query}");
    wrong("rate(monarch_open_total[5m])", "monarch_open_total is not declared");
    wrong("monarch_jobs{tier=\"nvme\"}", "monarch_jobs has no label tier");
    wrong("sum by (tier) (monarch_jobs)", "nothing here has the label tier");
    wrong("sum by (le) (rate(monarch_copy_seconds_sum[5m]))", "nothing here has the label le");
    wrong("monarch_copy_seconds", "monarch_copy_seconds is not declared");
    wrong("summ(monarch_jobs)", "summ is neither a metric nor a known function");
    let right =
        "histogram_quantile(0.9, sum by (le, origin) (rate(monarch_copy_seconds_bucket{piece=~\"a|b\"}[$__x])))";
    assert_eq!(check(right).unwrap().0, ["monarch_copy_seconds"].into());
}
