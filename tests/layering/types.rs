//! The methods of a type are in one file, and a large type says why it is large.
//!
//! A type has at most 12 fields and 25 methods, or a sentence of its docs gives the number and the
//! reason: "Fields: 14, because ...", "Methods: 30, one per ...". Fields need none where the docs
//! are text for users: arguments of a command line (`--help`), and the schema of the configuration.
//! Methods are those of inherent impls; tests and what macros make are left out.

use super::graph::is_test;
use super::prose::files;
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use syn::{Attribute, Item, Meta};

const MAX_FIELDS: usize = 12;
const MAX_METHODS: usize = 25;

/// Module and name.
type Name = Vec<String>;

/// What is known of a type.
#[derive(Default)]
struct Known {
    fields: usize,
    docs: String,
    /// Its docs are text for users.
    is_for_users: bool,
    files: BTreeSet<String>,
    methods: usize,
}

/// An inherent impl, before it is known of which type.
struct Impl {
    file: String,
    module: Name,
    path: Vec<String>,
    methods: usize,
}

/// The types of a crate, its inherent impls, and by module the names that `use` brings in.
#[derive(Default)]
struct Types {
    types: BTreeMap<Name, Known>,
    impls: Vec<Impl>,
    uses: BTreeMap<Name, BTreeMap<String, Name>>,
}

/// The text of docs, as one line.
fn docs(attributes: &[Attribute]) -> String {
    let line = |a: &Attribute| match &a.meta {
        Meta::NameValue(v) if v.path.is_ident("doc") => match &v.value {
            syn::Expr::Lit(syn::ExprLit { lit: syn::Lit::Str(s), .. }) => Some(s.value().trim().to_owned()),
            _ => None,
        },
        _ => None,
    };
    attributes.iter().filter_map(line).collect::<Vec<_>>().join(" ")
}

/// Whether the docs of a type are text for users.
fn is_for_users(attributes: &[Attribute]) -> bool {
    let derives = attributes.iter().filter(|a| a.path().is_ident("derive")).filter_map(|a| a.meta.require_list().ok());
    derives.flat_map(|d| d.tokens.clone()).any(|t| ["Args", "Parser", "JsonSchema"].contains(&t.to_string().as_str()))
}

/// A path from the root of the crate; a path without `crate`, `self` and `super` is below `module`.
fn absolute(module: &[String], path: &[String]) -> Name {
    let ups = path.iter().take_while(|p| *p == "super").count();
    match path.first().map(String::as_str) {
        Some("crate") => path[1..].to_vec(),
        Some("self") => [module, &path[1..]].concat(),
        _ => [&module[..module.len().saturating_sub(ups)], &path[ups..]].concat(),
    }
}

impl Types {
    /// Reads all sources of a crate.
    fn read(src: &Path) -> Self {
        let mut all = Self::default();
        for path in files(src, "rs") {
            let file = path.strip_prefix(src).unwrap().display().to_string();
            let module: Name = file
                .trim_end_matches(".rs")
                .split('/')
                .filter(|part| !["lib", "main", "mod"].contains(part))
                .map(str::to_owned)
                .collect();
            if module.last().is_none_or(|last| last != "tests") {
                all.add(&file, &module, &syn::parse_file(&std::fs::read_to_string(&path).unwrap()).unwrap().items);
            }
        }
        all.assign();
        all
    }

    fn add(&mut self, file: &str, module: &[String], items: &[Item]) {
        for item in items {
            match item {
                Item::Struct(s) if !is_test(&s.attrs) => self.declare(module, &s.ident, &s.attrs, s.fields.len()),
                Item::Enum(e) if !is_test(&e.attrs) => self.declare(module, &e.ident, &e.attrs, 0),
                Item::Union(u) if !is_test(&u.attrs) => {
                    self.declare(module, &u.ident, &u.attrs, u.fields.named.len());
                }
                Item::Use(u) if !is_test(&u.attrs) => self.bring(module, &mut Vec::new(), &u.tree),
                Item::Mod(m) if !is_test(&m.attrs) => {
                    if let Some((_, items)) = &m.content {
                        self.add(file, &[module, &[m.ident.to_string()]].concat(), items);
                    }
                }
                Item::Impl(i) if i.trait_.is_none() && !is_test(&i.attrs) => {
                    let syn::Type::Path(of) = &*i.self_ty else { continue };
                    let path = of.path.segments.iter().map(|s| s.ident.to_string()).collect();
                    let is_method = |item: &&syn::ImplItem| matches!(item, syn::ImplItem::Fn(f) if !is_test(&f.attrs));
                    let methods = i.items.iter().filter(is_method).count();
                    self.impls.push(Impl { file: file.to_owned(), module: module.to_vec(), path, methods });
                }
                _ => {}
            }
        }
    }

    fn declare(&mut self, module: &[String], name: &syn::Ident, attributes: &[Attribute], fields: usize) {
        let (docs, is_for_users) = (docs(attributes), is_for_users(attributes));
        let known = Known { fields, docs, is_for_users, ..Known::default() };
        self.types.insert([module, &[name.to_string()]].concat(), known);
    }

