//! The agent's pages with `[agent.tls]`: who is told what, and who may give orders.

use std::fs;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;

use drivers::health_signal::peer::PeerConfig;
use drivers::tls::{Tls, TlsConfig};
use fakes::World;
use fakes::tls::{Authority, Issued};
use jiff::Timestamp;
use recovery::model::Fact;
use recovery::ports::HealthSignal;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{ClientConfig, RootCertStore};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::watch;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use understudy::access::{AccessConfig, AccessList};
use understudy::http;
use understudy::telemetry::Metrics;

use crate::common::{BROKER, Site, ledger};
use crate::socket::Agent;
use crate::surfaces::{for_peers, status};

const TOKEN: &str = "0123456789abcdef0123456789abcdef";
/// Of an operator.
const PAGER: &str = "fedcba9876543210fedcba9876543210";

/// The section of an agent at 127.0.0.1, whose files are in `dir`.
fn section(dir: &Path, authority: &Authority) -> String {
    let issued = authority.issue(&["127.0.0.1"]);
    let path = |name: &str, text: &str| {
        fs::write(dir.join(name), text).unwrap();
        format!("{:?}", dir.join(name).display().to_string())
    };
    format!(
        "certificate = {}\nkey = {}\nca = {}\n",
        path("agent.crt", &issued.pem),
        path("agent.key", &issued.key),
        path("ca.crt", &authority.pem)
    )
}

fn tls(dir: &Path, authority: &Authority, more: &str) -> Arc<Tls> {
    let text = section(dir, authority) + more;
    Arc::new(Tls::new(toml::from_str::<TlsConfig>(&text).unwrap()))
}

/// Serves to who may read by [`TOKEN`].
async fn serving(dir: &Path, tls: Arc<Tls>, at: Option<Timestamp>) -> SocketAddr {
    let path = dir.join("token");
    fs::write(&path, TOKEN).unwrap();
    let scraper = format!("name = \"scraper\"\nrole = \"viewer\"\ntoken = {{ file = {path:?} }}");
    let access = AccessList::new(&[toml::from_str::<AccessConfig>(&scraper).unwrap()]);
    let (_, seen) = watch::channel(status(at));
    let listener = http::bind("127.0.0.1:0".parse().unwrap()).await.unwrap();
    let address = listener.local_addr().unwrap();
    let tls = Some((tls, watch::channel(access).1));
    tokio::spawn(http::serve(listener, tls, seen, Arc::new(Metrics::default()), for_peers(&[])));
    address
}

/// What somebody without a certificate is answered.
async fn get(address: SocketAddr, authority: &Authority, path: &str, more: &str) -> String {
    let request = format!("GET {path} HTTP/1.1\r\nHost: a\r\nConnection: close\r\n{more}\r\n");
    ask(address, authority, None, &request).await
}

fn bearer(token: &str) -> String {
    format!("Authorization: Bearer {token}\r\n")
}

async fn connect(address: SocketAddr, authority: &Authority, shows: Option<&Issued>) -> TlsStream<TcpStream> {
    let mut roots = RootCertStore::empty();
    roots.add(CertificateDer::from_pem_slice(authority.pem.as_bytes()).unwrap()).unwrap();
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let client = ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions().unwrap();
    let client = client.with_root_certificates(roots);
    let client = match shows {
        None => client.with_no_client_auth(),
        Some(issued) => {
            let certificate = CertificateDer::from_pem_slice(issued.pem.as_bytes()).unwrap();
            let key = PrivateKeyDer::from_pem_slice(issued.key.as_bytes()).unwrap();
            client.with_client_auth_cert(vec![certificate], key).unwrap()
        }
    };
    let stream = TcpStream::connect(address).await.unwrap();
    let name = ServerName::try_from("127.0.0.1").unwrap();
    TlsConnector::from(Arc::new(client)).connect(name, stream).await.unwrap()
}

/// What somebody with this certificate is answered.
async fn ask(address: SocketAddr, authority: &Authority, shows: Option<&Issued>, request: &str) -> String {
    let mut stream = connect(address, authority, shows).await;
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut answer = Vec::new();
    // Who ends a connection need not say so in TLS.
    let _ = stream.read_to_end(&mut answer).await;
    String::from_utf8_lossy(&answer).into_owned()
}

