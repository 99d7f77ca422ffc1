//! What people tell all agents of a cluster through the ledger, and what agents answer. Plain data.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use super::{Attempt, BrokerId, Epoch, HostName};

/// One entry of the ledger's order book. Orders are only ever added.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Order {
    /// When it was given.
    pub at: Timestamp,
    /// The host it was given on.
    pub host: HostName,
    /// Who gave it: a person's login, or `agent`.
    pub who: String,
    /// What.
    #[serde(flatten)]
    pub what: Instruction,
}

/// What is ordered.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "order", rename_all = "snake_case")]
pub enum Instruction {
    /// No agent starts a takeover until this is resumed or over. One that is under way goes on.
    Pause {
        /// The broker; every one if `None`.
        broker: Option<BrokerId>,
        /// Why, for those who wonder later.
        reason: String,
        /// When it ends by itself.
        until: Option<Timestamp>,
    },
    /// Ends every pause of the broker that was given before; `None` ends them all.
    Resume {
        /// The broker.
        broker: Option<BrokerId>,
    },
    /// A person has looked: a stuck or exhausted broker may be tried again, and the budgets count anew.
    Ack {
        /// The broker; every one if `None`.
        broker: Option<BrokerId>,
        /// What was found.
        reason: String,
        /// The newest epoch of each broker then. What came later is not meant, whatever the clocks say.
        #[serde(default)]
        epochs: Vec<(BrokerId, Epoch)>,
    },
    /// In mode `approve`: the broker may be taken over while `epoch` is its newest one.
    Approve {
        /// The broker.
        broker: BrokerId,
        /// Its newest epoch when the approval was given.
        epoch: Epoch,
        /// When the approval expires.
        until: Timestamp,
    },
    /// Move a healthy broker to another host.
    Switchover {
        /// The broker.
        broker: BrokerId,
        /// The host that takes it.
        to: HostName,
        /// Its newest epoch when the order was given: any claim since makes the order void.
        epoch: Epoch,
        /// Not before this. Written under another name, for the order has its own `at` beside it.
        #[serde(rename = "not_before")]
        at: Timestamp,
        /// The order is void after this.
        until: Timestamp,
    },
    /// The old owner's agent: Kafka was stopped cleanly, address and storage were released.
    Released {
        /// The broker.
        broker: BrokerId,
        /// The epoch of the switchover it was released for.
        epoch: Epoch,
        /// What was read back.
        found: String,
    },
    /// A host that lost brokers was checked, and its fence was lifted: it is a standby now.
    Rejoined,
}

/// The order book at one moment. Every question about it is answered here.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Orders(pub Vec<Order>);

/// What a person has acknowledged of one broker: what went before it is no reason any more not to try again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Acked {
    /// When.
    pub at: Timestamp,
    /// The broker's newest epoch then; `None` in what an older understudy wrote.
    pub epoch: Option<Epoch>,
}

impl Acked {
    /// Whether it is meant. By the epochs, as the clock of a host may have been set back since.
    #[must_use]
    pub fn covers(&self, attempt: &Attempt) -> bool {
        self.epoch.map_or(attempt.at <= self.at, |epoch| attempt.epoch <= epoch)
    }
}

impl Orders {
    /// The pause that is in force for `broker` at `now`.
    #[must_use]
    pub fn pause(&self, broker: BrokerId, now: Timestamp) -> Option<&Order> {
        let covers = |named: Option<BrokerId>| named.is_none_or(|id| id == broker);
        let mut paused: Vec<&Order> = Vec::new();
        for order in &self.0 {
            match &order.what {
                Instruction::Pause { broker, .. } if covers(*broker) => paused.push(order),
                // A resume of one broker does not end a pause of all: that would surprise whoever paused
                // them.
                Instruction::Resume { broker: None } => paused.clear(),
                Instruction::Resume { broker: Some(id) } if *id == broker => {
                    paused.retain(|p| matches!(p.what, Instruction::Pause { broker: None, .. }));
                }
                _ => {}
            }
        }
        let over = |order: &Order| matches!(&order.what, Instruction::Pause { until: Some(until), .. } if *until <= now);
        paused.into_iter().rev().find(|order| !over(order))
    }

