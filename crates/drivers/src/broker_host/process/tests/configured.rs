//! What the configuration makes of Kafka: its command, user, environment and properties; what `check` says.

use super::*;

#[tokio::test]
async fn a_command_that_cannot_be_run_is_named() {
    let bed = bed(FOREVER);
    let config =
        ProcessConfig { command: vec!["/no/kafka.sh".into(), "{properties}".into()], ..bed.config() };
    let driver = Process::new(config, "standby".into(), bed.root.path().join("state"), vec![bed.identity()]);
    let driver = driver.unwrap();
    says(&started(&driver, 1).await.unwrap_err(), "failed", "kafka.sh (broker_host.command)");
    assert_eq!(driver.state(BROKER).await.unwrap(), ProcessState::Absent);
}

#[tokio::test]
async fn secrets_of_the_agent_do_not_reach_kafka() {
    let bed = bed("env; echo end of env; exec sleep 1000");
    started(&bed.driver(), 1).await.unwrap();
    let output = until("output", async || Some(bed.output()).filter(|o| o.contains("end of env"))).await;
    let names: Vec<&str> = output.lines().filter_map(|line| Some(line.split_once('=')?.0)).collect();
    assert!(names.contains(&"EXTRA") && names.contains(&"PATH"), "{output}");
    // The shell adds the second group itself.
    let known = "EXTRA PATH JAVA_HOME LANG LC_ALL TZ HOME UNDERSTUDY_BROKER UNDERSTUDY_EPOCH UNDERSTUDY_STATE_DIR \
                 PWD OLDPWD SHLVL _";
    let stray: Vec<_> = names.iter().filter(|name| !known.split(' ').any(|k| k == **name)).collect();
    assert!(stray.is_empty(), "{stray:?}");
}

#[tokio::test]
async fn kafka_runs_as_its_user_and_reads_its_file() {
    if !rustix::process::geteuid().is_root() {
        return;
    }
    let bed = bed("echo \"uid $(id -u)\"; cat \"$1\"; exec sleep 1000");
    for open in ["", "state"] {
        let path = bed.root.path().join(open);
        fs::create_dir_all(&path).unwrap();
        fs::set_permissions(path, fs::Permissions::from_mode(0o755)).unwrap();
    }
    let config = ProcessConfig { user: Some("nobody".into()), ..bed.config() };
    let state_dir = bed.root.path().join("state");
    let driver = Process::new(config, "standby".into(), state_dir, vec![bed.identity()]).unwrap();
    started(&driver, 1).await.unwrap();
    let uid = fs::read_to_string("/etc/passwd").unwrap();
    let uid = uid.lines().find_map(|l| l.strip_prefix("nobody:")?.split(':').nth(1)).unwrap();
    let output = until("output", async || Some(bed.output()).filter(|o| o.contains("log.dirs="))).await;
    assert!(output.starts_with(&format!("uid {uid}\n")), "{output}");
    driver.stop(BROKER, LONG).await.unwrap();
}

#[tokio::test]
async fn render_writes_what_kafka_reads() {
    let bed = bed(FOREVER);
    let note = bed.driver().render(BROKER, Epoch(5)).await.unwrap();
    assert_eq!(note.details["listeners"], "PLAINTEXT://10.0.0.1:9092");
    let path = bed.site().properties();
    let content = fs::read_to_string(&path).unwrap();
    assert!(content.starts_with("# Rendered by understudy for broker 1, epoch 5."), "{content}");
    assert!(content.contains("\nnode.id=1\n"), "{content}");
    assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
    fs::write(bed.root.path().join("template"), "a=\\u12").unwrap();
    says(&bed.driver().render(BROKER, Epoch(5)).await.unwrap_err(), "refused", "line 1");
    fs::remove_file(bed.root.path().join("template")).unwrap();
    says(&bed.driver().render(BROKER, Epoch(5)).await.unwrap_err(), "failed", "broker_host.template");
    says(&bed.driver().render(BrokerId(8), Epoch(5)).await.unwrap_err(), "refused", "not configured here");
}

