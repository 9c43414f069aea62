//! Follows the imports of a crate to the files that define what they name, and finds cycles among them.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path as File;
use std::slice::from_ref;

use super::source::{self, Module, Path};

/// Modules of a crate that are files, each with those that it imports. The root has the empty path.
pub(super) type Imports = BTreeMap<Path, BTreeSet<Path>>;

/// Returns the imports of the crate with this root, such as `src/lib.rs`.
pub(super) fn imports_of(root: &File) -> Imports {
    let mut tree = Tree(BTreeMap::new());
    tree.load(Path::new(), root, folder_of(root));
    tree.imports()
}

/// Returns modules that import each other in a circle, other than a module and one that contains it.
pub(super) fn cycle(imports: &Imports) -> Option<Vec<Path>> {
    let mut left = imports.clone();
    for (from, list) in &mut left {
        list.retain(|to| !from.starts_with(to) && !to.starts_with(from));
    }
    // What imports no remaining module is in no cycle.
    loop {
        let ends = |list: &BTreeSet<Path>| list.iter().all(|to| !left.contains_key(to));
        let Some(end) = left
            .iter()
            .find(|(_, list)| ends(list))
            .map(|(module, _)| module.clone())
        else {
            break;
        };
        left.remove(&end);
    }
    // Each of the rest imports one of the rest.
    let mut walk = vec![left.keys().next()?.clone()];
    loop {
        let next = left[walk.last()?].iter().find(|to| left.contains_key(*to))?;
        if let Some(start) = walk.iter().position(|module| module == next) {
            return Some(walk.split_off(start));
        }
        walk.push(next.clone());
    }
}

fn folder_of(file: &File) -> &File {
    file.parent().expect("a file is in a folder")
}

/// Modules of a crate, each with the module whose file it is in. Several have one path where each processor
/// has a file of its own.
struct Tree(BTreeMap<Path, Vec<(Path, Module)>>);

impl Tree {
    /// Adds the module in a file, and those that it declares, which are in `folder`.
    fn load(&mut self, path: Path, file: &File, folder: &File) {
        let text = fs::read_to_string(file).unwrap_or_else(|error| panic!("{}: {error}", file.display()));
        let module = source::read(&text).unwrap_or_else(|error| panic!("{}: {error}", file.display()));
        self.add(path.clone(), path, module, (file, folder));
    }

    fn add(&mut self, path: Path, owner: Path, mut module: Module, (file, folder): (&File, &File)) {
        for child in std::mem::take(&mut module.children) {
            let inner = [&path[..], from_ref(&child.name)].concat();
            let below = folder.join(&child.name);
            if let Some(inline) = child.inline {
                self.add(inner, owner.clone(), inline, (file, &below));
            } else if child.files.is_empty() {
                self.load(inner, &below.with_extension("rs"), &below);
            } else {
                for given in child.files {
                    let given = file.with_file_name(given);
                    self.load(inner.clone(), &given, folder_of(&given));
                }
            }
        }
        self.0.entry(path).or_default().push((owner, module));
    }

    fn imports(&self) -> Imports {
        let mut imports = Imports::new();
        for (from, (owner, module)) in self
            .0
            .iter()
            .flat_map(|(path, all)| all.iter().map(move |one| (path, one)))
        {
            let mut found = BTreeSet::new();
            let named = module.imports.iter().map(|(_, path)| path);
            for path in named.chain(&module.globs).chain(&module.paths) {
                self.follow(from, path, &mut BTreeSet::new(), &mut found);
            }
            found.remove(owner);
            imports.entry(owner.clone()).or_default().append(&mut found);
        }
        imports
    }

    /// Adds the modules that a path in the module `from` leads to: the one that defines its item, and those
    /// that export it again. Returns whether the item's definition is known.
    fn follow(
        &self,
        from: &[String],
        path: &[String],
        seen: &mut BTreeSet<Path>,
        found: &mut BTreeSet<Path>,
    ) -> bool {
        let ups = path.iter().take_while(|name| *name == "super").count();
        let (start, rest) = match path.first().map(String::as_str) {
            Some("crate") => (0, &path[1..]),
            Some("self") => (from.len(), &path[1..]),
            _ => (from.len().saturating_sub(ups), &path[ups..]),
        };
        let mut at = from[..start].to_vec();
        let mut rest = rest.iter();
        let is_relative = rest.len() == path.len();
        while let Some(name) = rest.next() {
            at.push(name.clone());
            if self.0.contains_key(&at) {
                continue;
            }
            // An item of the module before it, or one that this module imports.
            let item = at.clone();
            at.pop();
            if !seen.insert(item) {
                return false;
            }
            let here = &self.0[&at];
            let all = || here.iter().map(|(_, module)| module);
            let mut is_known = all().any(|module| module.items.contains(name));
            let imports = all()
                .flat_map(|module| &module.imports)
                .filter(|(known, _)| known == name);
            for path in imports.map(|(_, path)| path) {
                is_known |= self.follow(&at, &[&path[..], rest.as_slice()].concat(), seen, found);
            }
            if !is_known {
                let globs = all().flat_map(|module| &module.globs);
                for glob in globs {
                    let path = [&glob[..], from_ref(name), rest.as_slice()].concat();
                    is_known |= self.follow(&at, &path, seen, found);
                }
            }
            // A relative path whose first name is not known is that of another crate.
            if is_known || !is_relative || at.len() > from.len() {
                found.extend(here.iter().map(|(owner, _)| owner.clone()));
            }
            return is_known;
        }
        found.extend(self.0[&at].iter().map(|(owner, _)| owner.clone()));
        true
    }
}

