//! Building the bed. Packages come from the machine's own Debian mirror, checked by the archive's keyring,
//! with an apt whose state is in the staging area: the machine's own is left alone.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};

use super::{FILES, FURNISH, KERNEL_SUITES, PACKAGES, PARTS, SUITE};
use crate::shell;

const KEYRING: &str = "/usr/share/keyrings/debian-archive-keyring.gpg";
/// Where Debian is when the machine's own sources do not say.
const DEBIAN: &str = "http://deb.debian.org/debian";
/// Installing two hundred packages takes a few minutes; a mirror that says nothing, for ever.
const LIMIT: Duration = Duration::from_secs(30 * 60);
/// A guest's disk: twice what is on it. What is not written takes no room.
const DISK: &str = "1536M";
/// The C library and loader of the kernel's suite.
const LIBRARIES: &[&str] = &["libc.so.6", "ld-linux-x86-64.so.2"];

/// Builds the bed in `staging/bed`; returns where it is to be, as `place` says once its parts are known.
pub(super) fn build(staging: &Path, place: impl FnOnce(&str) -> PathBuf) -> Result<PathBuf> {
    let mirror = mirror();
    let bed = staging.join("bed");
    fs::create_dir(&bed)?;
    let parts = fetch_kernel(staging, &mirror)?;
    let home = place(&parts);
    eprintln!("building the NFS tier's hosts into {} (once; some minutes)", home.display());
    fs::write(bed.join(PARTS), &parts)?;
    let version = install_kernel(staging, &bed, &home)?;
    install_debian(staging, &bed, &mirror)?;
    furnish(staging, &bed, &version)?;
    super::write_manifest(&bed)?;
    Ok(home)
}

/// The machine's own source of Debian.
fn mirror() -> String {
    let mut list = Command::new("apt-get");
    list.args(["indextargets", "--format", "$(CREATED_BY) $(COMPONENT) $(RELEASE) $(REPO_URI)"]);
    let listed = shell::stdout_of(&mut list).unwrap_or_default();
    let found = listed.lines().find_map(|line| line.strip_prefix(&format!("Packages main {SUITE} ")));
    found.map_or(DEBIAN, |uri| uri.trim_end_matches('/')).to_owned()
}

/// Downloads a kernel and its C library, and unpacks them; returns what they are.
fn fetch_kernel(staging: &Path, mirror: &str) -> Result<String> {
    let mut problems = Vec::new();
    for suite in KERNEL_SUITES {
        match fetch_from(suite, staging, mirror) {
            Ok(parts) => return Ok(parts),
            Err(error) => problems.push(format!("{suite}: {error:#}")),
        }
    }
    bail!("no User-mode Linux can be had from {mirror}: {}", problems.join("; "))
}

fn fetch_from(suite: &str, staging: &Path, mirror: &str) -> Result<String> {
    let area = staging.join(format!("apt-{suite}"));
    for directory in ["lists/partial", "cache/archives/partial", "debs", "kernel"] {
        fs::create_dir_all(area.join(directory))?;
    }
    fs::write(area.join("sources.list"), format!("deb [signed-by={KEYRING}] {mirror} {suite} main\n"))?;
    fs::write(area.join("status"), "")?;
    let apt = || {
        let mut apt = Command::new("apt-get");
        let option = |name: &str, path: &str| format!("-o{name}={}", area.join(path).display());
        apt.current_dir(area.join("debs"))
            .stdin(Stdio::null())
            .args(["--quiet=2", "-oDir::Etc::sourceparts=/dev/null", "-oAPT::Sandbox::User=root"])
            .args([
                "-oAcquire::Retries=3",
                "-oAcquire::http::Timeout=60",
                "-oAcquire::IndexTargets::deb::DEP-11::DefaultEnabled=false",
            ])
            .arg(option("Dir::Etc::sourcelist", "sources.list"))
            .arg(option("Dir::State::lists", "lists"))
            .arg(option("Dir::State::status", "status"))
            .arg(option("Dir::Cache", "cache"));
        apt
    };
    shell::run_within(LIMIT, apt().arg("update"))?;
    shell::run_within(LIMIT, apt().args(["download", "user-mode-linux", "libc6"]))?;
    let sums = "set -e; sha256sum *.deb; for deb in *.deb; do dpkg-deb --extract $deb ../kernel; done";
    let sums = shell::stdout_of(Command::new("sh").args(["-c", sums]).current_dir(area.join("debs")))?;
    ensure!(sums.lines().count() == 2, "it has not both of kernel and C library");
    fs::rename(area.join("kernel"), staging.join("kernel"))?;
    Ok(sums)
}

