use proptest::prelude::*;

use super::super::StorageConfig;
use super::*;
use crate::in_namespaces::{inside, must, run_ignored_tests_of};
use recovery::ports::chain;

const EPOCH: Epoch = Epoch(1);

fn mount(target: &Path, options: &str) -> MountConfig {
    MountConfig { source: "svm1:/kafka01".to_owned(), target: target.to_owned(), options: options.to_owned() }
}

fn nfs(mounts: Vec<MountConfig>) -> Nfs {
    let log_dirs = mounts.iter().map(|mount| mount.target.clone()).collect();
    let config: NfsConfig = NfsConfig {
        mount: mounts,
        timeout: default_timeout(),
        lock_wait: lock_wait(),
        grant: None,
        snapshot: None,
    };
    config.build(log_dirs, Path::new("/bin/true")).unwrap()
}

/// The driver as it is, but for a file system that needs no server. Like NFS, tmpfs takes any source.
fn tmpfs(mounts: Vec<MountConfig>) -> Nfs {
    Nfs { fs_type: "tmpfs", ..nfs(mounts) }
}

#[test]
fn the_documented_section_is_accepted() {
    let text = r#"
        driver = "nfs"
        [[mount]]
        source = "svm1.example.com:/kafka02"
        target = "/mnt/kafka/broker2"
    "#;
    let config: StorageConfig = toml::from_str(text).unwrap();
    let StorageConfig::Nfs(nfs) = &config else { panic!("another driver") };
    assert_eq!(nfs.mount[0].options, "vers=4.1,proto=tcp,hard,nconnect=16,noatime");
    assert!(config.build(vec![PathBuf::from("/mnt/kafka/broker2/data")], Path::new("/bin/true")).is_ok());
}

#[test]
fn bad_values_are_reported_together() {
    let mounts = vec![
        mount(Path::new("/mnt/../kafka"), "soft"),
        MountConfig { source: "svm1".to_owned(), ..mount(Path::new("/mnt/b"), "hard, noatime") },
        mount(Path::new("/mnt/b/c"), "hard"),
    ];
    let config: NfsConfig = NfsConfig {
        mount: mounts,
        timeout: Duration::ZERO,
        lock_wait: lock_wait(),
        grant: None,
        snapshot: None,
    };
    let problems = config.build(vec![PathBuf::from("/data")], Path::new("/bin/true")).unwrap_err();
    for key in [
        "mount[0].target",
        "mount[0].options",
        "mount[1].source",
        "mount[1].options",
        "timeout",
        "mount[2].target",
        "log_dirs: /data lies in no mount target",
    ] {
        assert!(problems.iter().any(|problem| problem.starts_with(key)), "{key} in {problems:?}");
    }
    assert_eq!(problems.len(), 7, "{problems:?}");
}

#[test]
fn a_target_may_be_written_with_a_slash_at_its_end() {
    let read = |target: &str| {
        let text = format!(
            "[[mount]]\nsource = \"svm1:/kafka01\"\ntarget = \"{target}\"\noptions = \"vers=4.1,hard\""
        );
        let config: NfsConfig = toml::from_str(&text).unwrap();
        config.build(vec![PathBuf::from("/mnt/kafka01/broker1/")], Path::new("/bin/true"))
    };
    for target in ["/mnt/kafka01", "/mnt/kafka01/", "/mnt//kafka01", "/mnt/./kafka01/"] {
        // It is compared, letter by letter, with what the kernel shows.
        assert_eq!(read(target).unwrap().mounts[0].target.as_os_str(), "/mnt/kafka01", "{target}");
    }
    for target in ["/", "//", "mnt/kafka01/", "/mnt/../kafka01", ""] {
        let problems = read(target).unwrap_err();
        let said = "is not an absolute path below / without `..`";
        assert!(
            problems.iter().any(|it| it.starts_with("mount[0].target: ") && it.ends_with(said)),
            "{problems:?}"
        );
    }
}

#[test]
fn a_mount_namespace_of_the_agents_own_is_told() {
    let of = |text: &str| Some(PathBuf::from(text));
    assert!(elsewhere(of("mnt:[1]"), of("mnt:[2]")).is_some());
    assert_eq!(elsewhere(of("mnt:[1]"), of("mnt:[1]")), None);
    assert_eq!(elsewhere(of("mnt:[1]"), None), None);
}