    /// What a person last acknowledged of `broker`.
    #[must_use]
    pub fn acked(&self, broker: BrokerId) -> Option<Acked> {
        let of_broker = |epochs: &[(BrokerId, Epoch)], broker| {
            epochs.iter().find(|(id, _)| *id == broker).map(|(_, epoch)| *epoch)
        };
        let acks = self.0.iter().filter_map(|order| match &order.what {
            Instruction::Ack { broker: named, epochs, .. } if named.is_none_or(|id| id == broker) => {
                Some(Acked { at: order.at, epoch: of_broker(epochs, broker) })
            }
            _ => None,
        });
        acks.max_by_key(|acked| acked.at)
    }

    /// When a person last acknowledged for every broker at once.
    #[must_use]
    pub fn all_acked_at(&self) -> Option<Timestamp> {
        let acks = self.0.iter().filter(|o| matches!(o.what, Instruction::Ack { broker: None, .. }));
        acks.map(|order| order.at).max()
    }

    /// The approval that lets `broker` be taken over from `epoch` at `now`.
    #[must_use]
    pub fn approval(&self, broker: BrokerId, epoch: Epoch, now: Timestamp) -> Option<&Order> {
        self.0.iter().rev().find(|order| {
            matches!(&order.what, Instruction::Approve { broker: b, epoch: e, until }
                if *b == broker && *e == epoch && now < *until)
        })
    }

    /// The newest switchover of `broker` from `epoch` that is due at `now`: the order and the new host.
    #[must_use]
    pub fn switchover(&self, broker: BrokerId, epoch: Epoch, now: Timestamp) -> Option<(&Order, &HostName)> {
        self.0.iter().rev().find_map(|order| match &order.what {
            Instruction::Switchover { broker: b, to, epoch: e, at, until }
                if *b == broker && *e == epoch && *at <= now && now < *until =>
            {
                Some((order, to))
            }
            _ => None,
        })
    }

    /// What `host` said when it had released `broker` for the switchover of `epoch`.
    #[must_use]
    pub fn released(&self, broker: BrokerId, epoch: Epoch, host: &HostName) -> Option<&str> {
        self.0.iter().find_map(|order| match &order.what {
            Instruction::Released { broker: b, epoch: e, found }
                if *b == broker && *e == epoch && order.host == *host =>
            {
                Some(found.as_str())
            }
            _ => None,
        })
    }

    /// When each host last came back as a standby.
    #[must_use]
    pub fn rejoined(&self) -> BTreeMap<&HostName, Timestamp> {
        let back = self.0.iter().filter(|order| order.what == Instruction::Rejoined);
        back.map(|order| (&order.host, order.at)).collect()
    }

    /// The brokers that have a pause in force at `now`, of those given.
    #[must_use]
    pub fn paused(&self, brokers: &BTreeSet<BrokerId>, now: Timestamp) -> BTreeSet<BrokerId> {
        brokers.iter().filter(|broker| self.pause(**broker, now).is_some()).copied().collect()
    }
}

impl fmt::Display for Order {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { at, host, who, what } = self;
        write!(f, "{who} on {host}, {at:.0}: {what}")
    }
}

