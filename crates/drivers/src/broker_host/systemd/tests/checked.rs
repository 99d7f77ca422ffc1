//! What is told of the unit and of the section before anything is started.

use super::*;

#[tokio::test]
async fn check_looks_at_the_unit_itself() {
    if !rustix::process::geteuid().is_root() {
        eprintln!("SKIPPED: only root may start units");
        return;
    }
    let bed = bed().await;
    let driver = bed.driver();
    let results = driver.check(BROKER).await;
    let texts: Vec<String> = results
        .iter()
        .map(|result| result.as_ref().map_or_else(|error| chain(error), |note| note.to_string()))
        .collect();
    assert!(results.iter().all(Result::is_ok), "{texts:#?}");
    assert!(texts[0].contains("systemd 252 (a stand-in) answers"), "{texts:#?}");
    assert!(!texts.iter().any(|text| text.contains("WARNING")), "{texts:#?}");
    bed.fake.machine().load = "not-found";
    let results = driver.check(BROKER).await;
    says(results[1].as_ref().unwrap_err(), "refused", "there is no kafka@1.service on this host");
}

#[tokio::test]
async fn a_unit_whose_stop_ends_every_kafka_is_refused_where_another_may_run() {
    let bed = bed().await;
    bed.fake.machine().exec_stop = Some("/opt/kafka/bin/kafka-server-stop.sh");
    let told = async |at_once: usize| {
        let root = bed.root.path();
        let other = BrokerIdentity { id: BrokerId(2), ..identity_in(root) };
        let brokers = RunHere::from(vec![identity_in(root), other]).at_most(at_once);
        let driver = Systemd::new(config_in(root), "standby".into(), root.join("state"), brokers).unwrap();
        let driver = Systemd { bus: Bus::new(Some(bed.fake.address())), run_dir: root.join("run"), ..driver };
        let results = driver.check(BROKER).await.into_iter();
        let texts = results.map(|result| result.map_or_else(|error| chain(&error), |note| note.to_string()));
        texts.filter(|text| text.contains("which ends every Kafka of this host:")).collect::<Vec<_>>()
    };
    let [refused] = &told(2).await[..] else { panic!("told once") };
    assert!(refused.contains("could not stop the one Kafka of broker 1: ExecStop= of kafka@1"), "{refused}");
    let [warned] = &told(1).await[..] else { panic!("told once") };
    assert!(warned.starts_with("WARNING: ExecStop= of kafka@1.service"), "{warned}");
}

#[tokio::test]
async fn what_would_keep_a_kafka_from_its_files_and_its_secrets_is_told_before_the_night() {
    let bed = bed().await;
    let root = bed.root.path();
    let template = root.join("template");
    let secret = "config.providers=env\nconfig.providers.env.class=org.apache.kafka.common.config.provider.EnvVarConfigProvider\n\
                  ssl.keystore.password=${env:STORE_PASSWORD}\n";
    fs::write(&template, fs::read_to_string(&template).unwrap() + secret).unwrap();
    bed.fake.machine().protect_system = "strict";
    let looks = bed.driver().check(BROKER).await.into_iter();
    let told: Vec<String> =
        looks.map(|look| look.map_or_else(|error| chain(&error), |note| note.to_string())).collect();
    for part in [
        "/log from being written by Kafka, which would not start",
        // The stand-in's Kafka is a script of its own, which may set it.
        "WARNING: `ssl.keystore.password` takes ${env:STORE_PASSWORD}, and Kafka's environment here has no STORE_PASSWORD",
    ] {
        assert_eq!(told.iter().filter(|text| text.contains(part)).count(), 1, "{part}: {told:#?}");
    }
}

#[tokio::test]
async fn a_unit_gets_the_id_in_its_environment_and_one_port_for_two_is_a_warning() {
    let bed = bed().await;
    let driver = |port: &str| {
        let root = bed.root.path();
        let environment = BTreeMap::from([("JMX_PORT".into(), port.into())]);
        let config = SystemdConfig { environment, ..config_in(root) };
        let other = BrokerIdentity { id: BrokerId(2), ..identity_in(root) };
        let brokers = vec![identity_in(root), other];
        let driver = Systemd::new(config, "standby".into(), root.join("state"), brokers).unwrap();
        Systemd { bus: Bus::new(Some(bed.fake.address())), run_dir: root.join("run"), ..driver }
    };
    let told = async |port: &str| {
        let results = driver(port).check(BROKER).await.into_iter().flatten();
        results.map(|note| note.to_string()).find(|text| text.contains("JMX_PORT names")).unwrap_or_default()
    };
    let shared = told("9999").await;
    assert!(shared.starts_with("WARNING: JMX_PORT names port 9999, and for broker 2 too"), "{shared}");
    assert_eq!(told("999{broker}").await, "");

    let driver = driver("999{broker}");
    let note = started(&driver, 1).await.unwrap();
    let environment = fs::read_to_string(format!("/proc/{}/environ", note.details["pid"])).unwrap();
    assert!(environment.split('\0').any(|pair| pair == "JMX_PORT=9991"), "{environment}");
    driver.stop(BROKER, LONG).await.unwrap();
}

#[test]
fn every_problem_of_the_configuration_is_told_at_once() {
    let root = Path::new("/nowhere");
    let config = SystemdConfig {
        unit: "kafka".into(),
        template: "template".into(),
        environment: BTreeMap::from([("1A".into(), "x".into()), ("A=B".into(), "c".into())]),
        user: Some("no-such-user-here".into()),
        class_data: ClassDataUse::Auto,
        timeout: Duration::ZERO,
        start_timeout: Duration::ZERO,
    };
    let other = BrokerIdentity { id: BrokerId(2), ..identity_in(root) };
    let result = Systemd::new(config, "standby".into(), "state".into(), vec![identity_in(root), other]);
    let problems = result.err().unwrap();
    let keys = [
        "broker_host.unit: `kafka` is no name",
        "broker_host.unit: does not contain {broker}",
        "broker_host.environment: `1A`",
        "broker_host.start_timeout:",
        "broker_host.template:",
        "broker_host.environment: `A=B`",
        "broker_host.timeout:",
        "agent.state_dir:",
        "broker_host.user: no such user",
    ];
    assert_eq!(problems.len(), keys.len(), "{problems:#?}");
    for (problem, key) in problems.iter().zip(keys) {
        assert!(problem.starts_with(key), "{problem} is not about {key}");
    }
    for (unit, good) in [
        ("kafka.service", true),
        ("kafka@{broker}.service", true),
        ("kafka@.service", false),
        ("a/b.service", false),
        (".service", false),
    ] {
        let config = SystemdConfig { unit: unit.into(), ..config_in(root) };
        assert_eq!(check::config(&config, 1).is_empty(), good, "{unit}");
    }
}

#[test]
fn the_section_is_read_and_unknown_keys_are_refused() {
    let section = |more: &str| {
        let text = format!(r#"{{"driver": "systemd", "unit": "kafka.service", "template": "/t"{more}}}"#);
        serde_json::from_str::<BrokerHostConfig>(&text)
    };
    let BrokerHostConfig::Systemd(config) = section("").unwrap() else { panic!("another driver") };
    assert_eq!((config.timeout, config.start_timeout), (Duration::from_secs(10), Duration::from_secs(120)));
    assert!(section(r#", "comand": []"#).unwrap_err().to_string().contains("comand"));
}
