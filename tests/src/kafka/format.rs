//! Formatting log dirs, with Kafka's own tool. What it makes depends on nothing but version and node, so it is
//! kept from one story to the next: four Java starts are most of the time it takes to bring a cluster up.

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
    nodes: &[(&Node, Vec<(String, String)>)],
) -> Result<()> {
    // The voters are part of what a controller is formatted for.
    let cluster: String = nodes.iter().map(|(node, _)| format!("-{}", node.id)).collect();
    let cache = sandbox::base()?.join("formatted").join(format!("{}{cluster}", kafka.version()));
    let mut running = Vec::new();
    for (node, properties) in nodes {
        let kept = cache.join(node.id.to_string());
        if !kept.exists() {
            running.push(Formatting::start(kafka, log4j, properties, kept)?);
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
        kafka: &Kafka,
        log4j: &Path,
        properties: &[(String, String)],
        finished: PathBuf,
    ) -> Result<Self> {
        let unfinished = finished.with_extension("unfinished");
        // What an interrupted run left would be taken for formatted.
        let _ = fs::remove_dir_all(&unfinished);
        fs::create_dir_all(&unfinished)?;
        let mut properties = properties.to_vec();
        properties.push(("log.dirs".to_owned(), unfinished.display().to_string()));
        let file = finished.with_extension("properties");
        write_properties(&file, &properties)?;
        let arguments = ["format", "-t", CLUSTER_ID, "-c", &file.display().to_string()];
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
