//! `cargo xtask conformance`: the vendor's own clients against the fake ONTAP.
//!
//! Our client and the fake could share a mistake. So the fake has to satisfy clients that know nothing of it:
//! the vendor's Python client and Ansible modules, from PyPI, unchanged.

use std::ffi::OsStr;
use std::fs;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, bail};

use crate::kafka::fnv1a;
use crate::preflight::{self, Scope};
use crate::report::Tally;
use crate::workspace::{Programs, Workspace};
use crate::{cache, shell};

const REQUIREMENTS: &str = include_str!("../../ontap-client/conformance/requirements.txt");
const COLLECTIONS: &str = include_str!("../../ontap-client/conformance/collections.txt");
/// What the scripts import, so that an environment that can is one that serves.
const IMPORTS: &str = "import netapp_ontap, ansible.module_utils.basic, \
     ansible_collections.netapp.ontap.plugins.module_utils.netapp";

const INSTALL_LIMIT: Duration = Duration::from_secs(15 * 60);
const SCRIPT_LIMIT: Duration = Duration::from_secs(5 * 60);

/// Run ONTAP's own clients, the vendor's Python client and Ansible modules, against the fake ONTAP.
#[derive(clap::Args)]
pub(crate) struct Args {}

/// Runs the command.
pub(crate) fn run(_: &Args) -> Result<()> {
    preflight::ensure(Scope::Build)?;
    run_for_test(&Workspace::find()?, &mut Tally::default())
}

/// The same as a part of `cargo xtask test`; each script counts as one test.
pub(crate) fn run_for_test(workspace: &Workspace, tally: &mut Tally) -> Result<()> {
    let python = python()?;
    let fake = build(workspace)?;
    let scripts = workspace.root.join("crates/ontap-client/conformance");
    // Ansible's modules speak nothing but HTTPS.
    for (script, arguments) in [("python_client.py", &[][..]), ("ansible_modules.py", &["--tls"])] {
        let server = Server::start(&fake, arguments)?;
        let mut client = Command::new(&python);
        client.arg(scripts.join(script)).args([server.url.as_str(), "admin", "secret"]);
        // Everything is on this machine.
        client.env("NO_PROXY", "*").env("PYTHONDONTWRITEBYTECODE", "1").stdin(Stdio::null());
        tally.failed += 1;
        shell::run_within(SCRIPT_LIMIT, &mut client)?;
        *tally = Tally { passed: tally.passed + 1, failed: tally.failed - 1 };
    }
    Ok(())
}

/// Built with what the unit tests are built with, so that little is built again.
fn build(workspace: &Workspace) -> Result<PathBuf> {
    let mut build = workspace.cargo("build");
    build.args(["--package", "understudy-fakes", "--example", "fake_ontap"]);
    build.arg("--message-format=json-render-diagnostics");
    Programs { messages: shell::stdout_of(&mut build)? }.path("fake_ontap")
}

/// The fake as a process of its own. It ends with this value.
struct Server {
    child: Child,
    url: String,
}

impl Server {
    fn start(program: &Path, arguments: &[&str]) -> Result<Self> {
        let mut command = Command::new(program);
        command.args(["--listen", "127.0.0.1:0"]).args(arguments);
        command.stdin(Stdio::null()).stdout(Stdio::piped());
        let child = command.spawn().with_context(|| format!("cannot start {}", program.display()))?;
        let mut server = Self { child, url: String::new() };
        let mut line = String::new();
        let output = server.child.stdout.take().context("the fake has no output")?;
        BufReader::new(output).read_line(&mut line)?;
        match line.trim().strip_prefix("listening on ") {
            Some(url) => url.clone_into(&mut server.url),
            None => bail!("the fake ONTAP did not say where it listens, but {line:?}"),
        }
        Ok(server)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // It may have ended by itself; then the script has said so.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A Python that has the vendor's clients, at the versions that we name; made once.
fn python() -> Result<PathBuf> {
    let cache = cache::dir()?;
    let home = cache.join(format!("ontap-clients-{:016x}", key()));
    let python = home.join("bin/python");
    if serves(&python) {
        return Ok(python);
    }
    if home.exists() {
        // Cut short, or the Python that it was made with has gone.
        fs::remove_dir_all(&home).with_context(|| format!("cannot remove {}", home.display()))?;
    }
    fs::create_dir_all(&cache).with_context(|| format!("cannot make {}", cache.display()))?;
    eprintln!("installing ONTAP's Python client and Ansible modules into {} (once)", home.display());
    install(&home)
        .context("cannot install ONTAP's own clients from PyPI: check the network, and pip's settings")?;
    if !serves(&python) {
        bail!("ONTAP's own clients are installed in {} and cannot be imported", home.display());
    }
    Ok(python)
}

fn key() -> u64 {
    fnv1a(format!("{REQUIREMENTS}\n{COLLECTIONS}").as_bytes())
}

fn serves(python: &Path) -> bool {
    shell::succeeds(Command::new(python).args(["-c", IMPORTS]))
}

fn install(home: &Path) -> Result<()> {
    shell::run(Command::new("python3").args(["-m", "venv"]).arg(home))?;
    let (requirements, collections) = (home.join("requirements.txt"), home.join("collections.txt"));
    fs::write(&requirements, REQUIREMENTS)?;
    fs::write(&collections, COLLECTIONS)?;
    pip(home, [OsStr::new("--requirement"), requirements.as_os_str()])?;
    // What this package requires besides is another Ansible than its modules need to run by themselves.
    pip(home, [OsStr::new("--no-deps"), OsStr::new("--requirement"), collections.as_os_str()])?;
    keep_only_netapp(home)
}

pub(crate) fn pip<'a>(home: &Path, arguments: impl IntoIterator<Item = &'a OsStr>) -> Result<()> {
    let mut pip = Command::new(home.join("bin/python"));
    pip.args(["-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-compile"]);
    pip.args(["--retries", "5"]).args(arguments).stdin(Stdio::null());
    shell::run_within(INSTALL_LIMIT, &mut pip)
}

/// The package brings a hundred collections, half a gigabyte. One is used.
fn keep_only_netapp(home: &Path) -> Result<()> {
    const WHERE: &str = "import ansible_collections; print(list(ansible_collections.__path__)[0])";
    let place = shell::stdout_of(Command::new(home.join("bin/python")).args(["-c", WHERE]))?;
    for entry in fs::read_dir(place.trim()).with_context(|| format!("cannot list {}", place.trim()))? {
        let entry = entry?;
        if entry.file_type()?.is_dir() && entry.file_name() != "netapp" {
            fs::remove_dir_all(entry.path())?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_package_has_its_version() {
        let lines = REQUIREMENTS.lines().chain(COLLECTIONS.lines()).filter(|line| !line.starts_with('#'));
        let packages: Vec<(&str, &str)> = lines.map(|line| line.split_once("==").unwrap()).collect();
        assert!(packages.iter().any(|(name, _)| *name == "netapp-ontap"));
        assert!(packages.iter().all(|(_, version)| !version.is_empty()), "{packages:?}");
    }

    #[test]
    fn a_python_that_is_not_there_does_not_serve() {
        assert!(!serves(Path::new("/nonexistent/bin/python")));
    }

    #[test]
    fn a_server_that_does_not_say_where_it_listens_is_an_error() {
        let error = Server::start(Path::new("true"), &[]).err().unwrap().to_string();
        assert!(error.contains("did not say where"), "{error}");
    }
}
