//! `cargo xtask docs`: the pages that are generated from the code.

use std::fs;
use std::process::Command;

use anyhow::{Context, Result, bail};

use crate::preflight::{self, Scope};
use crate::shell;
use crate::workspace::{Profile, Workspace};

const PAGE: &str = "docs/configuration.md";

/// Write docs/configuration.md anew from the doc comments of the configuration.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Change nothing; fail if the page is not what the code says.
    #[arg(long)]
    check: bool,
}

/// Runs the command.
pub(crate) fn run(args: &Args) -> Result<()> {
    preflight::ensure(Scope::Build)?;
    let workspace = Workspace::find()?;
    let agent = workspace.build(&["understudy"], Profile::Dev)?.path("understudy")?;
    let fresh = shell::stdout_of(Command::new(agent).arg("config-reference"))?;
    let page = workspace.root.join(PAGE);
    if fs::read_to_string(&page).is_ok_and(|present| present == fresh) {
        eprintln!("{PAGE} is up to date");
        return Ok(());
    }
    if args.check {
        bail!("{PAGE} is not what the code says: run `cargo xtask docs` and commit the result");
    }
    fs::write(&page, fresh).with_context(|| format!("cannot write {}", page.display()))?;
    eprintln!("{PAGE} written");
    Ok(())
}
