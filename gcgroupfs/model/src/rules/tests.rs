use super::*;
use crate::tree::{COMPUTE_PRIORITY, MEMORY_LIMIT, Value};

fn rules(text: &str) -> Rules {
    #[derive(Deserialize)]
    struct Of {
        rule: Rules,
    }
    let names = Names {
        user: |name| Ok((name == "root").then_some(0)),
        group: |_| Ok(None),
    };
    with_names(names, || toml::from_str::<Of>(text)).unwrap().rule
}

fn alice() -> Facts {
    Facts {
        pid: 7,
        uid: 1000,
        gid: 100,
        groups: vec![27],
        user: Some("alice".into()),
        comm: "python3".into(),
        exe: Some("/usr/bin/python3.11".into()),
        cgroups: vec!["/system.slice/slurmstepd.scope/job_12/step_0/user/task_0".into()],
        container: None,
        wish: Some("team/a".into()),
    }
}

fn is_for(matching: &str, facts: &Facts) -> bool {
    let rules = rules(&format!("[[rule]]\nmatch = {{ {matching} }}\n"));
    rules.judgements(facts).next().unwrap().verdict.is_ok()
}

#[test]
fn match_needs_all_conditions_and_any_of_a_list() {
    for (matching, holds) in [
        ("", true),
        ("uid = 1000", true),
        ("uid = \"root\"", false),
        ("uid = [\"root\", 1000]", true),
        ("gid = 100", true),
        ("gid = 27", true),
        ("gid = [0, 1]", false),
        ("exe = \"/usr/bin/python*\"", true),
        ("exe = \"/usr/*\"", false),
        ("exe = [\"/opt/**\", \"/usr/**\"]", true),
        ("comm = \"python?\"", true),
        ("comm = \"python\"", false),
        ("cgroup = \"/**/job_*/**\"", true),
        ("cgroup = \"/kubepods*/**\"", false),
        ("wish = \"team/*\"", true),
        ("wish = \"*\"", false),
        ("uid = 1000, comm = \"bash\"", false),
        ("uid = 1000, comm = \"python3\"", true),
    ] {
        assert_eq!(is_for(matching, &alice()), holds, "{matching}");
    }
}

#[test]
fn match_fails_for_unknown_facts() {
    let unknown = Facts::default();
    for matching in ["exe = \"**\"", "wish = \"**\"", "cgroup = \"**\""] {
        assert!(!is_for(matching, &unknown), "{matching}");
    }
}

#[test]
fn only_first_matching_rule_applies() {
    let rules = rules(
        "[[rule]]
         match.uid = 0
         group.name = \"system\"
         [[rule]]
         match.comm = \"python*\"
         group.name = \"users/{user}\"
         group.delegate = true
         group.memory.limit = \"8G\"
         group.compute.max = \"20000 100000\"
         process.compute.priority = 12
         process.memory.swap.max = 4096
         [[rule]]
         group.name = \"others\"
         process.memory.limit = 1",
    );
    let verdict = rules.verdict(&alice());
    let group = verdict.group.as_ref().unwrap();
    assert_eq!((group.path.as_str(), group.delegate), ("users/alice", true));
    assert_eq!(
        group.settings.lines(),
        ["memory.limit 8589934592", "compute.max 20000 100000"]
    );
    assert_eq!(
        verdict.process.lines(),
        ["memory.swap.max 4096", "compute.priority 12"]
    );
    assert_eq!(verdict.process.settings().priority(None), 12);

    let root = Facts { uid: 0, ..alice() };
    assert_eq!(rules.verdict(&root).group.unwrap().path, "system");
    let other = Facts {
        comm: "bash".into(),
        ..alice()
    };
    assert_eq!(rules.verdict(&other).process.lines(), ["memory.limit 1"]);
    assert!(rules.want_user());
}

#[test]
fn rule_without_renderable_group_does_not_match() {
    let rules = rules(
        "[[rule]]
         group.name = \"pods/{cgroup:pod*}\"
         [[rule]]
         group.name = \"rest\"",
    );
    assert_eq!(rules.verdict(&alice()).group.unwrap().path, "rest");
    let judgements: Vec<_> = rules.judgements(&alice()).collect();
    assert!(judgements[0].verdict.as_ref().unwrap_err().contains("pod*"));
    assert!(judgements[1].verdict.is_ok());
}

#[test]
fn rule_settings_bound_users_like_roots() {
    let rules = rules("[[rule]]\nprocess = { memory.limit = 100, compute.priority = 10 }");
    let mut settings = rules.verdict(&alice()).process.settings();
    assert!(
        settings
            .set(MEMORY_LIMIT, None, Value::Number(101), false)
            .is_err()
    );
    settings
        .set(MEMORY_LIMIT, None, Value::Number(99), false)
        .unwrap();
    assert!(
        settings
            .set(COMPUTE_PRIORITY, None, Value::Number(9), false)
            .is_err()
    );
}

