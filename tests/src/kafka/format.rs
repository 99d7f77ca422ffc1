//! Formatting log dirs, with Kafka's own tool. What it makes depends on nothing but version and node, so it
//! is kept from one story to the next: four Java starts are most of the time it takes to bring a cluster up.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};

use super::node::{Node, write_properties};
use super::{Jvm, Kafka};
use crate::sandbox;
use crate::shell;

/// The id of every cluster of the bed: no two of them can meet.
pub(crate) const CLUSTER_ID: &str = "VW5kZXJzdHVkeUxhYjAwMA";

/// Fills the log dir of every node of `nodes`, given with the properties it will run with.
pub(crate) fn format_all(
    kafka: &Kafka,
    log4j: &Path,
    extra: &[String],
    nodes: &[(&Node, Vec<(String, String)>)],
) -> Result<()> {
    // The voters are part of what a controller is formatted for.
    let of = |node: &Node| match node.log_dirs {
        1 => format!("-{}", node.id),
        several => format!("-{}x{several}", node.id),
    };
    let mut cluster: String = nodes.iter().map(|(node, _)| of(node)).collect();
    let combined =
        nodes.iter().any(|(_, properties)| properties.iter().any(|(_, value)| value.contains("broker,")));
    cluster.push_str(if combined { "-combined" } else { "" });
    // Kafka would take a comma for the end of a log dir.
    cluster.push_str(&extra.concat().replace(|c: char| !c.is_ascii_alphanumeric(), "-"));
    let cache = sandbox::base()?.join("formatted").join(format!("{}{cluster}", kafka.version()));
    let mut running = Vec::new();
    for (node, properties) in nodes {
        let kept = cache.join(node.id.to_string());
        if !kept.exists() {
            running.push(Formatting::start((kafka, log4j, extra), node.log_dirs, properties, kept)?);
        }
    }
    for formatting in running {
        formatting.finish()?;
    }
    for (node, _) in nodes {
        let kept = cache.join(node.id.to_string());
        shell::run("cp", ["-a", &format!("{}/.", kept.display()), &node.log_dir.display().to_string()])?;
    }
    Ok(())
}

/// One run of the tool.
struct Formatting {
    child: std::process::Child,
    unfinished: PathBuf,
    finished: PathBuf,
}

impl Formatting {
    fn start(
        (kafka, log4j, extra): (&Kafka, &Path, &[String]),
        log_dirs: u8,
        properties: &[(String, String)],
        finished: PathBuf,
    ) -> Result<Self> {
        let unfinished = finished.with_extension("unfinished");
        // What an interrupted run left would be taken for formatted.
        let _ = fs::remove_dir_all(&unfinished);
        fs::create_dir_all(&unfinished)?;
        let mut properties = properties.to_vec();
        let within = |n: u8| unfinished.join(format!("d{n}")).display().to_string();
        let log_dirs = match log_dirs {
            1 => unfinished.display().to_string(),
            several => {
                let dirs: Vec<String> = (1..=several).map(within).collect();
                dirs.iter().try_for_each(fs::create_dir_all)?;
                dirs.join(",")
            }
        };
        properties.push(("log.dirs".to_owned(), log_dirs));
        let file = finished.with_extension("properties");
        write_properties(&file, &properties)?;
        let file = file.display().to_string();
        let mut arguments = vec!["format", "-t", CLUSTER_ID, "-c", &file];
        arguments.extend(extra.iter().map(String::as_str));
        let command = kafka.command(&Jvm::quick("128m"), log4j, "kafka.tools.StorageTool", &arguments);
        let log = fs::File::create(finished.with_extension("log"))?;
        let (program, arguments) = command.split_first().context("an empty command")?;
        let child = Command::new(program)
            .args(arguments)
            .stdout(log.try_clone()?)
            .stderr(log)
            .spawn()
            .with_context(|| format!("cannot run {program}"))?;
        Ok(Self { child, unfinished, finished })
    }

    fn finish(mut self) -> Result<()> {
        let status = self.child.wait()?;
        let log = self.finished.with_extension("log");
        ensure!(status.success(), "formatting failed ({status}): see {}", log.display());
        fs::rename(&self.unfinished, &self.finished)?;
        Ok(())
    }
}
