//! What can go wrong with a storage system, to be switched on.

use std::time::Duration;

use serde_json::Value;

use super::read::Cut;
use super::refusal::Refusal;

/// Something that goes wrong with some requests: which, and how often, is said by [`Fault::on`] and
/// [`Fault::first`].
///
/// ```
/// use std::time::Duration;
/// use fakes::ontap::Fault;
///
/// let busy_twice = Fault::busy(Duration::from_secs(1)).on("GET", "/api/cluster").first(2);
/// # let _ = busy_twice;
/// ```
#[derive(Debug, Clone)]
pub struct Fault {
    kind: Kind,
    method: Option<String>,
    prefix: String,
    /// How many more times; `None`: always.
    left: Option<u32>,
}

#[derive(Debug, Clone)]
enum Kind {
    Slow(Duration),
    Busy(Duration),
    Status(u16),
    DroppedReply,
    Lie,
    Late(Duration),
    JobFails(u32, String),
    LoginExpired,
    Denied,
    Says(u16, Value),
    ShortPages(usize),
    Partial(usize),
}

impl Fault {
    fn new(kind: Kind) -> Self {
        Self { kind, method: None, prefix: "/".to_owned(), left: None }
    }

    /// The request waits for so long before anything happens.
    #[must_use]
    pub fn slow(by: Duration) -> Self {
        Self::new(Kind::Slow(by))
    }

    /// 429, code 262160, with `Retry-After` in whole seconds (rounded up).
    #[must_use]
    pub fn busy(retry_after: Duration) -> Self {
        Self::new(Kind::Busy(retry_after))
    }

    /// This 5xx instead of an answer; nothing is done.
    #[must_use]
    pub fn status(status: u16) -> Self {
        Self::new(Kind::Status(status))
    }

    /// The request is carried out, and then the connection is closed without an answer.
    #[must_use]
    pub fn dropped_reply() -> Self {
        Self::new(Kind::DroppedReply)
    }

    /// The answer is that it was done, a job says so too, and nothing was done.
    #[must_use]
    pub fn lying_success() -> Self {
        Self::new(Kind::Lie)
    }

    /// A change of export rules reaches clients that the access cache knows only after so long, or after a
    /// flush.
    #[must_use]
    pub fn bites_late(by: Duration) -> Self {
        Self::new(Kind::Late(by))
    }

    /// The request is accepted, and its job ends in failure with this code and message; nothing is done.
    #[must_use]
    pub fn job_fails(code: u32, message: &str) -> Self {
        Self::new(Kind::JobFails(code, message.to_owned()))
    }

    /// 401, as if the password had been changed.
    #[must_use]
    pub fn login_expired() -> Self {
        Self::new(Kind::LoginExpired)
    }

    /// 403, code 6.
    #[must_use]
    pub fn denied() -> Self {
        Self::new(Kind::Denied)
    }

    /// This answer, whatever was asked; nothing is done.
    #[must_use]
    pub fn says(status: u16, body: Value) -> Self {
        Self::new(Kind::Says(status, body))
    }

    /// Lists come in pages of at most `size` records, whatever was asked for; `next` leads on, from the last
    /// page to an empty one. A PATCH or DELETE of many does as many, and its `next` is where to repeat it.
    #[must_use]
    pub fn short_pages(size: usize) -> Self {
        Self::new(Kind::ShortPages(size))
    }

    /// Lists end after `size` records with a top-level `error` and no `next`: a partial result.
    #[must_use]
    pub fn partial(size: usize) -> Self {
        Self::new(Kind::Partial(size))
    }

    /// Only requests of this method (`*`: of any) whose path starts with `prefix`.
    #[must_use]
    pub fn on(mut self, method: &str, prefix: &str) -> Self {
        self.method = (method != "*").then(|| method.to_owned());
        prefix.clone_into(&mut self.prefix);
        self
    }

    /// Only the first `times` requests that it is for.
    #[must_use]
    pub fn first(mut self, times: u32) -> Self {
        self.left = Some(times);
        self
    }

    fn is_for(&self, method: &str, path: &str) -> bool {
        self.left != Some(0)
            && self.method.as_deref().is_none_or(|wanted| wanted == method)
            && path.starts_with(&self.prefix)
    }
}

/// What the faults make of one request.
#[derive(Debug, Default)]
pub(super) struct Fate {
    pub(super) slow: Duration,
    /// Not carried out, but answered so; with `Retry-After` in seconds.
    pub(super) refused: Option<(Refusal, Option<u64>)>,
    /// Answered so, and not carried out.
    pub(super) says: Option<(u16, Value)>,
    pub(super) dropped: bool,
    pub(super) lie: bool,
    pub(super) late: Option<Duration>,
    pub(super) job_fails: Option<(u32, String)>,
    pub(super) cut: Cut,
}

/// Counts the request against every fault that is for it.
pub(super) fn fate(faults: &mut [Fault], method: &str, path: &str) -> Fate {
    let mut fate = Fate::default();
    for fault in faults.iter_mut().filter(|fault| fault.is_for(method, path)) {
        fault.left = fault.left.map(|left| left - 1);
        match &fault.kind {
            Kind::Slow(by) => fate.slow += *by,
            Kind::Busy(after) => {
                let text = "Too many requests are being processed. Try again later.";
                let seconds = after.as_secs() + u64::from(after.subsec_nanos() > 0);
                fate.refused = Some((Refusal::new(429, 262_160, text), Some(seconds)));
            }
            Kind::Status(status) => {
                let refusal = Refusal::new(*status, 65_562, "Internal error. Try the operation again.");
                fate.refused = Some((refusal, None));
            }
            Kind::DroppedReply => fate.dropped = true,
            Kind::Lie => fate.lie = true,
            Kind::Late(by) => fate.late = Some(*by),
            Kind::JobFails(code, message) => fate.job_fails = Some((*code, message.clone())),
            Kind::LoginExpired => fate.refused = Some((not_logged_in(), None)),
            Kind::Denied => fate.refused = Some((Refusal::denied(), None)),
            Kind::Says(status, body) => fate.says = Some((*status, body.clone())),
            Kind::ShortPages(size) => fate.cut.page = Some(*size),
            Kind::Partial(size) => fate.cut.partial = Some(*size),
        }
    }
    fate
}

/// The answer to wrong credentials, or none.
pub(super) fn not_logged_in() -> Refusal {
    Refusal::new(401, 6_691_623, "User is not authorized.")
}
