use std::collections::BTreeMap;
use std::path::Path;

use fakes::stores::{
    AGENT_EXPIRED_P12, AGENT_JKS, AGENT_P12, CA, KEY_PASSWORD, PASSWORD, TRUST_JKS, TRUST_P12, listener,
};
use fakes::tls::Authority;

use super::*;

/// What is told of a file with one listener at 127.0.0.2, where `{dir}` has the stores, and of its environment.
fn told_at(dir: &Path, host: &str, more: &str) -> Told {
    let text = format!(
        "listeners=TLS://{host}:9093,PLAIN://:9092\nadvertised.listeners=TLS://{host}:9093\n\
         listener.security.protocol.map=TLS:SASL_SSL,PLAIN:PLAINTEXT\n{}",
        more.replace("{dir}", &dir.display().to_string())
    );
    let file = Properties::parse(text.as_bytes()).unwrap();
    let environment = BTreeMap::from([("PASSWORD".to_owned(), PASSWORD.to_owned())]);
    let given = Given { environment: &environment, passed: &["PASSED".to_owned()], by_script: false };
    let secured = secured(&file);
    assert_eq!(secured.len(), 1);
    Judge::new(&file, &given, Timestamp::now()).all(&secured)
}

fn told(more: &str) -> Told {
    let dir = tempfile::tempdir().unwrap();
    let write = |name: &str, bytes: &[u8]| std::fs::write(dir.path().join(name), bytes).unwrap();
    for (name, bytes) in [
        ("agent.p12", AGENT_P12),
        ("agent.jks", AGENT_JKS),
        ("expired.p12", AGENT_EXPIRED_P12),
        ("trust.p12", TRUST_P12),
        ("trust.jks", TRUST_JKS),
        ("ca.pem", CA.as_bytes()),
        ("other.pem", Authority::new("other").pem.as_bytes()),
    ] {
        write(name, bytes);
    }
    let own = listener();
    write("listener.pem", format!("{}{}", own.key, own.pem).as_bytes());
    write("secrets", format!("store={PASSWORD}\n").as_bytes());
    let told = told_at(dir.path(), "10.0.0.2", more);
    let all = [&told.stops[..], &told.doubts[..]].concat().join("; ");
    for secret in [PASSWORD, KEY_PASSWORD, "hunter2", "PRIVATE"] {
        assert!(!all.contains(secret), "{all}");
    }
    told
}

#[track_caller]
fn stops(more: &str, parts: &[&str]) {
    let told = told(more);
    let [why] = &told.stops[..] else { panic!("{more}: {told:?}") };
    assert!(parts.iter().all(|part| why.contains(part)), "{more}: {why}");
}

fn key_store(file: &str, more: &str) -> String {
    format!("ssl.keystore.location={{dir}}/{file}\nssl.endpoint.identification.algorithm=\n{more}")
}

#[test]
fn a_store_that_does_not_open_is_told_with_its_file_its_listener_and_the_remedy() {
    let with = |more: &str| key_store("agent.p12", more);
    let nothing = told("");
    assert!(
        nothing.stops.is_empty() && nothing.doubts[0].contains("no `ssl.keystore.location`"),
        "{nothing:?}"
    );
    stops(
        &with(""),
        &["`ssl.keystore.password` is missing", "/agent.p12 (`ssl.keystore.location`)", "listener TLS"],
    );
    stops(
        &with("listener.name.tls.ssl.keystore.password=hunter2\nssl.keystore.password=store-password\n"),
        &[
            "/agent.p12",
            "of listener TLS does not open with `listener.name.tls.ssl.keystore.password`",
            "keytool -list",
        ],
    );
    stops(
        &with("ssl.keystore.password=store-password\nssl.key.password=hunter2\n"),
        &["has a key that does not open with `ssl.key.password`"],
    );
    stops(
        &key_store("trust.p12", "ssl.keystore.password=store-password\n"),
        &["has no key with a certificate"],
    );
    stops(&key_store("ca.pem", "ssl.keystore.password=store-password\n"), &["set `ssl.keystore.type` = PEM"]);
}

