//! `understudy failover`: a takeover that a person asks for. The one command that acts.

use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use drivers::clients::daemon;
use jiff::Timestamp;
use recovery::event::{Event, What};
use recovery::model::{BrokerId, Cause, Epoch, EpochState, HostName, Outcome, human};
use recovery::plan::Phase;
use recovery::ports::{EventSink, LedgerError, chain};
use recovery::progress::phases;
use recovery::takeover::{TakeoverError, resume, take_over};
use serde::Serialize;

use super::agreed;
use crate::UsageError;
use crate::cli::{Failover, Global, Output};
use crate::config::Config;
use crate::evidence::{Proposal, propose};
use crate::exit::Exit;
use crate::output::{print, say};
use crate::world::World;

/// How it ended.
#[derive(Serialize)]
struct Report {
    broker: BrokerId,
    epoch: Epoch,
    outcome: Outcome,
    phases: Vec<(Phase, Duration)>,
    /// What was known to speak against it when it was begun.
    overridden: Vec<String>,
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (phase, took) in &self.phases {
            writeln!(f, "  {phase:<8} {:>8}", human(*took))?;
        }
        write!(f, "broker {} (epoch {}): {}", self.broker, self.epoch, self.outcome)
    }
}

/// Looks, shows the plan, asks, acts, reports.
pub(super) async fn run(global: &Global, options: &Failover, config: &Config) -> anyhow::Result<Exit> {
    if let [first, ..] = &config.unfit[..] {
        let more = config.unfit.len() - 1;
        let more =
            if more == 0 { String::new() } else { format!(" (and {more} more, see `understudy check`)") };
        let why = format!("this configuration may watch and not act: {}{more}", first.in_line());
        return Err(UsageError(why).into());
    }
    let world = World::build(config, Arc::new(Live::default()))?;
    let here = world.topology.here.clone();
    if options.to != "self" && options.to != here.0 {
        let why = format!(
            "--to {}: this host is {here} and can take brokers over only itself; run the command on {}",
            options.to, options.to
        );
        return Err(UsageError(why).into());
    }
    if let Err(error) = daemon::ask(&config.socket, &world.clients).await {
        say(format!("{}; clients in silence will wait for their own timeouts", chain(&error)));
    }
    let mut proposal = propose(&world, &config.socket, options.broker).await?;
    show(&proposal, global.output)?;
    if held(&proposal, options) {
        say(NOT_DONE);
        return Ok(Exit::Held);
    }
    if !options.yes {
        if !agreed(&format!("Take over broker {} now?", options.broker))? {
            say("not done");
            return Ok(Exit::Held);
        }
        // The broker may have come back while somebody thought about it.
        proposal = propose(&world, &config.socket, options.broker).await?;
        if held(&proposal, options) {
            proposal.objections.iter().for_each(|objection| say(format!("against it now: {objection}")));
            say(NOT_DONE);
            return Ok(Exit::Held);
        }
    }
    let open = proposal.standing.state.as_ref();
    let resumes = matches!(open, Some(EpochState::Open { by, .. }) if *by == here);
    if resumes {
        say(format!("epoch {} of this host is unfinished: it is carried on", proposal.standing.epoch));
    }
    act(global, &world, &here, proposal, resumes).await
}

/// Whether something speaks against it and nobody has overridden that. What has begun is carried through.
fn held(proposal: &Proposal, options: &Failover) -> bool {
    let begun = matches!(&proposal.standing.state, Some(EpochState::Open { touched: true, .. }));
    !(proposal.objections.is_empty() || options.override_objections || begun)
}

const NOT_DONE: &str = "not done, for what is said to be against it; --override acts all the same, and still proves the fence first";

/// With `--output json` the plan goes to standard error: standard output is the report alone.
fn show(proposal: &Proposal, format: Output) -> std::io::Result<()> {
    match format {
        Output::Text => print(proposal, format),
        Output::Json => {
            say(proposal);
            Ok(())
        }
    }
}

async fn act(
    global: &Global,
    world: &World,
    here: &HostName,
    proposal: Proposal,
    resumes: bool,
) -> anyhow::Result<Exit> {
    let broker = proposal.plan.broker;
    let mut plan = proposal.plan;
    // What a person decided against is kept with the claim.
    plan.because.extend(proposal.objections.iter().map(|objection| format!("overridden: {objection}")));
    let run = async {
        if resumes {
            resume(&world.ports, here, broker, None).await
        } else {
            take_over(&world.ports, plan, Cause::Manual, None, None).await
        }
    };
    let result = tokio::select! {
        result = run => result,
        _ = tokio::signal::ctrl_c() => {
            say("stopped in the middle: the takeover stands in the ledger as unfinished. Run the command again \
                 to carry it on; a daemon on this host does so by itself");
            return Ok(Exit::Failed);
        }
    };
    let outcome = match result {
        Ok(outcome) => outcome,
        Err(error) => return refused(error),
    };
    let journal = world.ports.ledger.latest(broker).await?;
    let report = Report {
        broker,
        epoch: journal.as_ref().map(|j| j.epoch).unwrap_or_default(),
        phases: journal.as_ref().map(phases).unwrap_or_default(),
        overridden: proposal.objections,
        outcome,
    };
    print(&report, global.output)?;
    Ok(Exit::from(&report.outcome))
}

/// Somebody else being at it is no failure of ours.
fn refused(error: TakeoverError) -> anyhow::Result<Exit> {
    let elsewhere = match &error {
        TakeoverError::Busy(..) => true,
        TakeoverError::NotClaimed(_, why) => {
            matches!(why, LedgerError::Taken { .. } | LedgerError::Superseded { .. })
        }
        _ => false,
    };
    if !elsewhere {
        return Err(error.into());
    }
    say(format!("not done: {:#}", anyhow::Error::from(error)));
    Ok(Exit::Held)
}

/// Shows a takeover while it runs, each line with the time since it began.
#[derive(Default)]
struct Live {
    begun: Mutex<Option<Timestamp>>,
}

impl EventSink for Live {
    fn emit(&self, event: &Event) {
        let begun = *self.begun.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(event.at);
        let since = Duration::try_from(event.at.duration_since(begun)).unwrap_or_default();
        if let Some(line) = line(&event.what) {
            say(format!("[{:>6.1} s] {line}", since.as_secs_f64()));
        }
    }
}

fn line(what: &What) -> Option<String> {
    Some(match what {
        What::Claimed { from, .. } => format!("claim     won; {from} will be fenced"),
        What::Resumed => "claim     ours already; carrying on".to_owned(),
        What::StepStarted { phase, step, undo } => format!("{phase:<8}  {}{step} ...", undo_word(*undo)),
        What::StepDone { phase, step, undo, took, note } => {
            format!("{phase:<8}  {}{step} done in {}: {}", undo_word(*undo), human(*took), note)
        }
        What::StepFailed { phase, step, undo, error, .. } => {
            format!("{phase:<8}  {}{step} FAILED: {error}", undo_word(*undo))
        }
        What::Rejoining { state, in_isr, replicas } => {
            format!("{:<8}  {state}; {in_isr} of {replicas} partitions in ISR", Phase::Rejoin)
        }
        What::Waiting { step, state } => format!("{:<8}  {step}: {state}", ""),
        What::PhaseDone { phase, took } => format!("{phase:<8}  = {}", human(*took)),
        _ => return None,
    })
}

fn undo_word(undo: bool) -> &'static str {
    if undo { "undo " } else { "" }
}
