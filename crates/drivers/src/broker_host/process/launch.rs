//! How a Kafka process is made.

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Mutex;

use rustix::io::{FdFlags, fcntl_setfd};
use rustix::process::setsid;

use super::super::class_data::{VARIABLE, with_archive};
use super::super::common::processors;
use super::super::environment_of;
use super::super::user::User;
use recovery::model::BrokerId;

/// Stands for the path of the rendered file.
pub(super) const PLACEHOLDER: &str = "{properties}";

/// What Kafka gets of the agent's environment. The rest may hold secrets, such as those of a fence device.
const INHERITED: [&str; 5] = ["PATH", "JAVA_HOME", "LANG", "LC_ALL", "TZ"];

/// Where programs are looked for if the agent has no `PATH`.
const DEFAULT_PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// Held from before a child is made until it is on record: nobody else may ask meanwhile how it ended.
pub(in super::super) static UNRECORDED: Mutex<()> = Mutex::new(());

/// What is run as Kafka.
#[derive(Debug, Clone)]
pub(super) struct Launch {
    /// Program and arguments, with the placeholder.
    pub(super) command: Vec<String>,
    /// What is added to the environment.
    pub(super) environment: BTreeMap<String, String>,
    /// Kafka gets the whole environment of this process, and its output.
    pub(super) inherits: bool,
}

/// What differs from one start to the next.
pub(super) struct Start<'a> {
    /// The rendered file.
    pub(super) properties: &'a Path,
    /// What marks the process as ours.
    pub(super) marker: [(&'static str, OsString); 3],
    /// Where its output goes; `None`: where this process's goes.
    pub(super) output: Option<File>,
    /// The lock it holds for as long as it lives.
    pub(super) alive: File,
    /// Whom it runs as.
    pub(super) user: Option<&'a User>,
    /// The class-data archive that Java is told of.
    pub(super) archive: Option<&'a Path>,
}

impl Launch {
    /// The same for one broker.
    pub(super) fn for_broker(&self, broker: BrokerId) -> Self {
        Self { environment: environment_of(&self.environment, broker), ..self.clone() }
    }

    /// Program and arguments for one rendered file.
    pub(super) fn arguments(&self, properties: &Path) -> Vec<String> {
        let properties = properties.to_string_lossy();
        self.command.iter().map(|argument| argument.replace(PLACEHOLDER, &properties)).collect()
    }

    /// Kafka's whole environment, but for the marker. `HOME` is the agent's, so another user does not get it.
    pub(super) fn environment(&self, user: Option<&User>) -> BTreeMap<OsString, OsString> {
        let home = user.is_none().then_some("HOME");
        let inherited = INHERITED.into_iter().chain(home);
        let inherited = inherited.filter_map(|name| Some((name.into(), std::env::var_os(name)?)));
        let mut environment: BTreeMap<OsString, OsString> =
            if self.inherits { std::env::vars_os().collect() } else { inherited.collect() };
        environment.entry("PATH".into()).or_insert_with(|| DEFAULT_PATH.into());
        environment.extend(self.environment.iter().map(|(name, value)| (name.into(), value.into())));
        environment
    }

    /// What Java is told by the environment.
    fn options(&self, archive: &Path) -> String {
        with_archive(self.environment.get(VARIABLE).map(String::as_str), archive, processors())
    }

    /// Starts the process in its own session. It gets no signal when the agent ends, however it ends.
    pub(super) fn spawn(&self, start: Start<'_>) -> io::Result<i32> {
        let arguments = self.arguments(start.properties);
        let (program, rest) = arguments.split_first().ok_or(io::ErrorKind::InvalidInput)?;
        let mut command = Command::new(program);
        command
            .args(rest)
            .env_clear()
            .envs(self.environment(start.user))
            .envs(start.archive.map(|archive| (VARIABLE, self.options(archive))))
            .envs(start.marker)
            .stdin(Stdio::null());
        if !self.inherits {
            command.current_dir("/");
        }
        if let Some(output) = start.output {
            command.stdout(output.try_clone()?).stderr(output);
        }
        let user = start.user.cloned();
        let alive = start.alive;
        let prepare = move || {
            // Kept open through the exec: there is no instant at which the new process holds neither the lock
            // nor anything else it could be found by.
            fcntl_setfd(&alive, FdFlags::empty())?;
            setsid()?;
            user.as_ref().map_or(Ok(()), User::become_user)
        };
        // SAFETY: between fork and exec the closure makes system calls only; it does not allocate, lock or
        // touch anything that another thread of the parent may have held.
        #[allow(unsafe_code)]
        unsafe {
            command.pre_exec(prepare);
        }
        let child = command.spawn()?;
        // Dropping the handle neither stops nor awaits the process.
        i32::try_from(child.id()).map_err(|_| io::ErrorKind::InvalidData.into())
    }
}

/// Looks `program` up as a shell would.
pub(super) fn find_in_path(program: &str, path: &OsStr) -> Option<PathBuf> {
    std::env::split_paths(path).map(|dir| dir.join(program)).find(|file| is_executable(file))
}

/// Whether the caller may execute this file.
pub(in super::super) fn is_executable(file: &Path) -> bool {
    file.is_file() && rustix::fs::access(file, rustix::fs::Access::EXEC_OK).is_ok()
}
