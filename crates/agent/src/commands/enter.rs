//! `understudy enter`: the entry point of Kafka's container in a pod. Reads no configuration: the agent beside it
//! says what it needs to know.

use std::path::Path;
use std::process::exit;

use drivers::broker_host::kubernetes::{EnterError, enter};

use crate::UsageError;
use crate::exit::Exit;

/// What a container ends with whose Kafka was asked to end, as it would without us.
const ENDED_BY_SIGTERM: i32 = 143;

pub(super) fn run(dir: &Path, command: &[String]) -> anyhow::Result<Exit> {
    let entered = super::block_on(async {
        enter(dir, command.to_vec()).await.map_err(|error| match error {
            EnterError::Usage(why) => UsageError(why).into(),
            failed @ EnterError::Failed(_) => failed.into(),
        })
    });
    match entered? {
        false => Ok(Exit::Done),
        true => exit(ENDED_BY_SIGTERM),
    }
}