impl fmt::Display for Instruction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let whom = |broker: &Option<BrokerId>| match broker {
            Some(id) => format!("broker {id}"),
            None => "every broker".to_owned(),
        };
        match self {
            Self::Pause { broker, reason, until } => {
                write!(f, "pause {}: {reason}", whom(broker))?;
                until.map_or(Ok(()), |until| write!(f, " (until {until:.0})"))
            }
            Self::Resume { broker } => write!(f, "resume {}", whom(broker)),
            Self::Ack { broker, reason, .. } => write!(f, "acknowledge {}: {reason}", whom(broker)),
            Self::Approve { broker, epoch, until } => {
                write!(f, "approve a takeover of broker {broker} from epoch {epoch} until {until:.0}")
            }
            Self::Switchover { broker, to, at, .. } => {
                write!(f, "switch broker {broker} over to {to}, not before {at:.0}")
            }
            Self::Released { broker, epoch, found } => {
                write!(f, "released broker {broker} for epoch {epoch}: {found}")
            }
            Self::Rejoined => write!(f, "rejoined as a standby"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).unwrap()
    }

    fn book(orders: Vec<(i64, Instruction)>) -> Orders {
        let order = |(second, what)| Order { at: at(second), host: "h".into(), who: "ada".to_owned(), what };
        Orders(orders.into_iter().map(order).collect())
    }

    fn pause(broker: Option<i32>, until: Option<i64>) -> Instruction {
        Instruction::Pause {
            broker: broker.map(BrokerId),
            reason: "patching".to_owned(),
            until: until.map(at),
        }
    }

    #[test]
    fn a_pause_lasts_until_it_is_resumed_or_over() {
        let one = BrokerId(1);
        assert!(book(vec![]).pause(one, at(5)).is_none());
        assert!(book(vec![(1, pause(Some(1), None))]).pause(one, at(5)).is_some());
        assert!(book(vec![(1, pause(Some(2), None))]).pause(one, at(5)).is_none(), "another broker's");
        assert!(book(vec![(1, pause(None, Some(4)))]).pause(one, at(5)).is_none(), "it is over");
        assert!(book(vec![(1, pause(None, Some(6)))]).pause(one, at(5)).is_some());
        let resumed = |whom: Option<i32>| Instruction::Resume { broker: whom.map(BrokerId) };
        assert!(book(vec![(1, pause(Some(1), None)), (2, resumed(Some(1)))]).pause(one, at(5)).is_none());
        assert!(book(vec![(1, pause(None, None)), (2, resumed(Some(1)))]).pause(one, at(5)).is_some());
        assert!(book(vec![(1, pause(None, None)), (2, resumed(None))]).pause(one, at(5)).is_none());
        assert!(book(vec![(1, resumed(None)), (2, pause(None, None))]).pause(one, at(5)).is_some());
        let short = book(vec![(1, pause(None, None)), (2, pause(Some(1), Some(3)))]);
        assert!(short.pause(one, at(5)).is_some(), "a longer pause outlives a shorter one");
    }

    #[test]
    fn an_approval_is_for_one_epoch_and_expires() {
        let approve = Instruction::Approve { broker: BrokerId(1), epoch: Epoch(3), until: at(10) };
        let book = book(vec![(1, approve)]);
        assert!(book.approval(BrokerId(1), Epoch(3), at(9)).is_some());
        assert!(book.approval(BrokerId(1), Epoch(3), at(10)).is_none(), "expired");
        assert!(book.approval(BrokerId(1), Epoch(4), at(9)).is_none(), "somebody has claimed since");
        assert!(book.approval(BrokerId(2), Epoch(3), at(9)).is_none());
    }

    #[test]
    fn a_switchover_is_due_between_two_times_and_void_after_any_claim() {
        let order = Instruction::Switchover {
            broker: BrokerId(1),
            to: "b".into(),
            epoch: Epoch(3),
            at: at(5),
            until: at(10),
        };
        let book = book(vec![(1, order)]);
        let due = |epoch, now| book.switchover(BrokerId(1), Epoch(epoch), at(now)).map(|(_, to)| to.clone());
        assert_eq!(due(3, 4), None);
        assert_eq!(due(3, 5), Some("b".into()));
        assert_eq!(due(3, 10), None);
        assert_eq!(due(4, 6), None);
    }

    #[test]
    fn every_order_survives_json() {
        let (broker, epoch, until, reason) = (BrokerId(1), Epoch(3), at(9), "r".to_owned());
        let whom = Some(broker);
        let all = [
            Instruction::Pause { broker: whom, reason: reason.clone(), until: Some(until) },
            Instruction::Resume { broker: whom },
            Instruction::Ack { broker: None, reason: reason.clone(), epochs: vec![(broker, epoch)] },
            Instruction::Approve { broker, epoch, until },
            Instruction::Switchover { broker, to: "b".into(), epoch, at: at(5), until },
            Instruction::Released { broker, epoch, found: reason },
            Instruction::Rejoined,
        ];
        for order in book(all.into_iter().map(|what| (1, what)).collect()).0 {
            let json = serde_json::to_string(&order).unwrap();
            assert_eq!(serde_json::from_str::<Order>(&json).unwrap(), order, "{json}");
        }
    }

    #[test]
    fn an_order_survives_json_and_reads_as_a_sentence() {
        let order = book(vec![(1, pause(Some(1), Some(60)))]).0.remove(0);
        let json = serde_json::to_string(&order).unwrap();
        assert_eq!(serde_json::from_str::<Order>(&json).unwrap(), order);
        assert_eq!(
            order.to_string(),
            "ada on h, 1970-01-01T00:00:01Z: pause broker 1: patching (until 1970-01-01T00:01:00Z)"
        );
    }
}
