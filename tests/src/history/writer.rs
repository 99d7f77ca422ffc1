//! A producer that remembers.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{BufWriter, Write as _};
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, ensure};
use rdkafka::ClientContext;
use rdkafka::Message;
use rdkafka::config::{ClientConfig, RDKafkaLogLevel};
use rdkafka::producer::{BaseRecord, DeliveryResult, Producer, ProducerContext, ThreadedProducer};
use rdkafka::types::RDKafkaErrorCode;

use super::{Acked, History, RecordId, SOCKET_TIMEOUT_MS};
use crate::eventually;

/// Numbers the writers of a story.
static WRITERS: AtomicU32 = AtomicU32::new(1);

/// What to write.
#[derive(Debug, Clone)]
pub struct WriteSpec {
    /// The topic.
    pub topic: String,
    /// How many partitions it has; all are written, in turn.
    pub partitions: i32,
    /// Records a second; as many as possible without one.
    pub rate: Option<u32>,
    /// Size of a value in bytes; at least what its id takes.
    pub size: usize,
    /// How long the client waits for an answer, in milliseconds.
    pub socket_timeout_ms: u32,
    /// Whether a client that ends with a fatal error is followed by another, as an application does that is started
    /// anew. What the first was not told about stays unknown. Without it such an error fails the story.
    pub begins_anew: bool,
}

impl WriteSpec {
    /// Small records at a steady rate.
    #[must_use]
    pub fn steady(topic: &str, partitions: i32, rate: u32) -> Self {
        Self {
            topic: topic.to_owned(),
            partitions,
            rate: Some(rate),
            size: 100,
            socket_timeout_ms: SOCKET_TIMEOUT_MS,
            begins_anew: false,
        }
    }
}

/// A running producer: idempotent, acks=all, retries as the client has them.
///
/// It has one request in flight. With several, librdkafka (up to 2.12 at least) doubles records by itself
/// when it loses one to a change of leaders: for another partition's `OUT_OF_ORDER_SEQUENCE_NUMBER` it begins
/// a new epoch, in which it sends again what may be in the log already
/// (<https://github.com/confluentinc/librdkafka/issues/4953>).
pub struct Writer {
    number: u32,
    topic: String,
    recorder: Arc<Recorder>,
    clients: Arc<Clients>,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<Result<u64>>>,
}

type Client = ThreadedProducer<Told>;

/// The client, and those after it.
struct Clients {
    config: ClientConfig,
    now: Mutex<Arc<Client>>,
}

impl Clients {
    fn begin(config: ClientConfig, recorder: &Arc<Recorder>) -> Result<Self> {
        let first = Arc::new(config.create_with_context(Told(Arc::clone(recorder)))?);
        Ok(Self { config, now: Mutex::new(first) })
    }

