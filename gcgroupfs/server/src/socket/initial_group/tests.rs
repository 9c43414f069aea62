use super::*;
use gcgroupfs_model::rules::{Facts, Rules};
use gcgroupfs_model::tree::fixture::World;

const ALICE: u32 = 1000;

fn alice() -> Credentials {
    Credentials {
        uid: ALICE,
        gid: ALICE,
        pid: 1,
        groups: vec![27],
        is_contained: false,
    }
}

fn root() -> Credentials {
    Credentials::default()
}

fn make(world: &World, path: &str, owner: u32) -> GroupId {
    let (above, name) = path.rsplit_once('/').unwrap_or(("", path));
    make_in(world, above, name, owner).unwrap()
}

fn make_in(world: &World, above: &str, name: &str, owner: u32) -> Result<GroupId> {
    let parent = match above {
        "" => Directory::ROOT,
        above => find(world, above).unwrap(),
    };
    let caller = Caller {
        uid: owner,
        gid: owner,
        pid: 0,
    };
    let (made, change) = world.tree.make_group(&new_group(parent, name, caller))?;
    world.tree.finish(change);
    Ok(made)
}

fn find(world: &World, path: &str) -> Result<Directory> {
    path.split('/').try_fold(Directory::ROOT, |directory, name| {
        world.tree.subdirectory(directory, name)
    })
}

fn owner(world: &World, path: &str) -> u32 {
    world.tree.owner(find(world, path).unwrap()).unwrap().uid
}

