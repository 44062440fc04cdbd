//! The files of a crate and the arrows between them.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::path::{Path, PathBuf};
use syn::visit::Visit;

/// One crate.
pub(crate) struct Crate {
    /// By file, relative to `src`: the files that it uses, and by which names.
    arrows: BTreeMap<String, BTreeMap<String, BTreeSet<String>>>,
}

/// Files that use each other, and the paths by which they do.
pub(crate) struct Circle {
    pub(crate) files: Vec<String>,
    arrows: Vec<(String, String, Vec<String>)>,
}

impl fmt::Display for Circle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{} files: {}", self.files.len(), self.files.join(", "))?;
        for (from, to, names) in &self.arrows {
            writeln!(f, "    {from} -> {to}: {}", names.join(", "))?;
        }
        Ok(())
    }
}

type Module = Vec<String>;

/// A source file: its module, and those inside it.
struct Source {
    file: String,
    /// The paths that it uses, as modules and names from the crate's root.
    uses: BTreeSet<Module>,
}

impl Crate {
    /// Reads all modules below a crate's `src`.
    pub(crate) fn read(src: &Path) -> Self {
        // By module: the file that defines it.
        let mut owners: BTreeMap<Module, String> = BTreeMap::new();
        let mut sources = Vec::new();
        for root in ["lib.rs", "main.rs"] {
            let file = src.join(root);
            if file.exists() {
                walk(src, &file, &[], &mut owners, &mut sources);
            }
        }
        let mut arrows = BTreeMap::new();
        for source in &sources {
            let to: &mut BTreeMap<String, BTreeSet<String>> = arrows.entry(source.file.clone()).or_default();
            for path in &source.uses {
                // The longest part of the path that is a module.
                let module = (0..=path.len()).rev().find(|&n| owners.contains_key(&path[..n]));
                let Some(n) = module else { continue };
                let owner = &owners[&path[..n]];
                let name = path.get(n).map_or_else(|| "*".to_owned(), Clone::clone);
                if *owner != source.file {
                    to.entry(owner.clone()).or_default().insert(name);
                }
            }
        }
        Self { arrows }
    }

    /// All arrows: the file that uses, and the file that is used.
    pub(crate) fn arrows(&self) -> impl Iterator<Item = (&str, &str)> {
        self.arrows.iter().flat_map(|(from, to)| to.keys().map(|to| (from.as_str(), to.as_str())))
    }

    /// The sets of files of which each reaches each other one.
    pub(crate) fn circles(&self) -> Vec<Circle> {
        let reach = |from: &String| {
            let mut seen = BTreeSet::new();
            let mut next: Vec<&String> = self.arrows.get(from).into_iter().flat_map(BTreeMap::keys).collect();
            while let Some(file) = next.pop() {
                if seen.insert(file) {
                    next.extend(self.arrows.get(file).into_iter().flat_map(BTreeMap::keys));
                }
            }
            seen
        };
        let reached: BTreeMap<&String, BTreeSet<&String>> = self.arrows.keys().map(|f| (f, reach(f))).collect();
        let mut done: BTreeSet<&String> = BTreeSet::new();
        let mut circles = Vec::new();
        for (file, there) in &reached {
            if done.contains(file) || !there.contains(*file) {
                continue;
            }
            let files: Vec<String> =
                there.iter().filter(|f| reached[**f].contains(*file)).map(|f| (*f).clone()).collect();
            done.extend(reached.keys().copied().filter(|f| files.contains(f)));
            let mut arrows = Vec::new();
            for from in &files {
                for (to, names) in self.arrows[from].iter().filter(|(to, _)| files.contains(to)) {
                    arrows.push((from.clone(), to.clone(), names.iter().cloned().collect()));
                }
            }
            circles.push(Circle { files, arrows });
        }
        circles
    }
}

/// Reads a file and those of its modules.
fn walk(src: &Path, file: &Path, module: &[String], owners: &mut BTreeMap<Module, String>, sources: &mut Vec<Source>) {
    let text = std::fs::read_to_string(file).unwrap_or_else(|e| panic!("{}: {e}", file.display()));
    let parsed = syn::parse_file(&text).unwrap_or_else(|e| panic!("{}: {e}", file.display()));
    let name = file.strip_prefix(src).unwrap().to_string_lossy().into_owned();
    owners.insert(module.to_vec(), name.clone());
    let mut finder = Finder { module: module.to_vec(), uses: BTreeSet::new(), children: Vec::new() };
    finder.visit_file(&parsed);
    for (child, inline, path) in std::mem::take(&mut finder.children) {
        if inline {
            owners.insert(child, name.clone());
            continue;
        }
        let stem = child.last().unwrap();
        let dir = if file.file_name().is_some_and(|n| n == "lib.rs" || n == "main.rs" || n == "mod.rs") {
            file.parent().unwrap().to_owned()
        } else {
            file.with_extension("")
        };
        let candidates: [PathBuf; 2] = match path {
            Some(path) => [file.parent().unwrap().join(&path), dir.join(path)],
            None => [dir.join(format!("{stem}.rs")), dir.join(stem).join("mod.rs")],
        };
        if let Some(found) = candidates.iter().find(|c| c.exists()) {
            walk(src, found, &child, owners, sources);
        }
    }
    sources.push(Source { file: name, uses: finder.uses });
}

struct Finder {
    module: Module,
    uses: BTreeSet<Module>,
    /// Modules: which, whether inside this file, and the path that an attribute gives.
    children: Vec<(Module, bool, Option<String>)>,
}