    fn now(&self) -> Arc<Client> {
        Arc::clone(&self.now.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// The next one. The one before it is dropped with what it holds: nobody was told what became of that.
    fn begin_anew(&self, recorder: &Arc<Recorder>) -> Result<()> {
        let next = Arc::new(self.config.create_with_context(Told(Arc::clone(recorder)))?);
        *self.now.lock().unwrap_or_else(PoisonError::into_inner) = next;
        Ok(())
    }
}

/// Takes down each delivery report, in memory and in the story's folder, and there what the client says of
/// itself.
struct Recorder {
    begin: Instant,
    notes: Mutex<Notes>,
    log: Mutex<File>,
}

struct Notes {
    acked: Vec<Acked>,
    failed: Vec<(RecordId, String)>,
    file: BufWriter<File>,
}

/// What travels with a record through the client.
struct Sent {
    id: RecordId,
    at: Instant,
}

impl Writer {
    pub(crate) fn start(mut client: ClientConfig, spec: WriteSpec, artifacts: &Path) -> Result<Self> {
        ensure!(spec.partitions > 0, "a topic without partitions");
        let number = WRITERS.fetch_add(1, Ordering::Relaxed);
        let file = artifacts.join(format!("history-{number}.tsv"));
        let mut file = BufWriter::new(File::create(&file)?);
        writeln!(file, "id\tpartition\toffset\tsent_us\tacked_us")?;
        let notes = Mutex::new(Notes { acked: Vec::new(), failed: Vec::new(), file });
        let log = Mutex::new(File::create(artifacts.join(format!("client-{number}.log")))?);
        client
            // What it does about sequence numbers: the only trace of a duplicate that it made itself.
            .set("debug", "eos")
            .set_log_level(RDKafkaLogLevel::Debug)
            .set("client.id", format!("writer-{number}"))
            .set("acks", "all")
            .set("enable.idempotence", "true")
            .set("max.in.flight.requests.per.connection", "1")
            .set("linger.ms", "5")
            // As long as a story may take: nothing that is only slow is given up.
            .set("message.timeout.ms", "600000")
            // What waits in the client is still to be written when the writer is stopped.
            .set("queue.buffering.max.kbytes", "65536")
            .set("socket.timeout.ms", spec.socket_timeout_ms.to_string());
        let recorder = Arc::new(Recorder { begin: Instant::now(), notes, log });
        let clients = Arc::new(Clients::begin(client, &recorder)?);
        let stop = Arc::new(AtomicBool::new(false));
        let topic = spec.topic.clone();
        let thread = {
            let (clients, recorder, stop) = (Arc::clone(&clients), Arc::clone(&recorder), Arc::clone(&stop));
            thread::spawn(move || send_all((&clients, &recorder), &spec, number, &stop))
        };
        Ok(Self { number, topic, recorder, clients, stop, thread: Some(thread) })
    }

    /// How many records have been acknowledged so far.
    #[must_use]
    pub fn acked(&self) -> usize {
        self.recorder.notes().acked.len()
    }

    /// How many records have been acknowledged so far, of each partition that has any.
    #[must_use]
    pub fn acked_by_partition(&self) -> BTreeMap<i32, usize> {
        let mut acked = BTreeMap::new();
        for record in &self.recorder.notes().acked {
            *acked.entry(record.partition).or_default() += 1;
        }
        acked
    }

    /// Waits until so many `more` records are acknowledged from now on.
    ///
    /// # Errors
    /// When they are not after `limit`.
    pub fn flows(&self, more: usize, limit: Duration) -> Result<()> {
        let before = self.acked();
        eventually("records to flow", limit, || {
            let acked = self.acked() - before;
            ensure!(acked >= more, "{acked} records acknowledged since");
            Ok(())
        })
    }

    /// How many records are with the client, not yet acknowledged.
    #[must_use]
    pub fn in_flight(&self) -> i32 {
        self.clients.now().in_flight_count()
    }

    /// Sends no more, waits for the acknowledgements still out, and returns what happened. A record without
    /// an answer after two minutes is neither acknowledged nor failed.
    ///
    /// # Errors
    /// When the client failed altogether.
    pub fn stop(mut self) -> Result<History> {
        let sent = self.finish()?;
        let mut notes = self.recorder.notes();
        notes.file.flush()?;
        Ok(History {
            topic: self.topic.clone(),
            writer: self.number,
            sent,
            acked: std::mem::take(&mut notes.acked),
            failed: std::mem::take(&mut notes.failed),
        })
    }

    fn finish(&mut self) -> Result<u64> {
        self.stop.store(true, Ordering::Relaxed);
        let thread = self.thread.take().context("the writer was stopped before")?;
        let sent = thread.join().map_err(|_| anyhow!("the writer panicked"))??;
        if let Err(error) = self.clients.now().flush(Duration::from_secs(120)) {
            eprintln!("writer {}: {} records without an answer: {error}", self.number, self.in_flight());
        }
        Ok(sent)
    }
}

impl std::fmt::Debug for Writer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Writer")
            .field("number", &self.number)
            .field("topic", &self.topic)
            .finish_non_exhaustive()
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        // A story that fails does not wait for acknowledgements.
        self.stop.store(true, Ordering::Relaxed);
    }
}

