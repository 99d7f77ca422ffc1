//! A cluster with TLS and logins: who signs its certificates, what everybody shows and trusts, and who may do
//! what.
//!
//! A broker has two listeners: `CLIENTS` (`SASL_SSL`, SCRAM) where clients expect it, and `BROKERS` (`SSL`, with
//! certificates of both sides). Controllers have `CONTROLLER`, which is like `BROKERS`. A certificate's common
//! name is the user that it makes of whoever shows it. The nodes' own user is the only super user: with
//! `StandardAuthorizer` no broker could register without.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result};
use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair};
use rdkafka::config::ClientConfig;
use rustls::RootCertStore;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use toml::Table;

use super::node::Node;
use super::properties::{Properties, owned};
use super::provider::Provider;
use super::{Jvm, Kafka};
use crate::lab::HUB;
use crate::shell::run;

/// The port of a secured broker's listener for other brokers.
pub(crate) const BETWEEN_PORT: u16 = 9094;
/// The agent's name to Kafka.
pub(super) const AGENT: &str = "understudy";
/// The producers' and consumers' name to Kafka.
const APP: &str = "app";
const APP_PASSWORD: &str = "lfEg7-of-the-app";
/// The agent's password, until it is changed.
pub const AGENT_PASSWORD: &str = "q0Zp3-of-the-agent";
/// Of the agent's truststore.
const STORE_PASSWORD: &str = "w8Kd1-of-the-store";
/// Brokers and controllers.
const NODE: &str = "node";
const SCRAM: &str = "SCRAM-SHA-512";
const OAUTHBEARER: &str = "OAUTHBEARER";
/// How long a token of the agent's is good for: some are given while a story lasts.
const TOKEN_LASTS: Duration = Duration::from_secs(8);

/// How a cluster is secured.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, clap::ValueEnum)]
#[value(rename_all = "snake_case")]
pub enum Security {
    /// Neither encrypted nor authenticated.
    #[default]
    Plaintext,
    /// Clients log in within TLS.
    SaslSsl,
    /// The same, and clients show a certificate besides.
    MutualSaslSsl,
    /// The agent logs in with tokens of an identity provider, within TLS.
    Tokens,
}

/// One of the two who sign: the cluster begins with the one, and the other is there to change to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Signer {
    /// Signed the nodes' certificates, and the agent's.
    First,
    /// Signed the clients' certificates. All trust it from the beginning, but for the agent.
    Second,
}

/// What secures a cluster: files in one directory, which every host sees.
pub struct Secured {
    security: Security,
    dir: PathBuf,
    first: Authority,
    second: Authority,
    /// How the bed itself connects: as a node.
    own: Arc<rustls::ClientConfig>,
    /// Gives the agent tokens.
    provider: Option<Provider>,
}

pub(super) struct Authority {
    pub(super) pem: String,
    issuer: Issuer<'static, KeyPair>,
}

impl std::fmt::Debug for Secured {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Secured")
            .field("security", &self.security)
            .field("dir", &self.dir)
            .finish_non_exhaustive()
    }
}

impl Authority {
    pub(super) fn new(name: &str) -> Result<Self> {
        let (key, mut params) = (KeyPair::generate()?, CertificateParams::default());
        params.distinguished_name.push(DnType::CommonName, name);
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        Ok(Self { pem: params.self_signed(&key)?.pem(), issuer: Issuer::new(params, key) })
    }

    /// A certificate that makes its holder `user`, for these names and addresses, and its key.
    pub(super) fn issue(&self, user: &str, names: &[String]) -> Result<(String, String)> {
        let (key, mut params) = (KeyPair::generate()?, CertificateParams::new(names)?);
        params.distinguished_name.push(DnType::CommonName, user);
        Ok((params.signed_by(&key, &self.issuer)?.pem(), key.serialize_pem()))
    }
}

