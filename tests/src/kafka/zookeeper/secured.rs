//! A ZooKeeper that only its own may speak to: TLS with certificates of both sides, a login by DIGEST-MD5, and ACLs.

use std::fs;
use std::path::PathBuf;

use anyhow::Result;
use toml::Table;

use super::super::Jvm;
use super::super::properties::{Properties, owned};
use super::super::secured::{Authority, put};

/// Who the brokers are, and the agents, to which the ACLs give what is theirs.
const USER: &str = "kafka";
const PASSWORD: &str = "n5Rb2-of-the-brokers";
/// Somebody who may log in, and may change nothing of the brokers'.
const STRANGER: &str = "stranger";
const STRANGERS_PASSWORD: &str = "t1Vx9-of-a-stranger";
const NETTY: &str = "org.apache.zookeeper.ClientCnxnSocketNetty";

/// Files in one directory, which every host sees.
#[derive(Debug)]
pub struct SecuredZooKeeper {
    dir: PathBuf,
}

impl SecuredZooKeeper {
    /// Makes certificates, passwords and JAAS files in `dir`, for a server at `ip`.
    pub(super) fn prepare(dir: PathBuf, ip: &str) -> Result<Self> {
        fs::create_dir_all(&dir)?;
        let (authority, secured) = (Authority::new("ZooKeeper's authority")?, Self { dir });
        secured.put("ca.pem", &authority.pem)?;
        for (name, names) in [("server", vec![ip.to_owned()]), ("client", vec![]), ("stranger", vec![])] {
            let (certificate, key) = authority.issue(name, &names)?;
            secured.put(&format!("{name}.store.pem"), &format!("{key}{certificate}"))?;
            secured.put(&format!("{name}.pem"), &certificate)?;
            secured.put(&format!("{name}.key"), &key)?;
        }
        let module = "org.apache.zookeeper.server.auth.DigestLoginModule required";
        let client = |user: &str, password: &str| {
            format!("Client {{ {module} username=\"{user}\" password=\"{password}\"; }};\n")
        };
        let users = format!("user_{USER}=\"{PASSWORD}\" user_{STRANGER}=\"{STRANGERS_PASSWORD}\"");
        secured.put("server.jaas", &format!("Server {{ {module} {users}; }};\n"))?;
        secured.put("client.jaas", &client(USER, PASSWORD))?;
        secured.put("stranger.jaas", &client(STRANGER, STRANGERS_PASSWORD))?;
        secured.password_of_agent(None)?;
        Ok(secured)
    }

    /// Has the agent log in with this password; `None`: with the right one.
    ///
    /// # Errors
    /// When it cannot be written.
    pub fn password_of_agent(&self, password: Option<&str>) -> Result<()> {
        self.put("agent.password", &format!("{}\n", password.unwrap_or(PASSWORD)))
    }

    /// Has the agent that is configured speak to it.
    pub(crate) fn configure(&self, cluster: &mut Table) {
        let path = |name: &str| toml::Value::from(self.path(name));
        let entry = |key: &str, value: toml::Value| (key.to_owned(), value);
        let sasl = [
            entry("mechanism", "DIGEST-MD5".into()),
            entry("user", USER.into()),
            entry("password_file", path("agent.password")),
        ];
        let section = [
            entry("protocol", "SASL_SSL".into()),
            entry("ca", path("ca.pem")),
            entry("certificate", path("client.pem")),
            entry("key", path("client.key")),
            entry("sasl", Table::from_iter(sasl).into()),
        ];
        cluster.insert("zookeeper_security".to_owned(), Table::from_iter(section).into());
    }

    /// What the server is configured with.
    pub(super) fn of_server(&self) -> String {
        format!(
            "serverCnxnFactory=org.apache.zookeeper.server.NettyServerCnxnFactory\nssl.keyStore.location={}\n\
             ssl.keyStore.type=PEM\nssl.trustStore.location={}\nssl.trustStore.type=PEM\nssl.clientAuth=need\n\
             authProvider.sasl=org.apache.zookeeper.server.auth.SASLAuthenticationProvider\n\
             sessionRequireClientSASLAuth=true\n",
            self.path("server.store.pem"),
            self.path("ca.pem")
        )
    }

    /// What brokers are configured with.
    pub(in super::super) fn of_brokers(&self) -> Properties {
        owned([
            ("zookeeper.ssl.client.enable", "true".to_owned()),
            ("zookeeper.clientCnxnSocket", NETTY.to_owned()),
            ("zookeeper.ssl.keystore.location", self.path("client.store.pem")),
            ("zookeeper.ssl.keystore.type", "PEM".to_owned()),
            ("zookeeper.ssl.truststore.location", self.path("ca.pem")),
            ("zookeeper.ssl.truststore.type", "PEM".to_owned()),
            ("zookeeper.set.acl", "true".to_owned()),
        ])
    }

    /// A Java that logs in as what this JAAS file says: `server`, `client` or `stranger`.
    pub(in super::super) fn jvm(&self, jvm: Jvm, who: &str) -> Jvm {
        jvm.with(&format!("-Djava.security.auth.login.config={}", self.path(&format!("{who}.jaas"))))
    }

    /// The same for its own command line, which has no file for the rest.
    pub(super) fn cli(&self, jvm: Jvm, who: &str) -> Jvm {
        let store = |which: &str, name: &str| {
            [
                format!("-Dzookeeper.ssl.{which}.location={}", self.path(name)),
                format!("-Dzookeeper.ssl.{which}.type=PEM"),
            ]
        };
        let tls =
            [format!("-Dzookeeper.clientCnxnSocket={NETTY}"), "-Dzookeeper.client.secure=true".to_owned()];
        let all =
            [tls, store("keyStore", &format!("{who}.store.pem")), store("trustStore", "ca.pem")].concat();
        all.iter().fold(self.jvm(jvm, who), |jvm, flag| jvm.with(flag))
    }

    fn put(&self, name: &str, text: &str) -> Result<()> {
        put(&self.dir, name, text)
    }

    fn path(&self, name: &str) -> String {
        self.dir.join(name).display().to_string()
    }
}
