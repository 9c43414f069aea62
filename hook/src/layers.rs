//! Layers of the hook: a file imports only from its own layer and those below, and no two files import each
//! other, except a module and its children.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

/// Layers from the lowest. A file belongs to the layer that has its path or its first directory. Parts in one
/// line know nothing of each other.
const LAYERS: &[&[&str]] = &[
    &["arch"],
    &["sys"],
    &["driver"],
    &["shared"],
    &["helper"],
    &["program"],
    &["memory", "compute"],
    &["swap"],
    &["hook"],
    &["calls"],
    &["rows"],
    &["coverage"],
    &["symbols"],
    &["table"],
    &["start"],
];

/// A module by its path, such as `["compute", "gate"]`.
type Module = Vec<String>;

/// Adds every module in a folder, with its text.
fn read(folder: &Path, above: &Module, found: &mut BTreeMap<Module, String>) {
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_stem().unwrap().to_str().unwrap().to_owned();
        let mut module = above.clone();
        if path.is_dir() {
            module.push(name);
            read(&path, &module, found);
        } else if path.extension().is_some_and(|end| end == "rs") {
            if !["mod", "lib"].contains(&&*name) {
                module.push(name);
            }
            found.insert(module, fs::read_to_string(&path).unwrap());
        }
    }
}

/// Returns every module of the crate except tests, with its code.
fn modules() -> BTreeMap<Module, String> {
    let mut texts = BTreeMap::new();
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    read(&source, &Vec::new(), &mut texts);
    let is_test = |module: &[String]| {
        let (name, above) = module.split_last().unwrap();
        texts[above].contains(&format!("#[cfg(test)]\nmod {name};"))
    };
    let in_test = |module: &Module| (1..=module.len()).any(|length| is_test(&module[..length]));
    let code = texts
        .iter()
        .filter(|(module, _)| !module.is_empty() && !in_test(module));
    code.map(|(module, text)| (module.clone(), without_tests(text)))
        .collect()
}

/// Returns the code of a file without comments and without items under `cfg(test)`.
fn without_tests(text: &str) -> String {
    let lines = text.lines().map(|line| line.split("//").next().unwrap_or(""));
    let code: Vec<&str> = lines.collect();
    let mut kept = String::new();
    let mut rest = code.join("\n");
    while let Some(start) = rest.find("#[cfg(test)]") {
        kept.push_str(&rest[..start]);
        let item = &rest[start + "#[cfg(test)]".len()..];
        // An item ends with its outermost brace, or with a semicolon outside braces.
        let mut depth = 0_i32;
        let end = item.find(|sign| {
            depth += i32::from(sign == '{') - i32::from(sign == '}');
            depth == 0 && matches!(sign, '}' | ';')
        });
        rest = item[end.map_or(item.len(), |end| end + 1)..].to_owned();
    }
    kept + &rest
}

/// Returns the paths of a `use` tree, such as `a::{b, c::d}`.
fn paths_of(tree: &str) -> Vec<Vec<String>> {
    let tree = tree.trim();
    let names = |path: &str| -> Vec<String> {
        let path = path.split(" as ").next().unwrap_or("");
        let names = path.split("::").map(str::trim).filter(|name| !name.is_empty());
        names.map(str::to_owned).collect()
    };
    let Some((before, list)) = tree.split_once('{') else {
        return vec![names(tree)];
    };
    let list = list.strip_suffix('}').unwrap_or(list);
    let (mut depth, mut begin, mut parts) = (0, 0, Vec::new());
    for (at, sign) in list.char_indices().chain([(list.len(), ',')]) {
        depth += i32::from(sign == '{') - i32::from(sign == '}');
        if sign == ',' && depth == 0 {
            parts.push(&list[begin..at]);
            begin = at + 1;
        }
    }
    let parts = parts.into_iter().filter(|part| !part.trim().is_empty());
    let whole = parts
        .flat_map(paths_of)
        .map(|path| [names(before), path].concat());
    whole.collect()
}

/// Returns every path to a module of the crate that the code names.
fn named(code: &str) -> Vec<Vec<String>> {
    let mut named = Vec::new();
    let mut rest = String::new();
    for (number, part) in code.split("use ").enumerate() {
        match part
            .split_once(';')
            .filter(|(tree, _)| number != 0 && !tree.contains(['(', '=']))
        {
            Some((tree, after)) => {
                named.extend(paths_of(tree));
                rest.push_str(after);
            }
            None => rest.push_str(part),
        }
        rest.push('\n');
    }
    let is_name = |sign: char| sign.is_alphanumeric() || matches!(sign, '_' | ':');
    let words = rest.split(|sign| !is_name(sign));
    let inline = words.filter(|word| word.starts_with("crate::") || word.starts_with("super::"));
    named.extend(inline.flat_map(paths_of));
    named
}

/// Returns the modules that each module names.
fn imports() -> BTreeMap<Module, BTreeSet<Module>> {
    let all = modules();
    let of = |(module, code): (&Module, &String)| {
        let found = named(code).into_iter().filter_map(|path| {
            let ups = path.iter().take_while(|name| *name == "super").count();
            let mut path = match path.first().map(String::as_str) {
                Some("crate") => path[1..].to_vec(),
                Some("self") => [&module[..], &path[1..]].concat(),
                Some("super") => [&module[..module.len().checked_sub(ups)?], &path[ups..]].concat(),
                _ => [&module[..], &path[..]].concat(),
            };
            while !all.contains_key(&path) {
                path.pop()?;
            }
            (path != *module).then_some(path)
        });
        (module.clone(), found.collect())
    };
    all.iter().map(of).collect()
}

/// Returns the layer of a module and its place in it.
fn layer(module: &Module) -> (usize, usize) {
    let found = LAYERS.iter().enumerate().find_map(|(number, parts)| {
        let place = parts.iter().position(|part| *part == module[0])?;
        Some((number, place))
    });
    found.unwrap_or_else(|| panic!("{module:?} has no layer: add it to LAYERS"))
}

fn is_family(one: &Module, other: &Module) -> bool {
    one.starts_with(other) || other.starts_with(one)
}

#[test]
fn imports_lead_to_lower_layers() {
    let imports = imports();
    assert!(imports.len() > 100, "the files are not read aright");
    let nr_edges: usize = imports.values().map(BTreeSet::len).sum();
    assert!(nr_edges > 500, "the imports are not read aright: {nr_edges}");
    for (from, list) in &imports {
        for to in list {
            let ((above, part), (below, other)) = (layer(from), layer(to));
            assert!(
                above > below || (above, part) == (below, other),
                "{} must not import {}",
                from.join("/"),
                to.join("/")
            );
        }
    }
}

#[test]
fn files_do_not_import_each_other() {
    let mut left = imports();
    for (from, list) in &mut left {
        list.retain(|to| !is_family(from, to));
    }
    // A file is in no cycle if it imports none of the remaining files, or if none of them imports it.
    loop {
        let imported: BTreeSet<Module> = left.values().flatten().cloned().collect();
        let is_in =
            |(module, list): &(&Module, &BTreeSet<Module>)| !list.is_empty() && imported.contains(*module);
        let inside: BTreeSet<Module> = left
            .iter()
            .filter(is_in)
            .map(|(module, _)| module.clone())
            .collect();
        if inside.len() == left.len() {
            break;
        }
        left.retain(|module, _| inside.contains(module));
        for list in left.values_mut() {
            list.retain(|to| inside.contains(to));
        }
    }
    assert!(left.is_empty(), "there are cycles among these imports: {left:#?}");
}
