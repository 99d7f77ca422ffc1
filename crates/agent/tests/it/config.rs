//! The configuration: every problem at once, every example good, the reference page fresh.

use std::fs;
use std::path::{Path, PathBuf};

use clap::CommandFactory;
use understudy::cli::Cli;
use understudy::config::{Config, reference};

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// Compares with a committed file; `UPDATE_EXPECTED=1` writes it anew.
pub(crate) fn expect_file(path: &Path, actual: &str) {
    if std::env::var_os("UPDATE_EXPECTED").is_some() {
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, actual).unwrap();
    }
    let expected = fs::read_to_string(path).unwrap_or_default();
    assert!(
        expected == actual,
        "{} is not up to date: run the test with UPDATE_EXPECTED=1 and look at the difference.\n{actual}",
        path.display()
    );
}

#[test]
fn every_problem_is_told_at_once_with_key_line_and_remedy() {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/config");
    let text = fs::read_to_string(dir.join("many-problems.toml")).unwrap();
    let error = Config::parse(Path::new("many-problems.toml"), &text).unwrap_err();
    expect_file(&dir.join("many-problems.expected"), &format!("{error}\n"));
}

/// A reference that names a command which there is not, or another one than is meant, sends people astray.
#[test]
fn the_reference_names_commands_that_exist() {
    let page = fs::read_to_string(root().join("docs/configuration.md")).unwrap();
    let known: Vec<String> = Cli::command().get_subcommands().map(|c| c.get_name().to_owned()).collect();
    let named = page.split("`understudy ").skip(1).filter_map(|rest| rest.split([' ', '`']).next());
    let unknown: Vec<&str> = named.filter(|name| !known.iter().any(|known| known == name)).collect();
    assert!(unknown.is_empty(), "no such commands: {unknown:?}");
    let (_, mode) = page.split_once("| `mode` |").unwrap();
    let mode = mode.lines().next().unwrap();
    assert!(mode.contains("`approve` waits for `understudy approve`"), "{mode}");
}

/// Why a file that differs from the example by this is refused.
fn refused(was: &str, is: &str) -> String {
    let text = fs::read_to_string(root().join("deploy/examples/standby.toml")).unwrap();
    assert!(text.contains(was), "{was}");
    Config::parse(Path::new("u.toml"), &text.replace(was, is)).unwrap_err().to_string()
}

#[test]
fn two_hosts_have_no_fence_device_in_common() {
    let again = "[[host]]\nname = \"kafka-3\"\n[[host.fence]]\ndriver = \"fence_agent\"\n\
                 agent = \"/usr/sbin/fence_ipmilan\"\ntimeout = \"50s\"\noptions = { ipaddr = \"10.20.9.11\", lanplus = \"1\", \
                 password = { env = \"P\" } }\n\n[[host]]\nname = \"kafka-2\"";
    let why = refused("[[host]]\nname = \"kafka-2\"", again);
    assert!(
        why.contains("host[1].fence[0]")
            && why.contains("is the device of host[0].fence[0], which is for kafka-1"),
        "{why}"
    );
}

#[test]
fn a_ledger_in_a_log_dir_is_refused() {
    for dir in ["/mnt/kafka/broker1/ledger", "/mnt/kafka"] {
        let why = refused("dir = \"/mnt/understudy/ledger\"", &format!("dir = \"{dir}\""));
        assert!(why.contains("/mnt/kafka/broker1, a log dir of broker 1, are one in the other"), "{why}");
    }
}

#[test]
fn a_guarded_broker_may_not_carry_the_ledger() {
    let text = fs::read_to_string(root().join("deploy/examples/standby.toml")).unwrap();
    let config = Config::parse(Path::new("u.toml"), &text).unwrap();
    let broker = config.topology.brokers.values().next().unwrap();
    let (before, after) = text.split_once("[ledger]").unwrap();
    let after = after.split_once("\n[").map_or(String::new(), |(_, rest)| format!("\n[{rest}"));
    let with = |bootstrap: &str| {
        let ledger = format!("[ledger]\ndriver = \"kafka\"\nbootstrap = [\"{bootstrap}\"]\n");
        Config::parse(Path::new("u.toml"), &format!("{before}{ledger}{after}"))
    };
    with("ledger-1.example.net:9092").unwrap();
    let error = with(&broker.listener.to_string()).unwrap_err().to_string();
    for words in [
        "ledger.bootstrap".to_owned(),
        format!("names broker {}, which is guarded", broker.id),
        "none could start".to_owned(),
        "in another cluster, or on brokers that are not guarded".to_owned(),
    ] {
        assert!(error.contains(&words), "{words}: {error}");
    }
}