#[test]
fn mounts_in_namespaces_of_their_own() {
    run_ignored_tests_of(module_path!());
}

#[tokio::test]
#[ignore = "run by mounts_in_namespaces_of_their_own"]
async fn a_mount_is_made_found_again_and_released() {
    if !inside() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let target = dir.path().join("new/broker1");
    let nfs = tmpfs(vec![mount(&target, "noatime,size=1m")]);
    assert!(nfs.check().await.unwrap().text.contains("will be made"));
    assert!(!target.exists(), "a check made the target");

    let note = nfs.attach(EPOCH).await.unwrap();
    assert!(note.text.starts_with("svm1:/kafka01 (tmpfs) at "), "{}", note.text);
    assert!(note.text.contains("was mounted in"), "{}", note.text);
    must(&format!("touch {}/kept", target.display()));
    assert!(nfs.attach(EPOCH).await.unwrap().text.contains("was mounted already"));
    assert!(target.join("kept").exists(), "mounted a second time");
    assert!(nfs.check().await.unwrap().text.contains("is mounted here already"));

    assert!(nfs.release().await.unwrap().text.contains("was unmounted"));
    assert!(!target.join("kept").exists());
    assert!(nfs.release().await.unwrap().text.contains("is not mounted"));
}

/// On a host that knows no names but its own.
#[tokio::test]
#[ignore = "run by mounts_in_namespaces_of_their_own"]
async fn a_check_says_of_a_server_what_it_has_asked() {
    if !inside() {
        return;
    }
    must("ip link set lo up");
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    tokio::spawn(async move {
        let (mut stream, _) = listener.accept().await.unwrap();
        let reply = [1 << 31 | 24, 0x756e_6472, 1, 0, 0, 0, 0].map(u32::to_be_bytes).concat();
        tokio::io::AsyncWriteExt::write_all(&mut stream, &reply).await.unwrap();
        std::future::pending::<()>().await;
    });
    let dir = tempfile::tempdir().unwrap();
    let check = async |source: &str, options: &str| {
        let config = MountConfig { source: source.to_owned(), ..mount(dir.path(), options) };
        nfs(vec![config.clone()]).check_mount(&config).await
    };
    let says = |said: &str| format!("is not mounted now: {said}, and {} is free", dir.path().display());

    let note = check("127.0.0.1:/kafka01", &format!("port={port}")).await.unwrap();
    assert_eq!(note.text, format!("127.0.0.1:/kafka01 {}", says("its server answers")));
    let note = check("svm1-typo.invalid:/kafka01", "proto=rdma").await.unwrap();
    let said = says("its server was not tried, for it can be asked over TCP only");
    assert_eq!(note.text, format!("svm1-typo.invalid:/kafka01 {said}"));

    let error = check("svm1-typo.invalid:/kafka01", DEFAULT_OPTIONS).await.unwrap_err();
    assert_eq!(error.kind(), "refused", "{}", chain(&error));
    let text = error.to_string();
    assert!(text.contains("svm1-typo.invalid does not resolve on this host ("), "{text}");
    assert!(text.contains("correct source, or this host's DNS"), "{text}");
    let error = check("127.0.0.1:/kafka01", "port=1").await.unwrap_err().to_string();
    assert!(error.contains("no NFS server answers at 127.0.0.1 port 1"), "{error}");
}

#[tokio::test]
#[ignore = "run by mounts_in_namespaces_of_their_own"]
async fn another_source_at_the_target_is_left_alone() {
    if !inside() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    must(&format!("mount -t tmpfs svm2:/other {}", dir.path().display()));
    let nfs = tmpfs(vec![mount(dir.path(), "noatime")]);
    for error in [nfs.attach(EPOCH).await.unwrap_err(), nfs.check().await.unwrap_err()] {
        assert_eq!(error.kind(), "refused");
        assert!(error.to_string().contains("svm2:/other (tmpfs) at"), "{error}");
    }
    assert!(nfs.release().await.unwrap().text.contains("is not mounted"));
    assert!(must("cat /proc/self/mountinfo").contains("svm2:/other"));
    must(&format!("umount {}", dir.path().display()));
}

