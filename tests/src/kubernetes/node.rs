//! A node: a host with a kubelet, a containerd and a proxy of its own, and pods that are routed.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use rustix::process::{Pid, Signal};
use serde_json::json;

use super::cgroups::Cgroups;
use super::{IMAGE, PODS, Programs, SERVICES, image};
use crate::eventually;
use crate::host::Host;
use crate::lab::Lab;
use crate::process::{Process, has_words, signal_if_alive};

const PAUSE: &str = "understudy.test/pause:1";
/// A node's disk as its programs know it; it survives a loss of power.
const DISK: &str = "/srv/disk";
/// How long containerd may take to answer.
const SOON: Duration = Duration::from_secs(120);
/// What a kubelet wants of the kernel, which is the machine's: it finds these values, and so writes none.
const TUNABLES: [(&str, &str); 6] = [
    ("vm/overcommit_memory", "1"),
    ("vm/panic_on_oom", "0"),
    ("kernel/panic", "10"),
    ("kernel/panic_on_oops", "1"),
    ("kernel/keys/root_maxkeys", "1000000"),
    ("kernel/keys/root_maxbytes", "25000000"),
];

/// The address of a node.
pub(super) fn address(number: u8) -> String {
    format!("10.77.0.{}", 50 + number)
}

/// The addresses of a node's pods.
pub(super) fn pods(number: u8) -> String {
    format!("10.244.{number}.0/24")
}

/// A node of a [`Kubernetes`](super::Kubernetes).
#[derive(Debug)]
pub struct Node {
    host: Arc<Host>,
    programs: Programs,
    files: PathBuf,
    cgroup: String,
    /// What makes the host a node each time its power comes.
    script: String,
    images: Vec<PathBuf>,
    processes: Mutex<Processes>,
}

#[derive(Debug, Default)]
struct Processes {
    kubelet: Option<Arc<Process>>,
    containerd: Option<Arc<Process>>,
}

impl Node {
    /// Makes the node number `number` of `count`, and starts nothing.
    pub(super) fn prepare(
        lab: &Lab,
        programs: &Programs,
        files: &Path,
        cgroups: &Cgroups,
        (number, count): (u8, u8),
    ) -> Result<Self> {
        let host = lab.host(&format!("node-{number}"), &address(number))?;
        host.bind(&lab.shared(&format!("{}-disk", host.name()))?, DISK)?;
        let cgroup = cgroups.make(host.name())?;
        let images = lab.shared("images")?;
        if !images.join("pause").exists() {
            write_images(programs, &images)?;
        }
        let images = archives(&images)?;
        let script = script(number, count);
        write_config(&host, programs, files, &cgroup, number)?;
        let (programs, files) = (programs.clone(), files.to_owned());
        Ok(Self { host, programs, files, cgroup, script, images, processes: Mutex::default() })
    }

    /// Starts everything that a node runs, after its power came.
    ///
    /// # Errors
    /// When containerd does not answer, or something ends at once.
    pub fn boot(&self) -> Result<()> {
        let output = self.host.run(&["sh", "-ec", &self.script])?;
        ensure!(output.code == 0, "{} does not boot: {}", self.name(), output.stderr);
        let path = self.programs.search_path();
        let environment = [("PATH", path.as_str())];
        let containerd = [&self.programs.path("containerd"), "--config", "/srv/local/containerd.toml"];
        let containerd = self.host.spawn_with("containerd", &containerd, &environment)?;
        eventually(&format!("containerd of {}", self.name()), SOON, || self.ctr(&["version"]).map(drop))?;
        for image in &self.images {
            self.import(image)?;
        }
        let file = |name: String| self.files.join(name).display().to_string();
        let kubelet = [
            self.programs.path("kubelet"),
            format!("--config={}", self.host.local().join("kubelet.json").display()),
            format!("--kubeconfig={}", file(format!("{}.kubeconfig", self.name()))),
            format!("--hostname-override={}", self.name()),
            format!("--node-ip={}", self.host.address()),
        ];
        let kubelet = self.host.spawn_with("kubelet", &kubelet, &environment)?;
        let proxy = [
            self.programs.path("kube-proxy"),
            format!("--config={}", file(format!("kube-proxy-{}.json", self.name()))),
        ];
        self.host.spawn_with("kube-proxy", &proxy, &environment)?;
        *self.processes.lock().unwrap_or_else(PoisonError::into_inner) =
            Processes { kubelet: Some(kubelet), containerd: Some(containerd) };
        Ok(())
    }

