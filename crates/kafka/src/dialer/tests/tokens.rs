//! Logging in with a token.

use fakes::kafka_login::Login;
use fakes::provider::{Asked, Provider};

use super::*;
use crate::security::{Mechanism, SaslConfig, TokenEndpointConfig};

const TOKEN: &str = "head.claims.signature";
const GIVEN: &str =
    r#"{"access_token": "head.claims.signature", "token_type": "Bearer", "expires_in": 3600}"#;
/// `understudy` and `s3cret/+`, as a form would have them.
const BASIC: &str = "Basic dW5kZXJzdHVkeTpzM2NyZXQlMkYlMkI=";

async fn broker() -> Fake {
    let login = Login { mechanism: "OAUTHBEARER", user: "", password: TOKEN, forged: false };
    Fake::start(move |call| login.answer(call)).await
}

impl Site {
    fn bears(&self, token_file: Option<PathBuf>, token_endpoint: Option<Box<TokenEndpointConfig>>) -> Dialer {
        let (mechanism, user, password_file) = (Mechanism::OauthBearer, None, None);
        let sasl = SaslConfig { mechanism, user, password_file, token_file, token_endpoint };
        self.logs_in(Protocol::SaslPlaintext, sasl)
    }

    fn asks(&self, url: String) -> Dialer {
        self.write("secret", "s3cret/+\n");
        let endpoint = TokenEndpointConfig {
            url,
            client_id: "understudy".to_owned(),
            client_secret_file: self.path("secret"),
            scope: Some("kafka rw".to_owned()),
            ca: Some(self.path("ca.pem")),
        };
        self.bears(None, Some(Box::new(endpoint)))
    }
}

async fn failed(dialer: &Dialer, at: &Endpoint) -> (WireError, String) {
    let error = dialer.open(at, LIMIT).await.unwrap_err();
    let said = recovery::ports::chain(&error);
    (error, said)
}

#[tokio::test]
async fn a_token_of_a_file_is_shown_and_a_new_one_after_a_refusal() {
    let (site, broker) = (Site::new(), broker().await);
    site.write("token", "planted.old.token\n");
    let dialer = site.bears(Some(site.path("token")), None);
    let (error, said) = failed(&dialer, &broker.at).await;
    assert!(matches!(error, WireError::Unauthenticated { .. }), "{error:?}");
    let file = site.path("token").display().to_string();
    for part in ["invalid_token", &file, "cluster.security.sasl.token_file"] {
        assert!(said.contains(part), "{part} is not in: {said}");
    }
    assert!(!said.contains("planted"), "{said}");
    site.write("token", TOKEN);
    dialer.open(&broker.at, LIMIT).await.unwrap();
}

#[tokio::test]
async fn an_endpoint_is_asked_once_for_as_long_as_its_token_is_good() {
    let (site, broker) = (Site::new(), broker().await);
    let acceptor = site.authority.issue(&["127.0.0.1"]).acceptor(None);
    let provider = Provider::start(Some(acceptor)).await;
    provider.answers(200, GIVEN);
    let dialer = site.asks(format!("https://{}/token", provider.at));
    for _ in 0..3 {
        dialer.open(&broker.at, LIMIT).await.unwrap();
    }
    let form = "grant_type=client_credentials&scope=kafka+rw".to_owned();
    assert_eq!(provider.asked(), [Asked { authorization: BASIC.to_owned(), form }]);
    // A secret that was replaced is another one's.
    site.write("secret", "other");
    while provider.asked().len() < 2 {
        dialer.open(&broker.at, LIMIT).await.unwrap();
    }
}

#[tokio::test]
async fn a_token_is_renewed_before_it_ends_and_the_one_before_used_meanwhile() {
    let (site, broker) = (Site::new(), broker().await);
    let provider = Provider::start(None).await;
    provider.answers(200, &GIVEN.replace("3600", "5"));
    let dialer = site.asks(format!("http://{}/token", provider.at));
    let begun = Instant::now();
    dialer.open(&broker.at, LIMIT).await.unwrap();
    provider.hangs();
    // Nobody waits for the next one.
    while provider.asked().len() < 2 {
        dialer.open(&broker.at, LIMIT).await.unwrap();
        tokio::task::yield_now().await;
    }
    assert!(begun.elapsed() >= Duration::from_secs(4), "renewed after {:?}", begun.elapsed());
    provider.answers(200, GIVEN);
    dialer.open(&broker.at, LIMIT).await.unwrap();
}

#[tokio::test]
async fn how_long_a_token_lasts_may_be_said_in_any_way() {
    let (site, broker) = (Site::new(), broker().await);
    for said in ["\"3600\"", "18446744073709551615", "null", "3599.5", "-1"] {
        let provider = Provider::start(None).await;
        provider.answers(200, &GIVEN.replace("3600", said));
        let dialer = site.asks(format!("http://{}/token", provider.at));
        for _ in 0..2 {
            dialer.open(&broker.at, LIMIT).await.unwrap_or_else(|error| panic!("{said}: {error}"));
        }
        assert_eq!(provider.asked().len(), 1, "{said}");
    }
}

