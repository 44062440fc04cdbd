//! The JSON schemas of the configuration file and of the file of a site, for editors; committed as
//! `docs/config.schema.json` and `docs/site.schema.json`.

use super::raw::RawConfig;
use super::raw_site::RawSite;

/// The schema, as JSON text that ends with a newline.
#[must_use]
pub fn schema() -> String {
    let schema = schemars::schema_for!(RawConfig);
    serde_json::to_string_pretty(&schema).unwrap_or_default() + "\n"
}

/// The schema of the file of a site, as JSON text that ends with a newline.
#[must_use]
pub fn site_schema() -> String {
    let schema = schemars::schema_for!(RawSite);
    serde_json::to_string_pretty(&schema).unwrap_or_default() + "\n"
}

#[cfg(test)]
mod tests {
    use std::{env, fs};

    /// `UPDATE_SCHEMA=1 cargo test -p monarch-config schema` writes the files.
    #[test]
    fn the_committed_schemas_are_fresh() {
        for (name, fresh) in [("config", super::schema()), ("site", super::site_schema())] {
            let path = format!("{}/../docs/{name}.schema.json", env!("CARGO_MANIFEST_DIR"));
            if env::var_os("UPDATE_SCHEMA").is_some() {
                fs::write(&path, &fresh).unwrap();
            }
            let committed = fs::read_to_string(&path).unwrap_or_default();
            assert!(
                committed == fresh,
                "docs/{name}.schema.json is stale: run UPDATE_SCHEMA=1 cargo test -p monarch-config schema"
            );
        }
    }
}
