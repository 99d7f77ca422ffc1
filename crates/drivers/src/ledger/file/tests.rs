//! The contract, and what only files can suffer: torn writes, flipped bits, a full disk, a dead server.

use std::os::unix::ffi::OsStrExt;
use std::process::Command;

use super::super::LedgerConfig;
use super::*;
use fakes::ledger::contract::{append, claim, contract, decision, done, ended, started};
use fakes::ledger::faults::{Fill, Rig, survives_a_full_disk, survives_an_outage, survives_torn_writes};
use recovery::model::Distrust;
use recovery::ports::chain;

fn ledger(dir: &Path) -> FileLedger {
    FileLedger::new(&FileLedgerConfig { dir: dir.to_owned(), local: true, timeout: Duration::from_secs(20) })
        .unwrap()
}

/// A ledger with epoch 1 of broker 1, claimed by `a`, and the path of its journal.
async fn claimed(dir: &Path) -> (FileLedger, PathBuf) {
    let ledger = ledger(dir);
    ledger.claim(&claim(1, 1, "a")).await.unwrap();
    (ledger, dir.join("broker-1/epoch-1.journal"))
}

async fn seqs(ledger: &FileLedger) -> Vec<u64> {
    ledger.latest(BrokerId(1)).await.unwrap().unwrap().records.iter().map(|r| r.seq).collect()
}

fn files(dir: &Path) -> Vec<String> {
    let mut names = layout::names(dir).unwrap().unwrap_or_default();
    names.sort();
    names
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn keeps_the_contract() {
    let dir = tempfile::tempdir().unwrap();
    contract(|| Arc::new(ledger(dir.path()))).await;
    let drafts = files(&dir.path().join("broker-11")).into_iter().filter(|name| name.starts_with('.'));
    assert_eq!(drafts.collect::<Vec<_>>(), Vec::<String>::new(), "claimants that lost leave nothing behind");
}

/// How the shared storage goes away.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Outage {
    /// It is not mounted any more: the directory is missing.
    Gone,
    /// Its server is dead: every call hangs.
    Hangs,
}

struct Directory {
    dir: PathBuf,
    outage: Outage,
}

impl Directory {
    fn away(&self) -> PathBuf {
        match self.outage {
            Outage::Gone => self.dir.with_extension("away"),
            Outage::Hangs => self.dir.join("format.away"),
        }
    }
}

#[async_trait]
impl Rig for Directory {
    fn ledger(&self) -> Arc<dyn Ledger> {
        let config = FileLedgerConfig { dir: self.dir.clone(), local: true, timeout: self.deadline() };
        Arc::new(FileLedger::new(&config).unwrap())
    }

    fn deadline(&self) -> Duration {
        Duration::from_secs(1)
    }

    async fn down(&self) {
        let format = self.dir.join("format");
        match self.outage {
            Outage::Gone => fs::rename(&self.dir, self.away()).unwrap(),
            Outage::Hangs => {
                fs::rename(&format, self.away()).unwrap();
                make_pipe(&format);
            }
        }
    }

    async fn up(&self) {
        let format = self.dir.join("format");
        match self.outage {
            Outage::Gone => fs::rename(self.away(), &self.dir).unwrap(),
            Outage::Hangs => {
                // Lets the hung threads go, which then find what is no ledger.
                drop(fs::OpenOptions::new().write(true).open(&format).unwrap());
                fs::rename(self.away(), &format).unwrap();
            }
        }
    }

    async fn tear(&self, (broker, epoch, host): (i32, u64, &str), entries: &[Entry], percent: u8) {
        let path = self.dir.join(format!("broker-{broker}/epoch-{epoch}.journal"));
        let before = fs::read(&path).unwrap().len();
        append(&*self.ledger(), (broker, epoch, host), entries).await.unwrap();
        let whole = fs::read(&path).unwrap();
        let written = (whole.len() - before) * usize::from(percent) / 100;
        fs::write(&path, &whole[..before + written]).unwrap();
    }
}

#[async_trait]
impl Fill for Directory {
    async fn fill(&self) {
        let full = fs::write(self.dir.join("filler"), vec![0u8; 1 << 20]).unwrap_err();
        assert_eq!(full.kind(), ErrorKind::StorageFull);
    }