#[test]
fn everything_wrong_with_one_key_is_told() {
    let text = fs::read_to_string(root().join("deploy/examples/standby.toml")).unwrap();
    let options = text.lines().find(|line| line.starts_with("options = \"")).expect("mount options");
    let wrong = text.replace(options, "options = \"rw,bg,vers=3\"");
    let error = Config::parse(Path::new("u.toml"), &wrong).unwrap_err().to_string();
    for words in ["`bg`", "`vers=3`"] {
        assert!(error.contains(words), "{words}: {error}");
    }
    let only = text.replace(options, "options = \"vers=3\"");
    let error = Config::parse(Path::new("u.toml"), &only).unwrap_err().to_string();
    assert!(error.contains("`vers=3`"), "{error}");
}

#[test]
fn secrets_are_not_repeated_in_problems() {
    let text = fs::read_to_string(root().join("deploy/examples/standby.toml")).unwrap();
    let secret = text.replace("username = \"understudy\"", "username = \"hunter2\\n\"");
    assert_ne!(text, secret);
    let error = Config::parse(Path::new("u.toml"), &secret).unwrap_err().to_string();
    assert!(error.contains("host[0].fence[0].options.username"), "{error}");
    assert!(!error.contains("hunter2"), "{error}");
}

#[test]
fn every_example_is_good() {
    let examples = fs::read_dir(root().join("deploy/examples")).unwrap().map(|entry| entry.unwrap().path());
    let examples: Vec<_> = examples.filter(|path| path.extension().is_some_and(|e| e == "toml")).collect();
    assert!(!examples.is_empty());
    for path in examples {
        let config = Config::load(&path).unwrap_or_else(|error| panic!("{error}"));
        assert!(config.warnings.is_empty(), "{:?}", config.warnings);
    }
}

#[test]
fn the_example_means_what_it_says() {
    let config = Config::load(&root().join("deploy/examples/standby.toml")).unwrap();
    assert_eq!(config.topology.here.0, "standby-1");
    assert!(config.topology.controllers_known);
    let fences: Vec<_> = config.topology.fences.iter().map(|(h, f)| (h.0.as_str(), f.join(","))).collect();
    assert!(fences.contains(&("kafka-1", "fence_agent".to_owned())), "{fences:?}");
    assert!(fences.contains(&("kafka-2", "exec".to_owned())), "{fences:?}");
    let addresses: Vec<_> = config.topology.brokers.values().map(|b| b.address.as_deref()).collect();
    assert_eq!(addresses, [Some("10.20.0.11/24"), Some("10.20.0.12/24")]);
    let rack = config.brokers.values().next().unwrap().properties.get("broker.rack").cloned();
    assert_eq!(rack.as_deref(), Some("a"));
}

#[test]
fn hosts_on_ec2_mean_what_they_say() {
    let path = root().join("deploy/examples/standby-ec2.toml");
    let config = Config::load(&path).unwrap();
    assert_eq!(config.topology.fences[&"kafka-1".into()], ["ec2_stop"]);
    assert_eq!(
        config.topology.brokers[&recovery::model::BrokerId(1)].address.as_deref(),
        Some("10.20.0.11/24")
    );
    assert!(!config.topology.outlive.contains(&"kafka-1".into()), "a stopped instance keeps no address");
    assert!(config.ec2_status.is_some());

    let text = fs::read_to_string(&path).unwrap();
    let wrong = text
        .replace("eni-0a1b2c3d4e5f60718", "ens5")
        .replace("Name=kafka-1\", id", "kafka-1\", id")
        .replace("hosts = { kafka-1", "hosts = { kafka-9");
    let error = Config::parse(&path, &wrong).unwrap_err();
    let keys: Vec<_> = error.problems.iter().map(|problem| problem.key.as_str()).collect();
    let expected =
        ["host[0].fence[0].instance.tag", "ec2_status.hosts.kafka-9", "broker[0].address.network_interface"];
    assert_eq!(keys, expected, "{error}");

    let named = "instance = { tag = \"Name=kafka-1\", id = \"i-0a1b2c3d4e5f60718\", private_address = \"10.20.0.41\" }";
    assert!(text.contains(named));
    let moves = named.replace("10.20.0.41", "10.20.0.11");
    for (now, key) in [("", "instance"), (moves.as_str(), "instance.private_address")] {
        let error = Config::parse(&path, &text.replace(named, now)).unwrap_err();
        let keys: Vec<_> = error.problems.iter().map(|problem| problem.key.as_str()).collect();
        assert_eq!(keys, [format!("host[0].fence[0].{key}")], "{error}");
    }
}