    /// Its name.
    #[must_use]
    pub fn name(&self) -> &str {
        self.host.name()
    }

    /// Its host, which can lose power with all its containers, freeze and be cut off.
    #[must_use]
    pub fn host(&self) -> &Arc<Host> {
        &self.host
    }

    /// Its kubelet.
    ///
    /// # Errors
    /// When it was never started.
    pub fn kubelet(&self) -> Result<Arc<Process>> {
        let processes = self.processes.lock().unwrap_or_else(PoisonError::into_inner);
        processes.kubelet.clone().with_context(|| format!("{} was never started", self.name()))
    }

    /// Its containerd.
    ///
    /// # Errors
    /// When it was never started.
    pub fn containerd(&self) -> Result<Arc<Process>> {
        let processes = self.processes.lock().unwrap_or_else(PoisonError::into_inner);
        processes.containerd.clone().with_context(|| format!("{} was never started", self.name()))
    }

    /// Where its cgroups are, below each hierarchy.
    #[must_use]
    pub fn cgroup(&self) -> &str {
        &self.cgroup
    }

    /// The processes in the node's containers whose command line has all of `words`, as the sandbox numbers them.
    ///
    /// # Errors
    /// When `/proc` cannot be read.
    pub fn containers(&self, words: &[&str]) -> Result<Vec<Pid>> {
        let below = format!("{}/", self.cgroup);
        let is_inside = |pid: &Pid| {
            let groups = fs::read_to_string(format!("/proc/{}/cgroup", pid.as_raw_nonzero()));
            groups.is_ok_and(|groups| groups.contains(&below)) && has_words(*pid, words)
        };
        let all = fs::read_dir("/proc")?
            .filter_map(|entry| Pid::from_raw(entry.ok()?.file_name().to_str()?.parse().ok()?));
        Ok(all.filter(is_inside).collect())
    }

    /// Stops (`SIGSTOP`) every process of the node, those in its containers too.
    ///
    /// # Errors
    /// When it is off.
    pub fn freeze(&self) -> Result<()> {
        self.host.freeze()?;
        self.containers(&[])?.into_iter().try_for_each(|pid| signal_if_alive(pid, Signal::STOP))
    }

    /// Lets every process go on (`SIGCONT`).
    ///
    /// # Errors
    /// When it is off.
    pub fn thaw(&self) -> Result<()> {
        self.containers(&[])?.into_iter().try_for_each(|pid| signal_if_alive(pid, Signal::CONT))?;
        self.host.thaw()
    }

    /// Takes the images of an archive in; they stay on its disk.
    pub(super) fn import(&self, archive: &Path) -> Result<()> {
        self.ctr(&["--namespace=k8s.io", "images", "import", &archive.display().to_string()]).map(drop)
    }

    /// Runs containerd's own client on the node, and returns what it prints.
    ///
    /// # Errors
    /// When it fails.
    pub fn ctr(&self, arguments: &[&str]) -> Result<String> {
        let output = self.host.run(&[&[self.programs.path("ctr").as_str()], arguments].concat())?;
        ensure!(output.code == 0, "ctr {arguments:?} on {}: {}", self.name(), output.stderr.trim());
        Ok(output.stdout)
    }
}

/// What is the node's own, each time anew: `/var/lib` from its disk, `/run` empty, and its routes.
fn script(number: u8, count: u8) -> String {
    let mut lines = vec![
        format!("mkdir -p {DISK}/lib {DISK}/tunables"),
        // What is mounted in one place of a node shows in its containers that ask for it.
        "mount --make-rshared /".to_owned(),
        format!("mount --bind {DISK}/lib /var/lib"),
        "mount -t tmpfs -o mode=755 tmpfs /run".to_owned(),
        "mkdir -p /var/lib/kubelet /var/lib/containerd".to_owned(),
        "echo 1 >/proc/sys/net/ipv4/ip_forward".to_owned(),
        format!("ip route add {SERVICES} dev eth0"),
    ];
    for (path, value) in TUNABLES {
        let file = format!("{DISK}/tunables/{}", path.replace('/', "-"));
        lines.push(format!(
            "if [ -e /proc/sys/{path} ]; then echo {value} >{file}; mount --bind {file} /proc/sys/{path}; fi"
        ));
    }
    for other in (1..=count).filter(|other| *other != number) {
        lines.push(format!("ip route add {} via {}", pods(other), address(other)));
    }
    lines.join("\n")
}

