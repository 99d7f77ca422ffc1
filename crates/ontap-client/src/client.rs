//! The client and how it is set up.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use reqwest::Url;
use reqwest::redirect::Policy;
use tokio::time::Instant;

use crate::error::{Error, Result};
use crate::tls::{self, Auth, Tls};
use secrets::Secrets;

/// What a deadline beyond the clock's range becomes.
const LONGEST_CALL: Duration = Duration::from_secs(365 * 24 * 60 * 60);

/// A connection that was idle for longer is not used again: a server that is just closing it would leave open
/// whether a change was made.
const IDLE_LIMIT: Duration = Duration::from_secs(10);

/// How often and how soon the client repeats what is safe to repeat: reads, changes that set absolute values,
/// and deletions by key. Nothing else is repeated, except what ONTAP did not take up (429, or no connection).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Retry {
    /// How often a request is sent at most. 1: never repeated.
    pub attempts: u32,
    /// The wait before the second attempt. It doubles with each, and each is shortened by chance by up to a
    /// half, so that clients that failed together do not come back together.
    pub first_wait: Duration,
    /// The longest wait. What ONTAP asks for by `Retry-After` may be longer.
    pub longest_wait: Duration,
}

impl Default for Retry {
    fn default() -> Self {
        Self { attempts: 5, first_wait: Duration::from_millis(200), longest_wait: Duration::from_secs(5) }
    }
}

impl Retry {
    /// The wait after so many attempts.
    pub(crate) fn wait(&self, attempts: u32) -> Duration {
        let doubled = self.first_wait.saturating_mul(1_u32 << attempts.saturating_sub(1).min(16));
        doubled.min(self.longest_wait).mul_f64(0.5 + fastrand::f64() / 2.0)
    }
}

/// Sets up a [`Client`].
#[derive(Clone)]
pub struct ClientBuilder {
    url: String,
    auth: Auth,
    tls: Tls,
    deadline: Duration,
    attempt_limit: Duration,
    connect_limit: Duration,
    retry: Retry,
    page_size: Option<u32>,
    app: String,
}

impl fmt::Debug for ClientBuilder {
    /// Without the address, which is not checked yet and may hold a password.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ClientBuilder")
            .field("auth", &self.auth)
            .field("tls", &self.tls)
            .field("deadline", &self.deadline)
            .finish_non_exhaustive()
    }
}

impl ClientBuilder {
    /// Whom to trust. Default: the authorities that this host trusts.
    #[must_use]
    pub fn tls(mut self, tls: Tls) -> Self {
        self.tls = tls;
        self
    }

    /// How long a call may take in all, with its repetitions, pages and jobs. Default: 30 s.
    #[must_use]
    pub fn deadline(mut self, deadline: Duration) -> Self {
        self.deadline = deadline;
        self
    }

    /// How long one attempt may take if it may be repeated. Default: 20 s, since ONTAP itself answers a read
    /// after 15 s with what it has.
    #[must_use]
    pub fn attempt_limit(mut self, limit: Duration) -> Self {
        self.attempt_limit = limit;
        self
    }

    /// How long making a connection may take. Default: 5 s.
    #[must_use]
    pub fn connect_limit(mut self, limit: Duration) -> Self {
        self.connect_limit = limit;
        self
    }

    /// How often and how soon to repeat.
    #[must_use]
    pub fn retry(mut self, retry: Retry) -> Self {
        self.retry = retry;
        self
    }

    /// Records in one page of a list. Default: ONTAP's own, 10 000.
    #[must_use]
    pub fn page_size(mut self, records: u32) -> Self {
        self.page_size = Some(records);
        self
    }

    /// The name that ONTAP's logs show for this client. Default: `ontap-client/<version>`.
    #[must_use]
    pub fn app(mut self, name: impl Into<String>) -> Self {
        self.app = name.into();
        self
    }