#[test]
fn a_pod_of_kubernetes_means_what_it_says() {
    let path = root().join("deploy/examples/standby-pod.toml");
    let config = Config::load(&path).unwrap();
    assert_eq!(config.topology.brokers[&recovery::model::BrokerId(1)].address.as_deref(), Some("kafka-1"));
    assert!(config.kubernetes_node.is_some());

    let text = fs::read_to_string(&path).unwrap();
    let wrong = text
        .replace("hosts = { kafka-1-0", "hosts = { kafka-9-0")
        .replace("pods = { 1 =", "pods = { 9 =")
        .replace("listener = \"kafka-1.kafka.svc", "listener = \"kafka-2.kafka.svc")
        .replace("pod = \"standby-0\"", "pod = \"Standby_0\"");
    let error = Config::parse(&path, &wrong).unwrap_err();
    let keys: Vec<_> = error.problems.iter().map(|problem| problem.key.as_str()).collect();
    let expected = [
        "kubernetes_node.hosts.kafka-9-0",
        "kubernetes_pod.pods.9",
        "broker[0].listener",
        "broker[0].address.pod",
    ];
    assert_eq!(keys, expected, "{error}");
    // Under another name it would take a broker from itself.
    let other = text.replace("host = \"standby-0\"", "host = \"standby\"");
    let error = Config::parse(&path, &other).unwrap_err().to_string();
    assert!(error.contains("is another pod than agent.host, standby"), "{error}");
    // A taint is no fence.
    let (fence, taint) = (text.find("[[host.fence]]").unwrap(), text.find("[host.kubernetes]").unwrap());
    let unfenced = format!("{}{}", &text[..fence], &text[taint..]);
    let error = Config::parse(&path, &unfenced).unwrap_err();
    let [problem] = error.problems.as_slice() else { panic!("{error}") };
    assert_eq!(problem.key, "host[0].kubernetes");
    assert!(
        problem.reason.contains("proves nothing") && problem.remedy.contains("[[host.fence]]"),
        "{error}"
    );
    // A fence of a node says nothing of a pod that is made anew elsewhere.
    assert!(config.topology.wandering.contains(&"kafka-1-0".into()) && config.warnings.is_empty());
    let unnamed = text.replace("pod = \"kafka-1-0\"\nnamespace = \"kafka\"\n", "");
    let [warning] = &Config::parse(&path, &unnamed).unwrap().warnings[..] else { panic!("one is expected") };
    assert!(warning.key == "kubernetes_pod.pods.1" && warning.remedy.contains("pod = \"kafka-1-0\""));
    let acting = unnamed.replace("mode = \"observe\"", "mode = \"auto\"");
    let error = Config::parse(&path, &acting).unwrap_err();
    assert!(error.problems.iter().any(|problem| problem.key == "kubernetes_pod.pods.1"), "{error}");
    let elsewhere = text.replace("hosts = { kafka-1-0 = \"node-a\"", "hosts = { kafka-1-0 = \"node-b\"");
    let error = Config::parse(&path, &elsewhere).unwrap_err();
    assert!(error.to_string().contains("kubernetes_node.hosts.kafka-1-0"), "{error}");
    // An address that is typed is the Service's own, for all that is known here.
    let typed = text.replace("listener = \"kafka-1.kafka.svc", "listener = \"10.96.0.11");
    Config::parse(&path, &typed).unwrap();
}