#[tokio::test]
#[ignore = "run by mounts_in_namespaces_of_their_own"]
async fn a_mount_that_is_not_what_was_asked_for_is_refused() {
    if !inside() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    must(&format!("mount -t tmpfs svm1:/kafka01 {}", dir.path().display()));
    let error = nfs(vec![mount(dir.path(), "vers=4.1,hard")]).attach(EPOCH).await.unwrap_err();
    assert!(error.to_string().contains("without vers=4.1,hard"), "{error}");
    must(&format!("umount {0}; mount -t tmpfs -o ro svm1:/kafka01 {0}", dir.path().display()));
    let error = tmpfs(vec![mount(dir.path(), "noatime")]).attach(EPOCH).await.unwrap_err();
    assert!(error.to_string().contains("mounted read-only"), "{error}");
    must(&format!("umount {}", dir.path().display()));
}

#[tokio::test]
#[ignore = "run by mounts_in_namespaces_of_their_own"]
async fn a_mount_that_fails_a_busy_target_and_a_symbolic_link_say_so() {
    if !inside() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let target = dir.path().join("t");
    let error = tmpfs(vec![mount(&target, "size=nonsense")]).attach(EPOCH).await.unwrap_err();
    assert!(error.to_string().contains("mount ended with exit code 32: "), "{error}");

    let nfs = tmpfs(vec![mount(&target, "noatime")]);
    nfs.attach(EPOCH).await.unwrap();
    let open = fs::File::create(target.join("open")).unwrap();
    let error = nfs.release().await.unwrap_err();
    assert!(error.to_string().contains("busy"), "{error}");
    drop(open);
    nfs.release().await.unwrap();

    let link = dir.path().join("link");
    std::os::unix::fs::symlink(&target, &link).unwrap();
    let linked = tmpfs(vec![mount(&link, "noatime")]);
    for error in [linked.attach(EPOCH).await.unwrap_err(), linked.check().await.unwrap_err()] {
        assert!(error.to_string().contains("symbolic link"), "{error}");
    }
}

#[tokio::test]
async fn a_helper_that_hangs_is_unconfirmed() {
    let nfs = Nfs { timeout: Duration::from_millis(100), ..nfs(vec![mount(Path::new("/mnt/x"), "hard")]) };
    let error = nfs.run("sleep", &[OsStr::new("1000")], "mount it").await.unwrap_err();
    assert_eq!(error.kind(), "unconfirmed");
    assert!(chain(&error).contains("is the server alive?"), "{}", chain(&error));
}

/// A program that stands for this one: it looks at the mount, which says by its files how it is.
fn prober(dir: &Path) -> PathBuf {
    use std::os::unix::fs::PermissionsExt;
    let program = dir.join("program");
    let script = "#!/bin/sh\n[ \"$2\" = flush ] && exec sync -f \"$4\"\n[ -e \"$4/hung\" ] && exec sleep 1000\n\
                  [ -e \"$4/stale\" ] || exit 0\necho 'error: Stale file handle' >&2\nexit 1\n";
    fs::write(&program, script).unwrap();
    fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).unwrap();
    program
}

/// What the kernel would say of the NFS file system that a tmpfs stands for.
fn pretend(proc: &Path, device: &str, target: &Path, pages_updated: u32) {
    fs::create_dir_all(proc.join("fs/nfsfs")).unwrap();
    fs::create_dir_all(proc.join("self")).unwrap();
    let volumes = format!("NV SERVER PORT DEV FSID FSC\nv4 0a630001 801 {device} 98:0 no\n");
    fs::write(proc.join("fs/nfsfs/volumes"), volumes).unwrap();
    let stats = format!(
        "device svm1:/kafka01 mounted on {} with fstype nfs4 statvers=1.1\n\tevents:\t1 2 0 0 1 2 3 {pages_updated} 0\n\
         \tbytes:\t0 0 0 0 0 0 0 0\n",
        target.display()
    );
    fs::write(proc.join("self/mountstats"), stats).unwrap();
}

/// A driver whose one mount is there already, in the state that `file` names.
async fn with_old_mount(dir: &Path, file: &str) -> (Nfs, PathBuf, String) {
    let target = dir.join("broker1");
    let mut nfs = tmpfs(vec![mount(&target, "noatime")]);
    nfs.attach(EPOCH).await.unwrap();
    fs::write(target.join(file), "").unwrap();
    nfs.prober = Prober { program: prober(dir), limit: Duration::from_secs(1) };
    nfs.proc = dir.join("proc");
    fs::create_dir_all(nfs.proc.join("fs/nfsfs")).unwrap();
    fs::write(nfs.proc.join("fs/nfsfs/volumes"), "").unwrap();
    let device = nfs.mounted_at(&target, "look").unwrap().unwrap().device;
    (nfs, target, device)
}

