//! What the daemon on this host knows, for a command that takes a broker over beside it: the hosts that told
//! it who their clients are may be dead by the time somebody types, and a command has seen nothing of what
//! came before it.

use std::io::{self, ErrorKind};
use std::path::Path;
use std::time::Duration;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use tokio::net::UnixStream;
use tokio::time::timeout;

use super::{ClientsPage, KnownClients};
use crate::http::{GetError, get};

/// The page, on the daemon's socket alone: who is connected to other hosts is nobody else's business.
pub const PATH: &str = "/v1/known_clients";

/// A daemon that lives answers within milliseconds.
const LIMIT: Duration = Duration::from_secs(2);

/// The longest answer that is read: the lists of some ten hosts, as long as they get.
const MAX_BYTES: usize = 16 << 20;

/// What one host said, and when.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Told {
    /// How long ago.
    pub age: Duration,
    /// What.
    pub page: ClientsPage,
}

/// Why the daemon does not tell.
#[derive(Debug, thiserror::Error)]
pub enum DaemonError {
    /// It cannot be reached.
    #[error("the daemon on this host cannot be reached")]
    Unreachable(#[source] io::Error),
    /// It did not answer in time.
    #[error("the daemon on this host did not answer within {LIMIT:?}")]
    Late,
    /// What answers is no agent.
    #[error("what is at agent.socket does not answer as an agent of this version")]
    Broken(#[source] recovery::ports::BoxError),
}

/// Takes over into `known` what the daemon that listens at `socket` knows; how many hosts told it. None did,
/// if no daemon is there.
///
/// # Errors
/// When a daemon is there and does not tell.
pub async fn ask(socket: &Path, known: &KnownClients) -> Result<usize, DaemonError> {
    let told: Vec<Told> = page(socket, PATH).await?.unwrap_or_default();
    let hosts = told.len();
    told.into_iter().for_each(|told| known.remember_from(told));
    Ok(hosts)
}

/// A page of the daemon that listens at `socket`; `None` if no daemon is there.
///
/// # Errors
/// When a daemon is there and does not give it.
pub async fn page<T: DeserializeOwned>(socket: &Path, path: &str) -> Result<Option<T>, DaemonError> {
    let stream = match UnixStream::connect(socket).await {
        Ok(stream) => stream,
        Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::ConnectionRefused) => {
            return Ok(None);
        }
        Err(error) => return Err(DaemonError::Unreachable(error)),
    };
    let answer = timeout(LIMIT, get(stream, "localhost", path, MAX_BYTES)).await;
    let (status, body) = answer.map_err(|_| DaemonError::Late)?.map_err(broken)?;
    if !status.is_success() {
        return Err(DaemonError::Broken(format!("{path}: {status}").into()));
    }
    serde_json::from_slice(&body).map(Some).map_err(|error| DaemonError::Broken(error.into()))
}

fn broken(error: GetError) -> DaemonError {
    DaemonError::Broken(error.into())
}