    /// The client. Reads this host's trusted authorities from disk, if they are to be used; connects to
    /// nothing yet.
    ///
    /// # Errors
    /// [`Error::Usage`] if the address, a certificate or a key cannot be used.
    pub fn build(self) -> Result<Client> {
        let origin = origin(&self.url, &self.tls)?;
        if matches!((&self.tls, &self.auth), (Tls::InsecurePlainHttp, Auth::Certificate { .. })) {
            return Err(Error::usage("a client certificate needs TLS, which is switched off"));
        }
        if self.retry.attempts == 0 {
            return Err(Error::usage("retry.attempts is 0; 1 means that nothing is repeated"));
        }
        let http = reqwest::Client::builder()
            .tls_backend_preconfigured(tls::config(&self.tls, &self.auth)?)
            .no_proxy()
            .redirect(Policy::none())
            .connect_timeout(self.connect_limit)
            .pool_idle_timeout(IDLE_LIMIT)
            .build()
            .map_err(|e| Error::setup("no HTTP client", e))?;
        let Self { auth, deadline, attempt_limit, retry, page_size, app, .. } = self;
        let secrets = auth.secrets();
        let shared = Shared { http, origin, auth, secrets, attempt_limit, retry, page_size, app };
        Ok(Client { shared: Arc::new(shared), deadline, svm: None, spares_others: false })
    }
}

fn origin(url: &str, tls: &Tls) -> Result<Url> {
    // The address itself is not repeated: it may hold a password.
    let bad = |why: &str| Error::usage(format!("the address of ONTAP {why}; write https://<management LIF>"));
    let mut origin = Url::parse(url).map_err(|e| Error::setup("the address of ONTAP is no URL", e))?;
    if !origin.username().is_empty() || origin.password().is_some() {
        return Err(bad("holds a user or password, which belong into the login"));
    }
    if origin.query().is_some()
        || origin.fragment().is_some()
        || !matches!(origin.path(), "/" | "/api" | "/api/")
    {
        return Err(bad("holds more than scheme, host and port"));
    }
    match (origin.scheme(), tls) {
        ("https", Tls::InsecurePlainHttp) => Err(bad("is https, and TLS is switched off")),
        ("https", _) | ("http", Tls::InsecurePlainHttp) => {
            origin.set_path("/");
            Ok(origin)
        }
        ("http", _) => Err(bad("is http, which must be typed out as Tls::InsecurePlainHttp")),
        _ => Err(bad("is neither https nor http")),
    }
}

#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) http: reqwest::Client,
    pub(crate) origin: Url,
    pub(crate) auth: Auth,
    pub(crate) secrets: Secrets,
    pub(crate) attempt_limit: Duration,
    pub(crate) retry: Retry,
    pub(crate) page_size: Option<u32>,
    pub(crate) app: String,
}

/// A client of one ONTAP cluster, or of one SVM's own management LIF. Cheap to clone; clones share
/// connections.
///
/// Every call returns within its deadline, and an error says whether the change may be in force nevertheless
/// ([`Error::is_unconfirmed`]). Whoever drops the future of a change before it is done does not learn that.
#[derive(Clone)]
pub struct Client {
    pub(crate) shared: Arc<Shared>,
    deadline: Duration,
    pub(crate) svm: Option<String>,
    pub(crate) spares_others: bool,
}

impl Client {
    /// Begins to set up a client. `url`: `https://` and the management LIF of the cluster (recommended), a
    /// node or an SVM, or `https://management.<file system>.fsx.<region>.amazonaws.com`.
    pub fn builder(url: impl Into<String>, auth: Auth) -> ClientBuilder {
        ClientBuilder {
            url: url.into(),
            auth,
            tls: Tls::default(),
            deadline: Duration::from_secs(30),
            attempt_limit: Duration::from_secs(20),
            connect_limit: Duration::from_secs(5),
            retry: Retry::default(),
            page_size: None,
            app: concat!("ontap-client/", env!("CARGO_PKG_VERSION")).to_owned(),
        }
    }

    /// The same client with another deadline for each call.
    #[must_use]
    pub fn within(&self, deadline: Duration) -> Self {
        Self { deadline, ..self.clone() }
    }

    /// The same client, for which the cluster is no more than this SVM (`X-Dot-SVM-Name`). Only on the
    /// cluster's LIF.
    #[must_use]
    pub fn in_svm(&self, svm: impl Into<String>) -> Self {
        Self { svm: Some(svm.into()), ..self.clone() }
    }