#[tokio::test]
async fn without_a_certificate_or_a_token_nothing_is_told_of_brokers() {
    let (authority, dir) = (Authority::new("agents"), tempfile::tempdir().unwrap());
    let address = serving(dir.path(), tls(dir.path(), &authority, ""), Some(Timestamp::now())).await;
    for path in ["/livez", "/readyz"] {
        assert!(get(address, &authority, path, "").await.contains(" 200 "), "{path}");
    }
    for path in ["/v1/status", "/v1/view", "/metrics", "/v1/clients", "/v1/reach/1", "/nothing"] {
        for more in [String::new(), bearer("guess"), "Authorization: Basic YTpi\r\n".to_owned()] {
            let said = get(address, &authority, path, &more).await;
            assert!(said.contains(" 401 ") && !said.contains("kafka-1"), "{path}: {said}");
        }
    }
    for (path, expected) in [("/v1/status", "kafka-1"), ("/metrics", "understudy_"), ("/v1/clients", " 200 ")]
    {
        let said = get(address, &authority, path, &bearer(TOKEN)).await;
        assert!(said.contains(expected), "{path}: {said}");
    }
    // Plain HTTP is not answered.
    let mut plain = TcpStream::connect(address).await.unwrap();
    plain.write_all(b"GET /livez HTTP/1.0\r\n\r\n").await.unwrap();
    let mut answer = Vec::new();
    let _ = plain.read_to_end(&mut answer).await;
    assert!(!String::from_utf8_lossy(&answer).contains("200"), "{answer:?}");
}

#[tokio::test]
async fn metrics_can_be_left_open_and_readiness_is_told_in_short() {
    let (authority, dir) = (Authority::new("agents"), tempfile::tempdir().unwrap());
    let (open, closed) =
        (tls(dir.path(), &authority, "open_metrics = true"), tls(dir.path(), &authority, ""));
    let address = serving(dir.path(), open, Some(Timestamp::now())).await;
    assert!(get(address, &authority, "/metrics", "").await.contains("understudy_"));
    let address = serving(dir.path(), closed, None).await;
    let said = get(address, &authority, "/readyz", "").await;
    assert!(said.contains(" 503 ") && said.ends_with("not ready\n"), "{said}");
}

#[tokio::test]
async fn a_peer_is_asked_by_the_certificate_of_this_agent() {
    let (authority, dirs) = (Authority::new("agents"), [(); 2].map(|()| tempfile::tempdir().unwrap()));
    let [here, there] = dirs.each_ref().map(|dir| tls(dir.path(), &authority, ""));
    let address = serving(dirs[1].path(), there, Some(Timestamp::now())).await;
    let asked = async |tls: Option<&Arc<Tls>>, scheme: &str| {
        let config = PeerConfig { host: "standby-1".to_owned(), url: format!("{scheme}://{address}") };
        let evidence = config.build(tls).unwrap().look(&World::new()).await.remove(0);
        let Fact::Blind { why } = evidence.fact else { panic!("{evidence:?}") };
        why
    };
    // It is told, and there is nothing to see yet.
    assert!(asked(Some(&here), "https").await.contains("503 Service Unavailable: there is no view yet"));
    assert!(asked(Some(&here), "http").await.contains("does not speak HTTP as an agent does"));
    let foreign = tempfile::tempdir().unwrap();
    let foreign = tls(foreign.path(), &Authority::new("others"), "");
    assert!(asked(Some(&foreign), "https").await.contains("no TLS with the agent at"));
}

/// A running agent that takes orders over TLS: from a certificate for `ada`, an operator, and one for `root`, an
/// admin, and from a token's holder, who is a viewer.
struct Guarded {
    site: Site,
    authority: Authority,
    _agent: Agent,
}

