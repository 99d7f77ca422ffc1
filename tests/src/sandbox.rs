//! Each story runs in namespaces of its own, as a second run of the same test binary.
//!
//! The outer run re-executes the binary for exactly this test inside `unshare`: new network, mount and
//! process namespaces (and a user namespace when it is not root). The inner run is process 1 in there: when
//! it ends, or when the outer run is killed, the kernel kills every process and removes every link and mount
//! of the story.

use std::env;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};

use crate::lab::Lab;
use crate::{shell, unjudged};

/// Set in the inner run: the story it is for.
const INNER: &str = "UNDERSTUDY_E2E_STORY";
/// Where the stories' folders go; by default `e2e` in the target directory.
const ARTIFACTS: &str = "UNDERSTUDY_ARTIFACTS";
/// Keeps the folder of a story that passed.
const KEEP: &str = "UNDERSTUDY_E2E_KEEP";
/// Left by the inner run to show that it ran at all.
const RAN: &str = "story.ran";
/// No story takes this long: one that does hangs.
const LIMIT: Duration = Duration::from_secs(600);

/// Runs `tell` as the story `name`, which must be the name of the calling test, in a sandbox of its own.
///
/// # Panics
/// When the story fails, or the sandbox cannot be made; that is how a test fails.
pub fn story(name: &str, tell: impl FnOnce(&Lab) -> Result<()>) {
    story_within(name, LIMIT, tell);
}

/// [`story`] of something that takes longer by its nature: it is ended after `limit`.
///
/// # Panics
/// As [`story`].
#[allow(clippy::panic)]
pub fn story_within(name: &str, limit: Duration, tell: impl FnOnce(&Lab) -> Result<()>) {
    let result = match env::var(INNER) {
        Ok(inner) if inner == name => inside(name, tell),
        Ok(inner) => Err(anyhow::anyhow!("story {name} was started inside story {inner}")),
        Err(_) => test_path(name).and_then(|path| {
            let only = [&path, "--exact", "--include-ignored", "--nocapture", "--test-threads=1"];
            outside(name, &only.map(str::to_owned), limit)
        }),
    };
    if let Err(error) = result {
        panic!("story {name}: {error:#}");
    }
}

/// The path of the test `name` in this test binary, as `--exact` wants it: `host_dies::a_host_dies`.
///
/// # Errors
/// When there is no such test here, or more than one.
pub fn test_path(name: &str) -> Result<String> {
    let listed = Command::new(env::current_exe()?).args(["--list", "--format", "terse"]).output()?;
    let listed = String::from_utf8(listed.stdout)?;
    let paths = listed.lines().filter_map(|line| line.strip_suffix(": test"));
    let found: Vec<&str> = paths.filter(|path| path.rsplit("::").next() == Some(name)).collect();
    let [path] = found[..] else { bail!("a story has the name of one test, and this is that of {found:?}") };
    Ok(path.to_owned())
}

/// A whole program in the sandbox, instead of a test: runs `tell`, and ends this process with its verdict.
///
/// # Errors
/// When it fails, or the sandbox cannot be made.
pub fn performance(name: &str, tell: impl FnOnce(&Lab) -> Result<()>) -> Result<()> {
    performance_within(name, LIMIT, tell)
}

/// [`performance`] of one that may take longer than a story: it is ended after `limit`.
///
/// # Errors
/// When it fails, or the sandbox cannot be made.
pub fn performance_within(name: &str, limit: Duration, tell: impl FnOnce(&Lab) -> Result<()>) -> Result<()> {
    match env::var(INNER) {
        Ok(inner) if inner == name => inside(name, tell),
        Ok(inner) => bail!("{name} was started inside story {inner}"),
        Err(_) => outside(name, &env::args().skip(1).collect::<Vec<_>>(), limit),
    }
}

/// The folders of one story.
pub(crate) struct Folders {
    /// Logs, configurations, histories: kept when the story fails.
    pub(crate) artifacts: PathBuf,
    /// Log dirs and other bulk: never kept.
    pub(crate) data: PathBuf,
}

impl Folders {
    fn of(name: &str) -> Result<Self> {
        let base = base()?;
        Ok(Self { artifacts: base.join(name), data: base.join(format!("{name}.data")) })
    }

    fn remove(path: &Path) -> Result<()> {
        match fs::remove_dir_all(path) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                Err(error).with_context(|| format!("cannot remove {}", path.display()))
            }
            _ => Ok(()),
        }
    }
}