    /// The same client, which has nodes forget nothing but what it names: where ONTAP does not know the
    /// narrow order for this account, [`flush_access_cache`](Self::flush_access_cache) is an error.
    #[must_use]
    pub fn sparing_others(&self) -> Self {
        Self { spares_others: true, ..self.clone() }
    }

    /// The address, without a path.
    #[must_use]
    pub fn origin(&self) -> &str {
        self.shared.origin.as_str()
    }

    /// Begins a call: from now on its deadline runs.
    pub(crate) fn call(&self) -> Call<'_> {
        let now = Instant::now();
        let at = now.checked_add(self.deadline).unwrap_or_else(|| now + LONGEST_CALL);
        Call { client: self, until: Until { at, limit: self.deadline } }
    }
}

impl fmt::Debug for Client {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Client")
            .field("origin", &self.origin())
            .field("auth", &self.shared.auth)
            .field("deadline", &self.deadline)
            .field("svm", &self.svm)
            .finish_non_exhaustive()
    }
}

/// One call of a user: one or more requests that share a deadline.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Call<'a> {
    pub(crate) client: &'a Client,
    pub(crate) until: Until,
}

/// When a call must have returned.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Until {
    at: Instant,
    pub(crate) limit: Duration,
}

impl Until {
    pub(crate) fn left(&self) -> Duration {
        self.at.saturating_duration_since(Instant::now())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn auth() -> Auth {
        Auth::Basic { user: "admin".to_owned(), password: "hunter2".into() }
    }

    #[test]
    fn secrets_are_not_in_debug() {
        let plain = Client::builder("http://127.0.0.1", auth()).tls(Tls::InsecurePlainHttp);
        let token = Client::builder("http://h", Auth::Bearer("hunter2".into())).tls(Tls::InsecurePlainHttp);
        let certificate = Auth::Certificate { chain_pem: String::new(), key_pem: "hunter2".into() };
        let shown = [
            format!("{:?}", Client::builder("https://admin:hunter2@h", auth())),
            format!("{plain:?}"),
            format!("{:?}", plain.clone().build().unwrap()),
            format!("{:?}", plain.build().unwrap().shared),
            format!("{token:?}"),
            format!("{:?}", token.build().unwrap()),
            format!("{certificate:?}"),
        ];
        for shown in shown {
            assert!(!shown.contains("hunter2"), "{shown}");
        }
    }

    #[test]
    fn a_login_that_needs_tls_is_refused_without() {
        let auth = Auth::Certificate { chain_pem: String::new(), key_pem: "hunter2".into() };
        let built = Client::builder("http://h", auth).tls(Tls::InsecurePlainHttp).build();
        assert!(matches!(built, Err(Error::Usage { .. })), "{built:?}");
    }

    #[test]
    fn an_address_that_cannot_work_is_refused_without_repeating_it() {
        for (url, tls) in [
            ("https://admin:hunter2@h", Tls::InsecureAcceptAnything),
            ("https://h/ui", Tls::InsecureAcceptAnything),
            ("https://h?x=hunter2", Tls::InsecureAcceptAnything),
            ("http://h", Tls::InsecureAcceptAnything),
            ("https://h", Tls::InsecurePlainHttp),
            ("ftp://h", Tls::InsecureAcceptAnything),
            ("h", Tls::InsecureAcceptAnything),
        ] {
            let error = Client::builder(url, auth()).tls(tls).build().unwrap_err();
            assert!(matches!(error, Error::Usage { .. }), "{url}: {error}");
            assert!(!format!("{error} {error:?}").contains("hunter2"), "{error:?}");
        }
        let client = Client::builder("https://h:8443/api/", auth()).tls(Tls::InsecureAcceptAnything);
        assert_eq!(client.build().unwrap().origin(), "https://h:8443/");
    }

    #[test]
    fn waits_grow_to_a_bound_and_differ_by_chance() {
        let retry = Retry { first_wait: Duration::from_millis(100), ..Retry::default() };
        for (attempts, longest) in [(1, 100), (2, 200), (4, 800), (40, 5000)] {
            let longest = Duration::from_millis(longest);
            for _ in 0..50 {
                let wait = retry.wait(attempts);
                assert!(wait <= longest && wait >= longest / 2, "{attempts}: {wait:?}");
            }
        }
    }
}
