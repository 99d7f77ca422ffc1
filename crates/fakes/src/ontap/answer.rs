//! What goes back to a client.

use serde_json::{Value, json};

use super::refusal::Refusal;

/// An answer before it is put on the wire.
#[derive(Debug, Clone)]
pub(super) struct Answer {
    pub(super) status: u16,
    pub(super) body: Value,
    pub(super) headers: Vec<(&'static str, String)>,
}

impl Answer {
    pub(super) fn ok(body: Value) -> Self {
        Self { status: 200, body, headers: Vec::new() }
    }

    pub(super) fn refused(refusal: &Refusal) -> Self {
        Self { status: refusal.status, body: refusal.body(), headers: Vec::new() }
    }

    pub(super) fn with(mut self, name: &'static str, value: impl Into<String>) -> Self {
        self.headers.push((name, value.into()));
        self
    }
}

/// The `job` object that leads to a job.
pub(super) fn job_link(uuid: &str) -> Value {
    json!({ "uuid": uuid, "_links": { "self": { "href": format!("/api/cluster/jobs/{uuid}") } } })
}