/// The folder that holds all stories' folders.
pub(crate) fn base() -> Result<PathBuf> {
    if let Some(base) = env::var_os(ARTIFACTS) {
        return Ok(PathBuf::from(base));
    }
    Ok(shell::build_dir()?.join("e2e"))
}

/// Free bytes where the stories have their data.
///
/// # Errors
/// When the place cannot be made or asked.
pub fn room() -> Result<u64> {
    let base = base()?;
    fs::create_dir_all(&base)?;
    let room = rustix::fs::statvfs(&base)
        .with_context(|| format!("cannot ask for the room in {}", base.display()))?;
    Ok(room.f_bavail * room.f_frsize)
}

fn outside(name: &str, arguments: &[String], limit: Duration) -> Result<()> {
    let folders = Folders::of(name)?;
    fs::create_dir_all(base()?)?;
    // A cluster wants the whole machine: one story at a time, whichever runner started them.
    let turn = File::create(base()?.join("turn.lock")).context("cannot create the lock that takes turns")?;
    turn.lock()?;
    Folders::remove(&folders.artifacts)?;
    Folders::remove(&folders.data)?;
    fs::create_dir_all(&folders.artifacts)?;
    fs::create_dir_all(&folders.data)?;

    let begin = Instant::now();
    let status = await_child(enter(name, arguments)?, limit)?;
    let ran = folders.artifacts.join(RAN).exists();
    Folders::remove(&folders.data)?;
    let took = begin.elapsed().as_secs_f64();
    ensure!(ran, "the story did not run ({status}): {}", did_not_run());
    if !status.success() {
        bail!(
            "failed after {took:.1} s ({status}); everything it left is in {}",
            folders.artifacts.display()
        );
    }
    if env::var_os(KEEP).is_some() {
        eprintln!("story {name}: passed in {took:.1} s; kept {}", folders.artifacts.display());
    } else {
        eprintln!("story {name}: passed in {took:.1} s");
        Folders::remove(&folders.artifacts)?;
    }
    Ok(())
}

/// Starts the inner run.
fn enter(name: &str, arguments: &[String]) -> Result<Child> {
    let mut command = Command::new("setpriv");
    command.args(["--pdeathsig", "KILL", "unshare"]);
    if !may_administer() {
        command.args(["--user", "--map-root-user"]);
    }
    command
        .args(["--net", "--mount", "--pid", "--fork", "--kill-child=SIGKILL", "--mount-proc"])
        .arg(env::current_exe()?)
        .args(arguments)
        .env(INNER, name);
    command.spawn().context("cannot run setpriv and unshare (package util-linux)")
}

/// Whether we have `CAP_SYS_ADMIN` as it is: root of a container often has not.
fn may_administer() -> bool {
    const CAP_SYS_ADMIN: u32 = 21;
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let effective = status.lines().find_map(|line| line.strip_prefix("CapEff:"));
    let effective = effective.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or_default();
    effective & (1 << CAP_SYS_ADMIN) != 0
}

/// Why there may be no sign of the inner run.
fn did_not_run() -> &'static str {
    if may_administer() {
        "a story must have the name of the test that tells it, and unshare (above) must not fail"
    } else {
        "if unshare (above) failed, the kernel forbids user namespaces here. Run as root (in a container: with \
         CAP_SYS_ADMIN), or allow them: sysctl user.max_user_namespaces=10000, on Debian also \
         kernel.unprivileged_userns_clone=1, on Ubuntu kernel.apparmor_restrict_unprivileged_userns=0. \
         Otherwise the story's name is not that of the test that tells it"
    }
}

fn await_child(mut child: Child, limit: Duration) -> Result<ExitStatus> {
    let begin = Instant::now();
    while begin.elapsed() < limit {
        if let Some(status) = child.try_wait()? {
            return Ok(status);
        }
        thread::sleep(Duration::from_millis(20));
    }
    eprintln!("story: no end after {limit:?}: killed");
    child.kill()?;
    Ok(child.wait()?)
}

/// The inner run: makes the hub, tells the story, and gathers what is worth keeping.
fn inside(name: &str, tell: impl FnOnce(&Lab) -> Result<()>) -> Result<()> {
    let folders = Folders::of(name)?;
    File::create(folders.artifacts.join(RAN))?;
    shell::sh("ip link set lo up").context("cannot configure the sandbox's network (package iproute2)")?;
    let lab = Lab::open(name, folders)?;
    let told = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| tell(&lab)));
    lab.collect();
    match told {
        Ok(result) => result.inspect_err(|error| unjudged::leave(error, lab.artifacts())),
        Err(panic) => std::panic::resume_unwind(panic),
    }
}