#[tokio::test]
#[ignore = "run by mounts_in_namespaces_of_their_own"]
async fn a_stale_or_hung_mount_is_replaced_and_one_that_answers_is_kept() {
    if !inside() {
        return;
    }
    for (file, said) in [("stale", "Stale file handle"), ("hung", "no answer within 1s")] {
        let dir = tempfile::tempdir().unwrap();
        let (nfs, target, _) = with_old_mount(dir.path(), file).await;
        let note = nfs.check().await.unwrap().to_string();
        assert!(note.contains("WARNING: it does not work") && note.contains(said), "{note}");
        assert!(target.join(file).exists(), "a check changed something");
        // Somebody still has a file open in it, as a Kafka that hangs has.
        let open = fs::File::create(target.join("open")).unwrap();
        let note = nfs.attach(EPOCH).await.unwrap().text;
        assert!(note.contains(said) && note.contains("is taken off"), "{note}");
        assert!(!target.join(file).exists(), "the old one is still there");
        drop(open);
        assert!(
            nfs.attach(EPOCH).await.unwrap().text.contains("was mounted already, and its server answers")
        );
        nfs.release().await.unwrap();
    }
}

#[tokio::test]
#[ignore = "run by mounts_in_namespaces_of_their_own"]
async fn a_dead_mount_that_lives_on_in_the_kernel_ends_the_takeover_unless_it_was_never_written() {
    if !inside() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let (nfs, target, device) = with_old_mount(dir.path(), "stale").await;
    let nfs = Nfs { timeout: Duration::from_millis(300), ..nfs };
    pretend(&nfs.proc, &device, &target, 7);
    let error = nfs.attach(EPOCH).await.unwrap_err();
    assert!(error.kind() == "refused" && error.to_string().contains("it was written through"), "{error}");
    assert!(
        nfs.mounted_at(&target, "look").unwrap().is_none(),
        "it is off the tree, and nothing is in its place"
    );
    // The same by a driver that knows nothing of it, as after a restart of the agent.
    let fresh = tmpfs(vec![mount(&target, "noatime")]);
    let fresh = Nfs { proc: nfs.proc.clone(), timeout: Duration::from_millis(300), ..fresh };
    let error = fresh.attach(EPOCH).await.unwrap_err();
    assert!(error.to_string().contains(&format!("device {device}")), "{error}");
    assert!(fresh.mounted_at(&target, "look").unwrap().is_none(), "it stayed mounted");
    // Nothing is mounted, and still this host may write later.
    let error = nfs.release().await.unwrap_err();
    assert!(error.to_string().contains(&format!("device {device}")), "{error}");
    fs::write(nfs.proc.join("fs/nfsfs/volumes"), "").unwrap();
    assert!(nfs.release().await.unwrap().text.contains("is not mounted"));

    let (nfs, target, device) = with_old_mount(dir.path(), "stale").await;
    let nfs = Nfs { timeout: Duration::from_millis(300), ..nfs };
    pretend(&nfs.proc, &device, &target, 0);
    let config = &nfs.mounts[0].clone();
    let dead = nfs.mounted_at(&target, "look").unwrap().unwrap();
    assert!(nfs.clear(config, &dead, "mount", "stale").await.unwrap(), "a file system of its own is needed");
    let real = Nfs { fs_type: "nfs4", ..nfs };
    assert!(real.options(config, true).ends_with(",retry=0,nosharecache"));
    assert!(!real.options(config, false).contains("nosharecache"));
    real.release().await.unwrap();
}