#[tokio::test]
async fn check_passes_and_names_what_is_missing() {
    let bed = bed(FOREVER);
    fs::create_dir(bed.root.path().join("bin")).unwrap();
    let java = bed.root.path().join("bin/java");
    fs::copy(&bed.script, &java).unwrap();
    let mut config = bed.config();
    config.command[0] = text(&bed.script);
    config.environment.insert("JAVA_HOME".into(), text(bed.root.path()));
    let state_dir = bed.root.path().join("state");
    let driver = Process::new(config, "standby".into(), state_dir, vec![bed.identity()]).unwrap();
    for result in driver.check(BROKER).await {
        result.unwrap();
    }
    // Not attached now: fine.
    let log = bed.root.path().join("log");
    fs::rename(&log, bed.root.path().join("away")).unwrap();
    let results = driver.check(BROKER).await;
    assert!(results[3].as_ref().unwrap().text.contains("not here now"), "{results:?}");

    fs::create_dir(&log).unwrap();
    fs::write(log.join("meta.properties"), "version=1\ncluster.id=c\nnode.id=2\n").unwrap();
    fs::remove_file(&bed.script).unwrap();
    fs::remove_file(&java).unwrap();
    fs::write(bed.root.path().join("template"), "").unwrap();
    fs::remove_dir_all(bed.root.path().join("state")).unwrap();
    fs::write(bed.root.path().join("state"), "").unwrap();
    let problems =
        ["install Kafka", "JAVA_HOME is", "neither `process.roles`", "belongs to broker 2", "creating"];
    let results = driver.check(BROKER).await;
    assert_eq!(results.len(), problems.len() + 4, "and nobody runs here without the right");
    for unknown in &results[5..8] {
        assert!(unknown.as_ref().unwrap().text.contains("nobody knows"), "{results:?}");
    }
    for (result, problem) in results.into_iter().zip(problems) {
        let error = chain(&result.unwrap_err());
        assert!(error.contains(problem), "{error}");
    }
    fs::remove_file(bed.root.path().join("state")).unwrap();
}

/// All that `check` says of a template: notes, and errors with their causes.
async fn said_of(template: &str, listener: &str) -> String {
    let bed = bed(FOREVER);
    let quorum = "controller.quorum.bootstrap.servers=10.0.0.21:9093\ncontroller.listener.names=CONTROLLER\n";
    fs::write(bed.root.path().join("template"), format!("node.id=9\n{quorum}{template}")).unwrap();
    let identity = BrokerIdentity { listener: listener.parse().unwrap(), ..bed.identity() };
    let state_dir = bed.root.path().join("state");
    let driver = Process::new(bed.config(), "standby".into(), state_dir, vec![identity]).unwrap();
    let said = driver.check(BROKER).await;
    let said = said.into_iter().map(|look| look.map_or_else(|error| chain(&error), |note| note.to_string()));
    said.collect::<Vec<_>>().join("\n")
}

#[tokio::test]
async fn check_shows_the_listeners_as_they_will_be() {
    let said = said_of(
        "process.roles=broker\nlisteners=SASL_SSL://10.0.0.31:9094,PLAINTEXT://127.0.0.1:9092\n\
         advertised.listeners=SASL_SSL://standby:9094,PLAINTEXT://127.0.0.1:9092\n\
         security.inter.broker.protocol=SASL_SSL\n\
         listener.security.protocol.map=CONTROLLER:SASL_SSL,SASL_SSL:SASL_SSL,PLAINTEXT:PLAINTEXT\n",
        "10.0.0.1:9094",
    )
    .await;
    let bound = "Kafka will listen at SASL_SSL://10.0.0.1:9094,PLAINTEXT://127.0.0.1:9092";
    assert!(said.contains(bound), "{said}");
}

