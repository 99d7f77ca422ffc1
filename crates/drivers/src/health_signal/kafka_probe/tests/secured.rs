//! The probe's looks at listeners with TLS.

use fakes::tls::Authority;
use kafka::security::{Protocol, SecurityConfig};

use super::*;

/// A probe of `endpoints` that trusts `authority`. The directory has the authority's file.
fn probe_of(authority: &Authority, endpoints: &[&Endpoint]) -> (KafkaProbe, tempfile::TempDir) {
    let dir = tempfile::tempdir().unwrap();
    let ca = dir.path().join("ca.pem");
    std::fs::write(&ca, &authority.pem).unwrap();
    let config = SecurityConfig {
        protocol: Protocol::Ssl,
        ca: Some(ca),
        certificate: None,
        key: None,
        sasl: None,
        truststore: None,
        keystore: None,
    };
    let configured = (1..).map(BrokerId).zip(endpoints.iter().map(|e| (*e).clone())).collect();
    let dialer = Dialer::secured(&config, "cluster.security");
    (KafkaProbe::new(dialer, configured, watch::channel(BTreeMap::new()).1), dir)
}

#[tokio::test]
async fn tells_answers_refusals_and_silence_apart() {
    let authority = Authority::new("ours");
    let own = authority.issue(&["127.0.0.1"]);
    let healthy = Fake::secured(own.acceptor(None), |_| None).await;
    let refused = refusing().await;
    let (_listener, stopped) = stopped();
    let hung = Fake::secured(own.acceptor(None), |_| Some(Reply::Nothing)).await;
    let closing = Fake::secured(own.acceptor(None), |_| Some(Reply::Close)).await;
    let (signal, _dir) = probe_of(&authority, &[&healthy.at, &refused, &stopped, &hung.at, &closing.at]);
    use ProbeOutcome::{Answered, Refused, Silent};
    for _ in 0..5 {
        assert_eq!(outcomes(&signal).await, [Answered, Refused, Silent, Silent, Silent]);
    }
}

#[tokio::test]
async fn a_broker_that_is_not_trusted_is_our_blindness_and_not_its_death() {
    let (authority, other) = (Authority::new("ours"), Authority::new("other"));
    let plain = Fake::start(|_| None).await;
    let untrusted = Fake::secured(other.issue(&["127.0.0.1"]).acceptor(None), |_| None).await;
    let expired = authority.issue_for(&["127.0.0.1"], 2000..=2001);
    let expired = Fake::secured(expired.acceptor(None), |_| None).await;
    let asks = authority.issue(&["127.0.0.1"]).acceptor(Some(&authority));
    let asks = Fake::secured(asks, |_| None).await;
    let (signal, _dir) = probe_of(&authority, &[&plain.at, &untrusted.at, &expired.at, &asks.at]);
    for _ in 0..5 {
        let evidence = signal.look(&Stopped).await;
        assert_eq!(evidence.len(), 1, "no word about any broker: {evidence:?}");
        let Fact::Blind { why } = &evidence[0].fact else { panic!("{evidence:?}") };
        for part in ["broker 1: ", "plaintext", "broker 2: ", "broker 3: ", "expired", "broker 4: "] {
            assert!(why.contains(part), "{part} is not in: {why}");
        }
    }
}

#[tokio::test]
async fn tls_where_plaintext_is_configured_is_our_blindness() {
    let own = Authority::new("ours").issue(&["127.0.0.1"]);
    let secured = Fake::secured(own.acceptor(None), |_| None).await;
    let evidence = super::probe_of(&[&secured.at]).look(&Stopped).await;
    assert!(matches!(&evidence[..], [Evidence { fact: Fact::Blind { why }, .. }] if why.contains("in TLS")));
}

#[tokio::test]
async fn a_process_that_wakes_up_in_the_middle_of_a_handshake_answers() {
    let authority = Authority::new("ours");
    let (listener, at) = stopped();
    let (signal, _dir) = probe_of(&authority, &[&at]);
    for _ in 0..2 {
        assert_eq!(outcomes(&signal).await, [ProbeOutcome::Silent]);
    }
    let acceptor = authority.issue(&["127.0.0.1"]).acceptor(None);
    let listening = fakes::kafka::Listening { at, listener };
    let _awake = listening.serve_over(Some(acceptor), |_| None);
    assert_eq!(outcomes(&signal).await, [ProbeOutcome::Answered]);
}

#[tokio::test]
async fn a_host_that_dies_while_a_handshake_hangs_is_unreachable_from_then_on() {
    let (listener, at) = stopped();
    let (signal, _dir) = probe_of(&Authority::new("ours"), &[&at]);
    for _ in 0..2 {
        assert_eq!(outcomes(&signal).await, [ProbeOutcome::Silent]);
    }
    let (stream, _) = listener.accept().await.unwrap();
    host_dies(&stream);
    host_dies(&listener);
    for _ in 0..2 {
        assert_eq!(outcomes(&signal).await, [ProbeOutcome::Unreachable]);
    }
}
