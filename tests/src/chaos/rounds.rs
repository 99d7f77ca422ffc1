//! Each kind of round: strike, wait for what this fault allows, and heal.

use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};

use super::LIMIT;
use super::dice::{Kind, Throw};
use super::field::Field;
use super::tally::Outcome;
use crate::kafka::{Rejoin, Watch};
use crate::{Fault, Mode, eventually};

/// Long enough for every agent to look again at what a fault left behind.
const SECOND_LOOK: Duration = Duration::from_secs(3);

/// The broker's way from the fault on.
struct Course {
    watch: Watch,
    fault: Instant,
}

impl Field<'_> {
    /// Plays one round, to the end: every broker is well, lost hosts are not back yet.
    pub(super) fn play(&self, throw: &Throw, host: &str) -> Result<Outcome> {
        let broker = throw.broker;
        let watch = self.scenario.cluster.watch(broker);
        watch.wait("to be in sync", LIMIT, |standing| standing.is_complete())?;
        let course = Course { watch, fault: Instant::now() };
        let host = host.to_owned();
        let (rejoin, held) = match throw.kind {
            Kind::PowerOff => {
                self.strike(&Fault::PowerOff(host.clone()))?;
                (Some(course.rejoined()?), None)
            }
            Kind::CutLink => {
                self.strike(&Fault::CutOff(vec![host.clone()]))?;
                (Some(course.rejoined()?), None)
            }
            Kind::KillKafka => {
                self.strike(&Fault::KillKafka(host.clone()))?;
                (Some(course.rejoined()?), None)
            }
            Kind::CutShortly => {
                let cut = Fault::CutOff(vec![host.clone()]);
                (self.shortly(&cut, throw.lasting(0.2, 1.5), &course)?, None)
            }
            Kind::FreezeShortly => {
                let freeze = Fault::Freeze(host.clone());
                (self.shortly(&freeze, throw.lasting(0.5, 4.0), &course)?, None)
            }
            Kind::Freeze => {
                let freeze = Fault::Freeze(host.clone());
                (self.shortly(&freeze, throw.lasting(5.0, 20.0), &course)?, None)
            }
            Kind::KillClaimant | Kind::FreezeClaimant => (Some(self.claimant(throw, &host, &course)?), None),
            Kind::StallLedger => {
                (Some(self.stall_ledger(throw, &host, &course)?), Some("ledger_unreachable"))
            }
            Kind::SwitchUnknown => (Some(self.switch_unknown(throw, &host, &course)?), Some("stuck")),
            Kind::StopKafka => {
                self.stop_kafka(throw, &host)?;
                (None, Some("stopped_cleanly"))
            }
            Kind::CutTwo => {
                self.cut_two(throw, &host)?;
                (course.rejoined_if_gone(), Some("mass_failure"))
            }
            Kind::Move => (Some(self.switchover(throw, &host, &course)?), None),
        };
        self.settled()?;
        let now_on = self.carrier(broker)?;
        let outcome = match (throw.kind, now_on == host) {
            (Kind::Move, _) => "moved",
            (_, false) => "taken over",
            (Kind::CutTwo | Kind::StopKafka, true) => "left alone",
            (Kind::KillKafka, true) => "restarted in place",
            (_, true) if rejoin.is_none() => "went on",
            (_, true) => "came back",
        };
        // A broker that nobody moved may have been away for as long as the fault lasted; it is no recovery.
        let time_to_isr_s = rejoin.filter(|_| outcome != "left alone").map(|rejoin| rejoin.all_in_sync);
        Ok(Outcome { outcome, time_to_isr_s, held, now_on })
    }

    fn strike(&self, fault: &Fault) -> Result<()> {
        fault.strike(self.lab)
    }

    /// A fault that may end before anybody acts on it, or not.
    fn shortly(&self, fault: &Fault, lasting: Duration, course: &Course) -> Result<Option<Rejoin>> {
        self.strike(fault)?;
        sleep(lasting);
        self.heal(fault)?;
        sleep(SECOND_LOOK);
        self.settled()?;
        Ok(course.rejoined_if_gone())
    }

    /// Ends a fault of a host that may be fenced at this very moment.
    fn heal(&self, fault: &Fault) -> Result<()> {
        // The second attempt finds it off, and that is all right.
        fault.heal(self.lab).or_else(|_| fault.heal(self.lab))
    }

    /// The host dies; and then, at some moment of the takeover, the agent that is at it dies or stands still.
    /// A unit would start it again.
    fn claimant(&self, throw: &Throw, host: &str, course: &Course) -> Result<Rejoin> {
        let broker = throw.broker;
        self.strike(&Fault::PowerOff(host.to_owned()))?;
        let claimant = self.any_says(broker, "a takeover", |status| !status["takeover"].is_null())?;
        sleep(throw.moment(0.0, 3.0));
        let name = claimant.host().name().to_owned();
        if throw.kind == Kind::KillClaimant {
            self.strike(&Fault::KillAgent(name))?;
            sleep(throw.lasting(0.5, 20.0));
            // It may have been succeeded, and fenced, at this very moment too.
            let started = claimant.start();
            ensure!(started.is_ok() || !claimant.host().is_on(), "the agent does not start: {started:?}");
        } else {
            let freeze = Fault::FreezeAgent(name);
            self.strike(&freeze)?;
            sleep(throw.lasting(0.5, 20.0));
            self.heal(&freeze)?;
        }
        course.rejoined()
    }

    fn stall_ledger(&self, throw: &Throw, host: &str, course: &Course) -> Result<Rejoin> {
        let everywhere = self.agents().map(|agent| agent.host().name().to_owned()).collect();
        let stall = Fault::StallLedger(everywhere);
        let fences = self.fences();
        self.strike(&stall)?;
        sleep(throw.moment(0.0, 5.0));
        self.strike(&Fault::PowerOff(host.to_owned()))?;
        self.held(throw.broker, "ledger_unreachable")?;
        sleep(throw.lasting(1.0, 8.0));
        self.ensure_nowhere(throw.broker)?;
        ensure!(self.fences() == fences, "somebody was fenced without a claim");
        self.heal(&stall)?;
        course.rejoined()
    }

    fn switch_unknown(&self, throw: &Throw, host: &str, course: &Course) -> Result<Rejoin> {
        let broker = throw.broker;
        let unknown = Fault::Switch { plug: host.to_owned(), mode: Mode::Unknown };
        self.strike(&unknown)?;
        self.strike(&Fault::PowerOff(host.to_owned()))?;
        let agent = self.any_says(broker, "stuck", |status| status["decision"]["decision"] == "escalate")?;
        sleep(throw.lasting(1.0, 5.0));
        self.ensure_nowhere(broker)?;
        self.heal(&unknown)?;
        let said =
            agent.cli(&["ack", "--broker", &broker.to_string(), "--reason", "the switch is mended"])?;
        ensure!(said.code == 0, "`ack` exits with {}: {}{}", said.code, said.stdout, said.stderr);
        course.rejoined()
    }

    /// A person stops Kafka, and starts its unit again after a while, where it was.
    fn stop_kafka(&self, throw: &Throw, host: &str) -> Result<()> {
        let (broker, fences) = (throw.broker, self.fences());
        self.strike(&Fault::StopKafka(host.to_owned()))?;
        eventually("Kafka to stop", LIMIT, || self.ensure_nowhere(broker))?;
        self.held(broker, "stopped_cleanly")?;
        sleep(throw.lasting(2.0, 8.0));
        self.ensure_nowhere(broker)?;
        ensure!(self.fences() == fences, "somebody was fenced for a broker that was stopped cleanly");
        let (agent, node) = (self.agent_on(host)?, self.scenario.cluster.broker(broker)?);
        let said = agent.cli(&["guard", "--broker", &broker.to_string()])?;
        ensure!(said.code == 0, "the guard of the owner refuses: {}{}", said.stdout, said.stderr);
        let address = format!("{}/24", node.address().ip());
        if !agent.host().addresses()?.contains(&address) {
            agent.host().add_address(&address)?;
        }
        node.start_on(agent.host()).map(drop)
    }

    fn cut_two(&self, throw: &Throw, host: &str) -> Result<()> {
        let fences = self.fences();
        let cut = Fault::CutOff(vec![host.to_owned(), self.carrier(throw.other)?]);
        self.strike(&cut)?;
        self.held(throw.broker, "mass_failure")?;
        sleep(throw.lasting(3.0, 12.0));
        ensure!(self.fences() == fences, "somebody was fenced while two hosts were cut off");
        self.heal(&cut)?;
        sleep(SECOND_LOOK);
        Ok(())
    }

    /// Home, if it is elsewhere; else to the best standby.
    fn switchover(&self, throw: &Throw, host: &str, course: &Course) -> Result<Rejoin> {
        let (broker, home) = (throw.broker, self.home_of(throw.broker)?);
        let to = if host == home {
            self.free_standbys().into_iter().next().context("no standby is free")?
        } else {
            home
        };
        let fences = self.fences();
        let command = ["switchover", "--broker", &broker.to_string(), "--to", &to, "--yes"];
        self.lab.note(format!("order: understudy {}", command.join(" ")));
        let said = self.agent_on(host)?.cli(&command)?;
        ensure!(said.code == 0, "`switchover` exits with {}: {}{}", said.code, said.stdout, said.stderr);
        let rejoin = course.rejoined()?;
        let now_on = self.carrier(broker)?;
        ensure!(now_on == to, "broker {broker} was to go to {to} and is on {now_on}");
        ensure!(self.fences() == fences, "a switchover fenced somebody");
        Ok(rejoin)
    }
}

impl Course {
    /// Waits until the broker was gone and is in every ISR again.
    fn rejoined(&self) -> Result<Rejoin> {
        self.watch.wait_rejoined(self.fault, LIMIT)
    }

    /// The same of a broker that may never have been gone.
    fn rejoined_if_gone(&self) -> Option<Rejoin> {
        self.watch.wait_rejoined(self.fault, Duration::ZERO).ok()
    }
}
