//! The tokens of OAUTHBEARER that an endpoint gives for the agent's own id and secret.
//!
//! Nobody who logs in asks an endpoint himself. From the first login on a task keeps a token that is good, so that it
//! is there when brokers fail and everybody connects anew; only the very first one is waited for.

use std::sync::{Arc, OnceLock, Weak};
use std::time::Duration;

use reqwest::header::CONTENT_TYPE;
use rustls::ClientConfig;
use secrecy::{ExposeSecret, SecretString};
use secrets::Secrets;
use serde::Deserialize;
use serde_json::Value;
use tokio::sync::{Notify, watch};
use tokio::time::{Instant, sleep_until, timeout, timeout_at};
use url::form_urlencoded::{Serializer, byte_serialize};

use super::sasl::TokenEndpointConfig;

/// How long an endpoint may take: some sign in seconds.
const ANSWERS_WITHIN: Duration = Duration::from_secs(10);
/// How long the very first token is waited for, in which the endpoint's name is resolved and TLS agreed upon.
const FIRST: Duration = Duration::from_secs(3);
/// An endpoint is asked this often at most.
const AGAIN: Duration = Duration::from_secs(2);
/// After it gave none, unless somebody wants one before.
const AFTER_A_FAILURE: Duration = Duration::from_secs(5);
/// The longest answer that is read, in bytes. Tokens with many roles have some KiB.
const LONGEST_ANSWER: usize = 256 << 10;
/// How long a token is good for of which nobody says it.
const UNSAID: Duration = Duration::from_secs(60);
/// A token is renewed before this in any case, whatever its endpoint says.
const LONGEST: Duration = Duration::from_secs(24 * 3600);

/// Who gives tokens.
pub(crate) struct Endpoint {
    config: TokenEndpointConfig,
    /// Where that stands, for messages.
    place: String,
    secret: SecretString,
    http: reqwest::Client,
    url: reqwest::Url,
    /// When the first token was asked for.
    begun: OnceLock<Instant>,
    /// Told when somebody has none that is good.
    wanted: Arc<Notify>,
    given: watch::Sender<Given>,
}

/// What it gave last, and why it gave nothing.
#[derive(Clone, Default)]
struct Given {
    token: Option<Timed>,
    wrong: Option<String>,
}

#[derive(Clone)]
struct Timed {
    value: SecretString,
    renew: Instant,
    ends: Instant,
}

impl Timed {
    fn is(&self, shown: &SecretString) -> bool {
        self.value.expose_secret() == shown.expose_secret()
    }
}

/// An answer, good or bad (RFC 6749, 5.1 and 5.2).
#[derive(Deserialize)]
struct Answer {
    access_token: Option<String>,
    /// A number; some providers write it as a text.
    expires_in: Option<Value>,
    error: Option<String>,
    error_description: Option<String>,
}

impl std::fmt::Debug for Endpoint {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Endpoint").field("config", &self.config).finish_non_exhaustive()
    }
}

impl Endpoint {
    /// `section` is where the login stands.
    pub(super) fn new(
        config: TokenEndpointConfig,
        section: &str,
        secret: SecretString,
        tls: ClientConfig,
    ) -> Result<Arc<Self>, String> {
        let place = format!("{section}.sasl.token_endpoint");
        let url = config.url().map_err(|why| format!("{place}.url: {why}"))?;
        let http = reqwest::Client::builder()
            .tls_backend_preconfigured(tls)
            .redirect(reqwest::redirect::Policy::none());
        // A secret that is not encrypted stays on this host.
        let http = if url.scheme() == "http" { http.no_proxy() } else { http }.build();
        let http = http.map_err(|error| format!("{place}: no HTTP client can be made: {error}"))?;
        let (begun, wanted, given) = (OnceLock::new(), Arc::default(), watch::Sender::default());
        Ok(Arc::new(Self { config, place, secret, http, url, begun, wanted, given }))
    }

    /// A token that is good now, within `limit`; the very first one within [`FIRST`].
    pub(super) async fn token(self: &Arc<Self>, limit: Duration) -> Result<SecretString, String> {
        let mut news = self.given.subscribe();
        let now = Instant::now();
        let begun = self.begin(now);
        if let Some(good) = news.borrow().token.as_ref().filter(|token| now < token.ends) {
            return Ok(good.value.clone());
        }
        self.given.send_modify(|given| given.wrong = None);
        self.wanted.notify_one();
        let until = (now + limit).max(begun + FIRST);
        let known = timeout_at(until, news.wait_for(|given| is_good(given) || given.wrong.is_some())).await;
        let known = known.ok().and_then(Result::ok).map(|known| known.clone()).unwrap_or_default();
        match known.token.filter(|token| Instant::now() < token.ends) {
            Some(token) => Ok(token.value),
            None => Err(known.wrong.unwrap_or_else(|| self.unanswered("no answer yet"))),
        }
    }

    /// A broker did not take the last token: another one is asked for. Other brokers may take this one meanwhile.
    pub(crate) fn doubt(&self, shown: &SecretString) {
        self.given.send_modify(|given| {
            if let Some(token) = given.token.as_mut().filter(|token| token.is(shown)) {
                token.renew = Instant::now();
            }
        });
        self.wanted.notify_one();
    }