impl Secured {
    /// Makes authorities, certificates and passwords in `dir`; `None` for a cluster in plaintext.
    pub(super) fn prepare(security: Security, dir: PathBuf, artifacts: &Path) -> Result<Option<Self>> {
        if security == Security::Plaintext {
            return Ok(None);
        }
        fs::create_dir_all(&dir)?;
        let (first, second) = (Authority::new("first authority")?, Authority::new("second authority")?);
        let (certificate, key) = first.issue(NODE, &[])?;
        let own = Arc::new(tls(&[&first, &second], &certificate, &key)?);
        let mut secured = Self { security, dir, first, second, own, provider: None };
        secured.be_administrator(&certificate, &key)?;
        secured.put("trusted.pem", &format!("{}{}", secured.first.pem, secured.second.pem))?;
        let (certificate, key) = secured.second.issue(APP, &[])?;
        secured.put("app.pem", &certificate)?;
        secured.put("app.key", &key)?;
        secured.trust_by_nodes(&[Signer::First, Signer::Second])?;
        secured.show_agent(Signer::First)?;
        secured.put("agent-ca.password", STORE_PASSWORD)?;
        secured.trust_by_agent(&[Signer::First])?;
        secured.password_of_agent(AGENT_PASSWORD)?;
        if security == Security::Tokens {
            secured.provide(artifacts)?;
        }
        Ok(Some(secured))
    }

    fn provide(&mut self, artifacts: &Path) -> Result<()> {
        let (certificate, key) = self.first.issue("provider", &[HUB.to_string()])?;
        self.put("provider.pem", &certificate)?;
        self.put("provider.key", &key)?;
        self.provider = Some(Provider::start(&self.dir, artifacts, (AGENT, AGENT_PASSWORD), TOKEN_LASTS)?);
        Ok(())
    }

    /// Who gives the agent its tokens.
    ///
    /// # Errors
    /// When it has a password.
    pub fn provider(&self) -> Result<&Provider> {
        self.provider.as_ref().context("the agent has a password")
    }

    /// What brokers are started with: by itself Kafka asks no URL at all for keys.
    pub(super) fn jvm(&self, jvm: Jvm) -> Jvm {
        match self.provider {
            Some(_) => jvm.with(&format!("-Dorg.apache.kafka.sasl.oauthbearer.allowed.urls={}", self.keys())),
            None => jvm,
        }
    }

    /// The keys of the provider.
    fn keys(&self) -> String {
        format!("file://{}", self.path("jwks.json"))
    }

    /// Gives a node the certificate that it shows, for its address.
    ///
    /// # Errors
    /// When it cannot be written.
    pub fn show_node(&self, node: &Node, by: Signer) -> Result<()> {
        let (certificate, key) = self.signer(by).issue(NODE, &[node.ip.to_string()])?;
        self.put(&keystore(node.id), &format!("{key}{certificate}"))
    }

    /// Gives the agent the certificate that it shows.
    ///
    /// # Errors
    /// When it cannot be written.
    pub fn show_agent(&self, by: Signer) -> Result<()> {
        let (certificate, key) = self.signer(by).issue(AGENT, &[])?;
        self.put("agent.pem", &certificate)?;
        self.put("agent.key", &key)
    }

    /// Has the agent trust what these have signed.
    ///
    /// # Errors
    /// When it cannot be written.
    pub fn trust_by_agent(&self, signers: &[Signer]) -> Result<()> {
        let all: Vec<&str> = signers.iter().map(|signer| self.signer(*signer).pem.as_str()).collect();
        self.put("agent-ca.pem", &all.concat())?;
        // The same as keytool keeps it.
        let aside = self.path("agent-ca.p12.new");
        let keytool = Kafka::home()?.java().canonicalize()?.with_file_name("keytool");
        for (alias, pem) in ["one", "other"].into_iter().zip(all) {
            let file = format!("{alias}.pem");
            self.put(&file, pem)?;
            let (file, keytool) = (self.path(&file), keytool.display().to_string());
            let import =
                ["-importcert", "-noprompt", "-alias", alias, "-file", &file, "-storetype", "PKCS12"];
            run(&keytool, import.iter().chain(&["-keystore", &aside, "-storepass", STORE_PASSWORD]))?;
        }
        fs::rename(&aside, self.path("agent-ca.p12")).context("keytool made no store")
    }

    /// Has brokers take certificates of clients from these signers, once they read their truststore.
    ///
    /// # Errors
    /// When it cannot be written.
    pub fn trust_by_nodes(&self, signers: &[Signer]) -> Result<()> {
        let all: Vec<&str> = signers.iter().map(|signer| self.signer(*signer).pem.as_str()).collect();
        self.put("clients.pem", &all.concat())
    }

    /// Has the agent log in with this password.
    ///
    /// # Errors
    /// When it cannot be written.
    pub fn password_of_agent(&self, password: &str) -> Result<()> {
        self.put("agent.password", &format!("{password}\n"))
    }