/// Puts the kernel into the bed, so that it finds its C library where both are going to be; returns its
/// version.
fn install_kernel(staging: &Path, bed: &Path, home: &Path) -> Result<String> {
    let unpacked = staging.join("kernel");
    let library = bed.join("lib");
    fs::create_dir(&library)?;
    for name in LIBRARIES {
        let from = unpacked.join("usr/lib/x86_64-linux-gnu").join(name);
        fs::copy(&from, library.join(name)).with_context(|| format!("there is no {}", from.display()))?;
    }
    let linux = bed.join("linux");
    fs::copy(unpacked.join("usr/bin/linux.uml"), &linux).context("the package has no kernel")?;
    let later = home.join("lib");
    let mut patch = Command::new("patchelf");
    patch.arg("--set-interpreter").arg(later.join("ld-linux-x86-64.so.2"));
    shell::run(patch.arg("--set-rpath").arg(&later).arg(&linux))?;
    let modules = fs::read_dir(unpacked.join("usr/lib/uml/modules")).context("the package has no modules")?;
    let version = modules.flatten().next().context("the package has no modules")?.file_name();
    version.into_string().map_err(|name| anyhow::anyhow!("{} is no version", name.display()))
}

fn install_debian(staging: &Path, bed: &Path, mirror: &str) -> Result<()> {
    let log = fs::File::create(staging.join("debootstrap.log"))?;
    let mut debootstrap = Command::new("debootstrap");
    debootstrap
        .args(["--variant=minbase", "--force-check-gpg", &format!("--keyring={KEYRING}")])
        .arg(format!("--include={}", PACKAGES.join(",")))
        .arg(SUITE)
        .arg(bed.join("root"))
        .arg(mirror)
        .stdin(Stdio::null())
        .stdout(log.try_clone()?)
        .stderr(log);
    shell::run_within(LIMIT, &mut debootstrap).with_context(|| {
        let log = fs::read_to_string(staging.join("debootstrap.log")).unwrap_or_default();
        let last = log.lines().rev().take(5).collect::<Vec<_>>();
        format!(
            "cannot install Debian from {mirror}: {}",
            last.into_iter().rev().collect::<Vec<_>>().join("; ")
        )
    })
}

/// Makes the guests' image, and of the directory that it was made of the server's root.
fn furnish(staging: &Path, bed: &Path, version: &str) -> Result<()> {
    let root = bed.join("root");
    let modules = root.join("usr/lib/modules");
    fs::create_dir_all(&modules)?;
    let from = staging.join("kernel/usr/lib/uml/modules").join(version);
    shell::run(Command::new("cp").arg("-a").arg(&from).arg(&modules))?;
    for (path, mode, content) in FILES {
        let path = root.join(path);
        fs::write(&path, content)?;
        fs::set_permissions(&path, fs::Permissions::from_mode(*mode))?;
    }
    let script = staging.join("furnish");
    fs::write(&script, FURNISH)?;
    shell::run(Command::new("sh").arg(&script).arg(&root).arg(version))?;
    let mut image = Command::new("mkfs.ext4");
    image.args(["-q", "-F", "-L", "bed", "-J", "size=16", "-d"]).arg(&root);
    shell::run(image.arg(bed.join("root.ext4")).arg(DISK))?;
    for unneeded in ["usr/lib/jvm", "usr/lib/modules", "usr/lib/udev"] {
        fs::remove_dir_all(root.join(unneeded)).with_context(|| format!("there is no {unneeded}"))?;
    }
    Ok(())
}
