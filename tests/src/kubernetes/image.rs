//! Container images, made without a daemon: an archive of one layer, in the format that `ctr images import` reads.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use serde_json::json;

use super::Programs;
use crate::{agent, shell};

/// The image of the agent.
pub const AGENT_IMAGE: &str = "understudy.test/understudy:1";

/// The image of the agent as it is shipped: it has no other program.
pub const SHIPPED_IMAGE: &str = "understudy.test/shipped:1";

/// Writes the image [`SHIPPED_IMAGE`], with the agent of this build. Returns its archive and its digest.
pub(super) fn write_shipped(folder: &Path) -> Result<(PathBuf, String)> {
    let (agent, archive) = (folder.join("understudy"), folder.join("shipped.tar"));
    let (from, to) = (agent::binary()?.display().to_string(), agent.display().to_string());
    shell::run("strip", ["--strip-all", "-o", &to, &from])?;
    let xtask = shell::build_dir()?.join("xtask").display().to_string();
    let output = archive.display().to_string();
    let said = shell::run(&xtask, ["image", "--agent", &to, "--name", SHIPPED_IMAGE, "--output", &output])?;
    Ok((archive, said.trim().to_owned()))
}

/// Writes the image [`AGENT_IMAGE`]: the agent, the libraries that it is linked with, and a busybox.
pub(super) fn write_agent(programs: &Programs, folder: &Path) -> Result<PathBuf> {
    let root = folder.join("understudy");
    for directory in ["dev", "etc", "proc", "sys", "tmp", "var/lib/understudy"] {
        fs::create_dir_all(root.join(directory))?;
    }
    let agent = agent::binary()?;
    let (from, to) = (agent.display().to_string(), root.join("understudy").display().to_string());
    // A tenth of it runs; the rest is for debuggers.
    shell::run("strip", ["--strip-debug", "-o", &to, &from])?;
    fs::copy(programs.path("busybox"), root.join("busybox"))?;
    let said = shell::run("ldd", [&from])?;
    let places = said.lines().filter_map(|line| line.split_whitespace().find(|word| word.starts_with('/')));
    for place in places {
        let inside = root.join(place.trim_start_matches('/'));
        fs::create_dir_all(inside.parent().context("a library is in no directory")?)?;
        fs::copy(place, inside).with_context(|| format!("cannot copy {place}"))?;
    }
    write(AGENT_IMAGE, &root, &["/understudy"], folder)
}

/// Writes the image `name` with the content of `root`, which is the whole of its one layer.
pub(super) fn write(name: &str, root: &Path, entry: &[&str], folder: &Path) -> Result<PathBuf> {
    let work = folder.join("image");
    fs::create_dir_all(&work)?;
    let reproducible = ["--sort=name", "--mtime=@0", "--owner=0", "--group=0", "--numeric-owner"];
    let pack = |from: &Path, to: &Path| {
        let (from, to) = (from.display().to_string(), to.display().to_string());
        shell::run(
            "tar",
            [&reproducible[..], &["--directory", &from, "--create", "--file", &to, "."]].concat(),
        )
    };
    let layer = work.join("layer.tar");
    pack(root, &layer)?;
    let digest = sha256(&layer)?;
    let config = json!({
        "architecture": if cfg!(target_arch = "aarch64") { "arm64" } else { "amd64" },
        "os": "linux",
        "config": { "Entrypoint": entry, "Env": ["PATH=/bin:/usr/bin"] },
        "rootfs": { "type": "layers", "diff_ids": [format!("sha256:{digest}")] },
    });
    fs::write(work.join("config.json"), config.to_string())?;
    let manifest = json!([{ "Config": "config.json", "RepoTags": [name], "Layers": ["layer.tar"] }]);
    fs::write(work.join("manifest.json"), manifest.to_string())?;
    let archive = folder.join(format!("{}.tar", name.replace(['/', ':'], "-")));
    pack(&work, &archive)?;
    fs::remove_dir_all(&work)?;
    Ok(archive)
}

fn sha256(file: &Path) -> Result<String> {
    let said = shell::run("sha256sum", [file])?;
    said.split_whitespace().next().map(str::to_owned).context("sha256sum says nothing")
}
