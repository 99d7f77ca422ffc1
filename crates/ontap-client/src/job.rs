//! Changes that ONTAP makes later: a job is followed until it has ended.

use std::time::Duration;

use jiff::Timestamp;
use reqwest::StatusCode;
use serde::Deserialize;
use serde_json::Value;
use tokio::time::sleep;

use crate::client::{Call, Client};
use crate::error::{Error, FailedJob, Fault, Request, Result};
use crate::query::Query;
use crate::send::{Answer, Ask, Repeat};
use crate::value::{self, Reference, open_enum};

const FIRST_WAIT: Duration = Duration::from_millis(100);
const LONGEST_WAIT: Duration = Duration::from_secs(2);
const FIELDS: &[&str] =
    &["uuid", "description", "state", "message", "code", "error", "start_time", "end_time"];

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
#[derive(Debug, Clone, Deserialize)]
pub struct Job {
    /// Its key.
    #[serde(deserialize_with = "value::key")]
    pub uuid: String,
    /// What it does, as `POST /api/storage/volumes/<uuid>`.
    #[serde(default, deserialize_with = "value::text")]
    pub description: Option<String>,
    /// How far it is.
    #[serde(default)]
    pub state: Option<JobState>,
    /// What ONTAP says about it.
    #[serde(default, deserialize_with = "value::text")]
    pub message: Option<String>,
    /// ONTAP's code, if it failed.
    #[serde(default, deserialize_with = "value::number")]
    pub code: Option<i64>,
    #[serde(default)]
    error: Option<Fault>,
    /// When it began.
    #[serde(default, deserialize_with = "value::timestamp")]
    pub start_time: Option<Timestamp>,
    /// When it ended.
    #[serde(default, deserialize_with = "value::timestamp")]
    pub end_time: Option<Timestamp>,
    /// The node that it ran on. ONTAP 9.11.
    #[serde(default, deserialize_with = "value::part")]
    pub node: Reference,
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

impl Client {
    /// A job. ONTAP 9.6.
    ///
    /// # Errors
    /// [`Error::NotFound`] also for one that has ended some minutes ago.
    pub async fn job(&self, uuid: &str) -> Result<Job> {
        self.call().job(uuid).await
    }

    /// Follows a job to its end. ONTAP 9.6.
    ///
    /// # Errors
    /// [`Error::JobFailed`] if it did not succeed; [`Error::Unconfirmed`] if its end was not seen in time.
    pub async fn wait_for_job(&self, uuid: &str) -> Result<Job> {
        let call = self.call();
        let request = Ask::get(self.url(&["cluster", "jobs", uuid], &Query::new())?).request();
        call.follow_job(&request, uuid).await
    }
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

    async fn follow_job(&self, request: &Request, uuid: &str) -> Result<Job> {
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
                return Ok(job);
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

    /// Sets absolute values of an object, and follows the job.
    pub(crate) async fn set(&self, path: &[&str], query: Query, body: Value) -> Result<()> {
        self.change(Ask::patch(self.client.url(path, &query)?, body, Repeat::Safe)).await.map(drop)
    }

    /// Deletes an object by its key, and follows the job. One that is not there is as good as deleted.
    pub(crate) async fn remove(&self, path: &[&str], query: Query, repeat: Repeat) -> Result<()> {
        let url = self.client.url(path, &query)?;
        let error = match self.change(Ask::delete(url.clone(), repeat)).await {
            Err(error) if error.is_not_found() && repeat == Repeat::Safe => error,
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
