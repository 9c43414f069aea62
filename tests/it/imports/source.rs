//! Reads which modules a Rust source declares, and which names it imports, uses by their path, and defines.
//! Items under `cfg(test)` are left out.

use std::collections::BTreeSet;
use std::iter::Peekable;
use std::vec::IntoIter;

use proc_macro2::{Delimiter, Ident, Spacing, TokenStream, TokenTree};

/// A path such as `["crate", "compute", "gate"]`.
pub(super) type Path = Vec<String>;

/// Contents of a module. Code in blocks and bodies of functions is part of the module around it.
#[derive(Debug, Default, PartialEq)]
pub(super) struct Module {
    pub(super) children: Vec<Child>,
    /// Leaves of `use` trees: the name that the module has for it, and its path.
    pub(super) imports: Vec<(String, Path)>,
    /// Paths of `use` trees that end with `*`.
    pub(super) globs: Vec<Path>,
    /// Paths of two names or more outside `use`.
    pub(super) paths: Vec<Path>,
    /// Items that the module defines.
    pub(super) items: BTreeSet<String>,
}

/// A module that is declared with `mod`.
#[derive(Debug, PartialEq)]
pub(super) struct Child {
    pub(super) name: String,
    /// Paths that `#[path]` gives, relative to the folder of the declaration: one for each platform.
    pub(super) files: Vec<String>,
    /// Content, unless it is in a file.
    pub(super) inline: Option<Module>,
}

type Tokens = Peekable<IntoIter<TokenTree>>;

/// Reads a source.
///
/// # Errors
/// The text is not Rust.
pub(super) fn read(text: &str) -> Result<Module, String> {
    let tokens: TokenStream = text.parse().map_err(|error| format!("{error}"))?;
    let mut module = Module::default();
    add(&mut module, tokens);
    Ok(module)
}

fn tokens_of(stream: TokenStream) -> Tokens {
    let all: Vec<TokenTree> = stream.into_iter().collect();
    all.into_iter().peekable()
}

fn is_sign(token: Option<&TokenTree>, sign: char) -> bool {
    matches!(token, Some(TokenTree::Punct(punct)) if punct.as_char() == sign)
}

/// Takes `::`, if it is next.
fn take_colons(tokens: &mut Tokens) -> bool {
    let is_first = |token: &TokenTree| match token {
        TokenTree::Punct(sign) => sign.as_char() == ':' && sign.spacing() == Spacing::Joint,
        _ => false,
    };
    tokens.next_if(is_first).is_some() && tokens.next().is_some()
}

fn take_name(tokens: &mut Tokens) -> Option<String> {
    match tokens.next_if(|token| matches!(token, TokenTree::Ident(_)))? {
        TokenTree::Ident(word) => Some(plain(&word)),
        _ => None,
    }
}

/// Adds what a stream of tokens contains to its module.
fn add(module: &mut Module, stream: TokenStream) {
    let mut tokens = tokens_of(stream);
    let mut files = Vec::new();
    loop {
        // What follows an absolute path, or the type in `<T as Trait>::Item`, names no module of the crate.
        if take_colons(&mut tokens) {
            path_from(Vec::new(), &mut tokens);
            continue;
        }
        let Some(token) = tokens.next() else { return };
        match token {
            TokenTree::Punct(punct) if punct.as_char() == '#' => match attribute(&mut tokens) {
                Attribute::Test => skip_item(&mut tokens),
                Attribute::Path(path) => files.push(path),
                Attribute::Other => {}
            },
            TokenTree::Group(group) => add(module, group.stream()),
            TokenTree::Ident(word) => match word.to_string().as_str() {
                "use" if !is_sign(tokens.peek(), '<') => add_tree(module, &[], &mut tokens),
                "mod" => add_child(module, std::mem::take(&mut files), &mut tokens),
                "fn" | "struct" | "enum" | "union" | "trait" | "type" | "const" | "static" => {
                    let name = tokens.peek().map(ToString::to_string);
                    // The name in `const fn` is that of the function.
                    module.items.extend(name.filter(|name| name != "fn"));
                }
                _ => {
                    let path = path_from(vec![plain(&word)], &mut tokens);
                    if path.len() > 1 {
                        module.paths.push(path);
                    }
                }
            },
            TokenTree::Punct(_) | TokenTree::Literal(_) => {}
        }
    }
}