/// Calls `look` with the facts about a process.
fn with_facts<R>(
    who: &Credentials,
    above: Option<GroupId>,
    (rule, wish): (&str, &str),
    look: impl FnOnce(&GroupFacts<'_>) -> R,
) -> R {
    #[derive(serde::Deserialize)]
    struct Of {
        rule: Rules,
    }
    let rules = match rule {
        "" => Rules::default(),
        text => toml::from_str::<Of>(&format!("[[rule]]\n{text}")).unwrap().rule,
    };
    let wish = Some(wish).filter(|wish| !wish.is_empty());
    let facts = Facts {
        uid: who.uid,
        wish: wish.map(str::to_owned),
        ..Facts::default()
    };
    let verdict = &rules.verdict(&facts);
    look(&GroupFacts {
        names_job: false,
        who,
        above,
        verdict,
        wish,
    })
}

/// Returns the path of the group in which a process begins, and the log messages.
fn begins(
    world: &World,
    who: Credentials,
    above: Option<GroupId>,
    rule: &str,
    wish: &str,
) -> (String, String) {
    let look = |facts: &GroupFacts<'_>| find_initial_group(&world.tree, facts);
    let beginning = with_facts(&who, above, (rule, wish), look);
    (world.tree.path(beginning.group), beginning.troubles.join("\n"))
}

#[test]
fn rule_group_has_its_settings_and_belongs_to_root() {
    let world = World::new(1);
    let rule = "group = { name = \"users/u{uid}\", memory.limit = 4096 }";
    assert_eq!(begins(&world, alice(), None, rule, "").0, "users/u1000");
    assert_eq!(world.show("users/u1000/memory.limit"), "4096\n");
    assert_eq!(world.show("users/memory.limit"), "max\n");
    assert_eq!((owner(&world, "users"), owner(&world, "users/u1000")), (0, 0));
    // An existing group keeps its settings.
    make(&world, "users/u7", 0);
    let seven = Credentials { uid: 7, ..alice() };
    assert_eq!(begins(&world, seven, None, rule, "").0, "users/u7");
    assert_eq!(world.show("users/u7/memory.limit"), "max\n");
}

#[test]
fn delegated_group_belongs_to_its_user_within_roots_bounds() {
    let world = World::new(1);
    let rule = "group = { name = \"users/u{uid}\", delegate = true, memory.limit = 4096 }";
    assert_eq!(begins(&world, alice(), None, rule, "").0, "users/u1000");
    assert_eq!((owner(&world, "users"), owner(&world, "users/u1000")), (0, ALICE));
    let caller = alice().caller();
    world.store("users/u1000/memory.limit", caller, "1024").unwrap();
    world.store("users/u1000/memory.limit", caller, "4096").unwrap();
    let error = world
        .store("users/u1000/memory.limit", caller, "4097")
        .unwrap_err();
    assert_eq!(error.errno(), libc::EPERM);
}

#[test]
fn child_begins_in_its_parents_group_despite_rules() {
    let world = World::new(1);
    let above = make(&world, "job", 0);
    let begun = begins(&world, alice(), Some(above), "group.name = \"other\"", "");
    assert_eq!(begun, ("job".to_owned(), String::new()));
    assert!(find(&world, "other").is_err());
}

#[test]
fn requested_group_needs_permission_to_enter_and_create() {
    let world = World::new(1);
    make(&world, "roots", 0);
    make(&world, "hers", ALICE);
    for (wish, hers, roots) in [
        ("hers", true, true),
        ("/hers/", true, true),
        ("hers/new/deep", true, true),
        ("roots", false, true),
        ("roots/new", false, true),
        ("new", false, true),
        ("hers/memory.limit", false, false),
        ("hers/..", false, false),
        ("hers//a", false, false),
        ("hers/7", false, false),
        ("a/a/a/a/a/a/a/a/a", false, false),
    ] {
        for (who, granted) in [(alice(), hers), (root(), roots)] {
            let (group, trouble) = begins(&world, who, None, "", wish);
            if granted {
                assert_eq!((group.as_str(), trouble.as_str()), (wish.trim_matches('/'), ""));
            } else {
                assert_eq!(group, "", "{wish}");
                assert!(trouble.contains("not admitted"), "{wish}: {trouble}");
            }
            world.tree.reap_transient(None);
        }
    }
}

#[test]
fn permission_to_create_follows_the_mode_as_in_the_kernel() {
    let world = World::new(1);
    make(&world, "shared", 7);
    let directory = find(&world, "shared").unwrap();
    let give = |gid, mode| {
        let seven = root().caller();
        let given = world
            .tree
            .set_access(directory, seven, (None, Some(gid)), Some(mode));
        world.tree.finish(given.unwrap());
    };
    for (gid, mode, may) in [
        (27, 0o775, true),
        (1000, 0o775, true),
        (28, 0o775, false),
        (28, 0o777, true),
        // A member of the directory's group is not one of the others.
        (27, 0o707, false),
        (27, 0o755, false),
    ] {
        give(gid, mode);
        assert_eq!(
            may_begin(&world.tree, &alice(), "shared/new").is_ok(),
            may,
            "{gid} {mode:o}"
        );
        assert_eq!(
            begins(&world, alice(), None, "", "shared/new").0 == "shared/new",
            may
        );
        world.tree.reap_transient(None);
    }
    assert!(
        may_begin(&world.tree, &alice(), "shared").is_err(),
        "its files are not hers"
    );
}

#[test]
fn request_counts_within_the_initial_group() {
    let world = World::new(1);
    make(&world, "elsewhere", ALICE);
    let delegated = "group = { name = \"u{uid}\", delegate = true }";
    assert_eq!(
        begins(&world, alice(), None, delegated, "u1000/sub").0,
        "u1000/sub"
    );
    let (group, trouble) = begins(&world, alice(), None, delegated, "elsewhere");
    assert_eq!(group, "u1000");
    assert!(trouble.contains("outside"), "{trouble}");
    // Allowed if both lie in a group that is the user's.
    let one = make(&world, "elsewhere/one", ALICE);
    make(&world, "elsewhere/other", ALICE);
    assert_eq!(
        begins(&world, alice(), Some(one), "", "elsewhere/other").0,
        "elsewhere/other"
    );
    assert_eq!(begins(&world, alice(), Some(one), "", "u1000").0, "elsewhere/one");
    // Root may choose any group, and a rule may honour any request.
    assert_eq!(begins(&world, root(), Some(one), "", "u1000").0, "u1000");
    let granted = "match.wish = \"*\"\ngroup.name = \"batch/{wish}\"";
    assert_eq!(
        begins(&world, alice(), None, granted, "a"),
        ("batch/a".into(), String::new())
    );
}

#[test]
fn request_for_the_initial_group_needs_no_right_to_enter() {
    let world = World::new(1);
    let job = make(&world, "job", 0);
    make(&world, "job/step", 0);
    for wish in ["job", "/job/"] {
        assert_eq!(
            begins(&world, alice(), Some(job), "", wish),
            ("job".into(), String::new())
        );
    }
    let (group, trouble) = begins(&world, alice(), Some(job), "", "job/step");
    assert_eq!(group, "job");
    assert!(trouble.contains("not admitted"), "{trouble}");
    assert!(
        begins(&world, alice(), None, "", "job")
            .1
            .contains("not admitted")
    );
}

#[test]
fn impossible_rule_group_leaves_the_deepest_group_reached() {
    let world = World::new(1);
    let deep = "group.name = \"b/c/d/e/f/g/h/{wish}\"";
    let (group, trouble) = begins(&world, alice(), None, deep, "i/j");
    assert_eq!(group, "b/c/d/e/f/g/h/i");
    assert!(trouble.contains("which a rule names"), "{trouble}");
    // A process cannot leave the rule's group by its request.
    let by_wish = "group.name = \"users/u{uid}/{wish}\"";
    for wish in ["memory.limit", "..", "a//b", "7"] {
        let (group, trouble) = begins(&world, alice(), None, by_wish, wish);
        assert!(group.starts_with("users/u1000"), "{wish}: {group}");
        assert!(!trouble.is_empty());
    }
    world.tree.reap_transient(None);
    assert!(find(&world, "b").is_err() && find(&world, "users").is_err());
}

#[test]
fn user_over_the_group_quota_still_gets_the_rule_group() {
    let world = World::new(1);
    make(&world, "hers", ALICE);
    let mut nr_made = 1;
    while make_in(&world, "hers", &format!("g{nr_made}"), ALICE).is_ok() {
        nr_made += 1;
        assert!(nr_made < 10_000, "there is no end to it");
    }
    let delegated = "group = { name = \"u{uid}/{comm}x\", delegate = true }";
    assert_eq!(begins(&world, alice(), None, delegated, "").0, "u1000/x");
    assert_eq!(owner(&world, "u1000/x"), ALICE);
    let by_wish = "group.name = \"users/u{uid}/{wish}\"";
    assert_eq!(begins(&world, alice(), None, by_wish, "a/b").0, "users/u1000");
    assert_eq!(begins(&world, alice(), None, "", "hers/new").0, "");
}

#[test]
fn group_of_a_job_is_found_and_never_made() {
    let world = World::new(1);
    make(&world, "hers", ALICE);
    make(&world, "hers/there", ALICE);
    let begins = |wish: &str, names_job| {
        let look =
            |facts: &GroupFacts<'_>| find_initial_group(&world.tree, &GroupFacts { names_job, ..*facts });
        let begins = with_facts(&alice(), None, ("", wish), look);
        (world.tree.path(begins.group), begins.is_as_requested)
    };
    assert_eq!(begins("hers/there", true), ("hers/there".to_owned(), true));
    for (wish, names_job) in [
        ("hers/night", true),
        ("hers/job-4711", false),
        ("hers/job-4711-2", true),
    ] {
        assert_eq!(begins(wish, names_job), (String::new(), false), "{wish}");
    }
    assert_eq!(begins("hers/job-x", false), ("hers/job-x".to_owned(), true));
}

#[test]
fn check_before_the_start_reports_invalid_names() {
    let world = World::new(1);
    for (path, errno) in [
        ("team/a", 0),
        ("a/b/c/d/e/f/g/h", 0),
        ("a/b/c/d/e/f/g/h/i", libc::EMLINK),
        ("5", libc::EINVAL),
        ("team/5", libc::EINVAL),
        ("../team", libc::EINVAL),
        ("team//a", libc::EINVAL),
        ("memory.limit", libc::EINVAL),
        ("team/memory.limit", libc::EINVAL),
    ] {
        let answer = may_begin(&world.tree, &root(), path).map_or_else(|error| error.errno(), |()| 0);
        assert_eq!(answer, errno, "{path}");
        let (begun, trouble) = begins(&world, root(), None, "", path);
        assert_eq!(begun == path, errno == 0, "{path}: {trouble}");
        world.tree.reap_transient(None);
    }
}

#[test]
fn request_from_a_container_needs_a_rule() {
    let world = World::new(1);
    make(&world, "team", 0);
    let contained = || Credentials {
        is_contained: true,
        ..root()
    };
    for wish in ["team", "team/new", "new"] {
        let (begins_in, trouble) = begins(&world, contained(), None, "", wish);
        assert_eq!(begins_in, "");
        assert!(trouble.contains("container"), "{trouble}");
        assert!(may_begin(&world.tree, &contained(), wish).is_err());
    }
    let rule = "match.wish = \"team/*\"\ngroup.name = \"{wish}\"";
    assert_eq!(begins(&world, contained(), None, rule, "team/new").0, "team/new");
}

#[test]
fn foreseen_devices_are_those_of_the_initial_group() {
    let world = World::new(4);
    let listed = make(&world, "listed", 0);
    let hers = make(&world, "hers", ALICE);
    make(&world, "hers/one", 0);
    for (path, list) in [("listed", "1-3"), ("hers", "0-2"), ("hers/one", "1")] {
        let file = format!("{path}/gcgroup.devices");
        world.store(&file, root().caller(), list).unwrap();
    }
    let list = "gcgroup.devices = \"2-3\"";
    let rules = [
        String::new(),
        format!("group = {{ name = \"listed\", {list} }}"),
        format!("group = {{ name = \"new\", {list} }}"),
        format!("group = {{ name = \"listed/new/u{{uid}}\", {list} }}"),
        format!("group = {{ name = \"listed/u{{uid}}\", delegate = true, {list} }}"),
        format!("group = {{ name = \"hers/u{{uid}}\", {list} }}"),
        format!("group = {{ name = \"listed/{{wish}}\", {list} }}"),
        "group = { name = \"hers/new\" }".to_owned(),
        "group = { name = \"new\", gcgroup.devices = \"none\" }".to_owned(),
        "group = { name = \"listed/new\", gcgroup.devices = \"all\" }".to_owned(),
    ];
    let wishes = [
        "",
        "listed",
        "listed/new",
        "listed/new/u0/sub",
        "listed/u0/sub",
        "listed/u1000/sub",
        "hers",
        "hers/one",
        "/hers/one/sub/",
        "hers/u1000",
        "hers/new/sub",
        "new",
        "new/sub",
        "other",
        "memory.limit",
    ];
    let contained = Credentials {
        is_contained: true,
        ..alice()
    };
    for who in [alice(), root(), contained] {
        for above in [None, Some(listed), Some(hers)] {
            for (rule, wish) in rules.iter().flat_map(|rule| wishes.map(|wish| (rule, wish))) {
                let number = world.tree.groups().len();
                let facts = (rule.as_str(), wish);
                let foreseen = with_facts(&who, above, facts, |facts| foresee_group(&world.tree, facts));
                assert_eq!(world.tree.groups().len(), number, "a group was made");
                let devices = foreseen.devices.as_deref();
                let foreseen = world.tree.visible_devices(foreseen.group, devices, None);
                let found = with_facts(&who, above, facts, |facts| find_initial_group(&world.tree, facts));
                let visible = world.tree.visible_devices(found.group, None, None);
                assert_eq!(foreseen, visible, "{rule} {wish:?} {above:?} {who:?}");
                world.tree.reap_transient(None);
            }
        }
    }
}