#[test]
fn pods_of_another_controller_are_fenced_with_their_nodes() {
    let path = root().join("deploy/examples/rescheduling.toml");
    let config = Config::load(&path).unwrap();
    let host = "kafka-1-0".into();
    assert!(
        config.topology.reschedules && config.topology.roams(&host) && config.topology.is_fenceable(&host)
    );
    assert_eq!(config.topology.machines["node-b"], ["ec2_stop"]);
    assert!(config.brokers.values().all(|broker| broker.storage.is_none()));

    let text = fs::read_to_string(&path).unwrap();
    let refused = |from: &str, to: &str| {
        assert!(text.contains(from), "{from}");
        let error = Config::parse(&path, &text.replace(from, to)).unwrap_err();
        error
            .problems
            .iter()
            .map(|problem| format!("{}: {}", problem.key, problem.reason))
            .collect::<Vec<_>>()
    };
    let named = "pod = \"kafka-1-0\"\nnamespace";
    let fixed = format!("node = \"node-a\"\n{named}");
    let storage = "home = \"kafka-1-0\"\nlog_dirs = [\"/mnt/b1\"]";
    let runs_on = "driver = \"exec\"\nleaves_running = true\ncommand = [\"/bin/cut\"]";
    let first = "driver = \"ec2_stop\"\ninstance = { tag = \"Name=node-a\", id = \"i-0123456789abcdef0\" }";
    let second = "tag = \"Name=node-b\", id = \"i-0123456789abcdef1\"";
    let one = "tag = \"Name=node-a\", id = \"i-0123456789abcdef0\"";
    let nobody =
        "namespace = \"kafka\"\n[[host.fence]]\ndriver = \"ec2_stop\"\ninstance = { tag = \"Name=a\" }";
    // What is written instead, the first key that is wrong, and a word of why.
    for (from, to, key, why) in [
        (named, fixed.as_str(), "host[0].kubernetes", "proves nothing"),
        (named, "namespace", "host[0].kubernetes", "neither the `node`"),
        ("namespace = \"kafka\"", nobody, "host[0].kubernetes", "acts on one machine"),
        (first, runs_on, "node[0].fence[0]", "leaves the node running"),
        (second, one, "node[1].fence[0]", "is the device of node[0].fence[0]"),
        ("name = \"node-b\"", "name = \"node-a\"", "node[1].name", "has a section already"),
        ("home = \"kafka-1-0\"", storage, "broker[0].log_dirs", "it does not"),
        (
            "home = \"kafka-1-0\"",
            "home = \"kafka-2\"",
            "broker[0].home",
            "no pod that is fenced with its node",
        ),
    ] {
        let problems = refused(from, to);
        assert!(
            problems.iter().any(|one| one.starts_with(key) && one.contains(why)),
            "{key}, {why}: {problems:?}"
        );
    }
    let (before, after) =
        (text.split_once("# Every node").unwrap().0, text.split_once("# The pod is").unwrap().1);
    let without = format!("{before}#{after}");
    let error = Config::parse(&path, &without).unwrap_err().to_string();
    assert!(error.contains("no node can be fenced"), "{error}");
    // On a host of its own, a broker brings nothing along.
    let driver = "[broker_host]\ndriver = \"process\"\ncommand = [\"/k\"]\ntemplate = \"/t\"";
    let problems = refused("[broker_host]\ndriver = \"rescheduling\"", driver);
    for key in ["broker[0].log_dirs: is missing", "broker[0].storage: is missing"] {
        assert!(problems.iter().any(|one| one == key), "{key}: {problems:?}");
    }
}

#[test]
fn the_charts_example_is_good_and_its_version_is_ours() {
    let values = fs::read_to_string(root().join("deploy/helm/standby-values.yaml")).unwrap();
    let (_, text) = values.split_once("\nconfig: |\n").unwrap();
    let lines: Vec<&str> = text.lines().map(|line| line.strip_prefix("  ").unwrap_or(line)).collect();
    for pod in ["standby-a-0", "standby-b-0"] {
        let text = lines.join("\n").replace("$(POD_NAME)", pod);
        let config = Config::parse(Path::new("u.toml"), &text).unwrap_or_else(|error| panic!("{error}"));
        assert_eq!(config.topology.here.0, pod);
        assert!(config.warnings.is_empty(), "{:?}", config.warnings);
    }
    let chart = fs::read_to_string(root().join("deploy/helm/understudy/Chart.yaml")).unwrap();
    for key in ["version", "appVersion"] {
        assert!(chart.contains(&format!("\n{key}: {}\n", env!("CARGO_PKG_VERSION"))), "{key} in {chart}");
    }
}