    /// Begins to keep a token, unless that is done already. Returns when it was begun.
    fn begin(self: &Arc<Self>, now: Instant) -> Instant {
        *self.begun.get_or_init(|| {
            tokio::spawn(keep(Arc::downgrade(self), self.wanted.clone()));
            now
        })
    }

    /// Asks once. Returns when to ask again, if nobody wants that before.
    async fn renew(&self) -> Instant {
        let answer = timeout(ANSWERS_WITHIN, self.ask()).await;
        let answer = answer.unwrap_or_else(|_| Err(self.unanswered("no answer in time")));
        let again = answer.as_ref().map_or(Instant::now() + AFTER_A_FAILURE, |token| token.renew);
        self.given.send_modify(|given| match answer {
            Ok(token) => *given = Given { token: Some(token), wrong: None },
            // The one before is used as long as it is good.
            Err(why) => given.wrong = Some(why),
        });
        again
    }

    fn form(&self) -> String {
        let mut form = Serializer::new(String::new());
        form.append_pair("grant_type", "client_credentials");
        form.extend_pairs(self.config.scope.iter().map(|scope| ("scope", scope)));
        form.finish()
    }

    async fn ask(&self) -> Result<Timed, String> {
        let encoded = |text: &str| byte_serialize(text.as_bytes()).collect::<String>();
        let asked = Instant::now();
        let request = self
            .http
            .post(self.url.clone())
            .header(CONTENT_TYPE, "application/x-www-form-urlencoded")
            .header("accept", "application/json")
            .basic_auth(encoded(&self.config.client_id), Some(encoded(self.secret.expose_secret())))
            .body(self.form());
        let mut answer = request.send().await.map_err(|error| self.unanswered(&innermost(&error)))?;
        let (status, mut bytes) = (answer.status(), Vec::new());
        while let Some(part) = answer.chunk().await.map_err(|error| self.unanswered(&innermost(&error)))? {
            bytes.extend_from_slice(&part);
            if bytes.len() > LONGEST_ANSWER {
                return Err(format!("{}: {} answered with more than a token", self.place, self.url));
            }
        }
        let said: Option<Answer> = serde_json::from_slice(&bytes).ok();
        match said {
            Some(Answer { access_token: Some(token), expires_in, .. }) if status.is_success() => {
                let value = SecretString::from(token);
                if value.expose_secret().is_empty()
                    || value.expose_secret().contains(|c: char| !c.is_ascii_graphic())
                {
                    return Err(format!("{}: {} answered with a token that is none", self.place, self.url));
                }
                let lasts = expires_in.as_ref().and_then(seconds).map_or(UNSAID, |lasts| lasts.min(LONGEST));
                Ok(Timed { value, renew: asked + lasts * 4 / 5, ends: asked + lasts })
            }
            said => Err(self.refused(status, said)),
        }
    }

    fn unanswered(&self, why: &str) -> String {
        let Self { place, url, .. } = self;
        format!("{place}: {url} gives no token ({why}): check the URL, and that this host reaches it")
    }

    fn refused(&self, status: reqwest::StatusCode, said: Option<Answer>) -> String {
        let Self { place, url, config, .. } = self;
        let said =
            said.map(|said| [said.error, said.error_description].into_iter().flatten().collect::<Vec<_>>());
        let said = said.filter(|said| !said.is_empty()).map(|said| format!(", `{}`", said.join(": ")));
        let said = Secrets::of([self.secret.expose_secret()]).redact(&said.unwrap_or_default());
        format!(
            "{place}: {url} gives client {} no token (HTTP {}{said}): put its secret into {} ({place}.client_secret_file), \
             or correct what is asked for",
            config.client_id,
            status.as_u16(),
            config.client_secret_file.display()
        )
    }
}

impl Drop for Endpoint {
    /// Ends the task that keeps its token.
    fn drop(&mut self) {
        self.wanted.notify_one();
    }
}

fn seconds(said: &Value) -> Option<Duration> {
    let seconds = said.as_u64().or_else(|| said.as_str()?.parse().ok())?;
    Some(Duration::from_secs(seconds))
}

fn is_good(given: &Given) -> bool {
    given.token.as_ref().is_some_and(|token| Instant::now() < token.ends)
}

/// Keeps a token that is good, for as long as there is an endpoint.
async fn keep(endpoint: Weak<Endpoint>, wanted: Arc<Notify>) {
    while let Some(this) = endpoint.upgrade() {
        let asked = Instant::now();
        let again = this.renew().await;
        drop(this);
        let is_due = |given: &Given| given.token.as_ref().is_none_or(|token| Instant::now() >= token.renew);
        let is_wanted = async {
            wanted.notified().await;
            // Whoever waited for the one that is there now has said so, too.
            while endpoint.upgrade().is_some_and(|this| !is_due(&this.given.borrow())) {
                wanted.notified().await;
            }
        };
        let _wanted = timeout_at(again, is_wanted).await;
        sleep_until(asked + AGAIN).await;
    }
}

/// What happened; the causes around it repeat the address.
fn innermost(error: &reqwest::Error) -> String {
    let mut cause: &dyn std::error::Error = error;
    while let Some(next) = cause.source() {
        cause = next;
    }
    cause.to_string()
}
