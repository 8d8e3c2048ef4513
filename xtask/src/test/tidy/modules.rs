//! Reads the modules of a crate, and which of them name which, from source text.
//!
//! A module names another by a path: in `use`, or in the code (`crate::a::b`, `super::b`, `b::C`
//! with `b` in scope). A path leads through modules and re-exports (`pub use`), and each module on
//! its way counts as named. Test-only code (`#[cfg(test)]`) and comments do not count.
//!
//! Without a compiler some names are missed: names that a macro makes, macros in textual scope
//! (`#[macro_use]`), and methods called on values. A `use` in a function counts for the whole
//! module.

use std::collections::{BTreeMap, BTreeSet};

use super::Tree;
use super::tokens::{Syntax, Token, split};

/// The number of re-exports after which a path is abandoned, because it might be circular.
const MAX_REEXPORTS: usize = 16;

/// Keywords that begin an item and are followed by its name.
const ITEM_WORDS: [&str; 9] =
    ["fn", "struct", "enum", "union", "trait", "type", "const", "static", "macro_rules"];

/// A module of a crate.
#[derive(Debug)]
struct Module<'a> {
    /// Its names from the root; empty for the root itself.
    path: Vec<&'a str>,
    file: String,
    /// The modules in it, by name.
    children: BTreeMap<&'a str, usize>,
    imports: Vec<Import<'a>>,
    /// The paths in its code.
    mentions: Vec<Path<'a>>,
    /// The names of the items in it.
    items: BTreeSet<&'a str>,
}

/// A path as written.
#[derive(Debug, Clone)]
struct Path<'a> {
    line: usize,
    segments: Vec<&'a str>,
}

/// One name of a `use`, or all names of a module (`*`).
#[derive(Debug)]
struct Import<'a> {
    path: Path<'a>,
    /// The name in this module; `None` for all names.
    name: Option<&'a str>,
}

/// A crate: its modules, the root first.
#[derive(Debug)]
pub(crate) struct Modules<'a> {
    tree: &'a Tree,
    all: Vec<Module<'a>>,
    /// Module declarations without a file.
    pub(crate) missing: Vec<String>,
}

/// A position at which a module names another.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Place {
    pub(crate) file: String,
    pub(crate) line: usize,
}

/// Pairs of modules of which the first names the second, with the first such position.
pub(crate) type Edges = BTreeMap<(String, String), Place>;

