//! A Python with the parts of the strict EC2 that tests of `understudy-aws` run against, and of the identity provider
//! of stories with tokens, made once: `<cache>/ec2-<hash of its requirements>`.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};

use crate::kafka::fnv1a;
use crate::{cache, conformance, shell};

const REQUIREMENTS: &str = include_str!("../../aws/bed/requirements.txt");
/// What the simulator imports, so that an environment that can is one that serves.
const IMPORTS: &str =
    "import authlib, moto.ec2.responses, moto.fsx.responses, moto.moto_server.werkzeug_app, werkzeug.serving";
/// By which tests find it.
pub(crate) const VARIABLE: &str = "UNDERSTUDY_EC2_BED";

/// The folder of the virtual environment, made if need be.
///
/// # Errors
/// It cannot be installed.
pub(crate) fn ensure() -> Result<PathBuf> {
    let cache = cache::dir()?;
    let home = cache.join(format!("ec2-{:016x}", fnv1a(REQUIREMENTS.as_bytes())));
    if serves(&home) {
        return Ok(home);
    }
    if home.exists() {
        // Cut short, or the Python that it was made with has gone.
        fs::remove_dir_all(&home).with_context(|| format!("cannot remove {}", home.display()))?;
    }
    fs::create_dir_all(&cache).with_context(|| format!("cannot make {}", cache.display()))?;
    eprintln!("installing the parts of an EC2 for tests into {} (once)", home.display());
    install(&home)
        .context("cannot install moto and Authlib from PyPI: check the network, and pip's settings")?;
    ensure!(serves(&home), "moto and Authlib are installed in {} and cannot be imported", home.display());
    Ok(home)
}

fn serves(home: &Path) -> bool {
    shell::succeeds(Command::new(home.join("bin/python")).args(["-c", IMPORTS]))
}

fn install(home: &Path) -> Result<()> {
    shell::run(Command::new("python3").args(["-m", "venv"]).arg(home))?;
    let requirements = home.join("requirements.txt");
    fs::write(&requirements, REQUIREMENTS)?;
    conformance::pip(home, ["--requirement".as_ref(), requirements.as_os_str()])
}
