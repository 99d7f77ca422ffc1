//! The fake sides of the other ports. Each act checks the promises before it takes effect.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;

use super::{BROKER, World};
use recovery::model::{
    BrokerId, Endpoint, Epoch, Evidence, Fact, Grace, HeldLock, HostName, LocalProcess, PLACED,
    PartitionView, ProbeOutcome, QuorumView, Replication,
};
use recovery::ports::{
    Address, Advertised, BrokerHost, Clock, Cluster, Fence, HealthSignal, MOVED, Note, ProcessState, Proof,
    Reach, Standing, StepError, Storage, Unregistered,
};

fn refused(action: &str, why: &str) -> StepError {
    StepError::Refused { driver: "fake", action: action.to_owned(), why: why.to_owned() }
}

#[async_trait]
impl Fence for World {
    fn name(&self) -> &'static str {
        "switch"
    }

    async fn fence(&self, host: &HostName, _epoch: Epoch) -> Result<Note, StepError> {
        self.fault("fence")?;
        self.kill();
        self.truth().fenced.insert(host.clone());
        Ok(Note::new("off"))
    }

    async fn prove(&self, host: &HostName, _epoch: Epoch) -> Result<Proof, StepError> {
        self.fault("prove")?;
        if !self.truth().fenced.contains(host) {
            return Err(refused("prove", "the host is on"));
        }
        let note = match self.truth().moved.contains(host) {
            true => Note::new("status is off").with(MOVED, "it was made anew elsewhere"),
            false => Note::new("status is off"),
        };
        Ok(Proof { host: host.clone(), by: "switch".to_owned(), note })
    }

    async fn lift(&self, host: &HostName) -> Result<Note, StepError> {
        self.fault("lift")?;
        self.truth().fenced.remove(host);
        Ok(Note::new("on"))
    }

    async fn check(&self, _host: &HostName) -> Result<Note, StepError> {
        Ok(Note::new("answers"))
    }

    async fn finish(&self, _host: &HostName, _epoch: Epoch) -> Result<Note, StepError> {
        self.fault("finish_fence")?;
        self.truth().answers_arp_until = None;
        Ok(Note::new("off"))
    }
}

pub(super) struct FakeStorage(pub(super) World);

#[async_trait]
impl Storage for FakeStorage {
    fn name(&self) -> &'static str {
        "fake"
    }

    async fn attach(&self, _epoch: Epoch) -> Result<Note, StepError> {
        self.0.fault("attach_storage")?;
        self.0.truth().storage_here = true;
        Ok(Note::new("attached"))
    }

    async fn release(&self) -> Result<Note, StepError> {
        self.0.fault("undo attach_storage")?;
        self.0.truth().storage_here = false;
        Ok(Note::new("released"))
    }

    async fn locks(&self) -> Result<Vec<HeldLock>, StepError> {
        self.0.fault("await_locks")?;
        let now = self.0.now().mono;
        let lock =
            || HeldLock { path: "/mnt/kafka/broker1/.lock".into(), by: "a client of the storage".to_owned() };
        Ok(self.0.truth().locked(now).then(lock).into_iter().collect())
    }

    async fn grace(&self) -> Option<Grace> {
        self.0.truth().grace.clone()
    }

    async fn break_locks(&self) -> Result<Note, StepError> {
        self.0.fault("break_locks")?;
        let mut truth = self.0.truth();
        if truth.died_at.is_none() {
            truth.violations.push("the lock of a live owner was broken".to_owned());
        }
        truth.lock_broken = true;
        Ok(Note::new("1 lock was broken"))
    }

    async fn withdraw(&self) -> Result<Note, StepError> {
        self.0.fault("withdraw_storage")?;
        self.0.truth().storage_here = false;
        Ok(Note::new("withdrawn"))
    }

    async fn unlinks(&self) -> Result<Note, StepError> {
        Ok(Note::new("open files go when they are unlinked"))
    }

    async fn check(&self) -> Result<Note, StepError> {
        Ok(Note::new("ready"))
    }
}