impl Guarded {
    fn start() -> Self {
        let (site, authority) = (Site::new(), Authority::new("agents"));
        fs::write(site.path("token"), TOKEN).unwrap();
        let mut more = format!("[agent.tls]\n{}", section(&site.path(""), &authority));
        for (name, role) in [("ada", "operator"), ("root", "admin")] {
            more += &format!(
                "[[agent.access]]\nname = {name:?}\nrole = {role:?}\ncertificate = \"{name}.test\"\n"
            );
        }
        fs::write(site.path("pager"), PAGER).unwrap();
        for (name, role, file) in [("bot", "viewer", "token"), ("pager", "operator", "pager")] {
            let file = site.path(file);
            more += &format!(
                "[[agent.access]]\nname = {name:?}\nrole = {role:?}\ntoken = {{ file = {file:?} }}\n"
            );
        }
        let text = fs::read_to_string(site.config()).unwrap();
        fs::write(site.config(), text.replace("[cluster]", &format!("{more}[cluster]"))).unwrap();
        let agent = Agent::start(&site);
        Self { site, authority, _agent: agent }
    }

    /// The answer to somebody with a certificate for this name, if any, who sends `more` besides.
    async fn post(&self, name: Option<&str>, path: &str, more: &str, body: &str) -> String {
        let length = body.len();
        let request =
            format!("POST {path} HTTP/1.0\r\nHost: a\r\n{more}Content-Length: {length}\r\n\r\n{body}");
        let shows = name.map(|name| self.authority.issue(&[name]));
        ask(self.site.listen.parse().unwrap(), &self.authority, shows.as_ref(), &request).await
    }