#[tokio::test]
async fn a_byte_order_mark_is_told_and_left_out() {
    let bed = bed(FOREVER);
    let template = fs::read_to_string(bed.root.path().join("template")).unwrap();
    fs::write(bed.root.path().join("template"), format!("\u{feff}{template}")).unwrap();
    let said = bed.driver().check(BROKER).await;
    let told = |look: &Result<_, _>| {
        look.as_ref().is_ok_and(|note: &Note| note.to_string().contains("byte order mark"))
    };
    assert!(said.iter().any(told), "{said:?}");
    bed.driver().render(BROKER, Epoch(5)).await.unwrap();
    let rendered = fs::read_to_string(bed.site().properties()).unwrap();
    assert!(rendered.contains("\nprocess.roles=broker\n"), "{rendered}");
}

#[tokio::test]
async fn a_template_in_utf_16_is_refused_as_what_it_is() {
    let bed = bed(FOREVER);
    let template = fs::read_to_string(bed.root.path().join("template")).unwrap();
    let wide: Vec<u8> =
        "\u{feff}".encode_utf16().chain(template.encode_utf16()).flat_map(u16::to_le_bytes).collect();
    fs::write(bed.root.path().join("template"), wide).unwrap();
    let error = bed.driver().render(BROKER, Epoch(5)).await.unwrap_err();
    assert!(
        error.to_string().contains("not plain text, but UTF-16 or no text at all: save it as UTF-8"),
        "{error}"
    );
}

#[tokio::test]
async fn check_fails_an_advertised_name_that_a_takeover_would_lose() {
    let said = said_of(
        "process.roles=broker\nlisteners=INTERNAL://0.0.0.0:9092,EXTERNAL://0.0.0.0:9094\n\
         advertised.listeners=INTERNAL://standby-1.internal:9092,EXTERNAL://b9.kafka.example.com:9094\n",
        "10.0.0.1:9092",
    )
    .await;
    let cure = "\"advertised.listeners\" = \"INTERNAL://10.0.0.1:9092,EXTERNAL://NAME-OF-BROKER-1:9094\"";
    assert!(
        said.contains("b9.kafka.example.com:9094, and they would be told EXTERNAL://10.0.0.1:9094"),
        "{said}"
    );
    assert!(said.contains(cure), "{said}");
}

#[tokio::test]
async fn check_fails_a_file_and_an_address_that_this_host_does_not_have() {
    let said = said_of(
        "process.roles=broker\nlisteners=SSL://:9092,ADMIN://203.0.113.9:9090\n\
         ssl.keystore.location=/no/such/keystore.p12\n",
        "10.0.0.1:9092",
    )
    .await;
    assert!(said.contains("ADMIN://203.0.113.9:9090 is bound to no address of this host"), "{said}");
    assert!(said.contains("/no/such/keystore.p12, which `ssl.keystore.location` names"), "{said}");
}

#[tokio::test]
async fn check_fails_a_key_store_that_kafka_could_not_open() {
    let store = tempfile::NamedTempFile::new().unwrap();
    fs::write(store.path(), fakes::stores::AGENT_P12).unwrap();
    let path = store.path().display();
    let said = async |password: &str| {
        let template = format!(
            "process.roles=broker\nlisteners=SSL://:9092\nssl.keystore.location={path}\n\
             ssl.keystore.password={password}\nssl.endpoint.identification.algorithm=https\n"
        );
        said_of(&template, "10.0.0.1:9092").await
    };
    let wrong = said("hunter2secret").await;
    let told = format!(
        "{path} (`ssl.keystore.location`) of listener SSL does not open with `ssl.keystore.password`"
    );
    assert!(wrong.contains(&told) && !wrong.contains("hunter2"), "{wrong}");
    let right = said(fakes::stores::PASSWORD).await;
    assert!(!right.contains("does not open"), "{right}");
    assert!(
        right.contains("has no SAN, and after a takeover listener SSL is reached at 10.0.0.1:9092"),
        "{right}"
    );
}