impl<'a> Modules<'a> {
    /// Reads a crate from the file of its root.
    pub(crate) fn read(tree: &'a Tree, root: &str) -> Modules<'a> {
        let mut modules = Modules { tree, all: Vec::new(), missing: Vec::new() };
        modules.add_file(Vec::new(), root.to_owned(), true);
        modules
    }

    /// The edges between modules. An edge is lifted to the sibling modules that contain its ends:
    /// if `a::b` names `c::d`, then `a` names `c`. A module and one inside it may name each other;
    /// that is no edge.
    pub(crate) fn edges(&self) -> Edges {
        let mut edges = Edges::new();
        for (index, module) in self.all.iter().enumerate() {
            let imports = module.imports.iter().enumerate().map(|(at, import)| (&import.path, Some(at)));
            let mentions = module.mentions.iter().map(|path| (path, None));
            for (path, import) in imports.chain(mentions) {
                for named in self.resolve(index, &path.segments, import, 0) {
                    if let Some(edge) = siblings(&module.path, &self.all[named].path) {
                        let place = Place { file: module.file.clone(), line: path.line };
                        edges.entry(edge).or_insert(place);
                    }
                }
            }
        }
        edges
    }

    /// The modules that a path in a module leads through. `own` is the import that contains the
    /// path; it does not bring its own first name into scope.
    fn resolve(&self, from: usize, path: &[&'a str], own: Option<usize>, depth: usize) -> Vec<usize> {
        let Some((first, rest)) = path.split_first() else { return Vec::new() };
        match *first {
            "crate" => self.follow(0, rest, depth),
            "self" => self.follow(from, rest, depth),
            "super" => {
                let mut module = self.parent(from);
                let mut rest = rest;
                while let Some(("super", after)) = rest.split_first().map(|(first, after)| (*first, after)) {
                    (module, rest) = (self.parent(module), after);
                }
                self.follow(module, rest, depth)
            }
            _ => self.step(from, path, own, depth),
        }
    }

    /// A module and those that a path leads through from it.
    fn follow(&self, module: usize, path: &[&'a str], depth: usize) -> Vec<usize> {
        let mut trail = vec![module];
        trail.extend(self.step(module, path, None, depth));
        trail
    }

    /// The modules that a path leads through whose first name is in a module: another module, an
    /// import, or an item, which ends it.
    fn step(&self, module: usize, path: &[&'a str], own: Option<usize>, depth: usize) -> Vec<usize> {
        let Some((first, rest)) = path.split_first() else { return Vec::new() };
        if depth > MAX_REEXPORTS {
            return Vec::new();
        }
        let here = &self.all[module];
        if let Some(child) = here.children.get(first) {
            return self.follow(*child, rest, depth);
        }
        let mut trail = Vec::new();
        for (at, import) in here.imports.iter().enumerate().filter(|(at, _)| Some(*at) != own) {
            match import.name {
                Some(name) if name == *first => {
                    let whole: Vec<&str> = import.path.segments.iter().chain(rest).copied().collect();
                    trail.extend(self.resolve(module, &whole, Some(at), depth + 1));
                }
                Some(_) => {}
                None if here.items.contains(first) => {}
                None => {
                    let all = self.resolve(module, &import.path.segments, Some(at), depth + 1);
                    if let Some(last) = all.last()
                        && *last != module
                        && self.knows(*last, first)
                    {
                        trail.extend(self.follow(*last, path, depth + 1));
                    }
                }
            }
        }
        trail
    }

    fn knows(&self, module: usize, name: &str) -> bool {
        let module = &self.all[module];
        module.items.contains(name)
            || module.children.contains_key(name)
            || module.imports.iter().any(|import| import.name == Some(name))
    }

    fn parent(&self, module: usize) -> usize {
        let path = &self.all[module].path;
        let parent = &path[..path.len().saturating_sub(1)];
        self.all.iter().position(|module| module.path == parent).unwrap_or(0)
    }

    /// Reads a file as a module. `owner` says whether its child modules are in its own folder
    /// (`mod.rs` and roots) or in a folder of its name.
    fn add_file(&mut self, path: Vec<&'a str>, file: String, owner: bool) {
        let Some(text) = self.tree.text(&file) else { return };
        let source = split(text, Syntax::Rust);
        let folder = match (file.rsplit_once('/').map_or("", |(folder, _)| folder), owner) {
            (folder, true) => folder.to_owned(),
            (folder, false) => join(folder, path.last().unwrap_or(&"")),
        };
        if !is_test_file(&source.tokens) {
            self.add(path, &file, &folder, &source.tokens);
        }
    }

    /// Reads the tokens of a module. `folder` has the files of its children.
    fn add(&mut self, path: Vec<&'a str>, file: &str, folder: &str, tokens: &[Token<'a>]) {
        // Two modules with one path are for different platforms.
        let known = self.all.iter().position(|module| module.path == path);
        let index = known.unwrap_or(self.all.len());
        if known.is_none() {
            if let Some((name, parent)) = path.split_last()
                && let Some(parent) = self.all.iter_mut().find(|module| module.path == parent)
            {
                parent.children.insert(name, index);
            }
            self.all.push(Module {
                path: path.clone(),
                file: file.to_owned(),
                children: BTreeMap::new(),
                imports: Vec::new(),
                mentions: Vec::new(),
                items: BTreeSet::new(),
            });
        }
        let text = |at: usize| tokens.get(at).map_or("", |token| token.text);
        let (mut at, mut file_of_next) = (0, None);
        while at < tokens.len() {
            let line = tokens[at].line;
            match text(at) {
                "#" if text(at + 1) == "[" => {
                    let end = closing(tokens, at + 1);
                    let attribute: Vec<&str> = tokens[at + 2..end].iter().map(|token| token.text).collect();
                    at = end + 1;
                    if is_test_only(&attribute) {
                        at = end_of_item(tokens, at);
                    } else if let ["path", "=", literal] = attribute[..] {
                        file_of_next = Some(literal.trim_matches('"'));
                    }
                }
                "use" if text(at + 1) != "<" => {
                    let end = tokens[at..].iter().position(|token| token.text == ";");
                    let end = end.map_or(tokens.len(), |length| at + length);
                    import(&tokens[at + 1..end], &mut Vec::new(), &mut self.all[index].imports);
                    at = end + 1;
                }
                "mod" if text(at + 2) == ";" => {
                    let mut child = path.clone();
                    child.push(text(at + 1));
                    self.add_declared(child, file, folder, line, file_of_next.take());
                    at += 3;
                }
                "mod" if text(at + 2) == "{" => {
                    let end = closing(tokens, at + 2);
                    let mut child = path.clone();
                    child.push(text(at + 1));
                    self.add(child, file, &join(folder, text(at + 1)), &tokens[at + 3..end]);
                    at = end + 1;
                }
                word if ITEM_WORDS.contains(&word) => {
                    let name = if text(at + 1) == "!" { text(at + 2) } else { text(at + 1) };
                    self.all[index].items.insert(name);
                    at += 1;
                }
                word if is_name(word) && text(at + 1) == "::" => {
                    // The name after `::` belongs to a path that begins earlier.
                    let absolute = at > 0 && text(at - 1) == "::";
                    let mut segments = vec![word];
                    while text(at + 1) == "::" && is_name(text(at + 2)) {
                        segments.push(text(at + 2));
                        at += 2;
                    }
                    if !absolute {
                        self.all[index].mentions.push(Path { line, segments });
                    }
                    at += 1;
                }
                _ => at += 1,
            }
        }
    }

    /// Reads the file of a declared module.
    fn add_declared(
        &mut self,
        path: Vec<&'a str>,
        file: &str,
        folder: &str,
        line: usize,
        other: Option<&str>,
    ) {
        let name = path.last().copied().unwrap_or("");
        let beside = file.rsplit_once('/').map_or("", |(folder, _)| folder);
        let candidates = match other {
            Some(other) => vec![(join(beside, other), true)],
            None => vec![
                (join(folder, &format!("{name}.rs")), false),
                (join(folder, &format!("{name}/mod.rs")), true),
            ],
        };
        match candidates.into_iter().find(|(file, _)| self.tree.files.contains_key(file)) {
            Some((file, owner)) => self.add_file(path, file, owner),
            None => self.missing.push(format!("{file}:{line}: no file of module {name} was found")),
        }
    }
}

/// The sibling modules that contain two modules; `None` if one contains the other.
fn siblings(from: &[&str], to: &[&str]) -> Option<(String, String)> {
    let shared = from.iter().zip(to).take_while(|(from, to)| from == to).count();
    let beside = |path: &[&str]| (path.len() > shared).then(|| path[..=shared].join("::"));
    Some((beside(from)?, beside(to)?))
}

/// Adds the names of a `use`, which may be a tree in braces.
fn import<'a>(tokens: &[Token<'a>], prefix: &mut Vec<&'a str>, imports: &mut Vec<Import<'a>>) {
    let known = prefix.len();
    let mut tokens = tokens;
    // A path that begins with `::` is in another crate.
    if tokens.first().is_some_and(|token| token.text == "::") {
        return;
    }
    while let [segment, after @ ..] = tokens {
        let line = segment.line;
        match segment.text {
            "{" => {
                let end = closing(tokens, 0);
                for part in parts(&tokens[1..end]) {
                    import(part, prefix, imports);
                }
                break;
            }
            "*" => {
                imports.push(Import { path: Path { line, segments: prefix.clone() }, name: None });
                break;
            }
            name => {
                // `a::{self}` is `a`.
                if name != "self" || prefix.is_empty() {
                    prefix.push(name);
                }
                match after {
                    [colons, rest @ ..] if colons.text == "::" => tokens = rest,
                    _ => {
                        let alias = after.get(1).filter(|_| after[0].text == "as").map(|alias| alias.text);
                        let name = alias.or(prefix.last().copied());
                        imports.push(Import { path: Path { line, segments: prefix.clone() }, name });
                        break;
                    }
                }
            }
        }
    }
    prefix.truncate(known);
}

/// The parts between the commas of a list.
fn parts<'t, 'a>(tokens: &'t [Token<'a>]) -> Vec<&'t [Token<'a>]> {
    let mut depth = 0;
    let parts = tokens.split(|token| {
        depth += depth_change(token.text);
        token.text == "," && depth == 0
    });
    parts.filter(|part| !part.is_empty()).collect()
}