#[cfg(test)]
mod tests {
    use tempfile::TempDir;

    use super::*;

    /// Returns the imports of a crate with these files, the first of which is the root.
    fn imports(files: &[(&str, &str)]) -> Imports {
        let folder = TempDir::new().unwrap();
        for (name, text) in files {
            let file = folder.path().join(name);
            fs::create_dir_all(file.parent().unwrap()).unwrap();
            fs::write(file, text).unwrap();
        }
        imports_of(&folder.path().join(files[0].0))
    }

    fn module(path: &str) -> Path {
        path.split('/')
            .filter(|name| !name.is_empty())
            .map(str::to_owned)
            .collect()
    }

    #[track_caller]
    fn assert_imports(imports: &Imports, from: &str, to: &[&str]) {
        let to: BTreeSet<Path> = to.iter().map(|path| module(path)).collect();
        assert_eq!(imports[&module(from)], to, "{from}");
    }

    #[test]
    fn modules_are_found_in_every_kind_of_file() {
        let imports = imports(&[
            (
                "lib.rs",
                "mod a; mod b; #[cfg_attr(unix, path = \"c_unix.rs\")] mod c; mod d { mod e; }",
            ),
            ("a.rs", "mod f; use crate::b::g::X;"),
            ("a/f.rs", "use super::super::b; fn f() { crate::d::e::Y::new() }"),
            ("b.rs", "mod g; #[cfg(test)] mod absent;"),
            ("b/g.rs", "pub struct X; use self::X as Z;"),
            ("c_unix.rs", "use super::a;"),
            ("d/e.rs", "pub struct Y;"),
        ]);
        assert_imports(&imports, "", &[]);
        assert_imports(&imports, "a", &["b/g"]);
        assert_imports(&imports, "a/f", &["b", "d/e"]);
        assert_imports(&imports, "b/g", &[]);
        assert_imports(&imports, "c", &["a"]);
        assert_eq!(imports.len(), 7);
    }

    #[test]
    fn exported_names_lead_to_their_definition() {
        let imports = imports(&[
            (
                "main.rs",
                "mod a; mod b; mod c; mod d; mod e; use b::X; pub(crate) use c::*;",
            ),
            (
                "a.rs",
                "use super::X; use std::fmt; fn f() -> fmt::Result { fmt::write() }",
            ),
            ("b.rs", "pub struct X; use crate::{d, Y, Unknown};"),
            ("c.rs", "pub enum Y { Z } pub use crate::e::new as made;"),
            ("d.rs", "use crate::b; fn f() { b::X; crate::made() }"),
            (
                "e.rs",
                "pub fn new() {} use crate::c; use c::Y::Z; macro_rules! m { () => { $crate::b::X } }",
            ),
        ]);
        assert_imports(&imports, "a", &["", "b"]);
        assert_imports(&imports, "b", &["", "c", "d"]);
        assert_imports(&imports, "d", &["", "b", "c", "e"]);
        assert_imports(&imports, "e", &["b", "c"]);
    }

    #[test]
    fn modules_that_import_each_other_are_a_cycle() {
        let root = ("lib.rs", "mod a; mod b; mod c;");
        let in_order = [
            root,
            ("a.rs", "use crate::b;"),
            ("b.rs", "use crate::c;"),
            ("c.rs", ""),
        ];
        assert_eq!(cycle(&imports(&in_order)), None);
        let in_circle = [
            root,
            in_order[1],
            in_order[2],
            ("c.rs", "fn f() { super::a::g() }"),
        ];
        assert_eq!(
            cycle(&imports(&in_circle)),
            Some(vec![module("a"), module("b"), module("c")])
        );
        let hidden = [
            ("lib.rs", "mod a; mod b; use a::X;"),
            ("a.rs", "use crate::b; struct X;"),
            ("b.rs", "use super::X;"),
        ];
        assert_eq!(cycle(&imports(&hidden)), Some(vec![module("a"), module("b")]));
    }

    #[test]
    fn module_and_its_children_may_import_each_other() {
        let files = [
            ("lib.rs", "mod a; use a::X;"),
            ("a.rs", "mod b; use b::Y; pub struct X; use crate::Z;"),
            ("a/b.rs", "use super::X; pub struct Y;"),
        ];
        let imports = imports(&files);
        assert_imports(&imports, "a", &["", "a/b"]);
        assert_imports(&imports, "a/b", &["a"]);
        assert_eq!(cycle(&imports), None);
    }
}
