//! Logging in.

use fakes::kafka_login::Login;

use super::*;
use crate::security::{Mechanism, SaslConfig};

const PASSWORD: &str = "correct-horse";

fn login(mechanism: &'static str) -> Login {
    Login { mechanism, user: "agent", password: PASSWORD, forged: false }
}

impl Site {
    fn login(&self, protocol: Protocol, mechanism: Mechanism, password: &str) -> Dialer {
        self.write("password", password);
        let sasl = SaslConfig::with_password(mechanism, "agent", self.path("password"));
        self.logs_in(protocol, sasl)
    }

    pub(super) fn logs_in(&self, protocol: Protocol, sasl: SaslConfig) -> Dialer {
        let sasl = Some(sasl);
        let ca = protocol.encrypts().then(|| self.path("ca.pem"));
        Dialer::secured(&SecurityConfig { protocol, sasl, ca, ..self.config() }, SECTION)
    }
}

/// Why the login failed.
async fn unauthenticated(dialer: &Dialer, at: &Endpoint) -> String {
    match dialer.open(at, LIMIT).await {
        Err(error @ WireError::Unauthenticated { .. }) => error.to_string(),
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn logs_in_with_every_mechanism_encrypted_or_not() {
    let site = Site::new();
    let acceptor = site.authority.issue(&["127.0.0.1"]).acceptor(None);
    for mechanism in [Mechanism::Plain, Mechanism::ScramSha256, Mechanism::ScramSha512] {
        let known = login(mechanism.name());
        let (plain, secured) = (known.clone(), known);
        let plain = Fake::start(move |call| plain.answer(call)).await;
        let dialer = site.login(Protocol::SaslPlaintext, mechanism, &format!("{PASSWORD}\n"));
        dialer.open(&plain.at, LIMIT).await.unwrap();
        let secured = Fake::secured(acceptor.clone(), move |call| secured.answer(call)).await;
        let dialer = site.login(Protocol::SaslSsl, mechanism, PASSWORD);
        dialer.open(&secured.at, LIMIT).await.unwrap();
        let said = if mechanism == Mechanism::Plain { 1 } else { 2 };
        assert_eq!(secured.calls(ApiKey::SaslAuthenticate), said);
    }
}

#[tokio::test]
async fn a_wrong_password_is_told_with_its_file_and_without_itself() {
    let site = Site::new();
    for mechanism in [Mechanism::Plain, Mechanism::ScramSha256, Mechanism::ScramSha512] {
        let known = login(mechanism.name());
        let broker = Fake::start(move |call| known.answer(call)).await;
        let dialer = site.login(Protocol::SaslPlaintext, mechanism, "planted-secret");
        let said = unauthenticated(&dialer, &broker.at).await;
        let file = site.path("password").display().to_string();
        for part in
            [broker.at.to_string().as_str(), "user agent", &file, "cluster.security.sasl.password_file"]
        {
            assert!(said.contains(part), "{part} is not in: {said}");
        }
        assert!(!said.contains("planted-secret"), "{said}");
        // It rotates.
        site.write("password", PASSWORD);
        dialer.open(&broker.at, LIMIT).await.unwrap();
    }
}

#[tokio::test]
async fn a_mechanism_that_is_not_offered_is_told_with_those_that_are() {
    let site = Site::new();
    let broker = Fake::start(move |call| login("SCRAM-SHA-256").answer(call)).await;
    let dialer = site.login(Protocol::SaslPlaintext, Mechanism::Plain, PASSWORD);
    let said = unauthenticated(&dialer, &broker.at).await;
    assert!(said.contains("it offers SCRAM-SHA-256 and not PLAIN"), "{said}");
    assert_eq!(broker.calls(ApiKey::SaslAuthenticate), 0, "the password is not sent");
}

#[tokio::test]
async fn who_does_not_prove_to_know_the_password_is_no_broker() {
    let site = Site::new();
    let forged = Login { forged: true, ..login("SCRAM-SHA-512") };
    let broker = Fake::start(move |call| forged.answer(call)).await;
    let dialer = site.login(Protocol::SaslPlaintext, Mechanism::ScramSha512, PASSWORD);
    let said = unauthenticated(&dialer, &broker.at).await;
    assert!(said.contains("does not prove"), "{said}");
}

#[tokio::test]
async fn no_password_is_this_hosts_fault() {
    let site = Site::new();
    let broker = Fake::start(move |call| login("PLAIN").answer(call)).await;
    let dialer = site.login(Protocol::SaslPlaintext, Mechanism::Plain, "\n");
    let error = dialer.open(&broker.at, LIMIT).await.unwrap_err();
    let WireError::Local { source, .. } = error else { panic!("{error:?}") };
    assert!(source.to_string().contains("cluster.security.sasl.password_file"), "{source}");
}

#[tokio::test]
async fn a_password_is_not_printed() {
    let site = Site::new();
    let dialer = site.login(Protocol::SaslPlaintext, Mechanism::Plain, "planted-secret");
    let material = dialer.0.as_ref().unwrap().current(Instant::now() + LIMIT).await.unwrap();
    let printed = format!("{dialer:?} {material:?}");
    assert!(!printed.contains("planted-secret"), "{printed}");
}

#[tokio::test]
async fn a_listener_that_wants_a_login_is_told_where_none_is_configured() {
    // As Kafka does: anybody may ask for versions, and all else ends the connection.
    let broker = Fake::start(|_| None).await;
    let mut connection = Dialer::plaintext().open(&broker.at, LIMIT).await.unwrap();
    let error = connection.metadata(crate::wire::Topics::None, LIMIT).await.unwrap_err();
    let WireError::Closed { source, .. } = &error else { panic!("{error:?}") };
    assert!(source.to_string().contains("SASL_PLAINTEXT"), "{source}");
}