fn depth_change(token: &str) -> i32 {
    match token {
        "(" | "[" | "{" => 1,
        ")" | "]" | "}" => -1,
        _ => 0,
    }
}

/// The index of the bracket that closes the one at `open`.
fn closing(tokens: &[Token<'_>], open: usize) -> usize {
    let mut depth = 0;
    for (at, token) in tokens.iter().enumerate().skip(open) {
        depth += depth_change(token.text);
        if depth == 0 {
            return at;
        }
    }
    tokens.len().saturating_sub(1).max(open)
}

/// The index after the item, statement, arm or field that begins at `start`.
fn end_of_item(tokens: &[Token<'_>], start: usize) -> usize {
    let mut at = start;
    while at + 1 < tokens.len() && tokens[at].text == "#" {
        at = closing(tokens, at + 1) + 1;
    }
    let text = |at: usize| tokens.get(at).map_or("", |token| token.text);
    let first = match (text(at), text(at + 1)) {
        ("pub", "(") => text(closing(tokens, at + 1) + 1),
        ("pub", next) => next,
        (first, _) => first,
    };
    let is_import = first == "use";
    let is_item = is_import
        || ITEM_WORDS.contains(&first)
        || ["impl", "mod", "unsafe", "async", "extern"].contains(&first);
    let mut depth = 0;
    while let Some(token) = tokens.get(at) {
        depth += depth_change(token.text);
        let ends = match token.text {
            ";" => depth == 0,
            "}" => depth == 0 && !is_import,
            "," => depth == 0 && !is_item,
            _ => false,
        };
        if depth < 0 {
            return at;
        }
        at += 1;
        if ends {
            return at;
        }
    }
    at
}

/// Whether an attribute restricts code to tests: `cfg(test)` or `cfg(all(test, ...))`.
fn is_test_only(attribute: &[&str]) -> bool {
    match attribute {
        ["cfg", "(", "test", ")"] => true,
        ["cfg", "(", "all", "(", conditions @ .., ")", ")"] => {
            let mut depth = 0;
            conditions.iter().any(|token| {
                depth += depth_change(token);
                *token == "test" && depth == 0
            })
        }
        _ => false,
    }
}

/// Whether an attribute at the start of a file restricts all of it to tests.
fn is_test_file(tokens: &[Token<'_>]) -> bool {
    let mut rest = tokens;
    while let ["#", "!", "["] = rest.iter().take(3).map(|token| token.text).collect::<Vec<_>>()[..] {
        let end = closing(rest, 2);
        if is_test_only(&rest[3..end].iter().map(|token| token.text).collect::<Vec<_>>()) {
            return true;
        }
        rest = &rest[end + 1..];
    }
    false
}

fn is_name(token: &str) -> bool {
    token.starts_with(|c: char| c.is_alphabetic() || c == '_')
        && token.chars().all(|c| c.is_alphanumeric() || c == '_')
}

/// The path of a file relative to a folder, without `..`.
fn join(folder: &str, file: &str) -> String {
    let mut parts: Vec<&str> = folder.split('/').filter(|part| !part.is_empty()).collect();
    for part in file.split('/') {
        match part {
            ".." => drop(parts.pop()),
            "." => {}
            part => parts.push(part),
        }
    }
    parts.join("/")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The edges of a crate with these files, each as `FROM -> TO FILE:LINE`.
    fn edges<const N: usize>(files: [(&str, &str); N]) -> Vec<String> {
        let tree = Tree::of(files);
        let modules = Modules::read(&tree, "x/src/lib.rs");
        assert_eq!(modules.missing, Vec::<String>::new());
        let edges = modules.edges().into_iter();
        edges.map(|((from, to), Place { file, line })| format!("{from} -> {to} {file}:{line}")).collect()
    }

    #[test]
    fn every_way_to_name_a_module_is_seen() {
        let lib = "mod a;\nmod b;\npub use b::B;\n";
        let b = "pub struct B;\nmod c;\npub use c::C;\n";
        for a in [
            "use crate::b;",
            "use crate::b::B;",
            "use crate::{b::{B, C as D}, other};",
            "use super::b::*;",
            "fn f(_: crate::b::B) {}",
            "fn f() { super::b::f(); }",
            "use crate as x; fn f() { x::b::f(); }",
            "macro_rules! m { () => { $crate::b::f() } }",
            // Through what the root re-exports.
            "use crate::B;",
            "fn f(_: super::B) {}",
            // Code that is not test-only.
            "#[cfg(not(test))] use crate::b;",
            "#[cfg(any(test, feature = \"x\"))] use crate::b;",
            "#[cfg(test)] fn f() {} use crate::b;",
            "#[cfg(test)] use x::{y, z}; use crate::b;",
            "struct S { #[cfg(test)] x: u8, y: crate::b::B }",
        ] {
            let tree =
                [("x/src/lib.rs", lib), ("x/src/a.rs", a), ("x/src/b/mod.rs", b), ("x/src/b/c.rs", "")];
            assert_eq!(edges(tree), ["a -> b x/src/a.rs:1"], "{a}");
        }
    }

    #[test]
    fn what_names_no_module_of_the_crate_is_no_edge() {
        for a in [
            "// use crate::b;\n/// [`crate::b`]\n/* crate::b */",
            "const TEXT: &str = \"crate::b::B\";",
            "use ::b::B; use std::b; fn f() { other::crate_b::b(); }",
            "#[cfg(test)] mod tests { use crate::b; }",
            "#[cfg(test)] mod tests;",
            "#[cfg(all(test, loom))] #[inline] pub(crate) fn f() { crate::b::f(); }",
            "#![cfg(test)] use crate::b;",
            "struct S { #[cfg(test)] x: crate::b::B, y: u8 }",
            "fn f() -> impl Sized + use<'_> {}",
        ] {
            let tree = [("x/src/lib.rs", "mod a;\nmod b;\n"), ("x/src/a.rs", a), ("x/src/b.rs", "")];
            assert_eq!(edges(tree), Vec::<String>::new(), "{a}");
        }
    }

    #[test]
    fn an_edge_is_between_modules_beside_each_other() {
        let files = [
            ("x/src/lib.rs", "mod a; mod b { pub(crate) mod d { use super::super::a; } }"),
            ("x/src/a/mod.rs", "mod e;\nmod f;\nuse self::e::E;\nstruct A;"),
            ("x/src/a/e.rs", "use super::A;\nuse super::f;"),
            ("x/src/a/f.rs", "#[path = \"../g.rs\"]\nmod g;"),
            ("x/src/g.rs", "use crate::b::d;"),
        ];
        let wanted = ["a -> b x/src/g.rs:1", "a::e -> a::f x/src/a/e.rs:2", "b -> a x/src/lib.rs:1"];
        assert_eq!(edges(files), wanted);
    }

    #[test]
    fn a_path_leads_through_re_exports_to_the_module_of_the_item() {
        let files = [
            ("x/src/lib.rs", "mod a; mod b; mod c; mod d;"),
            ("x/src/a.rs", "use crate::b::C;"),
            ("x/src/b.rs", "pub(crate) use crate::c::C;"),
            ("x/src/c.rs", "pub use crate::d::*;"),
            ("x/src/d.rs", "pub struct C;"),
        ];
        let wanted = ["a -> b", "a -> c", "a -> d", "b -> c", "b -> d", "c -> d"];
        let found = edges(files);
        let found: Vec<&str> = found.iter().map(|edge| edge.split(" x/").next().unwrap()).collect();
        assert_eq!(found, wanted);
        let circle = [("x/src/lib.rs", "mod a; pub use a::A;"), ("x/src/a.rs", "pub use crate::A;")];
        assert_eq!(edges(circle), Vec::<String>::new());
    }

    #[test]
    fn a_module_without_a_file_is_told() {
        let tree = Tree::of([("x/src/lib.rs", "\nmod a;")]);
        assert_eq!(
            Modules::read(&tree, "x/src/lib.rs").missing,
            ["x/src/lib.rs:2: no file of module a was found"]
        );
    }
}
