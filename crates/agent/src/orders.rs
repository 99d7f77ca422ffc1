//! Orders that people give: made, judged, written and read back here, for the command line and the socket
//! alike.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use recovery::model::{
    BrokerId, Epoch, EpochState, HostName, Instruction, LedgerStanding, Order, Orders, Outcome, Topology,
};
use recovery::policy::Mode;
use recovery::ports::{Ledger, LedgerError};
use serde::Serialize;

use crate::refusal::{Refusal, Refused};

/// A clock that is ahead of ours by more than this is worth a word.
const CLOCKS_MAY_DIFFER: Duration = Duration::from_secs(60);

/// The longest reason, in characters: it is shown again and again.
const LONGEST_REASON: usize = 500;

/// What somebody wants. Times are those of this host's clock.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Request {
    /// No takeover of the broker, or of any.
    Pause { broker: Option<BrokerId>, reason: String, until: Option<Timestamp> },
    /// The end of pauses.
    Resume { broker: Option<BrokerId> },
    /// A person has looked.
    Ack { broker: Option<BrokerId>, reason: String },
    /// A takeover may begin until then.
    Approve { broker: BrokerId, until: Timestamp },
    /// Another host takes the broker, both hosts being well.
    Switchover { broker: BrokerId, to: HostName, at: Timestamp, until: Timestamp },
}

impl Request {
    /// The one broker it is about.
    fn broker(&self) -> Option<BrokerId> {
        match self {
            Self::Pause { broker, .. } | Self::Resume { broker } | Self::Ack { broker, .. } => *broker,
            Self::Approve { broker, .. } | Self::Switchover { broker, .. } => Some(*broker),
        }
    }
}

/// Why an order was not given.
#[derive(Debug, thiserror::Error)]
pub(crate) enum OrderError {
    /// It cannot mean anything.
    #[error("{0}")]
    Usage(String),
    /// The broker is not guarded here.
    #[error("{0}")]
    UnknownBroker(String),
    /// Something stands in the way.
    #[error("{0}")]
    Refused(Refused),
    /// The ledger could not be read, so nothing was written.
    #[error("nothing was ordered, for the ledger cannot be read")]
    Unread(#[source] LedgerError),
    /// Writing failed, or its answer was lost.
    #[error(
        "it is not known whether the order was given: look at `understudy status` before you give it again"
    )]
    Unconfirmed(#[source] LedgerError),
    /// What was written is not there.
    #[error(
        "the order was written and the order book does not show it: is this the same ledger for every host? Look \
         at `understudy check`"
    )]
    Lost,
}

/// An order that was given, and what it means.
#[derive(Debug, Serialize)]
pub(crate) struct Given {
    /// As it stands in the ledger.
    pub(crate) order: Order,
    /// What it means, as sentences.
    pub(crate) means: Vec<String>,
    /// What was probably not meant.
    pub(crate) warnings: Vec<String>,
    /// Orders that are in force now, for the brokers it is about.
    pub(crate) in_force: Vec<Order>,
}

impl fmt::Display for Given {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "ordered, as {}", self.order)?;
        self.means.iter().try_for_each(|sentence| writeln!(f, "  {sentence}"))?;
        self.warnings.iter().try_for_each(|warning| writeln!(f, "  WARNING: {warning}"))?;
        if self.in_force.is_empty() {
            return writeln!(f, "no other order is in force");
        }
        writeln!(f, "in force now:")?;
        self.in_force.iter().try_for_each(|order| writeln!(f, "  {order}"))
    }
}

/// Where orders are given.
#[derive(Clone)]
pub(crate) struct Desk {
    ledger: Arc<dyn Ledger>,
    topology: Topology,
    mode: Mode,
}

/// What the ledger says when an order is judged.
struct Case<'a> {
    desk: &'a Desk,
    orders: Orders,
    /// The brokers that the order is about.
    standings: BTreeMap<BrokerId, LedgerStanding>,
    now: Timestamp,
}

impl Desk {
    /// A desk of the host that `topology` names; `mode` is that of its agent.
    pub(crate) fn new(ledger: Arc<dyn Ledger>, topology: Topology, mode: Mode) -> Self {
        Self { ledger, topology, mode }
    }