/// Returns a path with the names that follow.
fn path_from(mut path: Path, tokens: &mut Tokens) -> Path {
    while path.is_empty() || take_colons(tokens) {
        let Some(name) = take_name(tokens) else { break };
        path.push(name);
    }
    path
}

enum Attribute {
    /// The item after it is only compiled for tests.
    Test,
    Path(String),
    Other,
}

/// Takes an attribute after its `#`.
fn attribute(tokens: &mut Tokens) -> Attribute {
    tokens.next_if(|token| is_sign(Some(token), '!'));
    let Some(TokenTree::Group(group)) = tokens.next_if(|token| matches!(token, TokenTree::Group(_))) else {
        return Attribute::Other;
    };
    let text: String = group.stream().to_string().split_whitespace().collect();
    if text == "cfg(test)" || text.starts_with("cfg(all(test") {
        return Attribute::Test;
    }
    let is_path = text.starts_with("path=") || text.starts_with("cfg_attr(");
    match text.split_once("path=\"") {
        Some((_, path)) if is_path => Attribute::Path(path.split('"').next().unwrap_or_default().to_owned()),
        _ => Attribute::Other,
    }
}

/// Takes tokens up to the end of an item: a semicolon, or a body in braces.
fn skip_item(tokens: &mut Tokens) {
    let is_end = |token: &TokenTree| match token {
        TokenTree::Group(group) => group.delimiter() == Delimiter::Brace,
        token => is_sign(Some(token), ';'),
    };
    while tokens.next().is_some_and(|token| !is_end(&token)) {}
}

fn add_child(module: &mut Module, files: Vec<String>, tokens: &mut Tokens) {
    // The name in a macro's pattern is a variable.
    let Some(name) = take_name(tokens) else { return };
    let inline = match tokens.peek() {
        Some(TokenTree::Group(group)) => {
            let mut inline = Module::default();
            add(&mut inline, group.stream());
            tokens.next();
            Some(inline)
        }
        _ => None,
    };
    module.children.push(Child { name, files, inline });
}

/// Adds the leaves of a `use` tree up to its semicolon, or of a branch up to its comma.
fn add_tree(module: &mut Module, above: &[String], tokens: &mut Tokens) {
    let (mut path, mut renamed) = (above.to_vec(), None);
    loop {
        match tokens.next() {
            Some(TokenTree::Ident(word)) if word == "as" => renamed = take_name(tokens),
            Some(TokenTree::Ident(word)) => path.push(plain(&word)),
            Some(TokenTree::Group(group)) => {
                let mut branches = tokens_of(group.stream());
                while branches.peek().is_some() {
                    add_tree(module, &path, &mut branches);
                }
                path.clear();
            }
            Some(TokenTree::Punct(sign)) if sign.as_char() == '*' => {
                module.globs.push(std::mem::take(&mut path));
            }
            Some(TokenTree::Punct(sign)) if sign.as_char() == ':' => {
                // An absolute path begins with the name of a crate: no module has an empty name.
                if path.is_empty() {
                    path.push(String::new());
                }
            }
            _ => break,
        }
    }
    if path.last().is_some_and(|last| last == "self") {
        path.pop();
    }
    if let Some(last) = path.last() {
        let name = renamed.unwrap_or_else(|| last.clone());
        module.imports.push((name, path));
    }
}