pub(crate) fn is_test(attributes: &[syn::Attribute]) -> bool {
    attributes.iter().any(|a| {
        a.path().is_ident("test")
            || a.path().is_ident("cfg")
                && a.meta
                    .require_list()
                    .is_ok_and(|l| l.tokens.to_string().split(|c: char| !c.is_alphanumeric()).any(|w| w == "test"))
                && !a.meta.require_list().unwrap().tokens.to_string().contains("not")
    })
}

impl Finder {
    /// A path from the root of the crate; `None` for one that leads elsewhere.
    fn absolute(&self, path: &[String]) -> Option<Module> {
        let first = path.first()?.as_str();
        match first {
            "crate" => Some(path[1..].to_vec()),
            "self" => Some(self.module.iter().chain(&path[1..]).cloned().collect()),
            "super" => {
                let ups = path.iter().take_while(|p| *p == "super").count();
                let base = self.module.len().checked_sub(ups)?;
                Some(self.module[..base].iter().chain(&path[ups..]).cloned().collect())
            }
            // A module of this one.
            _ if self.children.iter().any(|(c, ..)| c.len() == self.module.len() + 1 && c.last().unwrap() == first) => {
                Some(self.module.iter().chain(path).cloned().collect())
            }
            _ => None,
        }
    }

    fn tree(&mut self, before: &mut Vec<String>, tree: &syn::UseTree) {
        match tree {
            syn::UseTree::Path(p) => {
                before.push(p.ident.to_string());
                self.tree(before, &p.tree);
                before.pop();
            }
            syn::UseTree::Group(g) => g.items.iter().for_each(|t| self.tree(before, t)),
            syn::UseTree::Name(n) => {
                let mut all = before.clone();
                if n.ident != "self" {
                    all.push(n.ident.to_string());
                }
                self.uses.extend(self.absolute(&all));
            }
            syn::UseTree::Rename(r) => {
                let all: Vec<String> = before.iter().cloned().chain([r.ident.to_string()]).collect();
                self.uses.extend(self.absolute(&all));
            }
            syn::UseTree::Glob(_) => self.uses.extend(self.absolute(before)),
        }
    }
}

impl<'ast> Visit<'ast> for Finder {
    fn visit_file(&mut self, file: &'ast syn::File) {
        self.declare(&file.items);
        syn::visit::visit_file(self, file);
    }
    fn visit_item(&mut self, item: &'ast syn::Item) {
        let attributes = match item {
            syn::Item::Mod(i) => &i.attrs,
            syn::Item::Fn(i) => &i.attrs,
            syn::Item::Impl(i) => &i.attrs,
            syn::Item::Use(i) => &i.attrs,
            _ => return syn::visit::visit_item(self, item),
        };
        if !is_test(attributes) {
            syn::visit::visit_item(self, item);
        }
    }
    fn visit_item_mod(&mut self, item: &'ast syn::ItemMod) {
        if let Some((_, items)) = &item.content {
            self.module.push(item.ident.to_string());
            self.declare(items);
            items.iter().for_each(|i| self.visit_item(i));
            self.module.pop();
        }
    }
    fn visit_item_use(&mut self, item: &'ast syn::ItemUse) {
        // What a file re-exports of its own modules is no use of them.
        let gives_out = !matches!(item.vis, syn::Visibility::Inherited);
        let before = self.uses.clone();
        self.tree(&mut Vec::new(), &item.tree);
        if gives_out {
            let module = self.module.clone();
            let own = |path: &Module| path.starts_with(&module);
            self.uses.retain(|path| before.contains(path) || !own(path));
        }
    }
    fn visit_macro(&mut self, mac: &'ast syn::Macro) {
        self.tokens(mac.tokens.clone());
        syn::visit::visit_macro(self, mac);
    }
    fn visit_path(&mut self, path: &'ast syn::Path) {
        let all: Vec<String> = path.segments.iter().map(|s| s.ident.to_string()).collect();
        self.path(&all);
        syn::visit::visit_path(self, path);
    }
}

impl Finder {
    /// Paths among the arguments of a macro, which `syn` does not parse.
    fn tokens(&mut self, tokens: proc_macro2::TokenStream) {
        use proc_macro2::TokenTree;
        let mut path: Vec<String> = Vec::new();
        let mut colons = 0;
        for token in tokens {
            match token {
                TokenTree::Ident(i) if path.is_empty() || colons == 2 => {
                    path.push(i.to_string());
                    colons = 0;
                    continue;
                }
                TokenTree::Punct(p) if p.as_char() == ':' && !path.is_empty() => {
                    colons += 1;
                    continue;
                }
                TokenTree::Ident(i) => {
                    self.path(&std::mem::replace(&mut path, vec![i.to_string()]));
                    colons = 0;
                    continue;
                }
                TokenTree::Group(g) => self.tokens(g.stream()),
                TokenTree::Punct(_) | TokenTree::Literal(_) => {}
            }
            self.path(&std::mem::take(&mut path));
            colons = 0;
        }
        self.path(&path);
    }

    fn path(&mut self, path: &[String]) {
        if path.len() > 1 {
            self.uses.extend(self.absolute(path));
        }
    }

    fn declare(&mut self, items: &[syn::Item]) {
        for item in items {
            let syn::Item::Mod(m) = item else { continue };
            if is_test(&m.attrs) {
                continue;
            }
            let mut child = self.module.clone();
            child.push(m.ident.to_string());
            let path = m.attrs.iter().filter(|a| a.path().is_ident("path")).find_map(|a| match &a.meta {
                syn::Meta::NameValue(v) => match &v.value {
                    syn::Expr::Lit(syn::ExprLit { lit: syn::Lit::Str(s), .. }) => Some(s.value()),
                    _ => None,
                },
                _ => None,
            });
            self.children.push((child, m.content.is_some(), path));
        }
    }
}