    fn signer(&self, signer: Signer) -> &Authority {
        match signer {
            Signer::First => &self.first,
            Signer::Second => &self.second,
        }
    }

    fn put(&self, name: &str, text: &str) -> Result<()> {
        put(&self.dir, name, text)
    }

    fn path(&self, name: &str) -> String {
        self.dir.join(name).display().to_string()
    }

    /// What every node is configured with.
    pub(super) fn of_all(&self) -> Properties {
        owned([
            ("listener.security.protocol.map", "CONTROLLER:SSL,CLIENTS:SASL_SSL,BROKERS:SSL".to_owned()),
            ("authorizer.class.name", "org.apache.kafka.metadata.authorizer.StandardAuthorizer".to_owned()),
            ("super.users", format!("User:{NODE}")),
            ("ssl.principal.mapping.rules", "RULE:^CN=(.*)$/$1/".to_owned()),
            ("ssl.keystore.type", "PEM".to_owned()),
            ("ssl.truststore.type", "PEM".to_owned()),
            ("ssl.truststore.location", self.path("trusted.pem")),
            ("listener.name.controller.ssl.client.auth", "required".to_owned()),
        ])
    }

    /// What brokers are configured with besides.
    pub(super) fn of_brokers(&self) -> Properties {
        let mut properties = owned([
            ("inter.broker.listener.name", "BROKERS".to_owned()),
            ("listener.name.brokers.ssl.client.auth", "required".to_owned()),
            ("listener.name.clients.ssl.truststore.location", self.path("clients.pem")),
            ("sasl.enabled.mechanisms", SCRAM.to_owned()),
            (
                "listener.name.clients.scram-sha-512.sasl.jaas.config",
                "org.apache.kafka.common.security.scram.ScramLoginModule required;".to_owned(),
            ),
        ]);
        if self.provider.is_some() {
            let prefix = "listener.name.clients.oauthbearer.sasl";
            let package = "org.apache.kafka.common.security.oauthbearer";
            properties.extend([
                ("sasl.enabled.mechanisms".to_owned(), format!("{SCRAM},{OAUTHBEARER}")),
                (format!("{prefix}.jaas.config"), format!("{package}.OAuthBearerLoginModule required;")),
                (
                    format!("{prefix}.server.callback.handler.class"),
                    format!("{package}.OAuthBearerValidatorCallbackHandler"),
                ),
                ("sasl.oauthbearer.jwks.endpoint.url".to_owned(), self.keys()),
                ("sasl.oauthbearer.expected.audience".to_owned(), "kafka".to_owned()),
                ("sasl.oauthbearer.expected.issuer".to_owned(), "https://provider.bed".to_owned()),
            ]);
        }
        if self.security == Security::MutualSaslSsl {
            properties.extend(owned([("listener.name.clients.ssl.client.auth", "required".to_owned())]));
        }
        properties
    }

    /// What belongs to one node.
    pub(crate) fn of_node(&self, id: i32) -> Properties {
        owned([("ssl.keystore.location", self.path(&keystore(id)))])
    }

    /// What log dirs are formatted with: clients cannot log in to have their passwords set.
    pub(super) fn format(&self) -> Vec<String> {
        let user = |name: &str, password: &str| format!("{SCRAM}=[name={name},password={password}]");
        let users = [user(APP, APP_PASSWORD), user(AGENT, AGENT_PASSWORD)];
        users.into_iter().flat_map(|user| ["--add-scram".to_owned(), user]).collect()
    }

    /// Has a client log in as one that produces and consumes.
    pub(super) fn log_in(&self, client: &mut ClientConfig) {
        client
            .set("security.protocol", "sasl_ssl")
            .set("sasl.mechanism", SCRAM)
            .set("sasl.username", APP)
            .set("sasl.password", APP_PASSWORD)
            .set("ssl.ca.location", self.path("trusted.pem"))
            .set("ssl.certificate.location", self.path("app.pem"))
            .set("ssl.key.location", self.path("app.key"));
    }

    /// The same as one of the nodes, which may do everything.
    pub(super) fn be_node(&self, client: &mut ClientConfig) {
        client
            .set("security.protocol", "ssl")
            .set("ssl.ca.location", self.path("trusted.pem"))
            .set("ssl.certificate.location", self.path("node.pem"))
            .set("ssl.key.location", self.path("node.key"));
    }

