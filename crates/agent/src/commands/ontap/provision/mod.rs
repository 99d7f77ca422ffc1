//! `understudy ontap provision`: makes brokers' volumes, with what the fence needs around them. Plans first;
//! acts with `--apply`; deletes and shrinks nothing.

mod act;
mod plan;
mod policy;
mod snippet;
#[cfg(test)]
mod tests;
mod volumes;
mod wanted;

use std::fmt;
use std::time::Duration;

use ontap_client::Client;
use recovery::ports::chain;
use serde::Serialize;

use super::super::agreed;
use super::facts::{CALL_LIMIT, Facts};
use super::login::login;
use crate::cli::{Global, Output, Provision};
use crate::exit::Exit;
use crate::output::{print, say};
use plan::{Item, State, plan};
use wanted::Wanted;

pub(super) use wanted::size;

/// How long one change may take: a FlexGroup has many constituents to be made.
const CHANGE_LIMIT: Duration = Duration::from_secs(300);

/// What there is, what was done, and what to do now.
#[derive(Debug, Serialize)]
struct Report {
    svm: String,
    /// As it was before anything was done.
    plan: Vec<Item>,
    /// Whether it was all done, or there was nothing to do.
    complete: bool,
    /// What was done, in order.
    done: Vec<String>,
    /// What was tried last, and why it was not done.
    #[serde(skip_serializing_if = "Option::is_none")]
    failed: Option<String>,
    /// For the configuration of every standby. Not there as long as something is in the way.
    #[serde(skip_serializing_if = "Option::is_none")]
    toml: Option<String>,
}

impl Report {
    fn count(&self, state: State) -> usize {
        self.plan.iter().filter(|item| item.state == state).count()
    }
}

pub(super) async fn run(global: &Global, options: &Provision) -> anyhow::Result<Exit> {
    let login = login(global, options)?;
    let wanted = Wanted::of(options, &login.svm)?;
    let client = login.ontap.connect(CALL_LIMIT).await;
    let client = client.map_err(|error| anyhow::anyhow!("{}", chain(error.as_ref())))?;
    let facts = Facts::read(&client, &wanted.svm).await;
    let items = plan(&wanted, &facts);
    let mut report = Report {
        svm: wanted.svm.clone(),
        complete: items.iter().all(|item| item.act.is_none() && item.state != State::Conflict),
        plan: items,
        done: Vec::new(),
        failed: None,
        toml: None,
    };
    if report.count(State::Conflict) > 0 {
        print(&report, global.output)?;
        return Ok(Exit::Failed);
    }
    report.toml = Some(snippet::snippet(&wanted, &login.ontap, &facts));
    if report.complete || !options.apply {
        print(&report, global.output)?;
        return Ok(Exit::Done);
    }
    // The answer alone belongs to standard output.
    report.plan.iter().for_each(say);
    let count = report.plan.iter().filter(|item| item.act.is_some()).count();
    if !options.yes
        && !agreed(&format!("Do these {count} steps in {} at {}?", wanted.svm, login.ontap.place()))?
    {
        say("not done");
        return Ok(Exit::Held);
    }
    let now = plan(&wanted, &Facts::read(&client, &wanted.svm).await);
    match differs(&report.plan, &now) {
        true => {
            report.failed =
                Some("the storage has been changed since the plan was shown; run it again".to_owned());
        }
        false => apply(&client.within(CHANGE_LIMIT), &mut report).await,
    }
    if report.failed.is_none() {
        confirm(&mut report, &plan(&wanted, &Facts::read(&client, &wanted.svm).await));
    }
    if global.output == Output::Text {
        report.plan.retain(|item| item.state == State::Note);
    }
    print(&report, global.output)?;
    Ok(if report.complete { Exit::Done } else { Exit::Failed })
}

/// Whether other things are to be done, or in the way, than those that were agreed upon.
fn differs(agreed: &[Item], now: &[Item]) -> bool {
    let acts = |items: &[Item]| -> Vec<_> { items.iter().filter_map(|item| item.act.clone()).collect() };
    acts(agreed) != acts(now) || now.iter().any(|item| item.state == State::Conflict)
}

/// One after the other, until one fails.
async fn apply(client: &Client, report: &mut Report) {
    for item in &report.plan {
        let Some(act) = &item.act else { continue };
        say(format!("{}: {} …", item.what, item.says));
        if let Err(error) = act.carry_out(client, &report.svm).await {
            report.failed = Some(format!("{}: {}", item.what, act::explain(&error)));
            return;
        }
        report.done.push(format!("{}: {}", item.what, item.says));
    }
}

/// All of it is read once more: what each step has read back may have been undone by a later one.
fn confirm(report: &mut Report, now: &[Item]) {
    let open = now.iter().find(|item| item.act.is_some() || item.state == State::Conflict);
    report.complete = open.is_none();
    report.failed = open.map(|item| format!("{}: read once more, it is not done: {}", item.what, item.says));
}

impl fmt::Display for Item {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let word = match self.state {
            State::Right => "ok",
            State::Create => "create",
            State::Change => "change",
            State::Conflict => "IN THE WAY",
            State::Note => "note",
        };
        write!(f, "{word:<10}  {}: {}", self.what, self.says)?;
        self.remedy.as_ref().map_or(Ok(()), |remedy| write!(f, "\n            do: {remedy}"))
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.plan.iter().try_for_each(|item| writeln!(f, "{item}"))?;
        self.done.iter().try_for_each(|done| writeln!(f, "done        {done}"))?;
        let (create, change) = (self.count(State::Create), self.count(State::Change));
        match (&self.failed, self.count(State::Conflict)) {
            (Some(failed), _) => {
                writeln!(f, "FAILED      {failed}")?;
                writeln!(
                    f,
                    "{} done, the rest is not; see to the cause and repeat the command",
                    self.done.len()
                )?;
            }
            (None, 0) if self.complete && self.done.is_empty() => writeln!(f, "nothing to do")?,
            (None, 0) if self.complete => writeln!(f, "{} done, and read back", self.done.len())?,
            (None, 0) => {
                writeln!(f, "{create} to create, {change} to change; nothing is done without --apply")?;
            }
            (None, conflicts) => {
                writeln!(f, "{conflicts} in the way: nothing is done until they are gone")?;
            }
        }
        match &self.toml {
            Some(toml) if self.failed.is_none() => write!(f, "\n{toml}"),
            _ => Ok(()),
        }
    }
}
