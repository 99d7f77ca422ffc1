//! HTTP on a real socket, and the text of the metrics.

use std::net::{IpAddr, UdpSocket};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use drivers::clients::own::OwnClients;
use drivers::health_signal::peer::PeerConfig;
use drivers::storage::nfs_client::NfsClient;
use fakes::World;
use jiff::Timestamp;
use recovery::cycle::Cycle;
use recovery::decide::{Decision, HoldReason};
use recovery::event::{Event, What};
use recovery::model::{
    BrokerId, Check, CheckSeen, Checked, Epoch, Fact, HostName, Outcome, PeerView, ProbeOutcome, Verdict,
    VolumeUse,
};
use recovery::plan::{Phase, Plan};
use recovery::policy::Mode;
use recovery::ports::{EventSink, HealthSignal, Note};
use recovery::status::{BrokerStatus, Status};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::watch;
use understudy::http;
use understudy::telemetry::Metrics;

use crate::config::expect_file;

pub(crate) fn status(at: Option<Timestamp>) -> Status {
    let broker = BrokerStatus {
        id: BrokerId(1),
        owner: Some("kafka-1".into()),
        epoch: Some(Epoch(3)),
        last: None,
        decision: Some(Decision::Healthy),
        says: "healthy".to_owned(),
        evidence: vec!["our probe: broker 1 answers for 2.0 s".to_owned()],
        takeover: None,
        volumes: Some(VolumeUse { quiet: Some(Duration::from_millis(1_500)), ..VolumeUse::default() }),
    };
    Status {
        host: "standby-1".into(),
        mode: Mode::Auto,
        at,
        ledger_read: true,
        distrusted: None,
        metadata_read: true,
        blind: [].into(),
        checks: Vec::new(),
        brokers: vec![broker],
        down: Vec::new(),
        view: None,
    }
}

/// What is told of 192.0.2.11, where nobody can connect, to `readers`.
fn own(readers: &[IpAddr]) -> Arc<OwnClients> {
    let addresses = ["192.0.2.11".parse().unwrap()].into();
    Arc::new(OwnClients::new("standby-1".into(), addresses, readers.iter().copied().collect()))
}

/// What peers are told, by a configuration that stays. What they are told of is reached.
pub(crate) fn for_peers(readers: &[IpAddr]) -> Router {
    http::peer_pages(watch::channel(http::ForPeers { own: own(readers), cluster: Arc::new(World::new()) }).1)
}

fn emit(metrics: &Metrics, at: Timestamp, what: What) {
    let (host, broker, epoch) = (HostName::from("standby-1"), Some(BrokerId(1)), Some(Epoch(3)));
    metrics.emit(&Event { at, host, broker, epoch, what });
}

/// One answer: its head and its body.
async fn get(address: std::net::SocketAddr, path: &str) -> (String, String) {
    let mut stream = TcpStream::connect(address).await.unwrap();
    stream.write_all(format!("GET {path} HTTP/1.0\r\n\r\n").as_bytes()).await.unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.unwrap();
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    (head.to_owned(), body.to_owned())
}