    /// Judges `request`, writes the order and reads it back.
    ///
    /// # Errors
    /// When it means nothing, something stands in the way, or the ledger did not confirm it.
    pub(crate) async fn give(&self, who: String, request: Request) -> Result<Given, OrderError> {
        let case = self.case(request.broker()).await?;
        let what = case.judge(&request)?;
        let at = case.date(&request);
        let order = Order { at, host: self.topology.here.clone(), who, what };
        self.ledger.order(&order).await.map_err(OrderError::Unconfirmed)?;
        let orders = self.ledger.orders().await.map_err(OrderError::Unconfirmed)?;
        if !orders.0.contains(&order) {
            return Err(OrderError::Lost);
        }
        let all = case.standings.iter();
        let mut in_force: Vec<Order> = Vec::new();
        for given in all.flat_map(|(broker, s)| in_force_for(&orders, *broker, s.epoch, at)) {
            if *given != order && !in_force.contains(given) {
                in_force.push(given.clone());
            }
        }
        let (means, warnings) = (case.means(&request, &orders), case.warnings(&request, at));
        Ok(Given { order, means, warnings, in_force })
    }

    /// What would be shown before the order is given: the ledger's word on the broker.
    ///
    /// # Errors
    /// As [`Self::give`].
    pub(crate) async fn consider(&self, request: &Request) -> Result<LedgerStanding, OrderError> {
        let case = self.case(request.broker()).await?;
        case.judge(request)?;
        let standing = case.standings.into_values().next();
        standing.ok_or_else(|| OrderError::Usage("no broker is named".to_owned()))
    }

    async fn case(&self, broker: Option<BrokerId>) -> Result<Case<'_>, OrderError> {
        if let Some(id) = broker.filter(|id| !self.topology.brokers.contains_key(id)) {
            let guarded: Vec<_> = self.topology.brokers.keys().map(ToString::to_string).collect();
            let why = format!("broker {id} is not guarded by this host; it guards {}", guarded.join(", "));
            return Err(OrderError::UnknownBroker(why));
        }
        let orders = self.ledger.orders().await.map_err(OrderError::Unread)?;
        let mut standings = BTreeMap::new();
        for (id, of) in self.topology.brokers.iter().filter(|(id, _)| broker.is_none_or(|b| b == **id)) {
            let journals = self.ledger.all(*id).await.map_err(OrderError::Unread)?;
            standings.insert(*id, LedgerStanding::after(&of.home, &journals));
        }
        Ok(Case { desk: self, orders, standings, now: Timestamp::now() })
    }

    /// Every host that the configuration of this one names.
    fn hosts(&self) -> Vec<&HostName> {
        let Topology { here, brokers, fences, peers, .. } = &self.topology;
        let homes = brokers.values().map(|broker| &broker.home);
        let mut hosts: Vec<_> = homes.chain(fences.keys()).chain(peers).chain([here]).collect();
        hosts.sort();
        hosts.dedup();
        hosts
    }
}