#[tokio::test]
async fn a_voter_without_its_metadata_log_is_not_started() {
    let bed = bed(FOREVER);
    let root = bed.root.path();
    fs::create_dir_all(root.join("log2/__cluster_metadata-0")).unwrap();
    let meta = "version=1\ncluster.id=c1\nnode.id=1\ndirectory.id=d2\n";
    fs::write(root.join("log2/meta.properties"), meta).unwrap();
    let template = |roles: &str| {
        format!(
            "process.roles={roles}\ncontroller.quorum.voters=1@10.0.0.1:9093\ncontroller.listener.names=C\n\
             listeners=A://:9092{}\n",
            if roles == "broker" { "" } else { ",C://:9093" }
        )
    };
    let log_dirs = vec![root.join("log"), root.join("log2")];
    let identity = BrokerIdentity { log_dirs, ..bed.identity() };
    let driver = Process::new(bed.config(), "standby".into(), root.join("state"), vec![identity]).unwrap();
    fs::write(root.join("template"), template("broker,controller")).unwrap();
    says(&driver.verify(BROKER, Some("c1")).await.unwrap_err(), "refused", "would begin a new one");
    if rustix::process::geteuid().is_root() {
        // A template of root's alone, for it may hold passwords, does not hide it from Kafka's user.
        let template = root.join("template");
        fs::set_permissions(&template, fs::Permissions::from_mode(0o600)).unwrap();
        for path in [root, &root.join("log"), &root.join("log2"), &root.join("log2/__cluster_metadata-0")] {
            std::os::unix::fs::chown(path, Some(65534), None).unwrap();
        }
        let config = ProcessConfig { user: Some("nobody".to_owned()), ..bed.config() };
        let identity =
            BrokerIdentity { log_dirs: vec![root.join("log"), root.join("log2")], ..bed.identity() };
        let driver = Process::new(config, "standby".into(), root.join("state"), vec![identity]).unwrap();
        let error = driver.verify(BROKER, Some("c1")).await.unwrap_err();
        says(&error, "refused", "would begin a new one");
    }
    fs::write(root.join("template"), template("broker")).unwrap();
    driver.verify(BROKER, Some("c1")).await.unwrap();
}

#[tokio::test]
async fn a_stop_command_that_ends_every_kafka_is_an_error_where_another_may_run() {
    let bed = bed(FOREVER);
    let says = async |at_once: usize, words: &str| {
        let stop_command = words.split(' ').map(str::to_owned).collect();
        let config = ProcessConfig { stop_command, ..bed.config() };
        let other = BrokerIdentity { id: BrokerId(2), ..bed.identity() };
        let brokers = RunHere::from(vec![bed.identity(), other]).at_most(at_once);
        let driver = Process::new(config, "standby".into(), bed.root.path().join("state"), brokers).unwrap();
        driver.check(BROKER).await.remove(0).map(|note| note.to_string()).map_err(|error| chain(&error))
    };
    let every = says(2, "/opt/kafka/bin/kafka-server-stop.sh {broker}").await.unwrap_err();
    assert!(every.contains("stop_command runs kafka-server-stop.sh, which ends every Kafka"), "{every}");
    assert!(every.contains("--node-id=1`, with"), "{every}");
    let alone = says(1, "/opt/kafka/bin/kafka-server-stop.sh {broker}").await.unwrap();
    assert!(alone.starts_with("WARNING: "), "{alone}");
    let by_id = says(2, "/opt/kafka/bin/kafka-server-stop.sh --node-id={broker}").await.unwrap();
    assert!(!by_id.contains("WARNING"), "{by_id}");
}

