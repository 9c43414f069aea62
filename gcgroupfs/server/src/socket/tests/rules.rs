//! Processes for which rules are evaluated.

use super::*;
use gcgroupfs_model::rules::Rules;
use gcgroupfs_model::tree::Entity;

impl World {
    /// Sets the rules from the text of a configuration.
    fn rule(&self, text: &str) {
        #[derive(serde::Deserialize)]
        struct Of {
            rule: Rules,
        }
        self.rules.set(toml::from_str::<Of>(text).unwrap().rule);
    }

    fn limit(&self) -> String {
        self.show(&format!("{}/memory.limit", me()))
    }
}

#[test]
fn settings_of_the_first_rule_hold_from_the_start() {
    let world = World::new();
    let exe = std::env::current_exe().unwrap();
    world.rule(&format!(
        "[[rule]]
         match.comm = \"no such name\"
         process.memory.limit = 1
         [[rule]]
         match = {{ exe = {exe:?}, uid = {} }}
         process.memory.limit = 4096
         [[rule]]
         process.memory.limit = 2",
        nix::unistd::geteuid()
    ));
    let hello = Hello {
        memory_limit: 1 << 30,
        priority: 3,
        ..Hello::PLAIN
    };
    let hook = Hook::register(&world, &hello, good_usage_file());
    assert_eq!(
        hook.control.memory_limit.load(Relaxed),
        4096,
        "no more than the rule"
    );
    assert_eq!(world.show(&format!("{}/compute.priority", me())), "3\n", "a wish");
}

#[test]
fn stored_settings_and_verdict_outrank_new_rules() {
    let world = World::new();
    world.rule("[[rule]]\nprocess.memory.limit = 4096");
    let hook = world.register();
    assert_eq!(world.limit(), "4096\n");
    let other = "[[rule]]\nprocess.memory.limit = 5000";
    world.rule(other);
    let _again = world.register();
    assert_eq!(world.limit(), "4096\n", "by the rules of then");
    drop(hook);

    let world = world.restart();
    world.rule(other);
    let _hook = world.register();
    assert_eq!(world.limit(), "4096\n", "over a restart");
    world.store(&format!("{}/memory.limit", me()), "6000");
    let _again = world.register();
    assert_eq!(world.limit(), "6000\n");
}

#[test]
fn client_gone_before_the_verdict_delays_no_other() {
    let world = World::new();
    world.rule("[[rule]]\nmatch.uid = 4294967294\ngroup.name = \"{user}\"");
    for _ in 0..10 {
        let (socket, usage) = (world.connect(), good_usage_file());
        transmit(&socket, &Hello::PLAIN.to_bytes(), &[usage.as_raw_fd()]).unwrap();
    }
    let hook = world.register();
    world.until("it is back", || world.pids() == [me()]);
    drop(hook);
    world.assert_well();
}

#[test]
fn second_packet_around_the_verdict_ends_the_connection() {
    let world = World::new();
    world.rule("[[rule]]\nprocess.memory.limit = 4096");
    let (socket, usage) = (world.connect(), good_usage_file());
    transmit(&socket, &Hello::PLAIN.to_bytes(), &[usage.as_raw_fd()]).unwrap();
    // A second Hello is invalid either way.
    transmit(&socket, &Hello::PLAIN.to_bytes(), &[]).unwrap();
    let mut buffer = [0; 64];
    while recv(socket.as_raw_fd(), &mut buffer, MsgFlags::empty()).is_ok_and(|length| length > 0) {}
    world.assert_well();
}

#[test]
fn refusal_before_the_verdict_forbids_cuda_if_a_rule_may() {
    let world = World::new();
    let (pipe, _end) = nix::unistd::pipe().unwrap();
    for (rules, bars_cuda) in [
        ("[[rule]]\nprocess.memory.limit = 4096", false),
        (
            "[[rule]]\nmatch.comm = \"other\"\ngroup.name = \"a\"\nrequired = true",
            true,
        ),
    ] {
        world.rule(rules);
        let socket = world.connect();
        transmit(&socket, &Hello::PLAIN.to_bytes(), &[pipe.as_raw_fd()]).unwrap();
        let reply = reply(&socket).0.unwrap();
        assert_eq!(
            (reply.status, reply.bars_cuda),
            (libc::EINVAL.unsigned_abs(), bars_cuda),
            "{rules}"
        );
    }
}

#[test]
fn question_for_devices_is_answered_by_the_lists() {
    let world = World::new();
    for (rules, wanted, want) in [
        ("[[rule]]\ngroup.name = \"a\"", &b"=0"[..], &b""[..]),
        (
            "[[rule]]\ngroup.name = \"a\"\ngroup.gcgroup.devices = \"none\"",
            b"=0,\xff",
            b"\n",
        ),
    ] {
        world.rule(rules);
        let answer = ask(&world.connect(), Operation::Devices, "", wanted);
        assert_eq!(answer, (0, want.to_vec()), "{rules}");
        world.assert_well();
    }
}

#[test]
fn questions_for_devices_make_no_groups() {
    let world = World::new();
    world.rule("[[rule]]\ngroup.name = \"a/b\"\ngroup.gcgroup.devices = \"0,1\"");
    // Groups are numbered in the order in which they are made.
    let make = |name: &str| {
        assert_eq!(ask(&world.connect(), Operation::Make, name, b""), (0, Vec::new()));
        match resolve(&world.tree, name).unwrap() {
            Node::Dir(directory) => directory.whose(),
            Node::File(..) => panic!("{name} is a file"),
        }
    };
    let before = make("c");
    for _ in 0..3 {
        let answer = ask(&world.connect(), Operation::Devices, "", b"=0");
        let uuid = "GPU-07070707-0707-0707-0707-070707070707";
        assert_eq!(answer, (0, format!("{uuid}\n{uuid}").into_bytes()));
    }
    match (before, make("d")) {
        (Entity::Group(before), Entity::Group(after)) => assert_eq!(after.0, before.0 + 1),
        other => panic!("{other:?}"),
    }
}
