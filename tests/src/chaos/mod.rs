//! The fault marathon: random faults on a real cluster under load, until time is up.
//!
//! A round throws one fault, waits for the outcome that this fault allows, heals it and puts everything in
//! order. At no time may two Kafkas of one broker run, and at the end the write history must be clean.

mod dice;
mod field;
mod lookout;
mod rounds;
mod tally;

use std::fs;
use std::io::{self, Write};
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

use crate::history::{WriteSpec, Writer};
use crate::scenario::{Scenario, Setup};
use crate::{Lab, Storage};
use dice::{Dice, Kind, Throw};
use field::{BROKERS, Field};
use lookout::Lookout;
use tally::{Round, Tally};

/// How long anything in a round may take. It takes a fraction of that; but a busy machine is no failure.
const LIMIT: Duration = Duration::from_secs(180);

/// Beside the topic of every scenario: another one, with fewer partitions and larger records.
const TOPIC: &str = "payments";
const PARTITIONS: i32 = 12;

/// What to run.
#[derive(Debug, Clone)]
pub struct Marathon {
    /// Rounds are begun for this long.
    pub lasting: Duration,
    /// What all faults come from.
    pub seed: u64,
}

impl Marathon {
    /// Runs it in `lab` and says what came of it, on standard output and in `json`.
    ///
    /// # Errors
    /// When the cluster does not come up, a round does not settle, or the verdict is not clean.
    pub fn run(&self, lab: &Lab, json: Option<&Path>) -> Result<()> {
        let mut tally = Tally { seed: self.seed, ..Tally::default() };
        let ended = self.rounds(lab, &mut tally);
        if let Err(error) = &ended {
            tally.failed = Some(format!("{error:#}"));
        }
        let text = serde_json::to_string_pretty(&tally)? + "\n";
        fs::write(lab.artifacts().join("marathon.json"), &text)?;
        if let Some(json) = json {
            fs::write(json, &text).with_context(|| format!("cannot write {}", json.display()))?;
        }
        writeln!(io::stdout(), "\n{tally}").context("stdout is closed")?;
        ended
    }

    fn rounds(&self, lab: &Lab, tally: &mut Tally) -> Result<()> {
        lab.note(format!("seed {}", self.seed));
        let scenario = Scenario::begin(lab, &setup())?;
        scenario.cluster.create_topic(TOPIC, PARTITIONS, 3, 2)?;
        let spec = WriteSpec { size: 1000, ..WriteSpec::steady(TOPIC, PARTITIONS, 60) };
        let payments = scenario.cluster.write(spec)?;
        scenario.start_agents()?;
        let lookout = Lookout::start(lab.hosts());
        let field = Field { lab, scenario };
        field.settled()?;

        let (begin, mut dice) = (Instant::now(), Dice::of(self.seed));
        while begin.elapsed() < self.lasting {
            let throw = next(&field, &mut dice)?;
            let at_s = begin.elapsed().as_secs_f64();
            let (fault, number, host) =
                (throw.kind.name(), tally.rounds.len() + 1, field.carrier(throw.broker)?);
            let played = field.play(&throw, &host).and_then(|outcome| {
                field.bring_back()?;
                Ok(outcome)
            });
            // Two writers are the worse finding, whatever else went wrong.
            tally.looks = lookout.ensure_never_double()?;
            let outcome =
                played.with_context(|| format!("round {number}, {fault} (broker {})", throw.broker))?;
            let acked = field.scenario.acked() + payments.acked();
            let round = Round { at_s, fault, broker: throw.broker, host, outcome, acked };
            lab.note(format!("round {number}: {round}"));
            tally.rounds.push(round);
        }
        judge(field, payments, tally)?;
        tally.looks = lookout.ensure_never_double()?;
        Ok(())
    }
}

/// What is thrown next. A takeover needs a free standby: when none is left, a broker goes home first.
fn next(field: &Field, dice: &mut Dice) -> Result<Throw> {
    let throw = dice.throw(BROKERS.len().try_into()?);
    if !field.free_standbys().is_empty() {
        return Ok(throw);
    }
    for broker in BROKERS {
        if field.carrier(broker)? != field.home_of(broker)? {
            return Ok(Throw { kind: Kind::Move, broker, ..throw });
        }
    }
    bail!("no standby is free, and every broker is at home")
}

fn judge(field: Field, payments: Writer, tally: &mut Tally) -> Result<()> {
    let history = payments.stop()?;
    let of_payments = field.scenario.cluster.verify(&[&history])?;
    field.lab.note(format!("{TOPIC}: {of_payments}"));
    let end = field.scenario.verdict()?;
    of_payments.ensure_clean().context(TOPIC)?;
    if !history.failed.is_empty() {
        bail!("the producer of {TOPIC} gave up on {:?}", history.failed);
    }
    // A verdict that is not clean has been returned as an error before.
    tally.acknowledged = end.history.acked.len() + history.acked.len();
    tally.lost = end.lost + of_payments.lost();
    Ok(())
}

/// Everything that the bed has at once, with limits of seconds, and budgets that no marathon spends.
fn setup() -> Setup {
    Setup {
        policy: &[
            ("hung_after", "6s"),
            ("process_down_after", "10s"),
            ("claim_silent_after", "9s"),
            ("restart_window", "2m"),
            ("takeovers_per_broker", "100000"),
            ("takeovers_per_cluster", "100000"),
        ],
        rate: 300,
        standbys: 2,
        at_home: &BROKERS,
        peers: true,
        canary: true,
        ledger: Storage::Fuse,
        ..Setup::default()
    }
}