/// Sends until told to stop; returns how many were handed to the client.
fn send_all(
    (clients, recorder): (&Clients, &Arc<Recorder>),
    spec: &WriteSpec,
    writer: u32,
    stop: &AtomicBool,
) -> Result<u64> {
    let begin = Instant::now();
    let (mut sequence, mut client) = (0, clients.now());
    while !stop.load(Ordering::Relaxed) {
        if let Some(rate) = spec.rate
            && begin.elapsed().as_secs_f64() * f64::from(rate) < sequence_number(sequence)
        {
            thread::sleep(Duration::from_millis(1));
            continue;
        }
        let id = RecordId { writer, sequence };
        match send(&client, spec, id) {
            Ok(()) => sequence += 1,
            // The cluster is slower than we are, or stands still.
            Err(RDKafkaErrorCode::QueueFull) => thread::sleep(Duration::from_millis(1)),
            Err(RDKafkaErrorCode::Fatal) if spec.begins_anew => {
                clients.begin_anew(recorder)?;
                client = clients.now();
            }
            Err(code) => return Err(code).with_context(|| format!("cannot send {id}")),
        }
    }
    Ok(sequence)
}

/// Precise enough up to 2^52 records.
#[allow(clippy::cast_precision_loss)]
fn sequence_number(sequence: u64) -> f64 {
    sequence as f64
}

/// Hands one record to the client.
fn send(producer: &Client, spec: &WriteSpec, id: RecordId) -> Result<(), RDKafkaErrorCode> {
    let key = id.to_string();
    let mut value = format!("{key} ");
    value.extend(std::iter::repeat_n('.', spec.size.saturating_sub(value.len())));
    let turn = id.sequence % u64::from(spec.partitions.unsigned_abs());
    let record = BaseRecord::with_opaque_to(&spec.topic, Box::new(Sent { id, at: Instant::now() }))
        .partition(i32::try_from(turn).unwrap_or_default())
        .key(&key)
        .payload(&value);
    producer.send(record).map_err(|(error, _)| error.rdkafka_error_code().unwrap_or(RDKafkaErrorCode::Fail))
}

impl Recorder {
    fn notes(&self) -> MutexGuard<'_, Notes> {
        self.notes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn micros(&self, at: Instant) -> u128 {
        at.saturating_duration_since(self.begin).as_micros()
    }
}

/// A client tells its recorder.
struct Told(Arc<Recorder>);

impl ClientContext for Told {
    fn log(&self, _: RDKafkaLogLevel, facility: &str, message: &str) {
        let mut log = self.0.log.lock().unwrap_or_else(PoisonError::into_inner);
        let _ = writeln!(log, "{} {facility} {message}", self.0.micros(Instant::now()));
    }
}

impl ProducerContext for Told {
    type DeliveryOpaque = Box<Sent>;

    fn delivery(&self, result: &DeliveryResult<'_>, sent: Box<Sent>) {
        let acked = Instant::now();
        let mut notes = self.0.notes();
        match result {
            Ok(message) => {
                let record = Acked {
                    id: sent.id,
                    partition: message.partition(),
                    // Below zero: librdkafka's word for an offset that no broker told.
                    offset: Some(message.offset()).filter(|offset| *offset >= 0),
                    sent: sent.at,
                    acked,
                };
                // The file is for a person to look at; the verdict uses what is in memory.
                let _ = writeln!(
                    notes.file,
                    "{}\t{}\t{}\t{}\t{}",
                    record.id,
                    record.partition,
                    message.offset(),
                    self.0.micros(record.sent),
                    self.0.micros(acked)
                );
                notes.acked.push(record);
            }
            Err((error, _)) => notes.failed.push((sent.id, error.to_string())),
        }
    }
}