impl Case<'_> {
    /// The instruction, if nothing stands in the way.
    fn judge(&self, request: &Request) -> Result<Instruction, OrderError> {
        Ok(match request.clone() {
            Request::Pause { broker, reason, until } => {
                if let Some(until) = until {
                    self.ahead(until, "the pause would end")?;
                }
                Instruction::Pause { broker, reason: given(reason)?, until }
            }
            Request::Resume { broker } => Instruction::Resume { broker },
            Request::Ack { broker, reason } => {
                let epochs = self.standings.iter().map(|(id, standing)| (*id, standing.epoch)).collect();
                Instruction::Ack { broker, reason: given(reason)?, epochs }
            }
            Request::Approve { broker, until } => {
                self.ahead(until, "the approval would expire")?;
                self.nothing_open(broker)?;
                Instruction::Approve { broker, epoch: self.epoch(broker), until }
            }
            Request::Switchover { broker, to, at, until } => {
                self.ahead(until, "the order would expire")?;
                if until <= at {
                    let why = format!("the order would expire at {until:.0}, and begin at {at:.0}");
                    return Err(OrderError::Usage(why));
                }
                self.switchable(broker, &to, at)?;
                Instruction::Switchover { broker, to, epoch: self.epoch(broker), at, until }
            }
        })
    }

    /// The order's date. Orders are sorted by it, so it comes after everything that its giver could know of,
    /// whatever the clocks of the hosts say: a resume must not sort before the pause that it ends.
    fn date(&self, request: &Request) -> Timestamp {
        let mut newest: Vec<Timestamp> = self.orders.0.iter().map(|order| order.at).collect();
        if matches!(request, Request::Ack { .. }) {
            newest.extend(self.standings.values().flat_map(|s| s.attempts.iter().map(|attempt| attempt.at)));
        }
        after(newest, self.now)
    }

    fn epoch(&self, broker: BrokerId) -> Epoch {
        self.standings.get(&broker).map(|standing| standing.epoch).unwrap_or_default()
    }

    fn ahead(&self, time: Timestamp, what: &str) -> Result<(), OrderError> {
        if time > self.now {
            return Ok(());
        }
        Err(OrderError::Usage(format!("{what} at {time:.0}, and it is {:.0} now", self.now)))
    }

    fn nothing_open(&self, broker: BrokerId) -> Result<(), OrderError> {
        let Some(standing) = self.standings.get(&broker) else { return Ok(()) };
        let Some(EpochState::Open { by, .. }) = &standing.state else { return Ok(()) };
        let why = format!(
            "{by} is at work on broker {broker} (epoch {}): wait until that has ended; `understudy history \
             --broker {broker}` shows how far it is",
            standing.epoch
        );
        Err(OrderError::Refused(Refusal::EpochOpen.because(why)))
    }

    /// Whether the broker can be moved to `to`, beginning at `at`.
    fn switchable(&self, broker: BrokerId, to: &HostName, at: Timestamp) -> Result<(), OrderError> {
        let hosts = self.desk.hosts();
        if !hosts.contains(&to) {
            let names: Vec<_> = hosts.iter().map(ToString::to_string).collect();
            let why = format!("{to} is no host that this configuration names; it names {}", names.join(", "));
            return Err(OrderError::Usage(why));
        }
        self.nothing_open(broker)?;
        let Some(standing) = self.standings.get(&broker) else { return Ok(()) };
        let refused = |refusal: Refusal, why: String| Err(OrderError::Refused(refusal.because(why)));
        if standing.owner == *to {
            return refused(
                Refusal::OwnsAlready,
                format!("{to} owns broker {broker} already: nothing to do"),
            );
        }
        if let Some(other) = standing.writers.iter().find(|host| **host != standing.owner) {
            let why = format!(
                "{other} may also be writing to broker {broker}, for an earlier takeover has not ended well: \
                 `understudy failover --broker {broker}` on {to} fences it and takes the broker over"
            );
            return refused(Refusal::OtherWriter, why);
        }
        if let Some(pause) = self.orders.pause(broker, at.max(self.now)) {
            let why = format!(
                "broker {broker} is paused ({pause}): no agent would take the order up. `understudy resume` first"
            );
            return refused(Refusal::Paused, why);
        }
        Ok(())
    }

    /// `orders` is the book with the order in it.
    fn means(&self, request: &Request, orders: &Orders) -> Vec<String> {
        let whom = request.broker().map_or_else(|| "any broker".to_owned(), |id| format!("broker {id}"));
        match request {
            Request::Pause { until, .. } => {
                let end = until.map_or_else(String::new, |until| format!(" until {until:.0}"));
                let first =
                    format!("no agent begins a takeover of {whom}{end}; brokers that run are not touched");
                [first].into_iter().chain(self.under_way()).collect()
            }
            Request::Resume { .. } => self.resumed(&whom, orders),
            Request::Ack { .. } => self.acknowledged(),
            Request::Approve { broker, until } => vec![format!(
                "agents in mode approve may take broker {broker} over until {until:.0}, if they find it dead; any \
                 claim ends the approval"
            )],
            Request::Switchover { broker, to, at, until } => {
                let owner = self.standings.get(broker).map(|s| s.owner.to_string()).unwrap_or_default();
                let next = self.epoch(*broker).next();
                vec![format!(
                    "the agent of {to} claims epoch {next} not before {at:.0} and not after {until:.0}; {owner} \
                     then stops Kafka cleanly and releases address and storage, and {to} starts it"
                )]
            }
        }
    }

    fn under_way(&self) -> impl Iterator<Item = String> {
        self.standings.iter().filter_map(|(broker, standing)| match &standing.state {
            Some(EpochState::Open { by, .. }) => Some(format!(
                "epoch {} of broker {broker}, which {by} has claimed, goes on all the same",
                standing.epoch
            )),
            _ => None,
        })
    }

    fn resumed(&self, whom: &str, orders: &Orders) -> Vec<String> {
        let was = |broker: &&BrokerId| self.orders.pause(**broker, self.now).is_some();
        if self.standings.keys().filter(was).count() == 0 {
            return vec![format!("no pause of {whom} was in force")];
        }
        let stays = self.standings.keys().find_map(|broker| orders.pause(*broker, self.now));
        vec![match stays {
            Some(pause) => format!(
                "{whom} STAYS PAUSED, for every broker is: {pause}. Only `understudy resume` without --broker \
                 ends that"
            ),
            None => format!("agents may take {whom} over again, as their mode allows"),
        }]
    }

    fn acknowledged(&self) -> Vec<String> {
        let mut means = vec!["the budgets of automatic takeovers count anew from now".to_owned()];
        for (broker, standing) in &self.standings {
            if let Some(EpochState::Ended { outcome, .. }) = &standing.state
                && matches!(outcome, Outcome::Stuck { .. } | Outcome::Abandoned { .. })
            {
                means.push(format!(
                    "broker {broker} may be tried again by itself, although epoch {} ended {outcome}",
                    standing.epoch
                ));
            }
        }
        means
    }

    fn warnings(&self, request: &Request, at: Timestamp) -> Vec<String> {
        let mut warnings = Vec::new();
        match request {
            Request::Pause { until: None, .. } => warnings.push(
                "it has no end: a broker that dies stays down until somebody runs `understudy resume`"
                    .to_owned(),
            ),
            Request::Approve { .. } if self.desk.mode != Mode::Approve => {
                let mode = self.desk.mode.word();
                warnings
                    .push(format!("the agent of this host runs in mode {mode} and waits for no approval"));
            }
            _ => {}
        }
        let ahead = Duration::try_from(at.duration_since(self.now)).unwrap_or_default();
        if ahead > CLOCKS_MAY_DIFFER {
            warnings.push(format!(
                "the clock of another host is {} s ahead of this one's: compare `date` on all of them",
                ahead.as_secs()
            ));
        }
        warnings
    }
}