    /// How the bed connects where brokers do.
    pub(super) fn own(&self) -> Arc<rustls::ClientConfig> {
        Arc::clone(&self.own)
    }

    /// The files of one who is to brokers what they are to each other: for clients and for Kafka's own tools.
    fn be_administrator(&self, certificate: &str, key: &str) -> Result<()> {
        self.put("node.pem", certificate)?;
        self.put("node.key", key)?;
        self.put("node.store.pem", &format!("{key}{certificate}"))?;
        let text = format!(
            "security.protocol=SSL\nssl.keystore.type=PEM\nssl.keystore.location={}\nssl.truststore.type=PEM\n\
             ssl.truststore.location={}\n",
            self.path("node.store.pem"),
            self.path("trusted.pem")
        );
        self.put("tool.properties", &text)
    }

    /// By which Kafka's own tools may do everything.
    pub(super) fn tool_properties(&self) -> String {
        self.path("tool.properties")
    }

    /// Has the agent that is configured speak as the listeners do. It trusts controllers by a store of Java's.
    pub(crate) fn configure(&self, cluster: &mut Table) {
        cluster.insert("security".to_owned(), self.login_of_agent().into());
        let mut controllers = self.tls_of_agent("SSL", true);
        controllers.remove("ca");
        let [file, password] = ["agent-ca.p12", "agent-ca.password"].map(|name| self.path(name).into());
        let store = Table::from_iter([("file".to_owned(), file), ("password_file".to_owned(), password)]);
        controllers.insert("truststore".to_owned(), store.into());
        cluster.insert("controllers_security".to_owned(), controllers.into());
    }

    /// The section by which the agent speaks with brokers.
    #[must_use]
    pub fn login_of_agent(&self) -> Table {
        let mut section = self.tls_of_agent("SASL_SSL", self.security == Security::MutualSaslSsl);
        let (file, ca) = (self.path("agent.password"), self.path("agent-ca.pem"));
        let table = |all: &[(&str, &str)]| -> Table {
            all.iter().map(|(key, value)| ((*key).to_owned(), (*value).into())).collect()
        };
        let sasl = match &self.provider {
            None => table(&[("mechanism", SCRAM), ("user", AGENT), ("password_file", &file)]),
            Some(provider) => {
                let endpoint = [
                    ("url", provider.url()),
                    ("client_id", AGENT),
                    ("client_secret_file", &file),
                    ("scope", "kafka"),
                    ("ca", &ca),
                ];
                let mut sasl = table(&[("mechanism", OAUTHBEARER)]);
                sasl.insert("token_endpoint".to_owned(), table(&endpoint).into());
                sasl
            }
        };
        section.insert("sasl".to_owned(), sasl.into());
        section
    }

    fn tls_of_agent(&self, protocol: &str, shows: bool) -> Table {
        let mut section = Table::new();
        section.insert("protocol".to_owned(), protocol.into());
        section.insert("ca".to_owned(), self.path("agent-ca.pem").into());
        if shows {
            section.insert("certificate".to_owned(), self.path("agent.pem").into());
            section.insert("key".to_owned(), self.path("agent.key").into());
        }
        section
    }

    /// Where the certificates, keys and passwords are.
    #[must_use]
    pub fn dir(&self) -> &Path {
        &self.dir
    }
}

/// Written aside and renamed, as tools do that renew certificates.
pub(super) fn put(dir: &Path, name: &str, text: &str) -> Result<()> {
    let (path, aside) = (dir.join(name), dir.join(format!("{name}.new")));
    fs::write(&aside, text)?;
    fs::rename(&aside, &path).with_context(|| format!("cannot put {}", path.display()))
}

fn keystore(id: i32) -> String {
    format!("node-{id}.store.pem")
}

/// The provider is named, so that nothing is installed for the whole process.
fn tls(trusted: &[&Authority], certificate: &str, key: &str) -> Result<rustls::ClientConfig> {
    let mut roots = RootCertStore::empty();
    for authority in trusted {
        roots.add(CertificateDer::from_pem_slice(authority.pem.as_bytes())?)?;
    }
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder =
        rustls::ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions()?;
    let chain = vec![CertificateDer::from_pem_slice(certificate.as_bytes())?];
    let key = PrivateKeyDer::from_pem_slice(key.as_bytes())?;
    Ok(builder.with_root_certificates(roots).with_client_auth_cert(chain, key)?)
}
