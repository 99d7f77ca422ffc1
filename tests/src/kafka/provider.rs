//! An identity provider, by whose tokens the agent of a story logs in.

use std::fs::{self, File};
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result};
use rustix::process::{Pid, Signal, kill_process};

use crate::ec2::python;
use crate::lab::HUB;

/// A real one, on its own authority's certificate. It ends with its standard input.
#[derive(Debug)]
pub struct Provider {
    process: Child,
    url: String,
    given: Arc<AtomicUsize>,
}

impl Provider {
    /// For one client. Its certificate and key are in `dir`, and it puts there what its tokens are signed as. Each is
    /// good for `lasts`.
    pub(super) fn start(dir: &Path, artifacts: &Path, client: (&str, &str), lasts: Duration) -> Result<Self> {
        let program = Path::new(env!("CARGO_MANIFEST_DIR")).join("bed/provider.py");
        let mut command = Command::new(python()?);
        command.arg(program).arg(HUB.to_string()).arg(dir).arg(lasts.as_secs().to_string());
        command.args([client.0, client.1]).stdin(Stdio::piped()).stdout(Stdio::piped());
        fs::create_dir_all(artifacts.join("logs"))?;
        command.stderr(File::create(artifacts.join("logs/provider.log"))?);
        let mut process = command.spawn().context("the identity provider does not start")?;
        let mut said = BufReader::new(process.stdout.take().context("no output")?);
        let mut line = String::new();
        said.read_line(&mut line)?;
        let port: u16 = line
            .trim()
            .parse()
            .context("the identity provider does not tell its port; see logs/provider.log")?;
        let given = Arc::new(AtomicUsize::new(0));
        let counts = Arc::clone(&given);
        thread::spawn(move || {
            for _client in said.lines().map_while(Result::ok) {
                counts.fetch_add(1, Ordering::Relaxed);
            }
        });
        Ok(Self { process, url: format!("https://{HUB}:{port}/token"), given })
    }

    /// Where tokens are given.
    pub(super) fn url(&self) -> &str {
        &self.url
    }

    /// How many it has given.
    #[must_use]
    pub fn given(&self) -> usize {
        self.given.load(Ordering::Relaxed)
    }

    /// It stands still: it takes connections, and answers nobody.
    ///
    /// # Errors
    /// When it has ended.
    pub fn freeze(&self) -> Result<()> {
        self.signal(Signal::STOP)
    }

    /// It goes on.
    ///
    /// # Errors
    /// When it has ended.
    pub fn thaw(&self) -> Result<()> {
        self.signal(Signal::CONT)
    }

    fn signal(&self, signal: Signal) -> Result<()> {
        kill_process(Pid::from_child(&self.process), signal).context("the identity provider has ended")
    }
}

impl Drop for Provider {
    fn drop(&mut self) {
        let _ended = self.process.kill();
        let _reaped = self.process.wait();
    }
}