#[test]
fn peers_and_canaries_mean_what_they_say() {
    let path = root().join("deploy/examples/standby.toml");
    let config = Config::load(&path).unwrap();
    let peers: Vec<_> = config.topology.peers.iter().map(|host| host.0.as_str()).collect();
    assert_eq!(peers, ["kafka-1", "standby-2"]);
    assert_eq!(config.peers[0].url, "http://10.20.9.32:9095");
    let [canary] = config.canaries.as_slice() else { panic!("{:?}", config.canaries) };
    assert_eq!(
        (canary.dir.as_path(), canary.brokers.as_slice()),
        (Path::new("/mnt/understudy/canary"), &[1, 2][..])
    );

    // What the example spells out is what is meant when it is left out.
    let text = fs::read_to_string(&path).unwrap();
    let short = text.replace("period = \"1s\"\ndeadline = \"1500ms\"", "");
    assert_ne!(text, short);
    let [left_out] = Config::parse(&path, &short).unwrap().canaries.try_into().unwrap();
    assert_eq!((left_out.period, left_out.deadline), (canary.period, canary.deadline));
}

#[test]
fn this_host_is_no_peer_of_itself_and_a_canary_fits_the_policy_and_no_log_dir() {
    let text = fs::read_to_string(root().join("deploy/examples/standby.toml")).unwrap();
    let bad = text.replace("host = \"standby-2\"", "host = \"standby-1\"");
    let bad = bad.replace("[policy]", "[policy]\nstale_after = \"2s\"");
    let bad = bad.replace("/mnt/understudy/canary", "/mnt/kafka/broker1/canary");
    let error = Config::parse(Path::new("u.toml"), &bad).unwrap_err();
    let keys: Vec<_> = error.problems.iter().map(|p| p.key.as_str()).collect();
    assert_eq!(keys, ["peer[0].host", "canary[0].dir", "canary[0].deadline"], "{error}");
}

/// The example with what is commented out in it.
fn everything_of_ontap() -> String {
    let text = fs::read_to_string(root().join("deploy/examples/standby-ontap.toml")).unwrap();
    let is_key = |line: &str| {
        line.starts_with('[') || line.split_once(" = ").is_some_and(|(key, _)| !key.contains(' '))
    };
    let typed = |line: &str| match line.strip_prefix("# ") {
        Some(inner) if is_key(inner) => format!("{inner}\n"),
        _ => format!("{line}\n"),
    };
    text.lines().map(typed).collect()
}

#[test]
fn what_the_ontap_example_leaves_out_is_good_too() {
    let text = everything_of_ontap();
    let config = Config::parse(Path::new("u.toml"), &text).unwrap_or_else(|error| panic!("{error}"));
    assert!(config.warnings.is_empty() && config.ontap_clients.is_some());
    let (id, broker) = config.brokers.first_key_value().unwrap();
    let watched = ontap::storage::watched(broker.storage.as_ref().unwrap(), *id).unwrap();
    assert_eq!((watched.svm.as_str(), watched.volumes.as_slice()), ("svm1", &["kafka01".to_owned()][..]));
}

#[test]
fn snapshots_and_counters_fit_the_grant_and_the_policy() {
    let bad = everything_of_ontap().replace("keep = 2", "keep = 0\nvolumes = [\"kafka02\"]");
    let bad = bad.replace("quiet_after = \"15s\"", "quiet_after = \"5s\"\ndeadline = \"2s\"");
    let error = Config::parse(Path::new("u.toml"), &bad).unwrap_err();
    let mut keys: Vec<_> = error.problems.iter().map(|p| p.key.as_str()).collect();
    keys.sort_unstable();
    let wanted = [
        "broker[0].storage.snapshot.keep",
        "broker[0].storage.snapshot.volumes",
        "ontap_clients.deadline",
        "ontap_clients.quiet_after",
    ];
    assert_eq!(keys, wanted, "{error}");

    // Without a broker on ONTAP there is nothing to count.
    let text = fs::read_to_string(root().join("deploy/examples/standby.toml")).unwrap();
    let error = Config::parse(Path::new("u.toml"), &format!("{text}\n[ontap_clients]\n")).unwrap_err();
    let keys: Vec<_> = error.problems.iter().map(|p| p.key.as_str()).collect();
    assert_eq!(keys, ["ontap_clients"], "{error}");
}

