//! `cargo xtask image`: the agent's container image, made without a daemon and without a network.
//!
//! The program is linked statically: by the GNU C library, whose lookup of names works so too. So the image has no
//! other program, and an init container can copy it into any image of Kafka, whatever C library that has. The same
//! checkout, compiler, C library and CA certificates make the same digest, in whichever directory: paths are mapped
//! away, and all times are that of the commit.

mod archive;
mod tree;

use std::env;
use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};
use jiff::Timestamp;

use crate::preflight::{self, Scope};
use crate::workspace::{Profile, Workspace};
use archive::About;
use tree::Tree;

/// Who the agent is, by the number that the chart has too.
const USER: u32 = 1000;
/// EC2 and ONTAP may be asked with certificates of public authorities.
const AUTHORITIES: &str = "/etc/ssl/certs/ca-certificates.crt";
/// Where the program is in the image, as in a package.
const PROGRAM: &str = "usr/bin/understudy";

/// Make the agent's container image: an OCI archive, as `skopeo copy oci-archive:FILE`, `podman load` and
/// `ctr images import` read it. Prints its digest, which is the same each time.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Where the archive is written.
    #[arg(long, value_name = "FILE", default_value = "target/understudy-image.tar")]
    output: PathBuf,
    /// What the image is called where the archive is loaded.
    #[arg(long, value_name = "NAME:TAG", default_value = concat!("localhost/understudy:", env!("CARGO_PKG_VERSION")))]
    name: String,
    /// An agent that was built elsewhere, with the libraries that it is linked with; by default it is built here.
    #[arg(long, value_name = "FILE")]
    agent: Option<PathBuf>,
}

/// Runs the command.
pub(crate) fn run(args: &Args) -> Result<()> {
    let workspace = Workspace::find()?;
    let agent = match &args.agent {
        Some(agent) => agent.clone(),
        None => build(&workspace)?,
    };
    let made = commit(&workspace);
    let tree = content(&agent)?;
    let about =
        About { name: &args.name, program: PROGRAM, user: USER, made: made.at, revision: made.revision };
    let image = archive::write(&tree, &about)?;
    let output = workspace.root.join(&args.output);
    let new = output.with_extension("new");
    fs::create_dir_all(output.parent().context("--output names no file")?)?;
    fs::write(&new, &image.archive)
        .and_then(|()| fs::rename(&new, &output))
        .with_context(|| format!("cannot write {}", output.display()))?;
    eprintln!("{} in {}: {} MiB", args.name, output.display(), image.archive.len() >> 20);
    writeln!(io::stdout(), "{}", image.digest).context("cannot print the digest")
}

/// Builds the agent as it is shipped, in a target directory of its own: all of it is compiled with these flags.
fn build(workspace: &Workspace) -> Result<PathBuf> {
    preflight::ensure(Scope::Build)?;
    let home = env::var_os("CARGO_HOME").map(PathBuf::from);
    let home = home.or_else(|| Some(PathBuf::from(env::var_os("HOME")?).join(".cargo")));
    let home = home.context("neither CARGO_HOME nor HOME is set")?;
    let flags = [
        "-Ctarget-feature=+crt-static".to_owned(),
        format!("--remap-path-prefix={}=/cargo", home.display()),
        format!("--remap-path-prefix={}=/understudy", workspace.root.display()),
    ];
    let environment = [
        ("CARGO_ENCODED_RUSTFLAGS", flags.join("\u{1f}")),
        ("CARGO_PROFILE_RELEASE_DEBUG", "false".to_owned()),
        ("CARGO_PROFILE_RELEASE_STRIP", "symbols".to_owned()),
        // OpenSSL of the machine, zlib of the crate's own source.
        ("OPENSSL_STATIC", "1".to_owned()),
        ("OPENSSL_LIB_DIR", format!("/usr/lib/{}-linux-gnu", env::consts::ARCH)),
        ("OPENSSL_INCLUDE_DIR", "/usr/include".to_owned()),
        ("LIBZ_SYS_STATIC", "1".to_owned()),
        // With a target that is named, build scripts and macros are compiled without these flags.
        ("CARGO_BUILD_TARGET", format!("{}-unknown-linux-gnu", env::consts::ARCH)),
    ];
    let target = target(workspace).join("image");
    workspace.build_with(&target, &["understudy"], Profile::Release, &environment)?.path("understudy")
}

