//! A fence agent for the bed's power switch, to the public API of Pacemaker's fence agents: options on
//! standard input as `key=value`, exit code 0 for done, 1 for failed; `status` exits with 0 for on and 2 for
//! off.

use std::collections::BTreeMap;
use std::env;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::process::ExitCode;

use anyhow::{Context, Result, bail};

const METADATA: &str = r#"<?xml version="1.0" ?>
<resource-agent name="fence_lab" shortdesc="Fence agent for the test bed's power switch">
<longdesc>fence_lab switches hosts of the test bed off and on.</longdesc>
<parameters>
  <parameter name="action" required="1"><content type="string" default="off"/></parameter>
  <parameter name="ip" required="1"><content type="string"/></parameter>
  <parameter name="ipport" required="1"><content type="integer"/></parameter>
  <parameter name="plug" required="1"><content type="string"/></parameter>
</parameters>
<actions>
  <action name="on" automatic="0"/><action name="off"/><action name="status"/>
  <action name="monitor"/><action name="metadata"/>
</actions>
</resource-agent>"#;

fn main() -> ExitCode {
    match act() {
        Ok(code) => ExitCode::from(code),
        Err(error) => {
            eprintln!("fence_lab: {error:#}");
            ExitCode::from(1)
        }
    }
}

fn act() -> Result<u8> {
    let mut input = String::new();
    io::stdin().read_to_string(&mut input)?;
    let options: BTreeMap<&str, &str> =
        input.lines().filter_map(|line| line.trim().split_once('=')).collect();
    let option = |key: &str| options.get(key).copied().with_context(|| format!("option {key} is missing"));
    let action = options.get("action").copied().unwrap_or("off");
    if action == "metadata" {
        // The agent for outlets that cut a host off, and leave it running, is this one by another name.
        let fabric = env::args().next().is_some_and(|name| name.ends_with("_fabric"));
        let automatic = if fabric { "automatic=\"1\"" } else { "automatic=\"0\"" };
        writeln!(io::stdout(), "{}", METADATA.replace("automatic=\"0\"", automatic))?;
        return Ok(0);
    }
    let port: u16 = option("ipport")?.parse().context("option ipport is not a port")?;
    let request = if action == "monitor" { "status" } else { action };
    let answer = ask(option("ip")?, port, &format!("{request} {}", option("plug")?))?;
    match (action, answer.as_str()) {
        ("on" | "off", "ok") => say(&format!("Success: Powered {}", action.to_uppercase()), 0),
        ("monitor", "on" | "off") => Ok(0),
        ("status", "on") => say("Status: ON", 0),
        ("status", "off") => say("Status: OFF", 2),
        _ => bail!("the switch answered {answer:?} to {action}"),
    }
}

fn say(words: &str, code: u8) -> Result<u8> {
    writeln!(io::stdout(), "{words}")?;
    Ok(code)
}

fn ask(ip: &str, port: u16, request: &str) -> Result<String> {
    let mut switch = TcpStream::connect((ip, port)).context("cannot reach the switch")?;
    writeln!(switch, "{request}")?;
    let mut answer = String::new();
    BufReader::new(switch).read_line(&mut answer)?;
    Ok(answer.trim().to_owned())
}
