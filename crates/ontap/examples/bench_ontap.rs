//! `cargo xtask bench ontap`: how long the fence `ontap_export`, its proof and the grant to the new owner
//! take, and how many requests each sends, against the fake ONTAP in this process by HTTPS. What a real
//! system needs to answer comes on top; the number of requests and which of them go side by side is ours.

use std::collections::BTreeMap;
use std::error::Error;
use std::io::Write;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use fakes::ontap::{Fake, World};
use ontap::{OntapExportConfig, OntapGrantConfig};
use ontap_client::Fingerprint;
use recovery::model::{Epoch, HostName};
use recovery::ports::Fence;
use serde_json::{Value, json};

const OLD: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(10, 0, 0, 101));
const NEW: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(10, 0, 0, 102));

type Outcome<T> = Result<T, Box<dyn Error>>;

#[tokio::main]
async fn main() -> Outcome<()> {
    let mut arguments = std::env::args().skip(1);
    let usage = "usage: bench_ontap RUNS FILE";
    let (Some(runs), Some(file)) = (arguments.next(), arguments.next()) else { return Err(usage.into()) };
    let runs: usize = runs.parse().map_err(|_| usage)?;
    let mut results = Vec::new();
    for volumes in [1, 6] {
        results.push(measure(volumes, runs.max(1)).await?);
    }
    let report = json!({ "runs": runs, "proof": "flushed", "server": "fake, HTTPS, same process", "results": results });
    std::fs::write(file, serde_json::to_string_pretty(&report)?)?;
    writeln!(std::io::stdout(), "{report:#}")?;
    Ok(())
}

/// Takes over from the old to the new owner again and again, each time from the beginning.
async fn measure(volumes: usize, runs: usize) -> Outcome<Value> {
    let mut phases: BTreeMap<&str, Vec<(Duration, usize)>> = BTreeMap::new();
    for _ in 0..runs {
        let names: Vec<String> = (1..=volumes).map(|n| format!("vol{n}")).collect();
        let fake = Fake::https(world(&names)).await?;
        let (fence, grant, _password) = drivers(&fake, &names)?;
        let (host, epoch) = (HostName::from("kafka-1"), Epoch(1));
        let mut note = |phase, begun: Instant| {
            phases.entry(phase).or_default().push((begun.elapsed(), fake.requests().len()));
            fake.forget_requests();
            Instant::now()
        };
        let begun = Instant::now();
        fence.fence(&host, epoch).await?;
        let begun = note("1 fence (rules, flush, locks)", begun);
        let _ = fence.prove(&host, epoch).await?;
        let begun = note("2 proof", begun);
        grant.admit(epoch).await?;
        note("3 grant", begun);
        if names.iter().any(|name| fake.allows(OLD, name).may_write() || !fake.allows(NEW, name).may_write())
        {
            return Err("the volumes did not change hands".into());
        }
    }
    let mut whole: Vec<Duration> = vec![Duration::ZERO; runs];
    for times in phases.values() {
        whole.iter_mut().zip(times).for_each(|(sum, (time, _))| *sum += *time);
    }
    let requests: usize =
        phases.values().filter_map(|times| times.first()).map(|(_, requests)| requests).sum();
    let mut shown: BTreeMap<&str, Value> = BTreeMap::new();
    for (phase, times) in &phases {
        let requests = times.first().map(|(_, requests)| *requests);
        shown.insert(phase, figures(times.iter().map(|(time, _)| *time).collect(), requests));
    }
    Ok(json!({ "volumes": volumes, "phases": shown, "whole": figures(whole, Some(requests)) }))
}

fn figures(mut times: Vec<Duration>, requests: Option<usize>) -> Value {
    times.sort();
    let ms = |time: Option<&Duration>| time.map(|time| (time.as_secs_f64() * 10_000.0).round() / 10.0);
    json!({
        "median_ms": ms(times.get(times.len() / 2)), "min_ms": ms(times.first()), "max_ms": ms(times.last()),
        "requests": requests,
    })
}

fn world(names: &[String]) -> World {
    let mut world = World::small();
    for name in names {
        world.policy("svm1", name, &[&[&OLD.to_string()]]);
        world.volume("svm1", name, name);
        world.guest(name, OLD);
    }
    world
}

fn drivers(
    fake: &Fake,
    names: &[String],
) -> Outcome<(Arc<dyn Fence>, ontap::OntapGrant, tempfile::NamedTempFile)> {
    let mut password = tempfile::NamedTempFile::new()?;
    password.write_all(b"secret\n")?;
    let pin = Fingerprint::of(fake.certificate_der().ok_or("no certificate")?);
    let section = |address: IpAddr| {
        format!(
            "svm = \"svm1\"\nvolumes = {names:?}\naddresses = [\"{address}\"]\n[ontap]\nurl = \"{}\"\nuser = \"admin\"\n\
             password_file = {:?}\npin = \"{pin}\"",
            fake.url(),
            password.path()
        )
    };
    let fence = format!("proof = \"flushed\"\n{}", section(OLD));
    let fence =
        toml::from_str::<OntapExportConfig>(&fence)?.build().map(Arc::new).map_err(|all| all.join("; "))?;
    let grant =
        toml::from_str::<OntapGrantConfig>(&section(NEW))?.build(&[]).map_err(|all| all.join("; "))?;
    Ok((fence, grant, password))
}
