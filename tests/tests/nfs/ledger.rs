//! The ledger `file` on a real NFS mount: an agent reads it while a takeover of its own adds to it, all the
//! time.

use std::env;
use std::io::{self, Write};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, ensure};
use drivers::ledger::LedgerConfig;
use drivers::ledger::file::FileLedgerConfig;
use e2e::nfs::{Export, GuestSpec, NfsBed};
use e2e::{Lab, story, test_path};
use fakes::ledger::contract::{append, claim, decision, ended, started};
use recovery::journal::Entry;
use recovery::model::BrokerId;
use recovery::ports::{Ledger, LedgerError, chain};
use tokio::runtime::Runtime;
use tokio::time::sleep;

const SMALL: GuestSpec = GuestSpec { memory_mib: 300, client_id: None };
const HOST: &str = "g1";
const VICTIM: BrokerId = BrokerId(1);
/// In the guest, names the ledger's directory.
const INSIDE: &str = "UNDERSTUDY_TEST_NFS_LEDGER";
/// How long. Calls that ran into each other hung, or ended the server, within half a minute in six runs of
/// six.
const LONG: Duration = Duration::from_secs(40);
/// Between two calls of each kind, as when an agent is at its busiest.
const PAUSE: Duration = Duration::from_millis(10);
/// What one takeover writes.
const RECORDS: u64 = 20;

#[test]
fn calls_of_one_agent_on_its_ledger_do_not_hang_each_other() {
    const NAME: &str = "calls_of_one_agent_on_its_ledger_do_not_hang_each_other";
    match env::var_os(INSIDE) {
        // This very program, started in the guest.
        Some(dir) => writeln!(io::stdout(), "{}", in_the_guest(dir.into()).unwrap()).unwrap(),
        None => story(NAME, |lab| tell(lab, NAME)),
    }
}

fn tell(lab: &Lab, name: &str) -> Result<()> {
    let bed = NfsBed::open(lab)?;
    let server = bed.server(lab, vec![Export::to_all("ledger")])?;
    let guest = bed.guest(HOST, "10.77.0.111", &SMALL)?;
    guest.mount_nfs(&server.source("ledger"), "/mnt", "")?;
    let program = env::current_exe()?.canonicalize()?;
    let inside = format!("{INSIDE}=/mnt");
    let program = program.to_str().context("a path that is not UTF-8")?;
    let path = test_path(name)?;
    let command = ["env", &inside, program, &path, "--exact", "--nocapture"];
    let said = guest.run_within(LONG + Duration::from_secs(30), &command);
    server.ensure_runs()?;
    let said = said?;
    ensure!(said.code == 0, "{}\n{}", said.stdout, said.stderr);
    let calls = said.stdout.lines().find(|line| line.contains("appends")).context("nothing was counted")?;
    lab.note(calls);
    Ok(())
}

/// Counts what went well; the first call that did not is the error.
fn in_the_guest(dir: PathBuf) -> Result<String> {
    let config = FileLedgerConfig { dir, local: false, timeout: Duration::from_secs(5) };
    let open = LedgerConfig::File(config).open();
    let ledger = open.map_err(|problems| anyhow!("{}", problems.join("; ")))?;
    Runtime::new()?.block_on(async {
        let until = Instant::now() + LONG;
        let (written, journals, books, decisions) = tokio::try_join!(
            take_over(Arc::clone(&ledger), until),
            repeat(until, || ledger.latest(VICTIM)),
            repeat(until, || ledger.orders()),
            remember(&*ledger, until),
        )?;
        ensure!(
            written > 30 && journals > 30,
            "{written} appends, {journals} journals: the guest is too slow"
        );
        let epochs = ledger.all(VICTIM).await?;
        let kept: u64 = epochs.iter().map(|epoch| epoch.records.len() as u64 - 1).sum();
        ensure!(kept == written, "{kept} records are kept of {written}");
        Ok(format!("{written} appends, {journals} journals, {books} order books, {decisions} decisions"))
    })
}

/// One takeover after the other.
async fn take_over(ledger: Arc<dyn Ledger>, until: Instant) -> Result<u64> {
    let mut written = 0;
    for epoch in 1.. {
        well(ledger.claim(&claim(VICTIM.0, epoch, HOST)).await)?;
        for record in 1..=RECORDS {
            let last = record == RECORDS || Instant::now() >= until;
            let entry: Entry = if last { ended() } else { started(0) };
            well(append(&*ledger, (VICTIM.0, epoch, HOST), &[entry]).await)?;
            written += 1;
            if last {
                break;
            }
            sleep(PAUSE).await;
        }
        if Instant::now() >= until {
            break;
        }
    }
    Ok(written)
}

async fn remember(ledger: &dyn Ledger, until: Instant) -> Result<u64> {
    let mut number = 0;
    while Instant::now() < until {
        well(ledger.remember(VICTIM, &decision(HOST, number, "a clue")).await)?;
        number += 1;
        sleep(10 * PAUSE).await;
    }
    Ok(number.unsigned_abs())
}

async fn repeat<T, F>(until: Instant, call: impl Fn() -> F) -> Result<u64>
where
    F: Future<Output = Result<T, LedgerError>>,
{
    let mut calls = 0;
    while Instant::now() < until {
        well(call().await)?;
        calls += 1;
        sleep(PAUSE).await;
    }
    Ok(calls)
}

fn well<T>(result: Result<T, LedgerError>) -> Result<T> {
    result.map_err(|error| anyhow!("{}", chain(&error)))
}
