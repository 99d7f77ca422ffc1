//! `understudy ontap verify`: does what we assume of ONTAP hold on this very system? Reads; with `--try` does
//! to a scratch volume what a takeover does, by the fence's own code.

mod attempt;
mod bites;
mod finding;
mod here;
mod interrupt;
mod look;
mod place;
mod report;
mod scratch;
#[cfg(test)]
mod tests;

use std::net::{IpAddr, Ipv4Addr};
use std::time::Duration;

use anyhow::Context;
use ontap::OntapConfig;
use ontap_client::{Client, Error};
use recovery::ports::chain;

use super::super::agreed;
use super::facts::CALL_LIMIT;
use crate::cli::{Global, Verify};
use crate::config::Config;
use crate::exit::Exit;
use crate::output::{print, say};
use attempt::{Accounts, Attempt, Patience};
use finding::Findings;
use here::Lif;
use interrupt::Interrupt;
use place::{Place, chosen};
use report::{Report, ReportFile};

/// The page that explains each assumption.
const PAGE: &str = "docs/ontap-assumptions.md";

/// How long making or deleting a volume may take.
const MAKING: Duration = Duration::from_secs(120);

/// An address of TEST-NET-1 that no client has, and no mark of an epoch either: those end in 1 to 254.
const NOBODY: IpAddr = IpAddr::V4(Ipv4Addr::new(192, 0, 2, 255));

pub(super) async fn run(global: &Global, config: &Config, options: &Verify) -> anyhow::Result<Exit> {
    let places = chosen(config, options)?;
    // Whatever can go wrong at this end does so before ONTAP is asked.
    let file = options.report.as_deref().map(ReportFile::at).transpose()?;
    let aggregate = options.aggregate.as_deref().filter(|_| options.r#try);
    if let (Some(aggregate), [place]) = (aggregate, &places[..])
        && !options.yes
        && !agreed(&question(place, aggregate))?
    {
        say("not tried");
        return Ok(Exit::Held);
    }
    verify(global, &places, options, file).await
}

/// Whatever goes wrong in one place, what was found until then, and in the others, is told.
async fn verify(
    global: &Global,
    places: &[Place],
    options: &Verify,
    file: Option<ReportFile>,
) -> anyhow::Result<Exit> {
    let (mut findings, mut errors) = (Vec::new(), Vec::new());
    for place in places {
        let mut of_it = Findings::on(&place.svm);
        if let Err(error) = of_place(place, options, &mut of_it).await {
            errors.push(error.context(place.svm.clone()));
        }
        findings.extend(of_it.all);
    }
    let report = Report::of(findings, errors.iter().map(|error| format!("{error:#}")).collect());
    print(&report, global.output)?;
    if let Some(file) = file {
        file.finish(&report).context("--report")?;
    }
    match errors.pop() {
        Some(last) => {
            errors.iter().for_each(|error| say(format!("{error:#}")));
            Err(last)
        }
        None => Ok(if report.differing > 0 { Exit::Failed } else { Exit::Done }),
    }
}

async fn of_place(place: &Place, options: &Verify, findings: &mut Findings) -> anyhow::Result<()> {
    let client = connect(&place.fence).await?;
    // A wrong password that is tried again and again may lock the account.
    if let Err(error) = client.cluster().await
        && (error.is_unauthorized() || matches!(error, Error::Unreachable { .. } | Error::Tls { .. }))
    {
        return Err(error.into());
    }
    let shown = look::look(&client, place, findings).await;
    let Some(aggregate) = options.aggregate.as_deref().filter(|_| options.r#try) else { return Ok(()) };
    // Volumes come and go by jobs.
    let maker = connect(&maker(place, options)).await?.within(MAKING);
    let (accounts, guest) = (Accounts { maker: &maker, client: &client }, options.mount.map(Lif));
    let (guest, patience) = (guest.as_ref(), Patience::default());
    let interrupt = Interrupt::listen()?;
    Attempt { accounts, place, aggregate, guest, shown, patience }.run(&interrupt, findings).await;
    if interrupt.asked() { Err(anyhow::anyhow!("interrupted")) } else { Ok(()) }
}

fn question(place: &Place, aggregate: &str) -> String {
    format!(
        "Make the volume {name} on {aggregate} and the export policy {name} in {} at {}, try the fence on them, and \
         delete \
         them?",
        place.svm,
        place.fence.place(),
        name = scratch::NAME
    )
}

async fn connect(ontap: &OntapConfig) -> anyhow::Result<Client> {
    ontap.connect(CALL_LIMIT).await.map_err(|error| anyhow::anyhow!("{}", chain(error.as_ref())))
}

/// Who makes the scratch volume: the account of a fence need not be able to.
fn maker(place: &Place, options: &Verify) -> OntapConfig {
    match (&options.user, &options.password_file) {
        (Some(user), Some(file)) => OntapConfig {
            user: Some(user.clone()),
            password_file: Some(std::path::absolute(file).unwrap_or_else(|_| file.clone())),
            certificate: None,
            key: None,
            ..place.fence.clone()
        },
        _ => place.fence.clone(),
    }
}
