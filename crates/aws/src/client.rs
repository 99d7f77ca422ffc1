//! A client of EC2 that is made when it is first used, and whose calls all return.

use std::collections::BTreeMap;
use std::future::Future;
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

use aws_config::imds;
use aws_config::provider_config::ProviderConfig;
use aws_config::retry::RetryConfig;
use aws_config::timeout::TimeoutConfig;
use aws_config::{BehaviorVersion, SdkConfig};
use aws_sdk_ec2::Client;
use aws_sdk_ec2::config::{Credentials, Region};
use aws_sdk_ec2::error::{ProvideErrorMetadata, SdkError};
use aws_smithy_http_client::tls;
use recovery::ports::BoxError;
use schemars::JsonSchema;
use serde::Deserialize;
use tokio::sync::OnceCell;
use tokio::time::timeout;
use url::{Host, Url};

use crate::fault::Fault;
use crate::told::Told;

/// How long one attempt of a call may take; the SDK then tries again.
const ATTEMPT: Duration = Duration::from_secs(3);
/// How long a connection may take.
const CONNECT: Duration = Duration::from_secs(2);
/// Attempts of one call, the first included.
const ATTEMPTS: u32 = 5;
/// How long the metadata of this instance may take. Off EC2 nobody answers.
const METADATA: Duration = Duration::from_secs(2);
/// The longest pause between two of them: a takeover waits.
const PAUSE: Duration = Duration::from_secs(1);

/// What all drivers share that ask the same: connections, credentials and limits, and what checks were told lately.
#[derive(Debug, Default)]
pub(crate) struct Shared {
    /// Made when it is first used.
    client: OnceCell<Client>,
    pub(crate) told: Told,
}

/// Those of this process, by what they ask.
static SHARED: Mutex<BTreeMap<Ec2Config, Weak<Shared>>> = Mutex::new(BTreeMap::new());

/// Where EC2 is asked. Credentials come by the SDK's default chain: the environment, the profile of `AWS_PROFILE`, a web
/// identity, or the role of this instance (IMDSv2).
#[derive(Debug, Clone, Default, PartialEq, Eq, PartialOrd, Ord, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Ec2Config {
    /// The region, such as `eu-central-1`. Without it: `AWS_REGION`, the profile, or the region of this instance.
    pub region: Option<String>,
    /// The URL of EC2's API, where it is not the region's public one, such as that of a VPC endpoint. `http://` is
    /// taken for addresses of this host and of private networks alone: EC2's answers count as proofs.
    pub endpoint: Option<String>,
}

impl Ec2Config {
    /// The client, which all drivers share that ask the same. Nothing is opened before it is used.
    ///
    /// # Errors
    /// Every bad value, as `key: what is wrong`.
    pub fn build(self) -> Result<Ec2, Vec<String>> {
        let problems = self.problems("ec2");
        if !problems.is_empty() {
            return Err(problems);
        }
        Ok(Ec2 {
            shared: self.shared(),
            config: self,
            #[cfg(test)]
            key: None,
            #[cfg(test)]
            metadata: None,
        })
    }
}

impl Ec2Config {
    /// Every bad value, as `section.key: what is wrong`.
    pub(crate) fn problems(&self, section: &str) -> Vec<String> {
        let mut problems = Vec::new();
        if let Some(region) = &self.region
            && (region.is_empty() || !region.chars().all(|c| c.is_ascii_alphanumeric() || c == '-'))
        {
            problems.push(format!(
                "{section}.region: `{region}` is not the name of a region, such as eu-central-1"
            ));
        }
        if let Some(endpoint) = &self.endpoint {
            problems.extend(unfit(endpoint).map(|why| format!("{section}.endpoint: `{endpoint}` {why}")));
        }
        problems
    }

    fn shared(&self) -> Arc<Shared> {
        let mut all = SHARED.lock().unwrap_or_else(PoisonError::into_inner);
        all.retain(|_, shared| shared.strong_count() > 0);
        let shared = all.get(self).and_then(Weak::upgrade);
        shared.unwrap_or_else(|| {
            let shared = Arc::default();
            all.insert(self.clone(), Arc::downgrade(&shared));
            shared
        })
    }
}

/// Why this is no URL of a service whose answers are proofs.
fn unfit(text: &str) -> Option<&'static str> {
    let url = Url::parse(text).ok().filter(|url| url.has_host() && ["https", "http"].contains(&url.scheme()));
    let Some(url) = url else { return Some("is no URL: give one that begins with https://") };
    let is_near = match url.host() {
        Some(Host::Ipv4(ip)) => ip.is_loopback() || ip.is_private() || ip.is_link_local(),
        Some(Host::Ipv6(ip)) => ip.is_loopback() || ip.is_unique_local(),
        Some(Host::Domain(name)) => name == "localhost",
        None => false,
    };
    let why = "is not encrypted, and its answers count as proofs: use https:// (http:// is for an address of this host \
               or of a private network)";
    (url.scheme() == "http" && !is_near).then_some(why)
}

/// EC2, of one region.
#[derive(Debug)]
pub struct Ec2 {
    config: Ec2Config,
    pub(crate) shared: Arc<Shared>,
    /// The access key, instead of the default chain.
    #[cfg(test)]
    pub(crate) key: Option<String>,
    /// Where the metadata of this instance is.
    #[cfg(test)]
    pub(crate) metadata: Option<String>,
}

impl Ec2 {
    /// Makes one call by `request`, and returns within `limit`.
    pub(crate) async fn call<T, E, F>(
        &self,
        limit: Duration,
        request: impl FnOnce(Client) -> F,
    ) -> Result<T, Fault>
    where
        F: Future<Output = Result<T, SdkError<E>>>,
        E: ProvideErrorMetadata + std::error::Error + Send + Sync + 'static,
    {
        let call = async {
            let client = self.shared.client.get_or_try_init(|| self.connect()).await?;
            request(client.clone()).await.map_err(Fault::from)
        };
        timeout(limit, call).await.unwrap_or(Err(Fault::Late { limit }))
    }

