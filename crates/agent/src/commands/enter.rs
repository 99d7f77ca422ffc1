//! `understudy enter`: the entry point of Kafka's container in a pod. Reads no configuration: the agent beside it
//! says what it needs to know.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::exit;

use anyhow::Context;
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

/// Copies this program into `dir`, in one step, so that a half written one is never begun with.
pub(super) fn install(dir: &Path) -> anyhow::Result<Exit> {
    let (new, place) = (dir.join("understudy.new"), dir.join("understudy"));
    let copied = fs::copy("/proc/self/exe", &new)
        .and_then(|_| fs::set_permissions(&new, fs::Permissions::from_mode(0o755)))
        .and_then(|()| fs::rename(&new, &place));
    copied.with_context(|| {
        format!(
            "cannot copy this program to {}: mount there the volume that Kafka's container has too, with room for it",
            place.display()
        )
    })?;
    Ok(Exit::Done)
}
