//! The driver `systemd` by hand, on a host with a real systemd: no ledger, no takeover, no proof but the
//! caller's word.
//!
//!     unit_by_hand UNIT TEMPLATE LOG_DIR STATE_DIR COMMAND…
//!
//! Commands: `check`, `render EPOCH`, `verify`, `start EPOCH`, `state`, `stop SECONDS`, `prove EPOCH`. For
//! broker 1.

#![allow(clippy::print_stdout, reason = "a program for the command line")]

use std::collections::BTreeMap;
use std::error::Error;
use std::time::{Duration, Instant};

use drivers::broker_host::{BrokerHostConfig, BrokerIdentity};
use recovery::model::{BrokerId, Epoch};
use recovery::ports::{Note, Proof, chain};

const BROKER: BrokerId = BrokerId(1);

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [unit, template, log_dir, state_dir, command, rest @ ..] = &arguments[..] else {
        return Err("usage: unit_by_hand UNIT TEMPLATE LOG_DIR STATE_DIR COMMAND [NUMBER]".into());
    };
    let number =
        || rest.first().ok_or("this command takes a number")?.parse::<u64>().map_err(Box::<dyn Error>::from);
    let section = serde_json::json!({ "driver": "systemd", "unit": unit, "template": template });
    let config: BrokerHostConfig = serde_json::from_value(section)?;
    let identity = BrokerIdentity {
        id: BROKER,
        listener: "10.0.0.1:9092".parse()?,
        log_dirs: vec![log_dir.into()],
        properties: BTreeMap::new(),
    };
    let host = config.build("standby".into(), state_dir.into(), vec![identity]);
    let host = host.map_err(|problems| problems.join("; "))?;
    let begun = Instant::now();
    let said = match command.as_str() {
        "check" => {
            for result in host.check(BROKER).await {
                println!(
                    "{}",
                    result.map_or_else(|error| format!("FAIL {}", chain(&error)), |note| note.text)
                );
            }
            Ok("checked".to_owned())
        }
        "render" => host.render(BROKER, Epoch(number()?)).await.map(|note| format!("{note:?}")),
        "verify" => host.verify(BROKER, None).await.map(|note| format!("{note:?}")),
        "start" => {
            let note = Note::new("said by the caller");
            let proof = Proof { host: "kafka-1".into(), by: "hand".to_owned(), note };
            host.start(BROKER, Epoch(number()?), &[proof]).await.map(|note| format!("{note:?}"))
        }
        "state" => host.state(BROKER).await.map(|state| format!("{state:?}")),
        "stop" => host.stop(BROKER, Duration::from_secs(number()?)).await.map(|note| format!("{note:?}")),
        "prove" => host.prove_stopped(BROKER, Epoch(number()?)).await.map(|proof| format!("{proof:?}")),
        other => return Err(format!("no such command: {other}").into()),
    };
    match said {
        Ok(text) => println!("ok, after {} ms: {text}", begun.elapsed().as_millis()),
        Err(error) => {
            println!("{}, after {} ms: {}", error.kind(), begun.elapsed().as_millis(), chain(&error));
        }
    }
    Ok(())
}
