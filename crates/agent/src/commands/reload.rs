//! `understudy reload`: has the agent that runs here read its configuration anew.

use std::path::Path;

use anyhow::{Context, anyhow};
use serde::Deserialize;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UnixStream;

use crate::cli::{Global, Reload};
use crate::config::{Config, ConfigError};
use crate::exit::Exit;
use crate::order_pages::RELOAD;
use crate::output::{print, say};
use crate::refusal::Refused;
use crate::reload::{Ask, Became, Report};

/// The longest answer that is read: some words for each changed key.
const LONGEST_ANSWER: u64 = 16 << 20;

pub(super) async fn run(global: &Global, options: Reload, config: &Config) -> anyhow::Result<Exit> {
    let (dry_run, wait_secs) = (options.dry_run, options.wait.as_secs());
    let mut report = ask(&config.socket, Ask { dry_run, wait_secs: 0 }).await?;
    if matches!(report.became, Became::WaitsFor(_)) {
        say(&report);
        let again = ask(&config.socket, Ask { dry_run, wait_secs }).await?;
        // Without a difference it came into force between the two.
        match again.differences.is_empty() {
            true => report.became = Became::Applied(jiff::Timestamp::now()),
            false => report = again,
        }
    }
    print(&report, global.output)?;
    Ok(match report.became {
        Became::Nothing | Became::Applied(_) => Exit::Done,
        Became::WaitsFor(_) | Became::Superseded => Exit::Held,
    })
}

async fn ask(socket: &Path, ask: Ask) -> anyhow::Result<Report> {
    let shown = socket.display();
    let mut stream = UnixStream::connect(socket).await.with_context(|| {
        format!("no agent answers at {shown}: start it, or restart it if agent.socket or agent.state_dir was changed")
    })?;
    let body = serde_json::to_string(&ask)?;
    let length = body.len();
    // HTTP/1.0: the answer ends with the connection.
    let request = format!("POST {RELOAD} HTTP/1.0\r\nContent-Length: {length}\r\n\r\n{body}");
    stream.write_all(request.as_bytes()).await?;
    let mut answer = String::new();
    stream.take(LONGEST_ANSWER).read_to_string(&mut answer).await?;
    let (_, body) = answer.split_once("\r\n\r\n").context("the agent ended before it answered")?;
    report(body)
}

/// What the agent answers, or the error with the exit code of its kind.
fn report(body: &str) -> anyhow::Result<Report> {
    #[derive(Deserialize)]
    #[serde(untagged)]
    enum Answer {
        Report(Report),
        Config(ConfigError),
        Refused(Refused),
        Problem { error: String },
    }
    match serde_json::from_str(body) {
        Ok(Answer::Report(report)) => Ok(report),
        Ok(Answer::Config(problems)) => Err(problems.into()),
        Ok(Answer::Refused(refused)) => Err(refused.into()),
        Ok(Answer::Problem { error }) => Err(anyhow!(error)),
        Err(_) => Err(anyhow!("the agent that runs here is of another version: restart it")),
    }
}