pub(super) struct FakeAddress(pub(super) World);

#[async_trait]
impl Address for FakeAddress {
    fn name(&self) -> &'static str {
        "fake"
    }

    async fn acquire(&self, _epoch: Epoch) -> Result<Note, StepError> {
        self.0.fault("move_address")?;
        if self.holder().await?.is_some() {
            return Err(refused("move the address", "another host answers for it"));
        }
        let was_here = std::mem::replace(&mut self.0.truth().address_here, true);
        let note = Note::new("moved");
        Ok(if was_here { note } else { note.with(PLACED, true) })
    }

    async fn confirm(&self) -> Result<Note, StepError> {
        self.0.fault("confirm_address")?;
        Ok(Note::new("packets come here"))
    }

    async fn reset_clients(&self) -> Result<Note, StepError> {
        self.0.fault("reset_clients")?;
        Ok(Note::new("reset"))
    }

    async fn release(&self) -> Result<Note, StepError> {
        self.0.fault("undo move_address")?;
        self.0.truth().address_here = false;
        Ok(Note::new("released"))
    }

    async fn here(&self) -> Result<bool, StepError> {
        Ok(self.0.truth().address_here)
    }

    async fn holder(&self) -> Result<Option<String>, StepError> {
        let now = self.0.now().mono;
        let answers = self.0.truth().answers_arp_until.filter(|until| now < *until);
        Ok(answers.map(|_| "02:00:00:00:00:0b".to_owned()))
    }

    async fn defend(&self) -> Result<(), StepError> {
        self.0.truth().defended = true;
        Ok(())
    }

    async fn check(&self) -> Result<Note, StepError> {
        Ok(Note::new("ready"))
    }
}