#[tokio::test]
#[ignore = "run by mounts_in_namespaces_of_their_own"]
async fn an_unmount_counts_when_the_kernel_has_let_go() {
    if !inside() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let (nfs, target, device) = with_old_mount(dir.path(), "fine").await;
    let nfs = Nfs { timeout: Duration::from_millis(300), ..nfs };
    pretend(&nfs.proc, &device, &target, 7);
    for _ in 0..2 {
        let error = nfs.release().await.unwrap_err();
        assert!(error.to_string().contains("nothing shows that this host writes no more"), "{error}");
    }
    assert!(nfs.mounted_at(&target, "look").unwrap().is_none());
    fs::write(nfs.proc.join("fs/nfsfs/volumes"), "").unwrap();
    nfs.release().await.unwrap();

    // Mounted a second time, it stays, and is flushed.
    let (nfs, target, device) = with_old_mount(dir.path(), "fine").await;
    pretend(&nfs.proc, &device, &target, 7);
    let second = dir.path().join("second");
    fs::create_dir(&second).unwrap();
    must(&format!("mount --bind {} {}", target.display(), second.display()));
    let note = nfs.release().await.unwrap().text;
    assert!(note.contains("was flushed, and stays for other mounts"), "{note}");
    must(&format!("umount {}", second.display()));
}

#[tokio::test]
async fn after_a_restart_an_nfs_file_system_that_is_mounted_nowhere_is_no_release() {
    let dir = tempfile::tempdir().unwrap();
    let config =
        MountConfig { source: "10.99.0.1:/kafka01".to_owned(), ..mount(Path::new("/mnt/gone"), "hard") };
    let of = |source: &str| MountConfig { source: source.to_owned(), ..config.clone() };
    let nfs =
        |config| Nfs { proc: dir.path().to_owned(), timeout: Duration::from_millis(50), ..nfs(vec![config]) };
    pretend(dir.path(), "0:999", Path::new("/mnt/gone"), 0);
    for maybe in [of("10.99.0.1:/kafka01"), of("svm1:/kafka01")] {
        let error = nfs(maybe).release().await.unwrap_err();
        assert!(error.to_string().contains("device 0:999"), "{error}");
    }
    assert!(nfs(of("10.99.0.2:/kafka01")).release().await.is_ok(), "it is of another server");
}

/// How one of several mounts fares.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Fate {
    Mounts,
    IsThere,
    Fails,
    Strange,
}

/// Mounts several, some of which fail, and releases them all, as a takeover does that is abandoned.
fn several(fates: &[Fate]) {
    let dir = tempfile::tempdir().unwrap();
    let target = |i: usize| dir.path().join(format!("disk{i}"));
    let configs = fates.iter().enumerate().map(|(i, fate)| {
        let options = if *fate == Fate::Fails { "size=nonsense" } else { "noatime" };
        mount(&target(i), options)
    });
    let nfs = tmpfs(configs.collect());
    for (i, fate) in
        fates.iter().enumerate().filter(|(_, fate)| matches!(fate, Fate::IsThere | Fate::Strange))
    {
        let source = if *fate == Fate::Strange { "svm2:/other" } else { "svm1:/kafka01" };
        fs::create_dir(target(i)).unwrap();
        must(&format!("mount -t tmpfs -o noatime {source} {}", target(i).display()));
    }
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let attached = runtime.block_on(nfs.attach(EPOCH));
    let good = fates.iter().all(|fate| matches!(fate, Fate::Mounts | Fate::IsThere));
    assert_eq!(attached.is_ok(), good, "{fates:?}: {attached:?}");
    for (i, fate) in fates.iter().enumerate().filter(|(_, fate)| **fate != Fate::Fails) {
        assert!(
            nfs.mounted_at(&target(i), "look").unwrap().is_some(),
            "{fate:?} of {fates:?} hindered by another"
        );
        assert_eq!(fs::read_dir(target(i)).unwrap().count(), 0, "something was written");
    }
    runtime.block_on(nfs.release()).unwrap();
    for (i, fate) in fates.iter().enumerate() {
        let stays = nfs.mounted_at(&target(i), "look").unwrap().is_some();
        assert_eq!(stays, *fate == Fate::Strange, "{fate:?} of {fates:?}");
        if stays {
            must(&format!("umount {}", target(i).display()));
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 12, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    #[ignore = "run by mounts_in_namespaces_of_their_own"]
    fn of_several_mounts_none_is_left_behind_by_one_that_fails(
        fates in prop::collection::vec(
            prop::sample::select(vec![Fate::Mounts, Fate::IsThere, Fate::Fails, Fate::Strange]), 1..5)
    ) {
        if inside() {
            several(&fates);
        }
    }
}
