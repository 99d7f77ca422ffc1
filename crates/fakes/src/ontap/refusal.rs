//! ONTAP's way to say no.

use serde_json::{Value, json};

/// An answer that is an error: `{"error": {"code": "4", "message": …}}`.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub(super) struct Refusal {
    pub(super) status: u16,
    pub(super) code: u32,
    pub(super) message: String,
    pub(super) target: Option<String>,
}

impl Refusal {
    pub(super) fn new(status: u16, code: u32, message: impl Into<String>) -> Self {
        Self { status, code, message: message.into(), target: None }
    }

    /// 400, for most of what ONTAP refuses.
    pub(super) fn bad(code: u32, message: impl Into<String>) -> Self {
        Self::new(400, code, message)
    }

    pub(super) fn not_found() -> Self {
        Self::new(404, 4, "entry doesn't exist")
    }

    /// The record is there already.
    pub(super) fn duplicate(message: impl Into<String>) -> Self {
        Self::new(409, 1, message)
    }

    pub(super) fn unsupported() -> Self {
        Self::new(405, 3, "The requested operation is not supported.")
    }

    pub(super) fn denied() -> Self {
        Self::new(403, 6, "not authorized for that command")
    }

    pub(super) fn missing(field: &str) -> Self {
        Self::bad(262_212, format!("\"{field}\" is a required field")).about(field)
    }

    pub(super) fn invalid(field: &str, value: &Value) -> Self {
        Self::bad(262_197, format!("The value {value} is invalid for field \"{field}\"")).about(field)
    }

    pub(super) fn about(mut self, target: &str) -> Self {
        self.target = Some(target.to_owned());
        self
    }

    pub(super) fn body(&self) -> Value {
        let mut error = json!({ "code": self.code.to_string(), "message": self.message });
        if let Some(target) = &self.target {
            error["target"] = target.clone().into();
        }
        json!({ "error": error })
    }
}