#[async_trait]
impl BrokerHost for World {
    fn name(&self) -> &'static str {
        "fake"
    }

    async fn render(&self, _broker: BrokerId, _epoch: Epoch) -> Result<Note, StepError> {
        let takes = self.truth().render_takes;
        self.sleep(takes).await;
        self.fault("render_config")?;
        Ok(Note::new("rendered"))
    }

    async fn verify(&self, _broker: BrokerId, _cluster_id: Option<&str>) -> Result<Note, StepError> {
        self.fault("verify_log_dirs")?;
        if self.truth().storage_here { Ok(Note::new("ours")) } else { Err(refused("verify", "not mounted")) }
    }

    async fn start(&self, _broker: BrokerId, epoch: Epoch, proofs: &[Proof]) -> Result<Note, StepError> {
        self.fault("start_broker")?;
        let now = self.now().mono;
        let mut truth = self.truth();
        if truth.died_at.is_none() {
            truth.violations.push("two writers: Kafka started while the old one runs".to_owned());
        }
        let unfenced =
            |proof: &&Proof| proof.host != HostName::from("standby-1") && !truth.fenced.contains(&proof.host);
        if proofs.is_empty() || proofs.iter().any(|proof| unfenced(&proof)) {
            truth.violations.push("Kafka started while the old host was not fenced".to_owned());
        }
        if !truth.storage_here {
            truth.violations.push("Kafka started without its log dirs".to_owned());
        }
        if truth.locked(now) {
            // As Kafka does, whose first try is its last.
            truth.violations.push("Kafka started while its lock is held".to_owned());
        }
        if truth.started_at.is_none() || truth.exited {
            truth.started_at = Some(now);
            truth.started_epoch = epoch;
            truth.exited = false;
            truth.registration_lost = false;
            truth.starts += 1;
            if truth.starts_that_end > 0 {
                truth.starts_that_end -= 1;
                truth.exited = true;
            }
        }
        Ok(Note::new("runs"))
    }

    async fn state(&self, _broker: BrokerId) -> Result<ProcessState, StepError> {
        self.fault("state")?;
        let truth = self.truth();
        Ok(match (truth.started_at, truth.exited) {
            (_, true) => ProcessState::Exited { why: "exit status 1".to_owned() },
            (Some(_), false) => ProcessState::Running { pid: 1 },
            (None, false) => ProcessState::Absent,
        })
    }

    async fn bytes_read(&self, _broker: BrokerId, _pid: i32) -> Option<u64> {
        let now = self.now().mono;
        let truth = self.truth();
        let (rate, bytes) = truth.loads;
        let runs = now.since(truth.started_at?).as_secs();
        Some(if truth.hangs { 0 } else { bytes.min(rate * runs) })
    }

    async fn stop(&self, _broker: BrokerId, _limit: Duration) -> Result<Note, StepError> {
        self.truth().started_at = None;
        Ok(Note::new("stopped"))
    }

    async fn kill(&self, _broker: BrokerId, pid: i32, _limit: Duration) -> Result<Note, StepError> {
        self.fault("kill")?;
        let mut truth = self.truth();
        let runs = truth.started_at.is_some() && !truth.exited;
        if !(pid == 1 && runs && truth.registration_lost) {
            truth.violations.push("a Kafka was killed that does not serve without a registration".to_owned());
        }
        truth.kills += 1;
        truth.exited = true;
        Ok(Note::new("killed"))
    }

    async fn end_fenced(&self, _broker: BrokerId, _limit: Duration) -> Result<Note, StepError> {
        self.fault("end_fenced")?;
        let mut truth = self.truth();
        if truth.started_at.is_some() && !truth.fenced.contains(&HostName::from("standby-1")) {
            truth.violations.push("a Kafka was ended on a host that can write".to_owned());
        }
        truth.started_at = None;
        Ok(Note::new("ended"))
    }

    async fn prove_stopped(&self, _broker: BrokerId, epoch: Epoch) -> Result<Proof, StepError> {
        self.fault("prove_stopped")?;
        let truth = self.truth();
        if truth.started_at.is_some() && !truth.exited && truth.started_epoch != epoch {
            return Err(refused("prove that Kafka is stopped", "it runs"));
        }
        Ok(Proof { host: "standby-1".into(), by: "fake".to_owned(), note: Note::new("no process") })
    }

    async fn check(&self, _broker: BrokerId) -> Vec<Result<Note, StepError>> {
        vec![Ok(Note::new("ready"))]
    }
}

#[async_trait]
impl Cluster for World {
    async fn id(&self) -> Result<String, StepError> {
        Ok("fake-cluster".to_owned())
    }

    async fn standing(&self, _broker: BrokerId) -> Result<Standing, StepError> {
        let now = self.now().mono;
        let truth = self.truth();
        if truth.cut_off { Err(refused("ask", "cut off")) } else { Ok(truth.standing(now)) }
    }

    async fn reach(&self, broker: BrokerId) -> Reach {
        match self.standing(broker).await.map(|look| look.advertised) {
            Ok(Some(Advertised { at, fails: None, .. })) => Reach::Reached { at },
            Ok(Some(Advertised { at, fails: Some(why), .. })) => Reach::Unreached { at, why },
            Ok(None) => Reach::Untold { why: "it is not listed".to_owned() },
            Err(error) => Reach::Untold { why: error.to_string() },
        }
    }

    async fn registered(&self, _broker: BrokerId) -> Result<bool, StepError> {
        self.fault("registered")?;
        let truth = self.truth();
        if truth.cut_off { Err(refused("ask", "cut off")) } else { Ok(!truth.registration_lost) }
    }

    async fn quorum(&self) -> Result<(), StepError> {
        let now = self.now().mono;
        let truth = self.truth();
        let led = truth.no_quorum_until.is_none_or(|until| now >= until);
        if led && !truth.cut_off {
            Ok(())
        } else {
            Err(refused("find the active controller", "none answers"))
        }
    }

    async fn behind(&self, _broker: BrokerId) -> Result<u64, StepError> {
        let now = self.now().mono;
        let truth = self.truth();
        let done = truth.catches_up.saturating_mul(now.0.as_secs());
        Ok((1_u64 << 40).saturating_sub(done))
    }