#[test]
fn no_rules_set_nothing() {
    assert_eq!(Rules::default().verdict(&alice()), Verdict::default());
    assert!(Verdict::default().process.settings().is_default());
}

/// Returns the verdict of the example configuration on a process in a kernel cgroup.
fn of_example(cgroup: &str) -> Verdict {
    let text = include_str!("../../../../scripts/gcgroupfs.toml");
    rules(text).verdict(&Facts {
        cgroups: vec![cgroup.to_owned()],
        ..alice()
    })
}

#[test]
fn example_groups_jobs_pods_containers_services() {
    let pod = "0f6b1a3e_55d1_4c2e_9b1e_0a51b0c7d9f2";
    for (cgroup, group) in [
        (
            "/system.slice/slurmstepd.scope/job_12/step_0/user/task_0",
            "slurm/job_12",
        ),
        (
            "/system.slice/node3_slurmstepd.scope/job_12/step_batch/user/task_0",
            "slurm/job_12",
        ),
        ("/slurm/uid_1000/job_12/step_0/task_0", "slurm/job_12"),
        (
            &format!(
                "/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod{pod}.slice/cri-containerd-1.scope"
            ),
            &format!("pods/{}", pod.replace('_', "-")),
        ),
        (
            &format!("/kubepods.slice/kubepods-pod{pod}.slice/crio-1.scope"),
            &format!("pods/{}", pod.replace('_', "-")),
        ),
        (
            &format!("/kubepods/besteffort/pod{pod}/1"),
            &format!("pods/{}", pod.replace('_', "-")),
        ),
        ("/system.slice/docker-4f1c.scope", "docker/docker-4f1c.scope"),
        ("/docker/4f1c", "docker/4f1c"),
        ("/docker/4111", "docker/_4111"),
        ("/system.slice/inference.service", "services/inference.service"),
        ("/user.slice/user-1000.slice/session-3.scope", "users/alice"),
    ] {
        let verdict = of_example(cgroup);
        assert_eq!(verdict.group.unwrap().path, group, "{cgroup}");
    }
    let besteffort = of_example(&format!("/kubepods/besteffort/pod{pod}/1"))
        .group
        .unwrap();
    assert_eq!(besteffort.settings.lines(), ["compute.priority 12"]);
    assert_eq!(of_example("/init.scope"), Verdict::default());
}

#[test]
fn slurm_readme_rule_denies_memory_outside_a_job_group() {
    let text = include_str!("../../../integrations/slurm/README.md");
    let rule = text
        .split_once("```toml\n")
        .unwrap()
        .1
        .split_once("```")
        .unwrap()
        .0;
    let rules = rules(rule);
    for cgroup in [
        "/system.slice/slurmstepd.scope/job_12/step_0/user/task_0",
        "/system.slice/node3_slurmstepd.scope/job_12/step_batch/user/task_0",
        "/slurm/uid_1000/job_12/step_0/task_0",
        "/slurm_node3/uid_1000/job_12/step_batch",
    ] {
        let verdict = rules.verdict(&Facts {
            cgroups: vec![cgroup.to_owned()],
            ..alice()
        });
        let group = verdict.group.unwrap();
        assert_eq!(group.path, "slurm/job_12", "{cgroup}");
        assert_eq!(group.settings.lines(), ["memory.limit 0"], "{cgroup}");
    }
}

#[test]
fn plugin_rules_name_containers_under_each_runtime() {
    let rules = rules(include_str!(
        "../../../integrations/kubelet-plugin/gcgroupfs.toml"
    ));
    let id = "0123456789abcdef".repeat(4);
    let text = include_str!("../../../../tests/data/kubernetes-cgroups.txt").replace('@', &id);
    for line in text.lines().filter(|line| line.starts_with('/')) {
        let mut fields = line.split(' ');
        let (path, uid) = (fields.next().unwrap(), fields.next().unwrap());
        for (container, name) in [(Some("main"), "container-main"), (None, "unknown")] {
            let verdict = rules.verdict(&Facts {
                cgroups: vec!["/".to_owned(), path.to_owned()],
                container: container.map(str::to_owned),
                ..alice()
            });
            let group = verdict.group.map(|group| (group.path, group.settings.lines()));
            let expected = (uid != "-").then(|| {
                let path = format!("pods/{uid}/{name}");
                (path, vec!["memory.limit 0".to_owned()])
            });
            assert_eq!(group, expected, "{path}");
        }
    }
}
