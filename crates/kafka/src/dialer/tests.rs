mod login;
mod stores;
mod tokens;

use std::fs;
use std::path::PathBuf;

use kafka_protocol::messages::{ApiKey, ApiVersionsRequest};
use rustix::fs::{CWD, FileType, Mode, mknodat};
use tokio::net::{TcpListener, TcpSocket};

use super::*;
use fakes::kafka::{Fake, Reply};
use fakes::tls::{Authority, Issued};

/// What fails by it hangs: a debug build on a busy machine opens the stores of keytool in many seconds.
const LIMIT: Duration = Duration::from_secs(60);
const SHORT: Duration = Duration::from_millis(100);
const SECTION: &str = "cluster.security";

/// An authority, and an agent that trusts it.
struct Site {
    dir: tempfile::TempDir,
    authority: Authority,
}

impl Site {
    fn new() -> Self {
        let site = Self { dir: tempfile::tempdir().unwrap(), authority: Authority::new("ours") };
        site.write("ca.pem", &site.authority.pem);
        site
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn write(&self, name: &str, text: &str) {
        fs::write(self.path(name), text).unwrap();
    }

    fn config(&self) -> SecurityConfig {
        let ca = Some(self.path("ca.pem"));
        SecurityConfig {
            protocol: Protocol::Ssl,
            ca,
            certificate: None,
            key: None,
            sasl: None,
            truststore: None,
            keystore: None,
        }
    }

    fn dialer(&self) -> Dialer {
        Dialer::secured(&self.config(), SECTION)
    }

    /// With a certificate of its own in two files.
    fn known_dialer(&self, own: &Issued) -> Dialer {
        self.write("own.pem", &own.pem);
        self.write("own.key", &own.key);
        let (certificate, key) = (Some(self.path("own.pem")), Some(self.path("own.key")));
        Dialer::secured(&SecurityConfig { certificate, key, ..self.config() }, SECTION)
    }
}

async fn broker(own: &Issued, clients: Option<&Authority>) -> Fake {
    Fake::secured(own.acceptor(clients), |_| None).await
}

/// Why there is no TLS.
async fn untrusted(dialer: &Dialer, at: &Endpoint) -> String {
    match dialer.open(at, LIMIT).await {
        Err(error @ WireError::Untrusted { .. }) => error.to_string(),
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn a_listener_is_known_by_its_address_or_by_its_name() {
    let site = Site::new();
    let by_address = broker(&site.authority.issue(&["127.0.0.1"]), None).await;
    site.dialer().open(&by_address.at, LIMIT).await.unwrap();
    let by_name = broker(&site.authority.issue(&["localhost"]), None).await;
    let at = Endpoint { host: "localhost".to_owned(), port: by_name.at.port };
    site.dialer().open(&at, LIMIT).await.unwrap();
}

#[tokio::test]
async fn the_second_connection_resumes_the_session_of_the_first() {
    let site = Site::new();
    let broker = broker(&site.authority.issue(&["127.0.0.1"]), None).await;
    let dialer = site.dialer();
    let resumed: Vec<bool> = {
        let first = dialer.open(&broker.at, LIMIT).await.unwrap().is_resumed();
        // A look at files that are the same keeps it.
        dialer.0.as_ref().unwrap().refused();
        vec![first, dialer.open(&broker.at, LIMIT).await.unwrap().is_resumed()]
    };
    assert_eq!(resumed, [false, true]);
}

#[tokio::test]
async fn a_certificate_that_is_not_right_is_told_with_its_remedy() {
    let site = Site::new();
    let ca = site.path("ca.pem").display().to_string();
    let ours = |names: &[&str], years| site.authority.issue_for(names, years);
    let cases = [
        (Authority::new("other").issue(&["127.0.0.1"]), vec!["no authority in", &ca]),
        (
            ours(&["kafka-1.example.com"], 2000..=2100),
            vec!["not for 127.0.0.1", "kafka-1.example.com", "SAN"],
        ),
        (ours(&["127.0.0.1"], 2000..=2001), vec!["expired at 2001-01-01", "clock"]),
        (ours(&["127.0.0.1"], 2090..=2091), vec!["not valid before 2090-01-01", "clock"]),
    ];
    for (shown, expected) in cases {
        let broker = broker(&shown, None).await;
        let said = untrusted(&site.dialer(), &broker.at).await;
        for part in expected.into_iter().chain([broker.at.to_string().as_str()]) {
            assert!(said.contains(part), "{part} is not in: {said}");
        }
        assert_eq!(broker.calls(ApiKey::ApiVersions), 0);
    }
}

#[tokio::test]
async fn a_broker_that_asks_for_a_certificate_gets_ours() {
    let site = Site::new();
    let broker = broker(&site.authority.issue(&["127.0.0.1"]), Some(&site.authority)).await;
    site.known_dialer(&site.authority.issue(&["agent"])).open(&broker.at, LIMIT).await.unwrap();
    for _ in 0..20 {
        let said = untrusted(&site.dialer(), &broker.at).await;
        assert!(said.contains("set cluster.security.certificate and cluster.security.key"), "{said}");
    }
}

#[tokio::test]
async fn a_certificate_that_was_refused_is_read_anew() {
    let site = Site::new();
    let broker = broker(&site.authority.issue(&["127.0.0.1"]), Some(&site.authority)).await;
    let dialer = site.known_dialer(&Authority::new("other").issue(&["agent"]));
    let said = untrusted(&dialer, &broker.at).await;
    assert!(said.contains(site.path("own.pem").to_str().unwrap()), "{said}");
    let right = site.authority.issue(&["agent"]);
    // In the middle of a rotation the two do not go together: the old pair is used, and that is told.
    site.write("own.pem", &right.pem);
    let said = untrusted(&dialer, &broker.at).await;
    assert!(said.contains("do not go together"), "{said}");
    site.write("own.key", &right.key);
    dialer.open(&broker.at, LIMIT).await.unwrap();
}

#[tokio::test]
async fn each_protocol_is_told_where_the_other_is_spoken() {
    let site = Site::new();
    let plain = Fake::start(|_| None).await;
    let error = site.dialer().open(&plain.at, LIMIT).await.unwrap_err();
    assert!(matches!(error, WireError::Mismatched { .. }), "{error:?}");
    assert!(
        error.to_string().contains("answers in plaintext, and cluster.security.protocol is SSL"),
        "{error}"
    );
    let secured = broker(&site.authority.issue(&["127.0.0.1"]), None).await;
    let error = Dialer::plaintext().open(&secured.at, LIMIT).await.unwrap_err();
    assert!(matches!(error, WireError::Mismatched { .. }), "{error:?}");
    assert!(error.to_string().contains("answers in TLS"), "{error}");
}

#[tokio::test]
async fn a_process_that_ends_a_handshake_has_closed_the_connection() {
    let site = Site::new();
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let at: Endpoint = listener.local_addr().unwrap().to_string().parse().unwrap();
    let ending = tokio::spawn(async move { while listener.accept().await.is_ok() {} });
    let error = site.dialer().open(&at, LIMIT).await.unwrap_err();
    assert!(matches!(error, WireError::Closed { .. }), "{error:?}");
    ending.abort();
}

#[tokio::test]
async fn a_handshake_that_hangs_is_silence() {
    let site = Site::new();
    let socket = TcpSocket::new_v4().unwrap();
    socket.bind("127.0.0.1:0".parse().unwrap()).unwrap();
    let listener = socket.listen(4).unwrap();
    let at: Endpoint = listener.local_addr().unwrap().to_string().parse().unwrap();
    let error = site.dialer().open(&at, SHORT).await.unwrap_err();
    assert!(matches!(error, WireError::Silent { .. }), "{error:?}");
}

#[tokio::test]
async fn a_refusal_after_a_nudge_may_be_of_the_nudge() {
    let site = Site::new();
    let (dialer, listening) = (site.dialer(), fakes::kafka::Listening::bind().await);
    let at = listening.at.clone();
    let addresses = [at.to_string().parse().unwrap()];
    let mut connection = dialer.connect(&at, &addresses, Instant::now() + LIMIT).await.unwrap();
    let asked = connection.ask_api_versions(Instant::now() + LIMIT).await.unwrap();
    let silent = connection.answer::<ApiVersionsRequest>(asked, Instant::now() + SHORT).await;
    assert!(matches!(silent, Err(WireError::Silent { .. })), "{silent:?}");
    connection.nudge(Instant::now() + LIMIT).await.unwrap();
    // It wakes up, and refuses: here, that we have no certificate.
    let acceptor = site.authority.issue(&["127.0.0.1"]).acceptor(Some(&site.authority));
    let _awake = listening.serve_over(Some(acceptor), |_| None);
    let refused = connection.answer::<ApiVersionsRequest>(asked, Instant::now() + LIMIT).await;
    assert!(matches!(refused, Err(WireError::Closed { .. })), "{refused:?}");
}

#[tokio::test]
async fn silence_after_the_handshake_can_be_waited_on() {
    let site = Site::new();
    let own = site.authority.issue(&["127.0.0.1"]);
    let broker = Fake::secured(own.acceptor(None), |_| Some(Reply::Nothing)).await;
    let error = site.dialer().open(&broker.at, SHORT).await.unwrap_err();
    assert!(matches!(error, WireError::Silent { .. }), "{error:?}");
    assert_eq!(broker.calls(ApiKey::ApiVersions), 1);
}

#[tokio::test]
async fn files_of_no_use_are_this_hosts_fault() {
    let site = Site::new();
    let broker = broker(&site.authority.issue(&["127.0.0.1"]), None).await;
    let told = async |expected: &str| match site.dialer().open(&broker.at, SHORT).await {
        Err(WireError::Local { source, .. }) => {
            let said = source.to_string();
            assert!(said.contains("ca.pem") && said.contains(expected), "{said}");
        }
        other => panic!("{other:?}"),
    };
    site.write("ca.pem", "");
    told("has no certificate as PEM").await;
    fs::remove_file(site.path("ca.pem")).unwrap();
    told("cannot be read").await;
    // Nobody writes to it: who reads it hangs.
    mknodat(CWD, site.path("ca.pem"), FileType::Fifo, Mode::RWXU, 0).unwrap();
    told("did not return in time").await;
    // It ends the read.
    fs::write(site.path("ca.pem"), "").unwrap();
}

#[tokio::test]
async fn files_that_hang_later_do_not_hold_up_a_connection() {
    let site = Site::new();
    let broker = broker(&site.authority.issue(&["127.0.0.1"]), None).await;
    let dialer = site.dialer();
    dialer.open(&broker.at, LIMIT).await.unwrap();
    fs::remove_file(site.path("ca.pem")).unwrap();
    mknodat(CWD, site.path("ca.pem"), FileType::Fifo, Mode::RWXU, 0).unwrap();
    for _ in 0..3 {
        dialer.0.as_ref().unwrap().refused();
        dialer.open(&broker.at, LIMIT).await.unwrap();
    }
    fs::write(site.path("ca.pem"), &site.authority.pem).unwrap();
}

#[test]
fn a_key_is_not_printed() {
    let site = Site::new();
    let own = site.authority.issue(&["agent"]);
    let dialer = site.known_dialer(&own);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let material = runtime.block_on(dialer.0.as_ref().unwrap().current(Instant::now() + LIMIT)).unwrap();
    let printed = format!("{dialer:?} {material:?}");
    let secret = own.key.lines().nth(1).unwrap();
    assert!(!printed.contains(secret) && !printed.contains(&format!("{:?}", &own.key.as_bytes()[..8])));
}