fn given(reason: String) -> Result<String, OrderError> {
    if reason.trim().is_empty() {
        return Err(OrderError::Usage("a reason is needed: whoever finds this order will ask".to_owned()));
    }
    // It is shown in lines, and a second one could say anything.
    let breaks = |c: char| c.is_control() || matches!(c, '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}');
    if reason.trim().chars().any(breaks) {
        return Err(OrderError::Usage(
            "the reason has a line break or another control character: write it in one line".to_owned(),
        ));
    }
    if reason.trim().chars().count() > LONGEST_REASON {
        return Err(OrderError::Usage(format!("the reason is longer than {LONGEST_REASON} characters")));
    }
    Ok(reason.trim().to_owned())
}

/// A date later than all of `known`; `now`, mostly.
pub(crate) fn after(known: impl IntoIterator<Item = Timestamp>, now: Timestamp) -> Timestamp {
    let newest = known.into_iter().max();
    let next = newest.and_then(|newest| newest.checked_add(Duration::from_millis(1)).ok());
    next.map_or(now, |next| next.max(now))
}

/// What is in force for `broker` while `epoch` is its newest: its pause, and what waits to be taken up.
pub(crate) fn in_force_for(
    orders: &Orders,
    broker: BrokerId,
    epoch: Epoch,
    now: Timestamp,
) -> impl Iterator<Item = &Order> {
    // A switchover that lies ahead waits as well, and the newest one counts.
    let waiting = orders.0.iter().rev().find(|order| {
        matches!(&order.what, Instruction::Switchover { broker: b, epoch: e, until, .. }
            if *b == broker && *e == epoch && now < *until)
    });
    [orders.pause(broker, now), orders.approval(broker, epoch, now), waiting].into_iter().flatten()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_order_is_dated_after_everything_its_giver_could_know_of() {
        let at = |second| Timestamp::from_second(second).unwrap();
        assert_eq!(after([], at(10)), at(10));
        assert_eq!(after([at(3), at(9)], at(10)), at(10));
        assert!(after([at(3), at(70)], at(10)) > at(70), "another host's clock is a minute ahead");
    }

    #[test]
    fn of_several_orders_the_one_in_force_is_told() {
        let at = |second| Timestamp::from_second(second).unwrap();
        let order = |second, what| Order { at: at(second), host: "h".into(), who: "ada".into(), what };
        let switch = |to: &str, until| Instruction::Switchover {
            broker: BrokerId(1),
            to: to.into(),
            epoch: Epoch(3),
            at: at(50),
            until: at(until),
        };
        let book = Orders(vec![order(1, switch("b", 90)), order(2, switch("c", 90))]);
        let told = |epoch, now| -> Vec<String> {
            in_force_for(&book, BrokerId(1), Epoch(epoch), at(now)).map(|o| o.what.to_string()).collect()
        };
        assert_eq!(told(3, 10).len(), 1);
        assert!(told(3, 10)[0].contains("over to c"), "ahead and newest: {:?}", told(3, 10));
        assert_eq!(told(4, 10).len(), 0, "another claim came first");
        assert_eq!(told(3, 90).len(), 0, "expired");
    }
}