#[tokio::test]
async fn one_port_for_two_brokers_is_a_warning_and_the_id_makes_two_of_it() {
    let bed = bed("echo \"port $JMX_PORT\"; exec sleep 1000");
    let driver = |at_once: usize, port: &str| {
        let environment = BTreeMap::from([("JMX_PORT".to_owned(), port.to_owned())]);
        let config = ProcessConfig { environment, ..bed.config() };
        let other = BrokerIdentity { id: BrokerId(2), ..bed.identity() };
        let brokers = RunHere::from(vec![bed.identity(), other]).at_most(at_once);
        Process::new(config, "standby".into(), bed.root.path().join("state"), brokers).unwrap()
    };
    let told = async |at_once: usize, port: &str| {
        let results = driver(at_once, port).check(BROKER).await.into_iter().flatten();
        results.map(|note| note.to_string()).find(|text| text.contains("JMX_PORT names")).unwrap_or_default()
    };
    let shared = told(2, "9999").await;
    assert!(shared.starts_with("WARNING: JMX_PORT names port 9999, and for broker 2 too"), "{shared}");
    assert!(shared.contains("JMX_PORT = \"999{broker}\""), "{shared}");
    assert_eq!(told(1, "9999").await, "", "never two at once");
    assert_eq!(told(2, "999{broker}").await, "");

    started(&driver(2, "999{broker}"), 1).await.unwrap();
    until("its port", async || Some(bed.output()).filter(|output| output == "port 9991\n")).await;
}

#[tokio::test]
async fn a_command_that_leaves_kafka_behind_is_an_error() {
    let bed = bed(FOREVER);
    let told = async |words: &[&str]| {
        let command = words.iter().map(|word| (*word).to_owned()).collect();
        let config = ProcessConfig { command, ..bed.config() };
        let state_dir = bed.root.path().join("state");
        let driver = Process::new(config, "standby".into(), state_dir, vec![bed.identity()]).unwrap();
        chain(&driver.check(BROKER).await.remove(0).unwrap_err())
    };
    for words in [
        &["/opt/kafka/bin/kafka-server-start.sh", "-daemon", "{properties}"][..],
        &["/bin/sh", "-c", "/opt/kafka/bin/kafka-server-start.sh -daemon {properties}"],
    ] {
        let error = told(words).await;
        assert!(error.contains("kafka-server-start.sh -daemon, which ends at once"), "{error}");
        assert!(error.contains("leave `-daemon` out"), "{error}");
    }
}

/// A standby that is to run Kafka as nobody finds log dirs that nobody may not use: before the fence.
#[tokio::test]
async fn check_and_verify_name_what_kafkas_user_may_not_do_in_a_log_dir() {
    if !rustix::process::geteuid().is_root() {
        return;
    }
    let bed = bed(FOREVER);
    let log = bed.root.path().join("log");
    for open in [bed.root.path(), &log] {
        fs::set_permissions(open, fs::Permissions::from_mode(0o755)).unwrap();
    }
    let config = ProcessConfig { user: Some("nobody".into()), ..bed.config() };
    let state_dir = bed.root.path().join("state");
    let driver = Process::new(config, "standby".into(), state_dir, vec![bed.identity()]).unwrap();
    let own = |path: &Path, owner| std::os::unix::fs::chown(path, Some(owner), None).unwrap();
    let check = async || driver.check(BROKER).await.remove(3);
    let verify = async || driver.verify(BROKER, Some("c1")).await;
    let before = fs::read_dir(&log).unwrap().count();

    // Kafka's user has another number where the log dir was made.
    own(&log, 1001);
    for said in [check().await, verify().await] {
        says(&said.unwrap_err(), "refused", "which belongs to user 1001 (mode 0755)");
    }
    // Somebody started Kafka as root.
    own(&log, 65534);
    for file in [".lock", "recovery-point-offset-checkpoint"] {
        fs::write(log.join(file), "").unwrap();
    }
    for said in [check().await, verify().await] {
        let whose = format!("{}, which belongs to root", log.join(".lock").display());
        says(&said.unwrap_err(), "refused", &whose);
    }
    assert_eq!(fs::read_dir(&log).unwrap().count(), before + 2, "something was written");
    for file in [".lock", "recovery-point-offset-checkpoint"] {
        own(&log.join(file), 65534);
    }
    let note = check().await.unwrap();
    assert!(note.text.ends_with("belongs to broker 1, and nobody (65534) may write there"), "{}", note.text);
    verify().await.unwrap();
}

