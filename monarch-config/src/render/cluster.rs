//! The section `cluster`.

use super::super::choice::OneOf;
use super::super::given::{Kind, OrNone, Part, Rate, Time};
use super::super::model::Cluster;
use super::super::origin::Origin;
use super::page::{Page, quoted, scalar};

/// Writes the section.
pub(super) fn cluster(page: &mut Page<'_>, cluster: &Cluster) {
    let or_null = |text: Option<String>| text.unwrap_or_else(|| "null".to_owned());
    page.set("cluster.discovery", &OneOf::show(&cluster.discovery));
    nodes(page, &cluster.nodes);
    page.set("cluster.dns", &or_null(cluster.dns.as_deref().map(scalar)));
    page.set("cluster.placement", &OneOf::show(&cluster.placement));
    page.set("cluster.listen", &or_null(cluster.listen.as_deref().map(scalar)));
    page.set("cluster.port", &or_null(cluster.port.map(|port| port.to_string())));
    page.set("cluster.secret_file", &or_null(cluster.secret_file.as_deref().map(quoted)));
    page.set("cluster.job_secret", &OneOf::show(&cluster.job_secret));
    page.set("cluster.job_secret_file", &or_null(cluster.job_secret_file.as_deref().map(quoted)));
    page.set("cluster.encryption", &OneOf::show(&cluster.encryption));
    page.set("cluster.join_timeout", &Time::show(&cluster.join_timeout));
    page.set("cluster.peer_timeout", &Time::show(&cluster.peer_timeout));
    page.set("cluster.bandwidth_limit", &OrNone::<Rate>::show(&cluster.bandwidth_limit));
    page.set("cluster.peer_bandwidth_limit", &OrNone::<Rate>::show(&cluster.peer_bandwidth_limit));
    page.set("cluster.batch_files", &cluster.batch_files.to_string());
    page.set("cluster.transient_share", &Part::show(&cluster.transient_share));
}

fn nodes(page: &mut Page<'_>, nodes: &[String]) {
    const KEY: &str = "cluster.nodes";
    if nodes.is_empty() {
        return page.set(KEY, "null");
    }
    page.out.push_str("  nodes:\n");
    for (at, node) in nodes.iter().enumerate() {
        // A text is one value; the elements of a list have origins of their own.
        let element = format!("{KEY}[{at}]");
        let key = if *page.origins.of(&element) == Origin::Default { KEY } else { &element };
        page.comment(&format!("    - {}", serde_json::Value::from(node.as_str())), key);
    }
}