#[tokio::test]
async fn a_broker_that_does_not_take_what_the_endpoint_gave_is_told_and_the_next_token_is_another() {
    let (site, broker) = (Site::new(), broker().await);
    let provider = Provider::start(None).await;
    provider.answers(200, &GIVEN.replace("claims", "planted"));
    let dialer = site.asks(format!("http://{}/token", provider.at));
    let (error, said) = failed(&dialer, &broker.at).await;
    assert!(matches!(error, WireError::Unauthenticated { .. }), "{error:?}");
    for part in ["invalid_token", &provider.at.to_string(), "client understudy", "expected.issuer"] {
        assert!(said.contains(part), "{part} is not in: {said}");
    }
    assert!(!said.contains("planted") && !said.contains("s3cret"), "{said}");
    // Another broker may take it while there is no other.
    let login =
        Login { mechanism: "OAUTHBEARER", user: "", password: "head.planted.signature", forged: false };
    let other = Fake::start(move |call| login.answer(call)).await;
    provider.hangs();
    dialer.open(&other.at, LIMIT).await.unwrap();
    provider.answers(200, GIVEN);
    let until = Instant::now() + LIMIT;
    while let Err(error) = dialer.open(&broker.at, LIMIT).await {
        assert!(Instant::now() < until, "{error}");
    }
}

#[tokio::test]
async fn no_token_is_a_fault_of_this_host_and_nothing_is_said_to_the_broker() {
    let (site, broker) = (Site::new(), broker().await);
    let provider = Provider::start(None).await;
    let url = format!("http://{}/token", provider.at);
    let dialer = site.asks(url.clone());
    let wrong: [(u16, &str, &[&str]); 4] = [
        (
            401,
            r#"{"error": "invalid_client", "error_description": "no s3cret/+"}"#,
            &["invalid_client", "secret"],
        ),
        (503, "<html>", &["HTTP 503"]),
        (200, "{}", &["no token", "HTTP 200"]),
        (200, r#"{"access_token": "a\u0001b"}"#, &["a token that is none"]),
    ];
    for (status, body, parts) in wrong {
        provider.answers(status, body);
        let (error, said) = failed(&dialer, &broker.at).await;
        assert!(matches!(error, WireError::Local { .. }), "{error:?}");
        for part in parts.iter().chain(&[url.as_str(), "cluster.security.sasl.token_endpoint"]) {
            assert!(said.contains(part), "{part} is not in: {said}");
        }
        assert!(!said.contains("s3cret"), "{said}");
    }
    assert_eq!(broker.calls(ApiKey::SaslAuthenticate), 0);
    // The probe needs none.
    let addresses = dialer.resolve(&broker.at, Instant::now() + LIMIT).await.unwrap();
    let mut probe = dialer.connect(&broker.at, &addresses, Instant::now() + LIMIT).await.unwrap();
    probe.negotiate(Instant::now() + LIMIT).await.unwrap();
}

#[test]
fn bad_values_are_told_by_key() {
    let told = |sasl: &str| {
        let config = format!("protocol = \"SASL_SSL\"\nsasl = {sasl}");
        let config: SecurityConfig = toml::from_str(&config).unwrap();
        config.problems("cluster.security").join("\n")
    };
    let endpoint = |url: &str| {
        told(&format!(
            "{{ mechanism = \"OAUTHBEARER\", token_endpoint = {{ url = \"{url}\", client_id = \"u\", \
             client_secret_file = \"/s\" }} }}"
        ))
    };
    assert_eq!(endpoint("https://idp.example.com/token"), "");
    assert_eq!(endpoint("http://localhost:8080/token"), "");
    assert!(endpoint("http://idp.example.com/token").contains("token_endpoint.url: is http://"));
    assert!(endpoint("https://u:hunter2@idp.example.com").contains("has a login in it"));
    assert!(endpoint("idp.example.com/token").contains("is not a URL"));
    for (sasl, part) in [
        ("{ mechanism = \"OAUTHBEARER\" }", "sasl: has no token"),
        ("{ mechanism = \"OAUTHBEARER\", token_file = \"hunter2\" }", "sasl.token_file: is not absolute"),
        ("{ mechanism = \"OAUTHBEARER\", token_file = \"/t\", user = \"u\" }", "sasl.user: says nothing"),
        ("{ mechanism = \"PLAIN\", user = \"u\" }", "sasl.password_file: missing"),
        ("{ mechanism = \"PLAIN\", password_file = \"/p\" }", "sasl.user: missing"),
        (
            "{ mechanism = \"PLAIN\", user = \"u\", password_file = \"/p\", token_file = \"/t\" }",
            "is for OAUTHBEARER",
        ),
    ] {
        let said = told(sasl);
        assert!(said.contains(part), "{part} is not in: {said}");
        assert!(!said.contains("hunter2"), "{said}");
    }
}