    fn bring(&mut self, module: &[String], before: &mut Vec<String>, tree: &syn::UseTree) {
        let mut name = |as_what: &syn::Ident, what: &syn::Ident| {
            let path = [before.as_slice(), &[what.to_string()]].concat();
            self.uses.entry(module.to_vec()).or_default().insert(as_what.to_string(), absolute(module, &path));
        };
        match tree {
            syn::UseTree::Name(n) => name(&n.ident, &n.ident),
            syn::UseTree::Rename(r) => name(&r.rename, &r.ident),
            syn::UseTree::Group(g) => g.items.iter().for_each(|t| self.bring(module, before, t)),
            syn::UseTree::Path(p) => {
                before.push(p.ident.to_string());
                self.bring(module, before, &p.tree);
                before.pop();
            }
            syn::UseTree::Glob(_) => {}
        }
    }

    /// The type that a path of a module leads to.
    fn resolve(&self, module: &[String], path: &[String]) -> Option<Name> {
        let mut full = absolute(module, path);
        // Re-exports are followed; eight steps are more than any type takes.
        for _ in 0..8 {
            if self.types.contains_key(&full) {
                return Some(full);
            }
            let (last, within) = full.split_last()?;
            let Some(next) = self.uses.get(within).and_then(|uses| uses.get(last)) else { break };
            full = next.clone();
        }
        // A glob: the type of this name, if there is but one.
        let mut same = self.types.keys().filter(|name| name.last() == path.last());
        same.next().filter(|_| same.next().is_none()).cloned()
    }

    /// Adds impls to their types. One of a type that is not found counts as one of a type of its
    /// own, by its path.
    fn assign(&mut self) {
        for i in std::mem::take(&mut self.impls) {
            let name = self.resolve(&i.module, &i.path).unwrap_or_else(|| absolute(&i.module, &i.path));
            let known = self.types.entry(name).or_default();
            known.methods += i.methods;
            known.files.insert(i.file);
        }
    }

    /// What is wrong, a line each.
    fn wrong(&self) -> Vec<String> {
        let mut wrong = Vec::new();
        for (name, known) in &self.types {
            let name = name.join("::");
            if known.files.len() > 1 {
                wrong.push(format!("{name} has methods in {:?}", known.files));
            }
            if known.fields > MAX_FIELDS && !known.is_for_users && !has_reason(&known.docs, "Fields", known.fields) {
                wrong.push(format!("{name}: its docs do not say \"Fields: {}, \" and the reason", known.fields));
            }
            if known.methods > MAX_METHODS && !has_reason(&known.docs, "Methods", known.methods) {
                wrong.push(format!("{name}: its docs do not say \"Methods: {}, \" and the reason", known.methods));
            }
        }
        wrong
    }
}

/// Whether docs give this number, followed by the reason.
fn has_reason(docs: &str, of: &str, number: usize) -> bool {
    docs.contains(&format!("{of}: {number}, "))
}

#[test]
fn types_are_in_one_file_and_large_ones_say_why() {
    let (mut wrong, mut count) = (Vec::new(), 0);
    for name in super::CRATES {
        let types = Types::read(&super::house().join(name).join("src"));
        count += types.types.len();
        wrong.extend(types.wrong().into_iter().map(|line| format!("{name}: {line}")));
    }
    assert!(count > 500, "only {count} types are found");
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn types_that_are_spread_or_large_are_found() {
    let wrong = |sources: &[(&str, &str)]| {
        let mut types = Types::default();
        for (file, text) in sources {
            let module = [file.trim_end_matches(".rs").to_owned()];
            types.add(file, &module, &syn::parse_file(text).unwrap().items);
        }
        types.assign();
        types.wrong().len()
    };
    let a = ("a.rs", "pub struct T; impl T { fn f() {} }");
    assert_eq!(wrong(&[a, ("b.rs", "use crate::a::T as U; impl U { fn g() {} }")]), 1);
    assert_eq!(wrong(&[a, ("b.rs", "impl super::a::T { fn g() {} }")]), 1);
    assert_eq!(wrong(&[a, ("b.rs", "use super::c::T; impl T {}"), ("c.rs", "pub use crate::a::T;")]), 1);
    assert_eq!(wrong(&[a, ("b.rs", "use crate::a::*; impl T {}")]), 1);
    assert_eq!(wrong(&[a, ("b.rs", "struct T; impl T { fn g() {} }")]), 0, "another type of this name");
    assert_eq!(wrong(&[a, ("b.rs", "use crate::a::T; impl Drop for T { fn drop(&mut self) {} }")]), 0);
    assert_eq!(wrong(&[a, ("b.rs", "#[cfg(test)] mod tests { use crate::a::T; impl T {} }")]), 0);
    let fields: String = (0..13).map(|n| format!("f{n}: u8,")).collect();
    let methods: String = (0..26).map(|n| format!("fn f{n}() {{}}")).collect();
    assert_eq!(wrong(&[("a.rs", &format!("struct T {{ {fields} }}"))]), 1);
    assert_eq!(wrong(&[("a.rs", &format!("/// Fields: 130,\n/// because.\nstruct T {{ {fields} }}"))]), 1);
    assert_eq!(wrong(&[("a.rs", &format!("/// A. Fields:\n/// 13, because so.\nstruct T {{ {fields} }}"))]), 0);
    assert_eq!(wrong(&[("a.rs", &format!("/// Fields: 12, because so.\nstruct T {{ {fields} }}"))]), 1);
    assert_eq!(wrong(&[("a.rs", &format!("#[derive(Debug, Args)] struct T {{ {fields} }}"))]), 0);
    assert_eq!(wrong(&[("a.rs", &format!("enum T {{}} impl T {{ {methods} }}"))]), 1);
    assert_eq!(wrong(&[("a.rs", &format!("/// Methods: 26, because so.\nenum T {{}} impl T {{ {methods} }}"))]), 0);
}