#[tokio::test]
async fn the_pages_follow_the_snapshot() {
    let (set, seen) = watch::channel(status(None));
    let listener = http::bind("127.0.0.1:0".parse().unwrap()).await.unwrap();
    let address = listener.local_addr().unwrap();
    let pages = tokio::spawn(http::serve(listener, None, seen, Arc::new(Metrics::default()), for_peers(&[])));

    let (head, body) = get(address, "/livez").await;
    assert!(head.contains(" 503 ") && body.contains("no decision has been made yet"), "{head}\n{body}");

    set.send_replace(status(Some(Timestamp::now())));
    assert!(get(address, "/livez").await.0.contains(" 200 "));
    assert!(get(address, "/readyz").await.0.contains(" 200 "));

    // It is ready, and will not be for long.
    let (check, says) =
        (Check::Certificate("/etc/ca.pem".into()), "it is valid until tomorrow only".to_owned());
    let found = Checked { check, verdict: Verdict::Warn, says, remedy: "renew it".to_owned() };
    let checks = vec![CheckSeen { found, age: Duration::ZERO }];
    set.send_replace(Status { checks, ..status(Some(Timestamp::now())) });
    let (head, body) = get(address, "/readyz").await;
    let warning = "warning: certificate /etc/ca.pem: it is valid until tomorrow only; do: renew it\n";
    assert!(head.contains(" 200 ") && body.ends_with(warning), "{head}\n{body}");
    let metrics = get(address, "/metrics").await.1;
    for line in ["standby_ready", "standby_warns"] {
        let line = format!("understudy_{line}{{check=\"certificate\",of=\"/etc/ca.pem\"}} 1");
        assert!(metrics.contains(&line), "{metrics}");
    }

    set.send_replace(Status { ledger_read: false, ..status(Some(Timestamp::now())) });
    assert!(get(address, "/livez").await.0.contains(" 200 "));
    let (head, body) = get(address, "/readyz").await;
    assert!(head.contains(" 503 ") && body.contains("ledger"), "{head}\n{body}");

    // A second machine with a known name, for instance.
    let taken = Some("another machine is registered as standby-1".to_owned());
    set.send_replace(Status { ledger_read: false, distrusted: taken, ..status(Some(Timestamp::now())) });
    let (head, body) = get(address, "/readyz").await;
    assert!(head.contains(" 503 "), "{head}");
    assert_eq!(body, "another machine is registered as standby-1\n");

    set.send_replace(status(Some(Timestamp::now() - Duration::from_secs(60))));
    let (head, body) = get(address, "/livez").await;
    assert!(head.contains(" 503 ") && body.contains("60 s ago"), "{head}\n{body}");

    let (head, body) = get(address, "/v1/status").await;
    assert!(head.contains("content-type: application/json"), "{head}");
    let page: http::StatusPage = serde_json::from_str(&body).unwrap();
    assert_eq!(page.status.brokers, status(None).brokers);
    assert_eq!(page.version, env!("CARGO_PKG_VERSION"));

    let (head, body) = get(address, "/metrics").await;
    assert!(head.contains("content-type: application/openmetrics-text"), "{head}");
    assert!(body.contains("understudy_ledger_epoch{broker=\"1\"} 3"), "{body}");
    // What is not known is not there.
    assert!(body.contains("understudy_volume_io_age_seconds{broker=\"1\"} 1.5"), "{body}");
    assert!(!body.contains("understudy_volume_client_idle_seconds{") && body.ends_with("# EOF\n"), "{body}");
    assert!(get(address, "/nothing").await.0.contains(" 404 "));
    pages.abort();
}

#[tokio::test]
async fn peers_get_the_view_of_a_daemon_that_looks_and_no_other() {
    let world = World::new();
    let (cycle, seen) = Cycle::new(World::topology(), World::policy(), world.ports());
    let (set, served) = watch::channel(seen.borrow().clone());
    let listener = http::bind("127.0.0.1:0".parse().unwrap()).await.unwrap();
    let address = listener.local_addr().unwrap();
    let pages =
        tokio::spawn(http::serve(listener, None, served, Arc::new(Metrics::default()), for_peers(&[])));
    let (head, body) = get(address, "/v1/view").await;
    assert!(head.contains(" 503 ") && body.contains("no decision has been made yet"), "{head}\n{body}");

    // A daemon looks at a cluster until it has seen every broker.
    let mut newest = seen.clone();
    let looking = tokio::spawn(cycle.run(vec![Arc::new(world.clone())], std::future::pending()));
    let full = |status: &Status| status.view.as_ref().is_some_and(|view| view.brokers.len() == 3);
    let status = newest.wait_for(full).await.unwrap().clone();
    looking.abort();
    set.send_replace(Status { at: Some(Timestamp::now()), ..status.clone() });

    let config = PeerConfig { host: "standby-1".to_owned(), url: format!("http://{address}") };
    let evidence = config.build(None).unwrap().look(&world).await.remove(0);
    let Fact::Peer(view) = evidence.fact else { panic!("{evidence:?}") };
    assert_eq!(view.nfs_client, NfsClient::read().unwrap().id);
    let view = PeerView { nfs_client: None, ..view };
    assert_eq!(Some(&view), status.view.as_ref());
    assert_eq!(view.brokers[&BrokerId(1)].outcome, ProbeOutcome::Answered);
    let unfit = view.candidate.unwrap().unfit.unwrap();
    assert!(unfit.contains("ledger"), "nobody read the ledger: {unfit}");

    set.send_replace(Status { at: Some(Timestamp::now() - Duration::from_secs(6)), ..status });
    let (head, body) = get(address, "/v1/view").await;
    assert!(head.contains(" 503 ") && body.contains("6 s ago"), "{head}\n{body}");
    pages.abort();
}

/// An address of this host by which it talks to others; `None` if it has none.
fn address_of_this_host() -> Option<IpAddr> {
    let socket = UdpSocket::bind("0.0.0.0:0").unwrap();
    socket.connect("192.0.2.1:9").ok()?;
    Some(socket.local_addr().unwrap().ip()).filter(|ip| !ip.is_loopback() && !ip.is_unspecified())
}

