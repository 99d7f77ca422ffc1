//! The product under test: `understudy`, as a process on a host. The bed knows its command line and its HTTP
//! pages, and nothing of its inside.

use std::env;
use std::fs;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};

use crate::host::{Host, Output};
use crate::process::Process;
use crate::{eventually, http};

/// Names the binary; by default `understudy` beside the test binaries.
const BINARY: &str = "UNDERSTUDY_BIN";
/// Names the oldest one that is supported beside it.
const OLDER: &str = "UNDERSTUDY_OLDER_BIN";
/// Where an agent's pages are: the port of `[agent] listen`, on the loopback of its host.
pub const HTTP_PORT: u16 = 9095;

/// An agent on a host. Its configuration and state are on the host's local disk, so with the artifacts.
#[derive(Debug)]
pub struct Agent {
    host: Arc<Host>,
    binary: PathBuf,
    config: PathBuf,
    process: Mutex<Option<Arc<Process>>>,
}

impl Agent {
    /// Writes the configuration to the host's local disk (`/srv/local/understudy.toml`).
    pub(crate) fn prepare(binary: &Path, host: Arc<Host>, config: &str) -> Result<Self> {
        let path = host.local().join("understudy.toml");
        fs::write(&path, config)?;
        Ok(Self { binary: binary.to_owned(), config: path, host, process: Mutex::default() })
    }

    /// The host it is on.
    #[must_use]
    pub fn host(&self) -> &Arc<Host> {
        &self.host
    }

    /// Starts `understudy run`, again after a crash.
    ///
    /// # Errors
    /// When it runs already, or ends at once.
    pub fn start(&self) -> Result<()> {
        let mut process = self.process();
        ensure!(
            process.as_ref().is_none_or(|process| !process.is_running()),
            "the agent on {} runs already",
            self.host.name()
        );
        *process = Some(self.host.spawn("understudy", &self.command(&["run"])?)?);
        Ok(())
    }

    /// `kill -9`.
    ///
    /// # Errors
    /// When it does not run or survives.
    pub fn kill(&self) -> Result<()> {
        self.running()?.kill()
    }

    /// The running process.
    ///
    /// # Errors
    /// When it was never started.
    pub fn running(&self) -> Result<Arc<Process>> {
        self.process().clone().with_context(|| format!("no agent was started on {}", self.host.name()))
    }

    /// Runs a command (`status`, `failover`, …) on the agent's host with the agent's configuration.
    ///
    /// # Errors
    /// When it cannot be run; its own failure is in the [`Output`].
    pub fn cli(&self, arguments: &[&str]) -> Result<Output> {
        self.host.run(&self.command(arguments)?)
    }

    /// Starts a command on the agent's host and lets it run: one whose progress matters. Its output is in
    /// `HOST-NAME.log`, its exit code in [`Process::wait`].
    ///
    /// # Errors
    /// When it cannot be started.
    pub fn spawn_cli(&self, name: &str, arguments: &[&str]) -> Result<Arc<Process>> {
        self.host.spawn(name, &self.command(arguments)?)
    }

    /// A page of the agent, asked for on its own host: status code and body.
    ///
    /// # Errors
    /// When it does not answer in two seconds.
    pub fn get(&self, path: &str) -> Result<(u16, String)> {
        self.get_within(path, Duration::from_secs(2))
    }

    /// `/v1/status`, parsed.
    ///
    /// # Errors
    /// When it does not answer with JSON.
    pub fn status(&self) -> Result<serde_json::Value> {
        let (code, body) = self.get("/v1/status")?;
        ensure!(code == 200, "/v1/status answers {code}: {body}");
        serde_json::from_str(&body).context("/v1/status is not JSON")
    }

    /// The value of a metric of `/metrics`, by its name with labels as it is printed; `None` if it is not
    /// there.
    ///
    /// # Errors
    /// When it does not answer, or the value is not a number.
    pub fn metric(&self, series: &str) -> Result<Option<f64>> {
        let (_, body) = self.get("/metrics")?;
        let value = body.lines().find_map(|line| line.strip_prefix(series)?.strip_prefix(' '));
        value.map(|value| value.trim().parse().with_context(|| format!("{series} {value}"))).transpose()
    }

    /// Waits until `/readyz` says so.
    ///
    /// # Errors
    /// When it does not in `limit`.
    pub fn wait_ready(&self, limit: Duration) -> Result<()> {
        let ended = eventually(&format!("the agent on {} to be ready", self.host.name()), limit, || {
            let process = self.running()?;
            if !process.is_running() {
                return Ok(Some(process.last_words()));
            }
            match self.get("/readyz")? {
                (200, _) => Ok(None),
                (code, body) => bail!("/readyz answers {code}: {body}"),
            }
        })?;
        // An agent that ends is a fault of its own, and nothing that was awaited in vain.
        ended.map_or(Ok(()), |words| bail!("the agent on {} ended:\n{words}", self.host.name()))
    }

    /// Saves status and metrics to the artifacts, when they can be had.
    pub(crate) fn dump(&self, limit: Duration) {
        if !self.host.is_on() {
            return;
        }
        for (path, file) in [("/v1/status", "status.json"), ("/metrics", "metrics.txt")] {
            if let Ok((_, body)) = self.get_within(path, limit) {
                // Collecting is best effort: the story's own verdict must come through.
                let _ = fs::write(self.host.local().join(file), body);
            }
        }
    }

    fn get_within(&self, path: &str, limit: Duration) -> Result<(u16, String)> {
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, HTTP_PORT));
        self.host.within_network(|| http::get(address, path, limit))
    }

    /// Program and arguments of a command of the agent, with its configuration.
    pub(crate) fn command(&self, arguments: &[&str]) -> Result<Vec<String>> {
        let text = |path: &Path| path.to_str().map(str::to_owned).context("a path that is not UTF-8");
        let mut command = vec![text(&self.binary)?, "--config".to_owned(), text(&self.config)?];
        command.extend(arguments.iter().map(|argument| (*argument).to_owned()));
        Ok(command)
    }

    fn process(&self) -> MutexGuard<'_, Option<Arc<Process>>> {
        self.process.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The oldest one that is supported beside it.
///
/// # Errors
/// When it was not given.
pub fn older_binary() -> Result<PathBuf> {
    let path = env::var_os(OLDER).map(PathBuf::from);
    path.with_context(|| format!("{OLDER} is not set: `cargo xtask test --tier corners` builds it"))
}

/// The binary under test.
pub(crate) fn binary() -> Result<PathBuf> {
    if let Some(path) = env::var_os(BINARY) {
        return Ok(PathBuf::from(path));
    }
    beside("understudy").context("build it (cargo build -p understudy), or set UNDERSTUDY_BIN")
}

/// The bed's own fence agent, for a `[[host.fence]]` section.
///
/// # Errors
/// When it has not been built.
pub fn fence_lab() -> Result<PathBuf> {
    beside("fence_lab").context("build it: cargo build -p e2e --bins")
}

/// A binary of the same build.
fn beside(name: &str) -> Result<PathBuf> {
    let path = crate::shell::build_dir()?.join(name);
    ensure!(path.is_file(), "there is no {}", path.display());
    Ok(path)
}
