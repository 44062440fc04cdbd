//! Jobs of all kinds on made-up machines.

mod hostlist;
mod jobs;
mod listen;

/// An environment of these variables.
fn env(pairs: &[(&str, &str)]) -> impl Fn(&str) -> Option<String> {
    let pairs: Vec<(String, String)> = pairs.iter().map(|(n, v)| ((*n).to_owned(), (*v).to_owned())).collect();
    move |name| pairs.iter().find(|(known, _)| known == name).map(|(_, value)| value.clone())
}

fn strings(names: &[&str]) -> Vec<String> {
    names.iter().map(|name| (*name).to_owned()).collect()
}