    async fn empty(&self) {
        fs::remove_file(self.dir.join("filler")).unwrap();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn survives_its_storage() {
    for outage in [Outage::Gone, Outage::Hangs] {
        let parent = tempfile::tempdir().unwrap();
        let rig = Directory { dir: parent.path().join("ledger"), outage };
        fs::create_dir(&rig.dir).unwrap();
        survives_torn_writes(&rig).await;
        survives_an_outage(&rig).await;
    }
}

#[test]
fn the_configuration_is_checked() {
    let parse = serde_json::from_str::<LedgerConfig>;
    let config = parse(r#"{"driver":"file","dir":"/mnt/understudy/ledger"}"#).unwrap();
    let LedgerConfig::File(file) = &config else { panic!("{config:?}") };
    assert_eq!(file.timeout, Duration::from_secs(5));
    assert_eq!(config.open().unwrap().name(), "file");
    let typo = parse(r#"{"driver":"file","dir":"/x","timout":"1s"}"#).unwrap_err().to_string();
    assert!(typo.contains("unknown field `timout`"), "{typo}");
    let bad = parse(r#"{"driver":"file","dir":"x","timeout":"1ms"}"#).unwrap().open().err().unwrap();
    assert_eq!(bad.len(), 2, "{bad:?}");
}

#[tokio::test]
async fn a_write_torn_at_any_byte_is_ignored_and_then_cut_off() {
    let dir = tempfile::tempdir().unwrap();
    let (ledger, path) = claimed(dir.path()).await;
    append(&ledger, (1, 1, "a"), &[started(0)]).await.unwrap();
    let before = fs::read(&path).unwrap();
    append(&ledger, (1, 1, "a"), &[done(0, 10), started(1)]).await.unwrap();
    let whole = fs::read(&path).unwrap();
    for length in before.len()..whole.len() {
        fs::write(&path, &whole[..length]).unwrap();
        assert_eq!(seqs(&ledger).await, [0, 1], "torn after {length} bytes");
        assert_eq!(fs::metadata(&path).unwrap().len(), length as u64, "a reader changes nothing");
        assert_eq!(append(&ledger, (1, 1, "a"), &[done(0, 10), started(1)]).await.unwrap(), [2, 3]);
        assert_eq!(fs::read(&path).unwrap(), whole, "torn after {length} bytes");
    }
}

#[tokio::test]
async fn a_last_line_whose_blocks_never_reached_the_disk_is_torn_too() {
    let dir = tempfile::tempdir().unwrap();
    let (ledger, path) = claimed(dir.path()).await;
    let before = fs::read(&path).unwrap();
    append(&ledger, (1, 1, "a"), &[done(0, 9000)]).await.unwrap();
    let whole = fs::read(&path).unwrap();
    // The file has its length, and one block of it, or all, is zeros.
    for lost in
        [before.len()..whole.len(), before.len()..before.len() + 4096, before.len() + 4096..whole.len()]
    {
        let mut bytes = whole.clone();
        bytes[lost].fill(0);
        fs::write(&path, &bytes).unwrap();
        assert_eq!(seqs(&ledger).await, [0]);
        append(&ledger, (1, 1, "a"), &[done(0, 9000)]).await.unwrap();
        assert_eq!(fs::read(&path).unwrap(), whole);
    }
}

#[tokio::test]
async fn a_flipped_bit_before_the_last_line_is_damage() {
    let dir = tempfile::tempdir().unwrap();
    let (ledger, path) = claimed(dir.path()).await;
    let claim_line = fs::metadata(&path).unwrap().len() as usize;
    append(&ledger, (1, 1, "a"), &[started(0)]).await.unwrap();
    let last = fs::metadata(&path).unwrap().len() as usize;
    append(&ledger, (1, 1, "a"), &[done(0, 1)]).await.unwrap();
    let good = fs::read(&path).unwrap();
    for at in 0..last {
        let mut bytes = good.clone();
        bytes[at] ^= 1 << (at % 8);
        fs::write(&path, &bytes).unwrap();
        let error = ledger.latest(BrokerId(1)).await.unwrap_err();
        let line = if at < claim_line { 1 } else { 2 };
        let place = format!("{}, line {line}", path.display());
        match &error {
            LedgerError::Damaged { place: told, why } => {
                assert_eq!(*told, place, "byte {at}");
                assert!(why.contains("restore the file"), "{why}");
            }
            // One bit makes `v3` of `v1`, which only a newer version can tell from its own.
            error => assert!(is_newer(error) && error.to_string().contains(&place), "byte {at}: {error:?}"),
        }
        let refused = append(&ledger, (1, 1, "a"), &[started(1)]).await.unwrap_err();
        assert_eq!(refused.to_string(), error.to_string());
        assert_eq!(fs::read(&path).unwrap(), bytes, "a damaged file is left as it is");
    }
}

#[tokio::test]
async fn a_line_that_was_lost_doubled_or_comes_from_elsewhere_is_damage() {
    let dir = tempfile::tempdir().unwrap();
    let (ledger, path) = claimed(dir.path()).await;
    append(&ledger, (1, 1, "a"), &[started(0)]).await.unwrap();
    append(&ledger, (1, 1, "a"), &[done(0, 1)]).await.unwrap();
    let good = fs::read_to_string(&path).unwrap();
    let lines: Vec<&str> = good.split_inclusive('\n').collect();
    let changed = [
        ("lost", [lines[0], lines[2]].concat(), "record 2 where 1 must be"),
        ("doubled", [lines[0], lines[1], lines[1]].concat(), "record 1 where 2 must be"),
        ("no claim", lines[1].to_owned(), "record 1 where 0 must be"),
        ("empty", String::new(), "must begin with a claim"),
        ("torn claim", lines[0][..lines[0].len() - 1].to_owned(), "must begin with a claim"),
    ];
    for (what, text, why) in changed {
        fs::write(&path, text).unwrap();
        let error = ledger.latest(BrokerId(1)).await.unwrap_err();
        assert!(
            matches!(error, LedgerError::Damaged { .. }) && error.to_string().contains(why),
            "{what}: {error}"
        );
    }
    fs::create_dir(dir.path().join("broker-2")).unwrap();
    fs::write(dir.path().join("broker-2/epoch-1.journal"), &good).unwrap();
    let error = ledger.latest(BrokerId(2)).await.unwrap_err().to_string();
    assert!(error.contains("claims epoch 1 of broker 1: the file is in a foreign place"), "{error}");
}

#[tokio::test]
async fn drafts_of_crashed_claimants_are_ignored() {
    let dir = tempfile::tempdir().unwrap();
    let (ledger, path) = claimed(dir.path()).await;
    fs::copy(&path, path.with_file_name(".b.epoch-2.journal-7-0.tmp")).unwrap();
    assert_eq!(ledger.all(BrokerId(1)).await.unwrap().len(), 1);
    append(&ledger, (1, 1, "a"), &[ended()]).await.unwrap();
    ledger.claim(&claim(1, 2, "a")).await.unwrap();
}

#[tokio::test]
async fn decisions_are_bounded_and_the_newest_are_kept() {
    let dir = tempfile::tempdir().unwrap();
    let ledger = ledger(dir.path());
    let clue = "x".repeat(DECISIONS_LIMIT / 4);
    for second in 0..30 {
        ledger.remember(BrokerId(1), &decision("a", second, &clue)).await.unwrap();
    }
    assert_eq!(files(&dir.path().join("broker-1")), ["decisions-a.1.journal", "decisions-a.journal"]);
    let kept = ledger.remembered(BrokerId(1)).await.unwrap();
    let seconds: Vec<i64> = kept.iter().map(|event| event.at.as_second()).collect();
    assert!((4..=10).contains(&seconds.len()), "{seconds:?}");
    assert_eq!(seconds, (30 - seconds.len() as i64..30).collect::<Vec<_>>());
}

#[tokio::test]
async fn a_torn_decision_is_cut_off_by_the_next() {
    let dir = tempfile::tempdir().unwrap();
    let ledger = ledger(dir.path());
    let (one, two) = (decision("a", 1, "one"), decision("a", 2, "two"));
    ledger.remember(BrokerId(1), &one).await.unwrap();
    let path = dir.path().join("broker-1/decisions-a.journal");
    let torn = [fs::read(&path).unwrap(), b"v1 0123abcd 50 {\"at\"".to_vec()].concat();
    fs::write(&path, torn).unwrap();
    ledger.remember(BrokerId(1), &two).await.unwrap();
    assert_eq!(ledger.remembered(BrokerId(1)).await.unwrap(), [one, two]);
}

fn make_pipe(path: &Path) {
    let pipe = std::ffi::CString::new(path.as_os_str().as_bytes()).unwrap();
    rustix::fs::mknodat(rustix::fs::CWD, &*pipe, rustix::fs::FileType::Fifo, 0o600.into(), 0).unwrap();
}

#[tokio::test]
async fn a_dead_file_server_costs_a_deadline_and_not_the_agent() {
    let dir = tempfile::tempdir().unwrap();
    // Opening a pipe that nobody writes to hangs, as a file on a dead server does.
    make_pipe(&dir.path().join("format"));
    let timeout = Duration::from_millis(100);
    let ledger =
        FileLedger::new(&FileLedgerConfig { dir: dir.path().to_owned(), local: true, timeout }).unwrap();
    let error = ledger.latest(BrokerId(1)).await.unwrap_err();
    assert!(matches!(error, LedgerError::Unavailable { .. }), "{error:?}");
    assert!(chain(&error).contains("did not return within 100ms"), "{}", chain(&error));
    // Lets the hung thread go.
    fs::write(dir.path().join("format"), "").unwrap();
}

#[tokio::test]
async fn the_check_says_where_and_how_much_and_leaves_nothing_behind() {
    let dir = tempfile::tempdir().unwrap();
    let note = ledger(dir.path()).check().await.unwrap();
    assert!(note.text.contains("MiB free; no ledger yet"), "{}", note.text);
    assert!(note.details["free_bytes"].parse::<u64>().unwrap() > 0);
    assert_eq!(files(dir.path()), Vec::<String>::new());
    let error = ledger(&dir.path().join("missing")).check().await.unwrap_err();
    assert!(chain(&error).contains("mount the shared storage"), "{}", chain(&error));
}

/// Set in the process that runs inside its own mount namespace.
const INSIDE: &str = "UNDERSTUDY_TEST_TINY_DIR";

#[test]
fn a_full_disk_leaves_nothing_half_done() {
    let dir = tempfile::tempdir().unwrap();
    let inside = r#"mount -t tmpfs -o size=64k tiny "$0" && exec "$@""#;
    let test = std::env::current_exe().unwrap();
    let output = Command::new("unshare")
        .args(["--map-root-user", "--mount", "sh", "-c", inside])
        .arg(dir.path())
        .arg(test)
        .args(["--exact", "ledger::file::tests::on_a_tiny_disk", "--ignored", "--nocapture"])
        .env(INSIDE, dir.path())
        .output();
    let Ok(output) = output else { return eprintln!("SKIPPED: there is no `unshare` here") };
    let text = String::from_utf8_lossy(&output.stdout) + String::from_utf8_lossy(&output.stderr);
    if text.contains("unshare failed") || text.contains("mount failed") || text.contains("permission denied")
    {
        return eprintln!("SKIPPED: no mount namespace here: {text}");
    }
    assert!(output.status.success() && text.contains("1 passed"), "{text}");
}

#[tokio::test]
#[ignore = "run by a_full_disk_leaves_nothing_half_done"]
async fn on_a_tiny_disk() {
    let Some(dir) = std::env::var_os(INSIDE).map(PathBuf::from) else { return };
    let (ledger, path) = claimed(&dir).await;
    append(&ledger, (1, 1, "a"), &[started(0)]).await.unwrap();
    let (journal, listing) = (fs::read(&path).unwrap(), files(&dir.join("broker-1")));
    let filler = dir.join("filler");
    let full = fs::write(&filler, vec![0u8; 1 << 20]).unwrap_err();
    assert_eq!(full.kind(), ErrorKind::StorageFull);

    // The journal's last block has some room: the write begins and breaks off.
    let error = append(&ledger, (1, 1, "a"), &[done(0, 20_000)]).await.unwrap_err();
    assert!(matches!(error, LedgerError::Unavailable { .. }), "{error:?}");
    assert!(chain(&error).contains("No space left"), "{}", chain(&error));
    assert_eq!(fs::read(&path).unwrap(), journal);
    let error = ledger.claim(&claim(2, 1, "a")).await.unwrap_err();
    assert!(matches!(error, LedgerError::Unavailable { .. }), "{error:?}");
    assert_eq!(ledger.latest(BrokerId(2)).await.unwrap(), None);
    assert_eq!(files(&dir.join("broker-2")), Vec::<String>::new());
    assert!(ledger.check().await.is_err());
    assert_eq!(seqs(&ledger).await, [0, 1]);
    assert_eq!(files(&dir.join("broker-1")), listing);

    fs::remove_file(filler).unwrap();
    assert_eq!(append(&ledger, (1, 1, "a"), &[done(0, 20_000)]).await.unwrap(), [2]);
    ledger.claim(&claim(2, 1, "a")).await.unwrap();
    fs::remove_dir_all(dir.join("broker-1")).unwrap();
    survives_a_full_disk(&Directory { dir, outage: Outage::Gone }).await;
}

#[tokio::test]
async fn what_the_caller_has_given_up_is_not_written_later() {
    let dir = tempfile::tempdir().unwrap();
    let (ledger, path) = claimed(dir.path()).await;
    let before = fs::read(&path).unwrap();
    let late = Instant::now();
    let records = |journal: &EpochJournal| number(journal, Timestamp::now(), &"a".into(), vec![started(0)]);
    let added = super::append(&ledger.root, BrokerId(1), Epoch(1), records, late).map(drop);
    for result in [added, make_claim(&ledger.root, claim(2, 1, "a"), late).map(drop)] {
        let error = result.unwrap_err();
        assert!(chain(&error).contains("answered too late"), "{}", chain(&error));
    }
    assert_eq!(fs::read(&path).unwrap(), before);
    assert_eq!(ledger.latest(BrokerId(2)).await.unwrap(), None);
}

fn is_newer(error: &LedgerError) -> bool {
    matches!(error, LedgerError::Distrusted { distrust: Distrust::LedgerNewer, .. })
}

#[tokio::test]
async fn what_a_newer_version_wrote_is_left_as_it_is_and_nobody_is_asked_to_restore_it() {
    let dir = tempfile::tempdir().unwrap();
    let (ledger, path) = claimed(dir.path()).await;
    append(&ledger, (1, 1, "a"), &[started(0)]).await.unwrap();
    let good = fs::read_to_string(&path).unwrap();
    let record = r#"[{"seq":2,"at":"2026-01-01T00:00:00Z","by":"a","entry":{"entry":"alive"}}]"#;
    let line = |text: &str| good.clone() + &record::encode(text);
    fs::write(&path, line(record)).unwrap();
    assert_eq!(
        ledger.latest(BrokerId(1)).await.unwrap().unwrap().records.len(),
        3,
        "as we write it ourselves"
    );
    for newer in [
        line(&record.replace(r#"{"seq""#, r#"{"needs":2,"seq""#)),
        line(&record.replace("alive", "reincarnated")),
        line(record).replace("v1 ", "v2 "),
    ] {
        fs::write(&path, &newer).unwrap();
        for error in [
            ledger.latest(BrokerId(1)).await.unwrap_err(),
            ledger.all(BrokerId(1)).await.unwrap_err(),
            append(&ledger, (1, 1, "a"), &[started(1)]).await.unwrap_err(),
            ledger.claim(&claim(1, 2, "b")).await.unwrap_err(),
        ] {
            let said = error.to_string();
            assert!(is_newer(&error) && said.contains(&path.display().to_string()), "{error:?}");
            assert!(said.contains("upgrade this host") && !said.contains("snapshot"), "{said}");
        }
        assert_eq!(fs::read_to_string(&path).unwrap(), newer);
    }
    fs::write(dir.path().join("format"), "understudy ledger format 2\n").unwrap();
    assert!(is_newer(&ledger.latest(BrokerId(2)).await.unwrap_err()));
}

#[tokio::test]
async fn a_journal_without_an_end_is_not_read_to_its_end() {
    let dir = tempfile::tempdir().unwrap();
    let (ledger, path) = claimed(dir.path()).await;
    // Takes no room, and would take all memory.
    fs::OpenOptions::new().write(true).open(path).unwrap().set_len(1 << 40).unwrap();
    let error = ledger.latest(BrokerId(1)).await.unwrap_err();
    assert!(chain(&error).contains("it is longer than 67108864 bytes"), "{}", chain(&error));
}

#[tokio::test]
async fn a_directory_that_other_hosts_do_not_see_is_refused_unless_it_is_meant() {
    let dir = tempfile::tempdir().unwrap();
    let checked = async |local: bool| {
        let timeout = Duration::from_secs(20);
        let config = FileLedgerConfig { dir: dir.path().to_owned(), local, timeout };
        FileLedger::new(&config).unwrap().check().await.map_err(|error| chain(&error))
    };
    let refused = checked(false).await.unwrap_err();
    assert!(refused.contains("protects nobody") && refused.contains("set ledger.local = true"), "{refused}");
    checked(true).await.unwrap();
}
