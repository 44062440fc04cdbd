//! The JSON schema of the configuration file, for editors; committed as `docs/config.schema.json`.

use super::raw::RawConfig;

/// The schema, as JSON text that ends with a newline.
#[must_use]
pub fn schema() -> String {
    let schema = schemars::schema_for!(RawConfig);
    serde_json::to_string_pretty(&schema).unwrap_or_default() + "\n"
}

#[cfg(test)]
mod tests {
    use std::{env, fs};

    /// `UPDATE_SCHEMA=1 cargo test -p monarch-config schema` writes the file.
    #[test]
    fn the_committed_schema_is_fresh() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/config.schema.json");
        if env::var_os("UPDATE_SCHEMA").is_some() {
            fs::write(path, super::schema()).unwrap();
        }
        let committed = fs::read_to_string(path).unwrap_or_default();
        assert!(
            committed == super::schema(),
            "docs/config.schema.json is stale: run UPDATE_SCHEMA=1 cargo test -p monarch-config schema"
        );
    }
}