fn target(workspace: &Workspace) -> PathBuf {
    workspace
        .root
        .join(env::var_os("CARGO_TARGET_DIR").map_or_else(|| PathBuf::from("target"), PathBuf::from))
}

/// What is in the image.
fn content(agent: &Path) -> Result<Tree> {
    let mut tree = Tree::default();
    let read = |path: &Path| fs::read(path).with_context(|| format!("cannot read {}", path.display()));
    tree.file(PROGRAM, 0o755, read(agent)?);
    for library in libraries(agent)? {
        tree.file(library.trim_start_matches('/'), 0o755, read(Path::new(&library))?);
    }
    let authorities = read(Path::new(AUTHORITIES)).context("install ca-certificates")?;
    tree.file(AUTHORITIES.trim_start_matches('/'), 0o644, authorities);
    let passwd = format!(
        "root:x:0:0:root:/:/sbin/nologin\nunderstudy:x:{USER}:{USER}:Understudy:/var/lib/understudy:/sbin/nologin\n"
    );
    tree.file("etc/passwd", 0o644, passwd.into_bytes());
    tree.file("etc/group", 0o644, format!("root:x:0:\nunderstudy:x:{USER}:\n").into_bytes());
    tree.directory("etc/understudy", 0o755, 0);
    tree.directory("tmp", 0o1777, 0);
    for own in ["run/understudy", "var/lib/understudy"] {
        tree.directory(own, 0o750, USER);
    }
    Ok(tree)
}

/// The shared libraries that a program is linked with.
fn libraries(program: &Path) -> Result<Vec<String>> {
    let asked = Command::new("ldd").arg(program).output().context("cannot run ldd")?;
    let said = String::from_utf8_lossy(&asked.stdout).into_owned() + &String::from_utf8_lossy(&asked.stderr);
    if said.contains("statically linked") || said.contains("not a dynamic executable") {
        return Ok(Vec::new());
    }
    if !asked.status.success() || said.contains("not found") {
        bail!("ldd cannot tell the libraries of {}: {}", program.display(), said.trim());
    }
    let place = |line: &str| line.split_whitespace().find(|word| word.starts_with('/')).map(str::to_owned);
    Ok(said.lines().filter_map(place).collect())
}

/// From what the image is made.
struct Made {
    at: Timestamp,
    revision: Option<String>,
}

/// The commit's time, or that of `SOURCE_DATE_EPOCH`; the beginning of time outside a repository.
fn commit(workspace: &Workspace) -> Made {
    let git = |arguments: &[&str]| {
        let mut git = Command::new("git");
        git.arg("-C").arg(&workspace.root).args(arguments);
        let said = git.stderr(Stdio::null()).output().ok().filter(|output| output.status.success())?;
        Some(String::from_utf8(said.stdout).ok()?.trim().to_owned())
    };
    let epoch = env::var("SOURCE_DATE_EPOCH").ok().or_else(|| git(&["log", "-1", "--format=%ct"]));
    let seconds = epoch.and_then(|text| text.parse().ok()).unwrap_or_default();
    let revision = git(&["rev-parse", "HEAD"]);
    let changed =
        git(&["status", "--porcelain", "--untracked-files=no"]).is_some_and(|said| !said.is_empty());
    Made {
        at: Timestamp::from_second(seconds).unwrap_or_default(),
        revision: revision.map(|revision| if changed { revision + "-changed" } else { revision }),
    }
}