#[test]
fn a_store_that_opens_is_taken_whatever_gives_its_password() {
    for (file, more) in [
        ("agent.p12", "ssl.keystore.password=store-password\n"),
        ("agent.jks", "ssl.keystore.password=store-password\nssl.key.password=key-password\n"),
        (
            "agent.p12",
            "ssl.keystore.type=pkcs12\nssl.keystore.password=${env:PASSWORD}\nconfig.providers=env\n\
          config.providers.env.class=org.apache.kafka.common.config.provider.EnvVarConfigProvider\n",
        ),
        (
            "agent.p12",
            "ssl.keystore.password=${f:{dir}/secrets:store}\nconfig.providers=f\n\
          config.providers.f.class=org.apache.kafka.common.config.provider.FileConfigProvider\n",
        ),
        (
            "listener.pem",
            "ssl.keystore.type=PEM\nssl.truststore.type=PEM\nssl.truststore.location={dir}/ca.pem\n",
        ),
    ] {
        let told = told(&key_store(file, more));
        assert_eq!((told.stops, told.certificates), (Vec::new(), 1), "{file} {more}");
    }
    // What only Kafka can resolve is no reason to say that it does not open.
    let told = told(&key_store("agent.p12", "ssl.keystore.password=${vault:a:b}\n"));
    assert_eq!(told, Told::default());
}

#[test]
fn a_certificate_that_is_not_valid_now_or_not_for_the_listener_is_told() {
    stops(
        &key_store("expired.p12", "ssl.keystore.password=store-password\n"),
        &[
            "/expired.p12 (`ssl.keystore.location`), which listener TLS shows, expired at 2021-01-01",
            "Renew it",
        ],
    );
    let dir = tempfile::tempdir().unwrap();
    let authority = Authority::new("ca");
    let judge = |names: &[&str], host: &str, more: &str| {
        let own = authority.issue(names);
        std::fs::write(dir.path().join("own.pem"), format!("{}{}", own.pem, own.key)).unwrap();
        told_at(
            dir.path(),
            host,
            &format!("ssl.keystore.type=PEM\nssl.keystore.location={{dir}}/own.pem\n{more}"),
        )
    };
    for (names, host) in [(["broker-1"], "broker-1"), (["10.0.0.2"], "10.0.0.2"), (["*.x.org"], "b.x.org")] {
        let told = judge(&names, host, "");
        assert!(told.stops.is_empty() && told.doubts.is_empty(), "{told:?}");
    }
    let told = judge(&["standby-1"], "broker-1", "");
    assert!(told.stops[0].contains("listener TLS is reached at broker-1:9093"), "{told:?}");
    // Where the site itself verifies no names, clients may do so all the same.
    let told = judge(&["standby-1"], "broker-1", "ssl.endpoint.identification.algorithm=\n");
    assert!(told.stops.is_empty() && told.doubts[0].contains("standby-1"), "{told:?}");
    let told = judge(&[], "broker-1", "");
    assert!(told.stops.is_empty() && told.doubts[0].contains("has no SAN"), "{told:?}");
}

#[test]
fn brokers_must_trust_each_other() {
    let trusts = |file: &str, more: &str| {
        key_store(
            "listener.pem",
            &format!(
                "ssl.keystore.type=PEM\nssl.truststore.type=PEM\nssl.truststore.location={{dir}}/{file}\n{more}"
            ),
        )
    };
    let between = "inter.broker.listener.name=TLS\n";
    assert_eq!(told(&trusts("ca.pem", between)).stops, Vec::<String>::new());
    stops(
        &trusts("other.pem", between),
        &[
            "/listener.pem",
            "comes from no authority in",
            "/other.pem (`ssl.truststore.location`)",
            "listener TLS",
        ],
    );
    // What a listener of clients trusts are the clients.
    assert_eq!(told(&trusts("other.pem", "")).stops, Vec::<String>::new());
    let of_java =
        |more: &str| key_store("agent.p12", &format!("ssl.keystore.password=store-password\n{more}"));
    let jks = "ssl.truststore.location={dir}/trust.jks\n";
    assert_eq!(told(&of_java(&format!("{jks}{between}"))).stops, Vec::<String>::new());
    stops(
        &of_java(&format!("{jks}ssl.truststore.password=hunter2\n")),
        &[
            "/trust.jks (`ssl.truststore.location`) of listener TLS does not open with `ssl.truststore.password`",
        ],
    );
    stops(
        &of_java("ssl.truststore.location={dir}/agent.p12\nssl.truststore.password=store-password\n"),
        &["trusted"],
    );
}

