//! A Kubernetes for tests, built once: `<cache>/kubernetes-<hash of its recipe and of the Go version>`.
//!
//! - `bin`: etcd, the API server, controller manager, scheduler, proxy, kubelet, kubectl, helm and a pause program, each
//!   of its Go module at the version in `kubernetes-bed/*/go.mod`; containerd, runc and busybox of Debian's packages;
//! - `cni`: the plugins that give pods their links, of Debian's as well.
//!
//! Nothing is installed on the machine. The directory appears by one rename, when it is complete.

mod build;

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};

use crate::cache::{self, Staging};
use crate::go::{self, Module};
use crate::kafka::fnv1a;
use crate::preflight::{self, Missing};

/// By which tests find it.
pub(crate) const VARIABLE: &str = "UNDERSTUDY_KUBERNETES_BED";
/// What builds it, for a person who reads that it is not there.
pub(crate) const HINT: &str =
    "not in the cache: `cargo xtask setup --tier kubernetes` builds it (once; ten minutes of two processors)";

const CLUSTER: Module = Module {
    name: "cluster",
    files: &[
        ("go.mod", include_str!("../../kubernetes-bed/cluster/go.mod")),
        ("go.sum", include_str!("../../kubernetes-bed/cluster/go.sum")),
        ("pause/main.go", include_str!("../../kubernetes-bed/cluster/pause/main.go")),
    ],
    version: "-X k8s.io/component-base/version.gitVersion=v1.36.3 \
              -X k8s.io/component-base/version.gitMajor=1 -X k8s.io/component-base/version.gitMinor=36",
    programs: &[
        ("pause", "understudy/kubernetes-bed/cluster/pause"),
        ("etcd", "go.etcd.io/etcd/server/v3"),
        ("kube-apiserver", "k8s.io/kubernetes/cmd/kube-apiserver"),
        ("kubectl", "k8s.io/kubernetes/cmd/kubectl"),
        ("kubelet", "k8s.io/kubernetes/cmd/kubelet"),
        ("kube-controller-manager", "k8s.io/kubernetes/cmd/kube-controller-manager"),
        ("kube-scheduler", "k8s.io/kubernetes/cmd/kube-scheduler"),
        ("kube-proxy", "k8s.io/kubernetes/cmd/kube-proxy"),
    ],
};
/// By itself, for it wants other versions of what both use.
const HELM: Module = Module {
    name: "helm",
    files: &[
        ("go.mod", include_str!("../../kubernetes-bed/helm/go.mod")),
        ("go.sum", include_str!("../../kubernetes-bed/helm/go.sum")),
    ],
    version: "-X helm.sh/helm/v4/internal/version.version=v4.3.1",
    programs: &[("helm", "helm.sh/helm/v4/cmd/helm")],
};
const MODULES: [Module; 2] = [CLUSTER, HELM];

/// Debian's packages, and what is taken of each: path in the package, path in the bed.
const PACKAGES: &[(&str, &[(&str, &str)])] = &[
    (
        "containerd",
        &[
            ("usr/bin/containerd", "bin/containerd"),
            ("usr/bin/containerd-shim-runc-v2", "bin/containerd-shim-runc-v2"),
            ("usr/bin/ctr", "bin/ctr"),
        ],
    ),
    ("runc", &[("usr/sbin/runc", "bin/runc")]),
    (
        "containernetworking-plugins",
        &[
            ("usr/lib/cni/host-local", "cni/host-local"),
            ("usr/lib/cni/loopback", "cni/loopback"),
            ("usr/lib/cni/ptp", "cni/ptp"),
        ],
    ),
    ("busybox-static", &[("bin/busybox", "bin/busybox")]),
];

/// Why it cannot be built here; `None` where it can, or is there already.
pub(crate) fn obstacle() -> Option<String> {
    if there().is_some() {
        return None;
    }
    if !preflight::is_debian() {
        return Some("containerd, runc and the CNI plugins are Debian's: run this on Debian 12".to_owned());
    }
    go_version().err().map(|error| format!("{error:#}"))
}

/// Why nodes cannot run here; `None` where they can.
pub(crate) fn nodes_obstacle() -> Option<String> {
    let root = preflight::is_root().unwrap_or_default();
    (!root).then(|| "kubelet and containerd take root: run this as root".to_owned())
}