    async fn orders(&self) -> Vec<String> {
        let orders = ledger(&self.site.path("ledger")).orders().await.unwrap();
        orders.0.iter().map(|order| format!("{}: {}", order.who, order.what)).collect()
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn orders_over_tls_take_the_role_and_stand_in_the_ledger_by_name() {
    let agent = Guarded::start();
    let (ada, pause) = (Some("ada.test"), r#"{"reason": "deploy"}"#);
    let given = agent.post(ada, "/v1/brokers/1/pause", "", pause).await;
    assert!(given.contains(" 200 ") && given.contains("deploy"), "{given}");
    let orders = agent.orders().await;
    assert!(orders[0].starts_with("ada (operator by certificate), from 127.0.0.1: "), "{orders:?}");
    let orders = ledger(&agent.site.path("ledger")).orders().await.unwrap();
    assert!(orders.pause(BROKER, Timestamp::now()).is_some());

    let (token, page) = (bearer(TOKEN), "Origin: https://elsewhere.test\r\n");
    for (name, path, more, code, words) in [
        (None, "/v1/resume", "", 401, "show a certificate"),
        (None, "/v1/resume", "Authorization: Bearer guess\r\n", 401, "the token is that of no"),
        (None, "/v1/resume", token.as_str(), 403, "role operator, and you are bot (viewer by token)"),
        // Another agent.
        (
            Some("127.0.0.1"),
            "/v1/resume",
            "",
            403,
            "you are somebody without a DNS name in it (viewer by certificate)",
        ),
        (Some("*.test"), "/v1/resume", "", 403, "(viewer by certificate)"),
        (ada, "/v1/resume", page, 403, "not taken from web pages"),
        (ada, "/v1/reload", "", 403, "role admin, and you are ada (operator by certificate)"),
        (ada, "/v1/brokers/1/switchover", "", 400, "`to` is missing"),
        (ada, "/v1/switchover", "", 404, "no order `switchover`"),
    ] {
        let said = agent.post(name, path, more, "").await;
        assert!(said.contains(&format!(" {code} ")) && said.contains(words), "{path} {more}: {said}");
    }
    assert_eq!(agent.orders().await.len(), 1, "a refused order is not written");
    let reloaded = agent.post(Some("root.test"), "/v1/reload", "", "").await;
    assert!(reloaded.contains(" 200 ") && reloaded.contains("nothing"), "{reloaded}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_token_gives_its_role_to_each_request_by_itself_until_its_file_is_gone() {
    let agent = Guarded::start();
    let (pager, bot) = (bearer(PAGER), bearer(TOKEN));
    let body = r#"{"to": "kafka-1", "until": "2099-01-01T00:00:00Z"}"#;
    // What is judged is the order, and not who gives it.
    let said = agent.post(None, "/v1/brokers/1/switchover", &pager, body).await;
    assert!(said.contains(" 409 ") && said.contains("owns_already"), "{said}");
    let body = body.replace("kafka-1", "standby-1");
    let said = agent.post(None, "/v1/brokers/1/switchover", &pager, &body).await;
    assert!(said.contains(" 200 ") && said.contains("claims epoch 1"), "{said}");
    let orders = agent.orders().await;
    assert!(orders[0].starts_with("pager (operator by token), from 127.0.0.1: "), "{orders:?}");

    // Two of them on one connection.
    let one = |more: &str| format!("POST /v1/resume HTTP/1.1\r\nHost: a\r\n{more}Content-Length: 0\r\n");
    let both = format!("{}\r\n{}Connection: close\r\n\r\n", one(&pager), one(&bot));
    let said = ask(agent.site.listen.parse().unwrap(), &agent.authority, None, &both).await;
    assert!(said.contains(" 200 ") && said.contains(" 403 ") && said.contains("you are bot"), "{said}");

    fs::remove_file(agent.site.path("pager")).unwrap();
    let said = agent.post(None, "/v1/resume", &pager, "").await;
    assert!(said.contains(" 401 "), "{said}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_long_body_is_not_read() {
    let agent = Guarded::start();
    let body = format!("{{\"reason\": \"{}\"}}", "x".repeat(20 << 10));
    let said = agent.post(Some("ada.test"), "/v1/pause", "", &body).await;
    assert!(said.contains(" 413 "), "{said}");
    assert!(agent.orders().await.is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_role_that_is_taken_away_is_gone_after_a_reload() {
    let agent = Guarded::start();
    let pause = r#"{"reason": "deploy"}"#;
    assert!(agent.post(Some("ada.test"), "/v1/pause", "", pause).await.contains(" 200 "));
    let text = fs::read_to_string(agent.site.config()).unwrap();
    fs::write(agent.site.config(), text.replace("role = \"operator\"", "role = \"viewer\"")).unwrap();
    let reloaded = agent.site.run(&["reload"]);
    assert_eq!(reloaded.code, Some(0), "{reloaded:?}");
    assert!(reloaded.out.contains("agent.access"), "{reloaded:?}");
    let refused = agent.post(Some("ada.test"), "/v1/resume", "", "").await;
    assert!(refused.contains(" 403 ") && refused.contains("you are ada (viewer"), "{refused}");
    // The agent beside it is asked all the same.
    let status = agent.site.run(&["status"]);
    assert!(!status.out.contains("NOTHING IS WATCHED FROM HERE"), "{status:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_role_that_is_taken_away_is_gone_on_open_connections_too() {
    let agent = Guarded::start();
    let ada = agent.authority.issue(&["ada.test"]);
    let mut stream = connect(agent.site.listen.parse().unwrap(), &agent.authority, Some(&ada)).await;
    let request = "POST /v1/resume HTTP/1.1\r\nHost: a\r\nContent-Length: 0\r\n\r\n";
    let mut said = [0; 4096];
    stream.write_all(request.as_bytes()).await.unwrap();
    let length = stream.read(&mut said).await.unwrap();
    assert!(String::from_utf8_lossy(&said[..length]).contains(" 200 "));
    let text = fs::read_to_string(agent.site.config()).unwrap();
    fs::write(agent.site.config(), text.replace("\"ada.test\"", "\"eve.test\"")).unwrap();
    let reloaded = agent.site.run(&["reload"]);
    assert!(reloaded.out.contains("agent.access[name=ada].certificate"), "{reloaded:?}");
    stream.write_all(request.as_bytes()).await.unwrap();
    let length = stream.read(&mut said).await.unwrap();
    assert!(String::from_utf8_lossy(&said[..length]).contains(" 403 "));
}

#[tokio::test(flavor = "multi_thread")]
async fn without_tls_no_order_is_taken_over_the_network() {
    let site = Site::new();
    let _agent = Agent::start(&site);
    let mut stream = TcpStream::connect(&site.listen).await.unwrap();
    let body = r#"{"reason": "x"}"#;
    let request = format!("POST /v1/pause HTTP/1.0\r\nContent-Length: {}\r\n\r\n{body}", body.len());
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut said = String::new();
    stream.read_to_string(&mut said).await.unwrap();
    assert!(said.contains(" 403 ") && said.contains("[agent.tls]"), "{said}");
    assert!(ledger(&site.path("ledger")).orders().await.unwrap().0.is_empty());
}
