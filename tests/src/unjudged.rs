//! Why a story failed, where that says nothing about what is tested: its set-up failed, or something that was
//! awaited did not come. The runner tells such a story once more. Every other failure is a verdict.

use std::fmt;
use std::fs;
use std::path::Path;
use std::time::Duration;

use anyhow::Error;
use serde_json::json;

/// In the story's folder: the reason, for the runner.
const FILE: &str = "unjudged.json";

/// What was awaited did not come.
#[derive(Debug)]
pub(crate) struct Waited {
    /// What it was.
    pub(crate) what: String,
    /// For how long it was awaited.
    pub(crate) limit: Duration,
    /// What was there instead.
    pub(crate) seen: String,
}

impl fmt::Display for Waited {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "waited {:?} for: {}; last seen: {}", self.limit, self.what, self.seen)
    }
}

impl std::error::Error for Waited {}

/// The context of an error of a story's set-up.
#[derive(Debug)]
pub(crate) struct SetUp;

impl fmt::Display for SetUp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the set-up failed")
    }
}

/// What was not judged, in a few words; `None` of a verdict.
fn reason(error: &Error) -> Option<String> {
    let waited = error.downcast_ref::<Waited>().map(|waited| waited.what.clone());
    waited.or_else(|| error.downcast_ref::<SetUp>().map(|_| format!("{error:#}")))
}

/// Leaves the reason in `folder`, if `error` is no verdict.
pub(crate) fn leave(error: &Error, folder: &Path) {
    if let Some(what) = reason(error) {
        // Without the file the failure counts as a verdict, which is the safe side.
        let _ = fs::write(folder.join(FILE), json!({ "what": what }).to_string());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use anyhow::{Context, anyhow};

    fn waited() -> Error {
        let waited =
            Waited { what: "records to flow".to_owned(), limit: Duration::ZERO, seen: "none".to_owned() };
        waited.into()
    }

    #[test]
    fn only_a_wait_in_vain_and_a_set_up_are_no_verdict() {
        assert_eq!(reason(&waited()).as_deref(), Some("records to flow"));
        assert_eq!(reason(&waited().context("in round 3")).as_deref(), Some("records to flow"));
        let set_up = Err::<(), _>(anyhow!("no Kafka")).context(SetUp).unwrap_err();
        assert_eq!(
            reason(&set_up.context("outside")).as_deref(),
            Some("outside: the set-up failed: no Kafka")
        );
        assert_eq!(reason(&anyhow!("3 records are lost")), None);
    }

    #[test]
    fn the_runner_finds_the_reason_in_the_storys_folder() {
        let folder = tempfile::tempdir().unwrap();
        leave(&anyhow!("two Kafkas"), folder.path());
        assert!(!folder.path().join(FILE).exists());
        leave(&waited(), folder.path());
        let text = fs::read_to_string(folder.path().join(FILE)).unwrap();
        assert_eq!(text, r#"{"what":"records to flow"}"#);
    }
}
