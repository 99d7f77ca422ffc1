//! What every story, the demonstration and the benchmark are given: a Kafka, the agent, a place for evidence.

use std::fs;
use std::path::PathBuf;
use std::process::Command;

use anyhow::{Context, Result};

use crate::preflight::{self, Scope};
use crate::workspace::{Profile, Programs, Workspace};
use crate::{kafka, nfs_bed, older};

/// The surroundings of package `e2e`.
pub(crate) struct Bed {
    kafka_home: PathBuf,
    /// What stories' brokers start quicker with; without it they start as well.
    classes: Option<PathBuf>,
    agent: PathBuf,
    programs: Programs,
    /// The oldest agent that is supported beside this one.
    older: Option<PathBuf>,
    /// What the NFS tier's hosts are made of, where there is one.
    nfs: Option<PathBuf>,
    /// Where a failing story leaves its logs, journal, metrics and write history.
    pub(crate) artifacts: PathBuf,
}

/// What the hosts of a demonstration or a benchmark are.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Hosts {
    /// In a rack whose switch can turn them off; addresses are the link's.
    Rack,
    /// Instances of a simulated EC2, with log dirs on a simulated FSx for ONTAP.
    Ec2,
    /// Nodes of a Kubernetes of real parts: the broker is in a pod, and a standby pod takes it over. It takes root.
    Kubernetes,
}

impl Bed {
    /// Fetches Kafka if need be and builds the agent with whatever else is in `packages`.
    ///
    /// # Errors
    /// Kafka cannot be fetched, or something does not compile.
    pub(crate) fn prepare(workspace: &Workspace, packages: &[&str], profile: Profile) -> Result<Self> {
        Self::of(workspace, workspace.build(packages, profile)?)
    }

    /// The same of programs that were built already.
    ///
    /// # Errors
    /// Kafka cannot be fetched, or there is no agent among the programs.
    pub(crate) fn of(workspace: &Workspace, programs: Programs) -> Result<Self> {
        let kafka_home = kafka::ensure(&kafka::CURRENT)?;
        let classes = kafka::classes::ensure(&kafka_home);
        let classes = classes.inspect_err(|error| eprintln!("going on without it: {error:#}")).ok();
        let agent = programs.path("understudy")?;
        let artifacts = workspace.root.join("target/artifacts");
        fs::create_dir_all(&artifacts).with_context(|| format!("cannot make {}", artifacts.display()))?;
        Ok(Self { kafka_home, classes, agent, programs, older: None, nfs: None, artifacts })
    }

    /// Builds what the NFS tier's hosts are made of, if need be.
    ///
    /// # Errors
    /// As [`nfs_bed::ensure`].
    pub(crate) fn add_nfs(&mut self) -> Result<()> {
        preflight::ensure(Scope::Nfs)?;
        self.nfs = Some(nfs_bed::ensure()?);
        Ok(())
    }

    /// Builds the oldest agent that is supported, if need be.
    ///
    /// # Errors
    /// As [`older::ensure`].
    pub(crate) fn add_older_agent(&mut self, workspace: &Workspace) -> Result<()> {
        self.older = Some(older::ensure(workspace)?);
        Ok(())
    }

    /// The same with another Kafka, which is fetched if need be.
    ///
    /// # Errors
    /// It cannot be fetched.
    pub(crate) fn with_kafka(mut self, release: &kafka::Release) -> Result<Self> {
        self.kafka_home = kafka::ensure(release)?;
        self.classes = None;
        Ok(self)
    }

    /// Tells `command` where everything is.
    pub(crate) fn give_to(&self, command: &mut Command) {
        if let Some(nfs) = &self.nfs {
            command.env("UNDERSTUDY_NFS_BED", nfs);
        }
        if let Some(older) = &self.older {
            command.env("UNDERSTUDY_OLDER_BIN", older);
        }
        if let Some(classes) = &self.classes {
            command.env("UNDERSTUDY_KAFKA_CLASSES", classes);
        }
        command
            .env("UNDERSTUDY_KAFKA_HOME", &self.kafka_home)
            .env("UNDERSTUDY_BIN", &self.agent)
            .env("UNDERSTUDY_ARTIFACTS", &self.artifacts);
    }

    /// A program that was built, told where everything is.
    ///
    /// # Errors
    /// There is no such program.
    pub(crate) fn program(&self, name: &str) -> Result<Command> {
        let mut command = Command::new(self.programs.path(name)?);
        self.give_to(&mut command);
        Ok(command)
    }
}