#[test]
fn what_is_left_out_has_the_documented_default() {
    let text = fs::read_to_string(root().join("deploy/examples/standby.toml")).unwrap();
    let at = text.find("[policy]").unwrap();
    let to = at + text[at..].find("[ledger]").unwrap();
    let config = Config::parse(Path::new("u.toml"), &format!("{}{}", &text[..at], &text[to..])).unwrap();
    let policy = config.policy;
    let millis = [
        policy.host_down_after,
        policy.hung_after,
        policy.process_down_after,
        policy.controller_silent_for,
        policy.stale_after,
    ]
    .map(|limit| limit.as_millis());
    assert_eq!(millis, [1_500, 30_000, 60_000, 1_000, 3_000]);
    assert_eq!(policy.max_brokers_down, 1);
}

#[test]
fn a_mode_must_be_typed() {
    let text = fs::read_to_string(root().join("deploy/examples/standby.toml")).unwrap();
    let error = Config::parse(Path::new("u.toml"), &text.replace("mode = \"observe\"", "")).unwrap_err();
    let keys: Vec<_> = error.problems.iter().map(|p| p.key.as_str()).collect();
    assert_eq!(keys, ["mode"]);
}

#[test]
fn a_home_without_a_fence_is_a_warning_only_while_observing() {
    let text = fs::read_to_string(root().join("deploy/examples/standby.toml")).unwrap();
    let observing = text.replace("home = \"kafka-2\"", "home = \"kafka-7\"");
    let acting = observing.replace("mode = \"observe\"", "mode = \"auto\"");
    let error = Config::parse(Path::new("u.toml"), &acting).unwrap_err();
    assert_eq!(error.problems.len(), 1, "{error}");
    assert_eq!(error.problems[0].key, "broker[1].home");
    let config = Config::parse(Path::new("u.toml"), &observing).unwrap();
    assert_eq!(config.warnings.len(), 1);
}

#[test]
fn a_proof_by_export_rules_speaks_of_every_broker_that_may_run_there() {
    let text = fs::read_to_string(root().join("deploy/examples/standby-ontap.toml")).unwrap();
    let text = text.replace("mode = \"observe\"", "mode = \"auto\"");
    assert!(Config::parse(Path::new("u.toml"), &text).is_ok());
    let (before, grant) = text.split_at(text.find("[broker.storage.grant]").unwrap());
    let (power, rules) =
        (text.find("[[host.fence]]\ndriver = \"fence").unwrap(), text.find("[[host.fence]]").unwrap());
    let power_end = text.find("[broker_host]").unwrap();
    let swapped = [&text[..rules], &text[power..power_end], &text[rules..power], &text[power_end..]].concat();
    let standby = "[[host]]\nname = \"standby-2\"\n\n[[host.fence]]";
    let other = text[rules..power].replacen("[[host.fence]]", standby, 1).replace("kafka01", "kafka09");
    let other = text.replace("[broker_host]", &format!("{other}[broker_host]"));
    for (text, key, words) in [
        (before.to_owned(), "broker[0].storage", "has no grant, and kafka-1 is fenced by export rules"),
        (
            [before, &grant.replace("kafka01", "kafka02")].concat(),
            "broker[0].storage.grant.volumes",
            "kafka02: not among",
        ),
        (
            [before, &grant.replace("svm1", "svm2")].concat(),
            "broker[0].storage.grant",
            "another ONTAP or svm",
        ),
        (swapped, "broker[0].storage.grant", "kafka-1, which stays in the rule"),
        (other, "broker[0].storage.grant.volumes", "the fence of standby-2 denies"),
        (
            text.replace("\"10.20.0.31\"", "\"10.20.0.31\", \"10.20.0.41\""),
            "broker[0].storage.grant.addresses",
            "10.20.0.41 is an address of kafka-1 too",
        ),
    ] {
        let error = Config::parse(Path::new("u.toml"), &text).unwrap_err();
        let found = error.problems.iter().find(|problem| problem.key == key);
        assert!(found.is_some_and(|problem| problem.reason.contains(words)), "{key} {words}: {error}");
        let observing = text.replace("mode = \"auto\"", "mode = \"observe\"");
        assert!(!Config::parse(Path::new("u.toml"), &observing).unwrap().warnings.is_empty());
    }
}

#[test]
fn what_is_not_toml_is_told_with_its_line() {
    let error = Config::parse(Path::new("u.toml"), "mode = \"auto\"\n[agent\n").unwrap_err();
    assert_eq!(error.problems.len(), 1);
    assert_eq!(error.problems[0].line, Some(2), "{error}");
    assert!(error.to_string().contains("column 7"), "{error}");
}

#[test]
fn the_reference_page_is_fresh() {
    expect_file(&root().join("docs/configuration.md"), &reference().to_string());
}
