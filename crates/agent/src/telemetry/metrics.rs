//! Every metric of the agent. They are made of events, and of the status snapshot at each scrape.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::AtomicU64;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use drivers::broker_host::class_data::Look;
use jiff::Timestamp;
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::encoding::text::encode;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::metrics::info::Info;
use prometheus_client::registry::{Metric, Registry, Unit};
use recovery::decide::{Decision, HoldReason};
use recovery::event::{Event, What};
use recovery::model::{BrokerId, Outcome, Verdict};
use recovery::plan::Phase;
use recovery::ports::EventSink;
use recovery::status::Status;

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ByBroker {
    broker: i32,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ByPhase {
    broker: i32,
    phase: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ByOutcome {
    broker: i32,
    outcome: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ByReason {
    broker: i32,
    reason: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ByState {
    broker: i32,
    state: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ByStep {
    step: String,
    kind: String,
}

#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, EncodeLabelSet)]
struct ByCheck {
    check: &'static str,
    of: String,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct BySignal {
    signal: String,
}

/// Of what there is one of, and sometimes none.
type NoLabels = [(&'static str, &'static str); 0];

type Histograms<L> = Family<L, Histogram, fn() -> Histogram>;

/// Takes events in; gives the text of `/metrics`.
pub struct Metrics {
    registry: Catalogue,
    time_to_isr: Histograms<ByBroker>,
    predicted: Family<ByBroker, Seconds>,
    prediction_error: Family<ByBroker, Seconds>,
    phase: Histograms<ByPhase>,
    fence_proof: Histogram,
    tick: Histogram,
    takeovers: Family<ByOutcome, Counter>,
    holds: Family<ByReason, Counter>,
    would_take_over: Family<ByBroker, Counter>,
    state: Family<ByState, Gauge>,
    pages: Family<ByBroker, Gauge>,
    epoch: Family<ByBroker, Gauge>,
    steps_failed: Family<ByStep, Counter>,
    blind: Family<BySignal, Gauge>,
    reloaded: Family<NoLabels, Gauge>,
    ready: Family<ByCheck, Gauge>,
    warns: Family<ByCheck, Gauge>,
    /// The checks of which the last page told.
    ready_shown: Mutex<BTreeSet<ByCheck>>,
    volume_quiet: Family<ByBroker, Seconds>,
    client_idle: Family<ByBroker, Seconds>,
    class_data_fits: Family<NoLabels, Gauge>,
    class_data_age: Family<NoLabels, Seconds>,
    /// When the archive that fits was made.
    class_data_made: Mutex<Option<Timestamp>>,
    /// When the fence of each takeover under way was first tried.
    fencing_since: Mutex<BTreeMap<BrokerId, Timestamp>>,
}

/// The prefix of every name.
const PREFIX: &str = "understudy";

/// All metrics, and what each is: one without a sample yet is in no page.
#[derive(Debug)]
struct Catalogue {
    all: Registry,
    described: Vec<Described>,
}

/// What a metric is.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Described {
    /// Its name, as its samples have it.
    pub name: String,
    /// `counter`, `gauge`, `histogram` or `info`.
    pub kind: String,
    /// What it tells.
    pub meaning: String,
}

impl Default for Catalogue {
    fn default() -> Self {
        Self { all: Registry::with_prefix(PREFIX), described: Vec::new() }
    }
}

impl Catalogue {
    fn register(&mut self, name: &str, meaning: &str, metric: impl Metric) {
        self.describe(name, "", meaning, &metric);
        self.all.register(name, meaning, metric);
    }

    fn register_with_unit(&mut self, name: &str, meaning: &str, unit: Unit, metric: impl Metric) {
        self.describe(name, &format!("_{}", unit.as_str()), meaning, &metric);
        self.all.register_with_unit(name, meaning, unit, metric);
    }

    fn describe(&mut self, name: &str, unit: &str, meaning: &str, metric: &impl Metric) {
        let kind = metric.metric_type().as_str().to_owned();
        let ending = match kind.as_str() {
            "counter" => "_total",
            "info" => "_info",
            _ => "",
        };
        let name = format!("{PREFIX}_{name}{unit}{ending}");
        self.described.push(Described { name, kind, meaning: meaning.to_owned() });
    }
}

/// A gauge of seconds.
type Seconds = Gauge<f64, AtomicU64>;

/// From a tenth of a second to a quarter of an hour: a proof takes the one, a long log recovery the other.
fn seconds() -> Histogram {
    Histogram::new([0.05, 0.1, 0.25, 0.5, 1.0, 2.0, 3.0, 4.0, 5.0, 7.5, 10.0, 15.0, 30.0, 60.0, 180.0, 900.0])
}

/// From a tenth of a millisecond, where a tick of a few brokers is, to a second. A tick is due every 100 ms;
/// 50 ms is what 1,000 brokers may take.
fn fractions() -> Histogram {
    let bounds =
        [0.1, 0.25, 0.5, 1.0, 2.0, 3.0, 5.0, 7.5, 10.0, 15.0, 20.0, 30.0, 50.0, 75.0, 100.0, 250.0, 1000.0];
    Histogram::new(bounds.map(|millis: f64| millis / 1000.0))
}

impl Default for Metrics {
    fn default() -> Self {
        let mut metrics = Self {
            registry: Catalogue::default(),
            time_to_isr: Family::new_with_constructor(seconds),
            predicted: Family::default(),
            prediction_error: Family::default(),
            phase: Family::new_with_constructor(seconds),
            fence_proof: seconds(),
            tick: fractions(),
            takeovers: Family::default(),
            holds: Family::default(),
            would_take_over: Family::default(),
            state: Family::default(),
            pages: Family::default(),
            epoch: Family::default(),
            steps_failed: Family::default(),
            blind: Family::default(),
            reloaded: Family::default(),
            ready: Family::default(),
            warns: Family::default(),
            ready_shown: Mutex::default(),
            volume_quiet: Family::default(),
            client_idle: Family::default(),
            class_data_fits: Family::default(),
            class_data_age: Family::default(),
            class_data_made: Mutex::default(),
            fencing_since: Mutex::default(),
        };
        metrics.register();
        metrics
    }
}

impl Metrics {
    fn register(&mut self) {
        let seconds = || Unit::Seconds;
        let r = &mut self.registry;
        r.register_with_unit(
            "time_to_isr",
            "From the fault to the last partition back in ISR",
            seconds(),
            self.time_to_isr.clone(),
        );
        let predicted =
            "What the last takeover was expected to take, from the fault to the last partition back in ISR";
        r.register_with_unit("predicted_time_to_isr", predicted, seconds(), self.predicted.clone());
        let error = "How much longer than predicted the last takeover took; below zero if it was quicker";
        r.register_with_unit("time_to_isr_prediction_error", error, seconds(), self.prediction_error.clone());
        r.register_with_unit("phase", "Duration of a takeover's phases", seconds(), self.phase.clone());
        r.register_with_unit(
            "fence_proof",
            "From the first try of a fence to the proof",
            seconds(),
            self.fence_proof.clone(),
        );
        let tick = "How long it took to observe, and to decide about every guarded broker; due every 100 ms";
        r.register_with_unit("tick", tick, seconds(), self.tick.clone());
        r.register("takeovers", "Takeovers of this host that ended, by outcome", self.takeovers.clone());
        r.register(
            "holds",
            "Decisions not to act on a broker that looks dead, by reason",
            self.holds.clone(),
        );
        let would = "Decisions to act that nothing but the mode forbade";
        r.register("would_take_over", would, self.would_take_over.clone());
        r.register("broker_state", "1 for the present decision about a broker", self.state.clone());
        let pages = "1 while the decision about a broker is one that somebody should be told of at once";
        r.register("needs_attention", pages, self.pages.clone());
        r.register("ledger_epoch", "The newest epoch in the ledger", self.epoch.clone());
        r.register("steps_failed", "Takeover steps that failed, by kind of error", self.steps_failed.clone());
        r.register("signal_blind", "1 while a signal cannot see", self.blind.clone());
        let reloaded = "1 if the last reload was applied, 0 if it was refused; not there before the first";
        r.register("config_last_reload_successful", reloaded, self.reloaded.clone());
        let ready = "0 while a check says that a takeover here would fail; not there without a fresh result";
        r.register("standby_ready", ready, self.ready.clone());
        let warns =
            "1 while a check warns: a certificate that ends soon, a takeover here that goes less well";
        r.register("standby_warns", warns, self.warns.clone());
        let quiet = "Since the last operation in any of a broker's volumes, as the storage counts";
        r.register_with_unit("volume_io_age", quiet, seconds(), self.volume_quiet.clone());
        let idle =
            "Idle time of the client that used a broker's volumes last, as the storage tells; it may lag";
        r.register_with_unit("volume_client_idle", idle, seconds(), self.client_idle.clone());
        let fits = "1 if Kafka's next start here uses a class-data archive; not there if none is wanted";
        r.register("class_data_fits", fits, self.class_data_fits.clone());
        let age = "Since the class-data archive that fits was made";
        r.register_with_unit("class_data_age", age, seconds(), self.class_data_age.clone());
        let build = Info::new(vec![("version", env!("CARGO_PKG_VERSION"))]);
        r.register("build", "The running agent", build);
    }

    /// What there is, by name.
    #[must_use]
    pub fn described(&self) -> Vec<Described> {
        let mut all = self.registry.described.clone();
        all.sort_unstable();
        all
    }

    /// The text of `/metrics`, in the OpenMetrics format.
    ///
    /// # Errors
    /// When the text cannot be written, which memory alone could cause.
    pub fn text(&self, status: &Status) -> Result<String, std::fmt::Error> {
        for broker in &status.brokers {
            if let Some(epoch) = broker.epoch {
                let epoch = i64::try_from(epoch.0).unwrap_or(i64::MAX);
                self.epoch.get_or_create(&ByBroker { broker: broker.id.0 }).set(epoch);
            }
            let volumes = broker.volumes.unwrap_or_default();
            set_or_remove(&self.volume_quiet, broker.id, volumes.quiet);
            set_or_remove(&self.client_idle, broker.id, volumes.client_idle);
        }
        self.checked(status);
        self.age_class_data();
        let mut text = String::new();
        encode(&mut text, &self.registry.all)?;
        Ok(text)
    }

    /// What is not known is not there.
    fn checked(&self, status: &Status) {
        let mut shown = self.ready_shown.lock().unwrap_or_else(PoisonError::into_inner);
        let mut now = BTreeSet::new();
        for found in status.checks.iter().map(|seen| &seen.found) {
            let labels = ByCheck { check: found.check.label(), of: found.check.of() };
            self.ready.get_or_create(&labels).set(i64::from(!found.failed()));
            self.warns.get_or_create(&labels).set(i64::from(found.verdict == Verdict::Warn));
            now.insert(labels);
        }
        for gone in shown.difference(&now) {
            self.ready.remove(gone);
            self.warns.remove(gone);
        }
        *shown = now;
    }

    /// What a look at the class-data archive showed.
    pub fn class_data(&self, look: &Look) {
        let made = match look {
            Look::Fits { made, .. } => Some(*made),
            _ => None,
        };
        *self.class_data_made.lock().unwrap_or_else(PoisonError::into_inner) = made;
        match look {
            Look::Unwanted { .. } => self.class_data_fits.clear(),
            _ => drop(self.class_data_fits.get_or_create(&[]).set(i64::from(made.is_some()))),
        }
    }

    fn age_class_data(&self) {
        let made = *self.class_data_made.lock().unwrap_or_else(PoisonError::into_inner);
        match made {
            Some(made) => {
                let age = Timestamp::now().duration_since(made).as_secs_f64().max(0.0);
                self.class_data_age.get_or_create(&[]).set(age);
            }
            None => self.class_data_age.clear(),
        }
    }

    /// Brokers and signals may be gone, and what is said of the others is said anew.
    fn reloaded(&self) {
        self.reloaded.get_or_create(&[]).set(1);
        self.state.clear();
        self.blind.clear();
        for of_brokers in [&self.pages, &self.epoch] {
            of_brokers.clear();
        }
        for of_brokers in [&self.volume_quiet, &self.client_idle] {
            of_brokers.clear();
        }
    }

    fn decided(&self, broker: i32, decision: &Decision) {
        for state in Decision::LABELS {
            let now = i64::from(state == decision.label());
            self.state.get_or_create(&ByState { broker, state }).set(now);
        }
        self.pages.get_or_create(&ByBroker { broker }).set(i64::from(decision.pages()));
        if let Decision::Hold { reasons } = decision {
            for reason in reasons.iter().map(HoldReason::label) {
                self.holds.get_or_create(&ByReason { broker, reason }).inc();
            }
        }
    }

    fn ended(&self, broker: i32, outcome: &Outcome, predicted: Option<Duration>) {
        self.takeovers.get_or_create(&ByOutcome { broker, outcome: outcome.label() }).inc();
        if let Outcome::Recovered { time_to_isr, .. } = outcome {
            let (labels, took) = (ByBroker { broker }, time_to_isr.as_secs_f64());
            self.time_to_isr.get_or_create(&labels).observe(took);
            set_or_remove(&self.predicted, BrokerId(broker), predicted);
            if let Some(predicted) = predicted {
                self.prediction_error.get_or_create(&labels).set(took - predicted.as_secs_f64());
            }
        }
    }

    /// The proof counts from the first try of the fence: both steps together are the price of safety.
    fn fencing(&self, broker: BrokerId, at: Timestamp, what: &What) {
        let mut since = self.fencing_since.lock().unwrap_or_else(PoisonError::into_inner);
        match what {
            What::StepStarted { phase: Phase::Fence, undo: false, .. } => {
                since.entry(broker).or_insert(at);
            }
            What::StepDone { phase: Phase::Prove, undo: false, .. } => {
                if let Some(begun) = since.remove(&broker) {
                    self.fence_proof.observe(at.duration_since(begun).as_secs_f64().max(0.0));
                }
            }
            What::Ended { .. } => {
                since.remove(&broker);
            }
            _ => {}
        }
    }
}

/// What is not known is not there: an old value would pass for a present one.
fn set_or_remove(gauges: &Family<ByBroker, Seconds>, broker: BrokerId, value: Option<Duration>) {
    let labels = ByBroker { broker: broker.0 };
    match value {
        Some(value) => {
            gauges.get_or_create(&labels).set(value.as_secs_f64());
        }
        None => {
            gauges.remove(&labels);
        }
    }
}

impl EventSink for Metrics {
    fn ticked(&self, took: Duration) {
        self.tick.observe(took.as_secs_f64());
    }

    fn emit(&self, event: &Event) {
        match &event.what {
            What::SignalBlind { signal, .. } => {
                self.blind.get_or_create(&BySignal { signal: signal.clone() }).set(1);
            }
            What::SignalSees { signal } => {
                self.blind.get_or_create(&BySignal { signal: signal.clone() }).set(0);
            }
            What::Reloaded { .. } => self.reloaded(),
            What::NotReloaded { .. } => drop(self.reloaded.get_or_create(&[]).set(0)),
            _ => {}
        }
        let Some(BrokerId(broker)) = event.broker else { return };
        self.fencing(BrokerId(broker), event.at, &event.what);
        match &event.what {
            What::Decided { decision, .. } => self.decided(broker, decision),
            What::WouldTakeOver { .. } => {
                self.would_take_over.get_or_create(&ByBroker { broker }).inc();
            }
            What::Ended { outcome, predicted } => self.ended(broker, outcome, *predicted),
            What::PhaseDone { phase, took } => {
                let labels = ByPhase { broker, phase: phase.label() };
                self.phase.get_or_create(&labels).observe(took.as_secs_f64());
            }
            What::StepFailed { step, kind, .. } => {
                let labels = ByStep { step: step.clone(), kind: kind.clone() };
                self.steps_failed.get_or_create(&labels).inc();
            }
            _ => {}
        }
    }
}