fn write_config(host: &Host, programs: &Programs, files: &Path, cgroup: &str, number: u8) -> Result<()> {
    let local = host.local();
    let containerd = format!(
        r#"version = 2
# It would make a folder in /opt.
disabled_plugins = ["io.containerd.internal.v1.opt"]
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "{PAUSE}"
  # Root may lack the capability to lower it.
  restrict_oom_score_adj = true
  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = "{}"
    conf_dir = "/srv/local/cni"
"#,
        programs.plugins().display()
    );
    fs::write(local.join("containerd.toml"), containerd)?;
    // By routes, not by a bridge: so traffic between two pods of a node passes the proxy's rules as any other.
    let network = json!({ "cniVersion": "0.4.0", "name": "pods", "plugins": [{
        "type": "ptp", "ipMasq": false,
        "ipam": {
            "type": "host-local", "dataDir": "/run/cni",
            "ranges": [[{ "subnet": pods(number) }]], "routes": [{ "dst": "0.0.0.0/0" }],
        },
    }] });
    fs::create_dir_all(local.join("cni"))?;
    fs::write(local.join("cni/10-pods.conflist"), network.to_string())?;
    let kubelet = json!({
        "apiVersion": "kubelet.config.k8s.io/v1beta1", "kind": "KubeletConfiguration",
        "containerRuntimeEndpoint": "unix:///run/containerd/containerd.sock",
        "cgroupDriver": "cgroupfs", "cgroupRoot": cgroup, "failCgroupV1": false, "failSwapOn": false,
        "makeIPTablesUtilChains": false, "oomScoreAdj": 0,
        "volumePluginDir": "/var/lib/kubelet/plugins",
        "podLogsDir": "/srv/local/pods",
        "authentication": { "anonymous": { "enabled": true }, "webhook": { "enabled": false } },
        "authorization": { "mode": "AlwaysAllow" },
        // The machine is shared with whatever else runs there.
        "imageGCHighThresholdPercent": 100,
        "evictionHard": {
            "memory.available": "50Mi", "nodefs.available": "1%", "nodefs.inodesFree": "1%",
            "imagefs.available": "1%", "imagefs.inodesFree": "1%",
        },
    });
    fs::write(local.join("kubelet.json"), kubelet.to_string())?;
    let proxy = json!({
        "apiVersion": "kubeproxy.config.k8s.io/v1alpha1", "kind": "KubeProxyConfiguration",
        "mode": "nftables", "clusterCIDR": PODS, "hostnameOverride": host.name(), "oomScoreAdj": 0,
        "clientConnection": { "kubeconfig": files.join("kube-proxy.kubeconfig") },
        // The machine's own limits stay what they are.
        "conntrack": { "maxPerCore": 0, "min": 0, "tcpEstablishedTimeout": "0s", "tcpCloseWaitTimeout": "0s" },
    });
    fs::write(files.join(format!("kube-proxy-{}.json", host.name())), proxy.to_string())
        .context("cannot write the proxy's configuration")
}

/// The image of every pod's first container, and the one of the bed.
fn write_images(programs: &Programs, folder: &Path) -> Result<()> {
    let pause = folder.join("pause");
    fs::create_dir_all(&pause)?;
    fs::copy(programs.path("pause"), pause.join("pause"))?;
    image::write(PAUSE, &pause, &["/pause"], folder)?;
    let root = folder.join("userland");
    for directory in ["dev", "etc", "opt", "proc", "sys", "tmp", "usr", "var"] {
        fs::create_dir_all(root.join(directory))?;
    }
    // As on the machine whose /usr a pod may mount.
    for link in ["bin", "lib", "lib64", "sbin"] {
        symlink(format!("usr/{link}"), root.join(link))?;
    }
    fs::copy(programs.path("busybox"), root.join("busybox"))?;
    image::write(IMAGE, &root, &["/busybox"], folder).map(drop)
}

fn archives(folder: &Path) -> Result<Vec<PathBuf>> {
    let entries = fs::read_dir(folder)?.map(|entry| Ok(entry?.path()));
    let entries: Vec<PathBuf> = entries.collect::<std::io::Result<_>>()?;
    Ok(entries
        .into_iter()
        .filter(|path| path.extension().is_some_and(|extension| extension == "tar"))
        .collect())
}