    /// The region that is asked, for people.
    pub(crate) fn region(&self) -> String {
        let found =
            self.shared.client.get().and_then(|client| client.config().region().map(ToString::to_string));
        found.or_else(|| self.config.region.clone()).unwrap_or_else(|| "its default region".to_owned())
    }

    /// The same, and its endpoint where that is not the region's public one.
    pub(crate) fn place(&self) -> String {
        match &self.config.endpoint {
            Some(endpoint) => format!("{} (at {endpoint})", self.region()),
            None => self.region(),
        }
    }

    /// Another region than the one that is asked, if this instance's metadata (IMDSv2) says that it is there.
    pub(crate) async fn other_region(&self) -> Option<String> {
        let own = self.of_instance("placement/region").await.ok()?;
        (own != self.region()).then_some(own)
    }

    /// What this instance's metadata (IMDSv2) says at `path`.
    pub(crate) async fn of_instance(&self, path: &str) -> Result<String, BoxError> {
        let http = aws_smithy_http_client::Builder::new().build_http();
        let config = ProviderConfig::without_region().with_http_client(http);
        let client = imds::Client::builder().configure(&config).connect_timeout(METADATA).max_attempts(1);
        #[cfg(test)]
        let client = client.endpoint(self.metadata.as_deref().unwrap_or("http://127.0.0.1:9"))?;
        let client = client.build();
        let asked = timeout(METADATA, client.get(format!("/latest/meta-data/{path}")));
        let told = asked.await.map_err(|_| format!("no answer within {} s", METADATA.as_secs()))??;
        Ok(told.as_ref().to_owned())
    }

    async fn connect(&self) -> Result<Client, Fault> {
        #[cfg(test)]
        let key = self.key.as_deref();
        #[cfg(not(test))]
        let key = None;
        Ok(Client::new(&sdk_config(&self.config, key).await?))
    }
}

/// What a client of one of AWS's services is made of. `key`: the access key of a test, instead of the default chain.
pub(crate) async fn sdk_config(service: &Ec2Config, key: Option<&str>) -> Result<SdkConfig, Fault> {
    let http = aws_smithy_http_client::Builder::new()
        .tls_provider(tls::Provider::Rustls(tls::rustls_provider::CryptoMode::Ring))
        .build_https();
    let retries = RetryConfig::standard().with_max_attempts(ATTEMPTS).with_max_backoff(PAUSE);
    let timeouts =
        TimeoutConfig::builder().connect_timeout(CONNECT).operation_attempt_timeout(ATTEMPT).build();
    let mut loader = aws_config::defaults(BehaviorVersion::v2026_01_12())
        .http_client(http)
        .retry_config(retries)
        .timeout_config(timeouts);
    if let Some(region) = &service.region {
        loader = loader.region(Region::new(region.clone()));
    }
    if let Some(endpoint) = &service.endpoint {
        loader = loader.endpoint_url(endpoint.clone());
    }
    if let Some(key) = key {
        loader = loader.credentials_provider(Credentials::new(key, "secret", None, None, "tests"));
    }
    let config = loader.load().await;
    if config.region().is_none() {
        return Err(Fault::NoRegion);
    }
    Ok(config)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_bad_value_is_told() {
        let config =
            Ec2Config { region: Some("eu central".to_owned()), endpoint: Some("ec2.local".to_owned()) };
        let problems = config.build().unwrap_err();
        assert_eq!(problems.len(), 2, "{problems:?}");
        assert!(
            problems[0].starts_with("ec2.region: `eu central` is not the name of a region"),
            "{problems:?}"
        );
        assert!(problems[1].starts_with("ec2.endpoint: `ec2.local` is no URL"), "{problems:?}");
    }

    #[test]
    fn answers_that_are_proofs_come_encrypted_or_from_nearby() {
        for url in [
            "https://ec2.eu-west-1.amazonaws.com",
            "http://127.0.0.1:5000",
            "http://[::1]:5000/x",
            "http://10.77.0.2",
        ] {
            assert_eq!(unfit(url), None, "{url}");
        }
        for url in [
            "http://ec2.eu-west-1.amazonaws.com",
            "http://52.94.5.1:80",
            "http://[2a05::1]",
            // A login that looks like an address.
            "http://127.0.0.1:80@ec2.eu-west-1.amazonaws.com",
        ] {
            assert!(unfit(url).unwrap().contains("not encrypted"), "{url}");
        }
        for url in ["ec2.local", "https://", "http:// x", "ftp://127.0.0.1"] {
            assert!(unfit(url).unwrap().contains("begins with https://"), "{url}");
        }
    }

    #[test]
    fn drivers_that_ask_the_same_share_a_client() {
        let of = |region: &str, endpoint: Option<&str>| {
            let endpoint = endpoint.map(str::to_owned);
            Ec2Config { region: Some(region.to_owned()), endpoint }.build().unwrap().shared
        };
        let one = of("eu-south-1", None);
        assert!(Arc::ptr_eq(&one, &of("eu-south-1", None)));
        assert!(!Arc::ptr_eq(&one, &of("eu-south-2", None)));
        assert!(!Arc::ptr_eq(&one, &of("eu-south-1", Some("https://ec2.local"))));
    }

    #[test]
    fn nothing_is_opened_before_it_is_used() {
        // Without a runtime, a connection would panic.
        let ec2 = Ec2Config::default().build().unwrap();
        assert!(ec2.shared.client.get().is_none());
        assert_eq!(ec2.region(), "its default region");
    }
}
