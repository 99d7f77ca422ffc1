//! Changes that ONTAP makes later: a job is followed until it has ended.

use std::time::Duration;

use reqwest::StatusCode;
use serde::Deserialize;
use serde_json::Value;
use tokio::time::sleep;

use crate::client::Call;
use crate::error::{Error, FailedJob, Fault, Request, Result};
use crate::query::Query;
use crate::send::{Answer, Ask, Repeat};
use crate::value::{self, open_enum};

const FIRST_WAIT: Duration = Duration::from_millis(100);
const LONGEST_WAIT: Duration = Duration::from_secs(2);
const FIELDS: &[&str] = &["uuid", "state", "message", "code", "error"];

open_enum! {
    /// How far a job is.
    JobState {
        /// Waits.
        Queued = "queued",
        /// Works.
        Running = "running",
        /// Was halted and may go on.
        Paused = "paused",
        /// Has done what it was to do.
        Success = "success",
        /// Has failed. What it had done by then is not said.
        Failure = "failure",
        /// The specification's prose calls a failure so.
        Error = "error",
        /// Was ended by someone.
        Cancelled = "cancelled",
        /// Was not begun in time.
        Expired = "expired",
    }
}

impl JobState {
    /// Whether it has ended. A state that this version does not know is not taken for an end.
    #[must_use]
    pub fn is_terminal(&self) -> bool {
        matches!(self, Self::Success | Self::Failure | Self::Error | Self::Cancelled | Self::Expired)
    }
}

/// A job. ONTAP forgets it some 300 s after its end.
#[derive(Debug, Deserialize)]
struct Job {
    #[serde(deserialize_with = "value::key")]
    uuid: String,
    #[serde(default)]
    state: Option<JobState>,
    #[serde(default, deserialize_with = "value::text")]
    message: Option<String>,
    #[serde(default, deserialize_with = "value::number")]
    code: Option<i64>,
    #[serde(default)]
    error: Option<Fault>,
}

impl Job {
    /// ONTAP's code and message, wherever it put them.
    fn verdict(&self) -> (Option<i64>, String) {
        let error = self.error.as_ref();
        let code = self.code.filter(|code| *code != 0).or_else(|| error.and_then(|error| error.code));
        let message = error.and_then(|error| error.message.clone()).or_else(|| self.message.clone());
        (code, message.unwrap_or_else(|| "no reason given".to_owned()))
    }
}

#[derive(Debug, Deserialize)]
struct Started {
    #[serde(deserialize_with = "value::key")]
    uuid: String,
}

impl Call<'_> {
    async fn job(&self, uuid: &str) -> Result<Job> {
        let query = Query::new().fields(FIELDS).raw("ignore_unknown_fields", "true");
        // Not `get`: a failed job has an `error` of its own, which is no refusal to show it.
        self.send(Ask::get(self.client.url(&["cluster", "jobs", uuid], &query)?)).await?.read()
    }

    /// Follows all jobs that an answer names.
    pub(crate) async fn finish(&self, answer: &Answer) -> Result<()> {
        let one = answer.body.get("job").filter(|job| !job.is_null());
        let many = answer.body.get("jobs").and_then(Value::as_array);
        let jobs: Vec<_> = one.into_iter().chain(many.into_iter().flatten()).collect();
        let nothing_matched =
            many.is_some() && answer.body.get("num_records").and_then(Value::as_u64) == Some(0);
        if answer.status == StatusCode::ACCEPTED && jobs.is_empty() && !nothing_matched {
            return Err(answer.not_understood("accepted, but no job is named that would tell how it ends"));
        }
        for job in jobs {
            let started =
                Started::deserialize(job).map_err(|e| answer.not_understood(format!("job: {e}")))?;
            self.follow_job(&answer.request, &started.uuid).await?;
        }
        Ok(())
    }

    async fn follow_job(&self, request: &Request, uuid: &str) -> Result<()> {
        let unconfirmed =
            |source: Error| Error::Unconfirmed { request: request.clone(), source: Box::new(source) };
        let mut wait = FIRST_WAIT;
        loop {
            let job = match self.job(uuid).await {
                // It is the job that is not found, not the object that it is about.
                Err(error) if error.is_not_found() => {
                    let source = format!("ONTAP no longer knows job {uuid}").into();
                    return Err(unconfirmed(Error::Lost { request: request.clone(), source }));
                }
                job => job.map_err(unconfirmed)?,
            };
            let state = job.state.clone().unwrap_or_else(|| JobState::from(""));
            if state == JobState::Success {
                return Ok(());
            }
            if state.is_terminal() {
                let (code, message) = job.verdict();
                let failed = FailedJob { request: request.clone(), uuid: job.uuid, state, code, message };
                return Err(Error::JobFailed(Box::new(failed)));
            }
            if wait >= self.until.left() {
                let so_far = format!("job {uuid} is {state}");
                return Err(unconfirmed(self.late(request, Some(so_far), None)));
            }
            sleep(wait).await;
            wait = (wait * 3 / 2).min(LONGEST_WAIT);
        }
    }

    /// Deletes an object by its key, and follows the job. One that is not there is as good as deleted.
    pub(crate) async fn remove(&self, path: &[&str]) -> Result<()> {
        let url = self.client.url(path, &Query::new())?;
        let error = match self.change(Ask::delete(url.clone(), Repeat::Safe)).await {
            Err(error) if error.is_not_found() => error,
            outcome => return outcome.map(drop),
        };
        if error.is_of_what_is_gone() {
            return Ok(());
        }
        // A job may have missed something else than this object: only reading it says.
        match self.send(Ask::get(url)).await {
            Err(read) if read.is_of_what_is_gone() => Ok(()),
            _ => Err(error),
        }
    }

    /// Sends a change, and follows the job if there is one.
    pub(crate) async fn change(&self, ask: Ask) -> Result<Answer> {
        let answer = self.send(ask).await?.whole()?;
        self.finish(&answer).await.map_err(|error| answer.ending(error))?;
        Ok(answer)
    }
}

/// Marks what went wrong after a change was made, at least in part: while reading back, or going on with the
/// rest.
pub(crate) fn after_change(request: Request) -> impl FnOnce(Error) -> Error {
    move |error| match error {
        Error::Unconfirmed { .. } => error,
        error => Error::Unconfirmed { request, source: Box::new(error) },
    }
}