/// Returns a name without the sign of a raw identifier.
fn plain(word: &Ident) -> String {
    word.to_string().trim_start_matches("r#").to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn path(text: &str) -> Path {
        text.split("::").map(str::to_owned).collect()
    }

    fn paths(texts: &[&str]) -> Vec<Path> {
        texts.iter().map(|text| path(text)).collect()
    }

    fn imports(text: &str) -> Vec<(String, String)> {
        let imports = read(text).unwrap().imports.into_iter();
        imports.map(|(name, path)| (name, path.join("::"))).collect()
    }

    #[track_caller]
    fn assert_imports(text: &str, expected: &[(&str, &str)]) {
        let expected: Vec<(String, String)> = expected
            .iter()
            .map(|(name, path)| ((*name).into(), (*path).into()))
            .collect();
        assert_eq!(imports(text), expected, "{text}");
    }

    #[test]
    fn use_trees_are_read_to_their_leaves() {
        assert_imports("use crate::a;", &[("a", "crate::a")]);
        assert_imports(
            "pub(crate) use super::super::a::B as C;",
            &[("C", "super::super::a::B")],
        );
        assert_imports(
            "use a::{self, b::{C, d::{E as F, G}}, super::H};",
            &[
                ("a", "a"),
                ("C", "a::b::C"),
                ("F", "a::b::d::E"),
                ("G", "a::b::d::G"),
                ("H", "a::super::H"),
            ],
        );
        assert_imports(
            "use {a, self::b::{self as c}, d as _,};",
            &[("a", "a"), ("c", "self::b"), ("_", "d")],
        );
        assert_imports(
            "use ::a::b; use r#type::r#fn;",
            &[("b", "::a::b"), ("fn", "type::fn")],
        );
        assert_imports(
            "fn f() { if x { use a::b; } } fn g(x: impl T + use<'_, U>) {}",
            &[("b", "a::b")],
        );
        let module = read("use a::{b::*, C}; pub use super::*;").unwrap();
        assert_eq!(module.globs, paths(&["a::b", "super"]));
        assert_eq!(module.imports, [("C".to_owned(), path("a::C"))]);
    }

    #[test]
    fn paths_outside_use_are_read() {
        let read_paths = |text: &str| read(text).unwrap().paths;
        assert_eq!(
            read_paths("fn f(x: crate::a::B<super::c::D>) { e::<u8>(self::f::g(h::I { j: k }), l!(m::n)) }"),
            paths(&["crate::a::B", "super::c::D", "self::f::g", "h::I", "m::n"])
        );
        assert_eq!(
            read_paths("type A = <B as c::D>::E; fn f() { ::std::f(); g.h::<i::J>() }"),
            paths(&["c::D", "i::J"])
        );
        assert_eq!(
            read_paths("/* a::b */ // c::d\n/// e::f\nconst G: &str = \"h::i\";"),
            paths(&[])
        );
        assert_eq!(
            read_paths("macro_rules! m { ($x:expr) => { $crate::a::b($x) } }"),
            paths(&["crate::a::b"])
        );
    }

    #[test]
    fn items_for_tests_are_left_out() {
        let tests = "#[cfg(test)] mod a; #[cfg(test)] #[path = \"x.rs\"] mod b { use c::d; } \
                     #[cfg(all(test, unix))] use e::{f, g}; #[cfg(test)] pub(crate) fn h() { i::j() }";
        assert_eq!(read(tests).unwrap(), Module::default());
        let module = read(&format!("{tests} #[cfg(not(test))] use k::l; mod m;")).unwrap();
        assert_eq!(module.imports, [("l".to_owned(), path("k::l"))]);
        assert_eq!(module.children.len(), 1);
    }

    #[test]
    fn modules_and_items_are_read() {
        let module = read(
            "#[cfg_attr(a, path = \"a.rs\")] #[cfg_attr(b, path = \"b.rs\")] mod c; \
             pub mod d { use super::e; fn f() {} } \
             pub struct G; const fn h() {} static I: u8 = 0; enum J { K }",
        );
        let module = module.unwrap();
        let [c, d] = &module.children[..] else {
            panic!("{module:?}")
        };
        assert_eq!(
            (&*c.name, &c.files[..], &c.inline),
            ("c", &["a.rs".to_owned(), "b.rs".to_owned()][..], &None)
        );
        let inline = d.inline.as_ref().unwrap();
        assert_eq!(
            (&*d.name, inline.imports.len(), inline.items.contains("f")),
            ("d", 1, true)
        );
        assert_eq!(
            module.items.iter().map(String::as_str).collect::<Vec<_>>(),
            ["G", "I", "J", "h"]
        );
        assert!(read("fn f( {").is_err());
    }
}
