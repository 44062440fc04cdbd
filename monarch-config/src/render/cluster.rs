//! The section `cluster`.

use super::super::choice::OneOf;
use super::super::given::{Kind, OrNone, Part, Rate, Time};
use super::super::model::Cluster;
use super::super::origin::Origin;
use super::{Page, quoted, scalar};

impl Page<'_> {
    pub(super) fn cluster(&mut self, cluster: &Cluster) {
        let or_null = |text: Option<String>| text.unwrap_or_else(|| "null".to_owned());
        self.set("cluster.discovery", &OneOf::show(&cluster.discovery));
        self.nodes(&cluster.nodes);
        self.set("cluster.dns", &or_null(cluster.dns.as_deref().map(scalar)));
        self.set("cluster.placement", &OneOf::show(&cluster.placement));
        self.set("cluster.listen", &or_null(cluster.listen.as_deref().map(scalar)));
        self.set("cluster.port", &or_null(cluster.port.map(|port| port.to_string())));
        self.set("cluster.secret_file", &or_null(cluster.secret_file.as_deref().map(quoted)));
        self.set("cluster.join_timeout", &Time::show(&cluster.join_timeout));
        self.set("cluster.peer_timeout", &Time::show(&cluster.peer_timeout));
        self.set("cluster.bandwidth_limit", &OrNone::<Rate>::show(&cluster.bandwidth_limit));
        self.set("cluster.peer_bandwidth_limit", &OrNone::<Rate>::show(&cluster.peer_bandwidth_limit));
        self.set("cluster.transient_share", &Part::show(&cluster.transient_share));
    }

    fn nodes(&mut self, nodes: &[String]) {
        const KEY: &str = "cluster.nodes";
        if nodes.is_empty() {
            return self.set(KEY, "null");
        }
        self.out.push_str("  nodes:\n");
        for (at, node) in nodes.iter().enumerate() {
            // A text is one value; the elements of a list have origins of their own.
            let element = format!("{KEY}[{at}]");
            let key = if *self.origins.of(&element) == Origin::Default { KEY } else { &element };
            self.comment(&format!("    - {}", serde_json::Value::from(node.as_str())), key);
        }
    }
}