#[test]
fn a_certificate_that_ends_soon_is_told_before() {
    let own = Authority::new("ca").issue_for(&["10.0.0.2"], 2020..=2030);
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("own.pem"), format!("{}{}", own.pem, own.key)).unwrap();
    let text = format!(
        "listeners=SSL://10.0.0.2:9093\nadvertised.listeners=SSL://10.0.0.2:9093\nssl.keystore.type=PEM\n\
         ssl.keystore.location={}/own.pem\n",
        dir.path().display()
    );
    let file = Properties::parse(text.as_bytes()).unwrap();
    let given = Given { environment: &BTreeMap::new(), passed: &[], by_script: false };
    let at = |time: &str| Judge::new(&file, &given, time.parse().unwrap()).all(&secured(&file));
    assert_eq!(at("2029-12-01T00:00:00Z").doubts, Vec::<String>::new());
    assert!(at("2029-12-20T00:00:00Z").doubts[0].contains("expires at 2030-01-01T00:00:00Z"));
    assert!(at("2030-01-02T00:00:00Z").stops[0].contains("expired at 2030-01-01T00:00:00Z"));
    assert!(at("2019-01-02T00:00:00Z").stops[0].contains("is not valid before 2020-01-01T00:00:00Z"));
}

/// A PEM text as the value of a property: its lines are continued.
fn continued(pem: &str) -> String {
    pem.lines().collect::<Vec<_>>().join(" \\\n ")
}

#[test]
fn a_key_that_stands_in_the_file_itself_is_looked_at_as_kafka_would() {
    let own = listener();
    let other = Authority::new("other");
    let key = format!("ssl.keystore.key={}\n", continued(&own.key));
    let chain = |pem: &str| format!("ssl.keystore.certificate.chain={}\n", continued(pem));
    let pem = "ssl.keystore.type=PEM\nssl.truststore.type=PEM\nssl.endpoint.identification.algorithm=\n";
    let trusts = |pem: &str| format!("ssl.truststore.certificates={}\n", continued(pem));
    let good = format!("{pem}{key}{}{}", chain(&own.pem), trusts(CA));
    let taken = told(&good);
    assert_eq!((taken.stops, taken.certificates), (Vec::new(), 1));
    for (more, parts) in [
        (good.replace("ssl.keystore.type=PEM\n", ""), ["`ssl.keystore.key` of listener TLS", "= PEM alone"]),
        (
            good.replace("ssl.keystore.type=PEM\n", "ssl.keystore.type=pem\n"),
            ["`ssl.keystore.key` of listener TLS", "= PEM alone"],
        ),
        (
            format!("{pem}{}", chain(&own.pem)),
            ["`ssl.keystore.certificate.chain` of listener TLS", "no `ssl.keystore.key`"],
        ),
        (
            good.clone() + "ssl.key.password=hunter2\n",
            ["`ssl.keystore.certificate.chain` of listener TLS", "does not open with `ssl.key.password`"],
        ),
        (
            format!("{pem}{key}"),
            ["`ssl.keystore.key` of listener TLS", "no `ssl.keystore.certificate.chain`"],
        ),
        (
            good.clone() + "ssl.keystore.password=hunter2\n",
            ["`ssl.keystore.key` of listener TLS", "beside `ssl.keystore.password`"],
        ),
        (
            good.clone() + "ssl.truststore.location={dir}/ca.pem\n",
            ["`ssl.truststore.certificates` of listener TLS", "beside `ssl.truststore.location`"],
        ),
        (
            format!("{pem}{key}{}", chain(&other.pem)),
            ["`ssl.keystore.certificate.chain` of listener TLS", "belongs to another certificate"],
        ),
        (
            good.clone() + "inter.broker.listener.name=TLS\n" + &trusts(&other.pem),
            ["`ssl.keystore.certificate.chain`", "no authority in `ssl.truststore.certificates`"],
        ),
    ] {
        stops(&more, &parts);
    }
}