/// The directory of a complete bed, where nodes can run.
///
/// # Errors
/// They cannot, or as [`ensure`].
pub(crate) fn with_nodes() -> Result<PathBuf> {
    match nodes_obstacle().or_else(obstacle) {
        Some(why) => Err(Missing(format!("there can be no nodes of Kubernetes here: {why}")).into()),
        None => ensure(),
    }
}

/// Its directory, if it was built with this recipe and this Go.
pub(crate) fn there() -> Option<PathBuf> {
    let home = cache::dir().ok()?.join(directory(&go_version().ok()?));
    missing(&home).is_none().then_some(home)
}

/// The directory of a complete bed; it is built if need be.
///
/// # Errors
/// Go is missing or too old, a module or package cannot be had, or the cache directory cannot be written.
pub(crate) fn ensure() -> Result<PathBuf> {
    let cache = cache::dir()?;
    fs::create_dir_all(&cache).with_context(|| format!("cannot make {}", cache.display()))?;
    let home = cache.join(directory(&go_version()?));
    match missing(&home) {
        None => return Ok(home),
        Some(file) if home.exists() => {
            eprintln!("the cached Kubernetes is not usable, building it anew: {file} is missing");
            fs::remove_dir_all(&home)
                .with_context(|| format!("cannot remove {}: remove it by hand", home.display()))?;
        }
        Some(_) => {}
    }
    let staging = Staging::new(&cache, "kubernetes-staging-")?;
    eprintln!("building Kubernetes into {} (once; ten minutes of two processors)", home.display());
    let built = build::build(staging.path())?;
    if let Some(file) = missing(&built) {
        bail!("it was built without {file}");
    }
    if let Err(error) = fs::rename(&built, &home) {
        // Another run may have been quicker; then its copy serves as well.
        if missing(&home).is_some() {
            return Err(error).with_context(|| format!("cannot put it into place at {}", home.display()));
        }
    }
    Ok(home)
}

/// The first of a bed's files that is not there.
fn missing(home: &Path) -> Option<String> {
    let programs = MODULES.iter().flat_map(|module| module.programs).map(|(name, _)| format!("bin/{name}"));
    let packaged = PACKAGES.iter().flat_map(|(_, files)| *files).map(|(_, to)| (*to).to_owned());
    let is_there = |name: &String| fs::metadata(home.join(name)).is_ok_and(|file| file.len() > 0);
    programs.chain(packaged).find(|name| !is_there(name))
}

fn directory(go: &str) -> String {
    let mut recipe = format!("{go}\n");
    for module in &MODULES {
        recipe +=
            &format!("{}\n{}\n{:?}\n{:?}\n", module.name, module.version, module.programs, module.files);
    }
    recipe += &format!("{PACKAGES:?}");
    format!("kubernetes-{:016x}", fnv1a(recipe.as_bytes()))
}

fn go_version() -> Result<String> {
    go::version_for("Kubernetes", &MODULES)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_versions_that_programs_tell_are_those_of_their_modules() {
        let told = |module: &Module, key: &str| {
            let flag = module.version.split_whitespace().find_map(|flag| flag.strip_prefix(key)).unwrap();
            module.files[0].1.contains(&format!(" {flag}"))
        };
        assert!(told(&CLUSTER, "k8s.io/component-base/version.gitVersion="));
        assert!(told(&HELM, "helm.sh/helm/v4/internal/version.version="));
        for module in &MODULES {
            for (program, package) in module.programs {
                let ours = package.starts_with("understudy/");
                assert!(
                    ours || module.files[0].1.contains(&format!("\t{package}\n"))
                        || module.files[0].1.contains(&format!("tool {package}\n")),
                    "{program}"
                );
            }
        }
    }

    #[test]
    fn a_bed_that_lacks_a_program_is_none() {
        let home = tempfile::tempdir().unwrap();
        for folder in ["bin", "cni"] {
            fs::create_dir(home.path().join(folder)).unwrap();
        }
        while let Some(name) = missing(home.path()) {
            fs::write(home.path().join(name), "x").unwrap();
        }
        for name in ["bin/kubelet", "cni/ptp"] {
            fs::write(home.path().join(name), "").unwrap();
            assert_eq!(missing(home.path()).as_deref(), Some(name), "one cut short");
            fs::write(home.path().join(name), "x").unwrap();
        }
        assert_ne!(directory("go1.26.8"), directory("go1.26.9"));
    }
}