#[tokio::test]
async fn who_is_connected_is_told_to_peers_only() {
    let (_, seen) = Cycle::new(World::topology(), World::policy(), World::new().ports());
    let Some(here) = address_of_this_host() else {
        return eprintln!("SKIPPED: this host has no address but the loopback's");
    };
    for (readers, status, said) in [
        (vec![], " 403 ", "is not the address in the url of a [[peer]] here"),
        (vec![here], " 200 ", r#"{"host":"standby-1","connections":{},"left_out":0}"#),
    ] {
        let listener = http::bind("0.0.0.0:0".parse().unwrap()).await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let serve =
            http::serve(listener, None, seen.clone(), Arc::new(Metrics::default()), for_peers(&readers));
        let pages = tokio::spawn(serve);
        let (head, body) = get((here, port).into(), "/v1/clients").await;
        assert!(head.contains(status) && body.contains(said), "{head}\n{body}");
        let url = format!("http://{}", std::net::SocketAddr::from((here, port)));
        let told =
            PeerConfig { host: "standby-1".to_owned(), url }.build(None).unwrap().tells_clients().await;
        assert_eq!(told.clone().ok(), (!readers.is_empty()).then_some(0), "{told:?}");
        assert!(told.err().is_none_or(|why| why.contains(said)));
        // Whoever is on the host can see it anyway.
        assert!(get(([127, 0, 0, 1], port).into(), "/v1/clients").await.0.contains(" 200 "));
        pages.abort();
    }
}

/// Another agent dials what its own cluster advertises, for peers only, and whoever asks names a broker.
#[tokio::test]
async fn whether_a_broker_is_reached_from_here_is_told_to_peers_only() {
    let (_, seen) = Cycle::new(World::topology(), World::policy(), World::new().ports());
    let Some(here) = address_of_this_host() else {
        return eprintln!("SKIPPED: this host has no address but the loopback's");
    };
    let world = World::new();
    let serve = |readers: &[IpAddr], listener| {
        let peers = http::ForPeers { own: own(readers), cluster: Arc::new(world.clone()) };
        let peers = http::peer_pages(watch::channel(peers).1);
        http::serve(listener, None, seen.clone(), Arc::new(Metrics::default()), peers)
    };
    let listener = http::bind("0.0.0.0:0".parse().unwrap()).await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let pages = tokio::spawn(serve(&[], listener));
    let (head, body) = get((here, port).into(), "/v1/reach/1").await;
    assert!(head.contains(" 403 ") && body.contains("only peers are told"), "{head}\n{body}");
    pages.abort();

    let listener = http::bind("0.0.0.0:0".parse().unwrap()).await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let pages = tokio::spawn(serve(&[here], listener));
    let (head, body) = get((here, port).into(), "/v1/reach/1").await;
    let says = r#"{"host":"standby-1","reach":"reached","at":"10.0.0.1:9092"}"#;
    assert!(head.contains(" 200 ") && body == says, "{head}\n{body}");
    world.truth().advertises_elsewhere = true;
    let (_, body) = get((here, port).into(), "/v1/reach/1").await;
    assert!(body.contains("unreached") && body.contains("nobody answers there"), "{body}");
    for path in ["/v1/reach/10.0.0.9:22", "/v1/reach/", "/v1/reach/1/10.0.0.9:22"] {
        let (head, _) = get((here, port).into(), path).await;
        assert!(head.contains(" 400 ") || head.contains(" 404 "), "{path}: {head}");
    }
    pages.abort();
}

#[tokio::test]
async fn a_port_in_use_is_told_with_its_key() {
    let listener = http::bind("127.0.0.1:0".parse().unwrap()).await.unwrap();
    let error = http::bind(listener.local_addr().unwrap()).await.unwrap_err();
    assert!(format!("{error:#}").contains("agent.listen"), "{error:#}");
}

#[test]
fn a_broker_is_always_in_one_state() {
    let metrics = Metrics::default();
    emit(&metrics, Timestamp::now(), What::Decided { decision: Decision::Healthy, evidence: Vec::new() });
    let decision = Decision::StandDown { epoch: Epoch(3) };
    emit(&metrics, Timestamp::now(), What::Decided { decision, evidence: Vec::new() });
    let text = metrics.text(&status(None)).unwrap();
    let states = text.lines().filter(|line| line.starts_with("understudy_broker_state{"));
    let on: Vec<&str> = states.filter(|line| line.ends_with(" 1")).collect();
    assert_eq!(on, ["understudy_broker_state{broker=\"1\",state=\"stand_down\"} 1"]);
}

#[test]
fn metrics_are_made_of_events() {
    let metrics = Metrics::default();
    let begun = Timestamp::now();
    let at = |millis: i64| begun + jiff::SignedDuration::from_millis(millis);
    let step = |name: &str| name.to_owned();
    let hold = Decision::Hold { reasons: vec![HoldReason::OneWitness, HoldReason::LedgerUnreachable] };
    let decided = What::Decided { decision: hold, evidence: Vec::new() };
    emit(&metrics, begun, decided);
    let plan = Plan {
        broker: BrokerId(1),
        from: HostName::from("kafka-1"),
        to: HostName::from("standby-1"),
        epoch: Epoch(3),
        fault_at: begun,
        because: Vec::new(),
        stages: Vec::new(),
        predicted: None,
    };
    emit(&metrics, begun, What::WouldTakeOver { plan: Box::new(plan) });
    let (phase, undo) = (Phase::Fence, false);
    emit(&metrics, at(0), What::StepStarted { phase, step: step("fence"), undo });
    let (kind, error) = ("unconfirmed".to_owned(), "no answer".to_owned());
    emit(&metrics, at(100), What::StepFailed { phase, step: step("fence"), undo, kind, error });
    emit(&metrics, at(200), What::StepStarted { phase, step: step("fence"), undo });
    let (phase, took, note) = (Phase::Prove, Duration::from_millis(300), Note::new("off"));
    emit(&metrics, at(1500), What::StepDone { phase, step: step("prove"), undo, took, note });
    emit(&metrics, at(1500), What::PhaseDone { phase, took });
    let outcome = Outcome::Recovered { time_to_isr: Duration::from_millis(4200), remarks: Vec::new() };
    emit(&metrics, at(4200), What::Ended { outcome, predicted: Some(Duration::from_millis(4700)) });
    emit(&metrics, at(4300), What::SignalBlind { signal: "kafka_quorum".into(), why: "no answer".into() });

    metrics.ticked(Duration::from_millis(2));

    let text = metrics.text(&status(None)).unwrap();
    for line in [
        "understudy_tick_seconds_sum 0.002",
        "understudy_tick_seconds_bucket{le=\"0.001\"} 0",
        "understudy_tick_seconds_bucket{le=\"0.002\"} 1",
        "understudy_time_to_isr_seconds_sum{broker=\"1\"} 4.2",
        "understudy_time_to_isr_seconds_count{broker=\"1\"} 1",
        "understudy_predicted_time_to_isr_seconds{broker=\"1\"} 4.7",
        "understudy_time_to_isr_prediction_error_seconds{broker=\"1\"} -0.5",
        "understudy_phase_seconds_sum{broker=\"1\",phase=\"prove\"} 0.3",
        "understudy_fence_proof_seconds_sum 1.5",
        "understudy_takeovers_total{broker=\"1\",outcome=\"recovered\"} 1",
        "understudy_holds_total{broker=\"1\",reason=\"one_witness\"} 1",
        "understudy_holds_total{broker=\"1\",reason=\"ledger_unreachable\"} 1",
        "understudy_would_take_over_total{broker=\"1\"} 1",
        "understudy_broker_state{broker=\"1\",state=\"hold\"} 1",
        "understudy_broker_state{broker=\"1\",state=\"healthy\"} 0",
        "understudy_ledger_epoch{broker=\"1\"} 3",
        "understudy_steps_failed_total{step=\"fence\",kind=\"unconfirmed\"} 1",
        "understudy_signal_blind{signal=\"kafka_quorum\"} 1",
        concat!("understudy_build_info{version=\"", env!("CARGO_PKG_VERSION"), "\"} 1"),
    ] {
        assert!(text.lines().any(|l| l == line), "{line} is missing in:\n{text}");
    }
}

/// Every metric has a line in `docs/metrics.md`, which is written from their own descriptions.
#[test]
fn the_metrics_page_is_fresh() {
    let mut page = "# Metrics\n\n\
        What `/metrics` has, in OpenMetrics. A metric without a sample yet is left out there. Written from the code, by\n\
        `UPDATE_EXPECTED=1 cargo test -p understudy --test it the_metrics_page`.\n\n\
        | metric | kind | meaning |\n|---|---|---|\n"
        .to_owned();
    for metric in Metrics::default().described() {
        page.push_str(&format!("| `{}` | {} | {} |\n", metric.name, metric.kind, metric.meaning));
    }
    expect_file(&Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/metrics.md"), &page);
}