#[test]
fn every_problem_of_the_configuration_is_told_at_once() {
    let bed = bed(FOREVER);
    let config = ProcessConfig {
        command: vec!["kafka.sh".into()],
        stop_command: vec!["systemctl".into(), "stop".into(), "kafka.service".into()],
        template: "template".into(),
        environment: BTreeMap::from([("A=B".into(), "c".into())]),
        user: Some("no-such-user-here".into()),
        class_data: ClassDataUse::Auto,
        timeout: Duration::ZERO,
    };
    let identity = BrokerIdentity {
        log_dirs: vec!["log".into(), "/a,b".into(), "/c".into(), "/c".into()],
        properties: BTreeMap::from([("node.id".into(), "2".into())]),
        ..bed.identity()
    };
    let result = Process::new(config, "standby".into(), "state".into(), vec![identity]);
    let problems = result.err().unwrap();
    let keys = [
        "broker_host.command: `kafka.sh`",
        "broker_host.command: no argument",
        "broker_host.stop_command: `systemctl`",
        "broker_host.template:",
        "broker_host.environment:",
        "broker_host.timeout:",
        "agent.state_dir:",
        "broker 1: log_dirs: `log`",
        "broker 1: log_dirs: `/a,b`",
        "broker 1: log_dirs: names a directory twice",
        "broker 1: properties: `node.id`",
        "broker_host.user: no such user",
    ];
    assert_eq!(problems.len(), keys.len(), "{problems:#?}");
    for (problem, key) in problems.iter().zip(keys) {
        assert!(problem.starts_with(key), "{problem} is not about {key}");
    }
}

#[test]
fn the_section_is_read_and_unknown_keys_are_refused() {
    use crate::broker_host::BrokerHostConfig;
    let section = |more: &str| {
        let text = format!(
            r#"{{"driver": "process", "command": ["/k", "{{properties}}"], "template": "/t"{more}}}"#
        );
        serde_json::from_str::<BrokerHostConfig>(&text)
    };
    let BrokerHostConfig::Process(config) = section("").unwrap() else { panic!() };
    assert_eq!((config.timeout, config.user), (Duration::from_secs(10), None));
    let BrokerHostConfig::Process(config) = section(r#", "timeout": "3s", "user": "kafka""#).unwrap() else {
        panic!()
    };
    assert_eq!((config.timeout, config.user.as_deref()), (Duration::from_secs(3), Some("kafka")));
    assert!(section(r#", "comand": []"#).unwrap_err().to_string().contains("comand"));
}

/// After a line break that is missing, or a `\\` too many, a value goes on with the next line.
#[tokio::test]
async fn no_secret_that_slipped_into_another_value_is_told() {
    let password = "ssl.keystore.password=hunter2secret";
    for (template, quoted) in [
        (format!("listeners=PLAINTEXT://:9092,\\\n{password}\nprocess.roles=broker\n"), true),
        (format!("process.roles=broker\nlisteners=PLAINTEXT://:9092 {password}\n"), true),
        (format!("listeners=PLAINTEXT://:9092\nprocess.roles=broker\\\n{password}\n"), false),
        (format!("process.roles=broker\nmetadata.log.dir=/a\\\n{password}\n"), true),
        (
            format!(
                "process.roles=broker\nlisteners=PLAINTEXT://:9092\nssl.truststore.location=/a/b.jks\\\n{password}\n"
            ),
            true,
        ),
    ] {
        let said = said_of(&template, "10.0.0.1:9092").await;
        assert!(!said.contains("hunter2"), "{template}\n{said}");
        assert!(!quoted || said.contains("***"), "{template}\n{said}");
    }
}

/// Kafka would write where nobody fenced, or as another broker.
#[test]
fn a_command_that_contradicts_what_is_verified_is_refused() {
    let bed = bed("exec sleep 60");
    let mut config = bed.config();
    config.command.extend(["--override".to_owned(), "log.dirs=/other".to_owned()]);
    let problems = check::config(&config, 1);
    assert!(problems.len() == 1 && problems[0].contains("--override log.dirs"), "{problems:?}");
}