    async fn partitions(&self) -> Result<PartitionView, StepError> {
        Ok(partitions())
    }

    async fn unregister(&self, _broker: BrokerId, sharing: &BTreeSet<BrokerId>) -> Unregistered {
        if let Err(error) = self.fault("unregister") {
            return Unregistered::NoAnswer { why: error.to_string() };
        }
        let now = self.now().mono;
        let mut truth = self.truth();
        if sharing.iter().any(|b| truth.others_dead.contains(b)) {
            return Unregistered::NotSent { why: "another replica is down".to_owned() };
        }
        if truth.fenced.is_empty() {
            truth.violations.push("unregistered without a fence".to_owned());
        }
        truth.unregister_sent += 1;
        if truth.started_at.is_some() {
            truth.violations.push("unregistered the new incarnation".to_owned());
        }
        truth.unregistered_at = Some(now);
        Unregistered::Gone
    }

    async fn elect_preferred(&self, _broker: BrokerId) -> Result<Note, StepError> {
        self.fault("elect_preferred")?;
        let mut truth = self.truth();
        if truth.advertises_elsewhere {
            truth.violations.push("leaders were moved to where no client is sent".to_owned());
        }
        Ok(Note::new("elected"))
    }
}

fn partitions() -> PartitionView {
    let replicas = vec![BrokerId(1), BrokerId(2), BrokerId(3)];
    let partition = |partition| Replication {
        topic: "t".to_owned(),
        partition,
        leader: Some(BrokerId(1)),
        isr: replicas.clone(),
        replicas: replicas.clone(),
    };
    PartitionView { partitions: (0..super::PARTITIONS as i32).map(partition).collect() }
}

/// What every signal would say of this world.
#[async_trait]
impl HealthSignal for World {
    fn name(&self) -> &'static str {
        "world"
    }

    fn period(&self) -> Duration {
        Duration::from_millis(250)
    }

    async fn look(&self, _clock: &dyn Clock) -> Vec<Evidence> {
        let at = self.now().mono;
        let truth = self.truth();
        let say = |fact| Evidence { signal: "world", at, fact };
        let mut said: Vec<Evidence> = (1..=3)
            .map(|n| {
                let broker = BrokerId(n);
                let dead = match broker {
                    BROKER => !truth.answers(at) || truth.broker_unreachable,
                    other => truth.others_dead.contains(&other),
                };
                let unreachable = dead || truth.cut_off;
                let outcome = if unreachable { ProbeOutcome::Unreachable } else { ProbeOutcome::Answered };
                say(Fact::Probe { broker, outcome })
            })
            .collect();
        if truth.cut_off {
            said.push(say(Fact::Blind { why: "no broker can be reached".to_owned() }));
            return said;
        }
        let standing = truth.standing(at);
        let listed = (1..=3).map(BrokerId).filter(|b| *b != BROKER || standing.listed);
        let endpoint = |b: BrokerId| Endpoint { host: format!("10.0.0.{b}"), port: 9092 };
        said.push(say(Fact::Listed { brokers: listed.map(|b| (b, endpoint(b))).collect() }));
        if truth.registration_lost {
            said.push(say(Fact::Registration { broker: BROKER, registered: false }));
        }
        if truth.started_at.is_some() {
            let process = if truth.exited { LocalProcess::Exited } else { LocalProcess::Running };
            said.push(say(Fact::Local { broker: BROKER, process }));
        }
        said.push(say(Fact::Partitions(Arc::new(partitions()))));
        let silence = truth.died_at.filter(|_| !truth.answers(at)).map_or(Duration::ZERO, |d| at.since(d));
        let silence = BTreeMap::from([(BROKER, silence), (BrokerId(2), Duration::ZERO)]);
        said.push(say(Fact::Quorum(QuorumView { leader: 101, leader_epoch: 1, silence })));
        said
    }
}
