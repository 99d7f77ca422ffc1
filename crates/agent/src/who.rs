//! Who gives an order, by the kernel's word: what a process says of itself, as in `USER`, is worth nothing.

use std::fs;
use std::process::Stdio;
use std::time::Duration;

use tokio::process::Command;
use tokio::time::timeout;

/// The kernel's login of a process without one.
const NO_LOGIN: u32 = u32::MAX;

/// How long a user's name may take to be found: it may be a directory server that has it.
const PATIENCE: Duration = Duration::from_secs(2);

/// Who runs this process; behind `sudo` and `su` also who logged in, where the kernel was told (`pam_loginuid`).
pub(crate) async fn who() -> String {
    let uid = rustix::process::getuid().as_raw();
    let own = named(uid).await;
    match login().filter(|login| *login != uid) {
        None => own,
        Some(login) => format!("{own}, logged in as {}", named(login).await),
    }
}

/// `ada (uid 1000)`, or `uid 1000` if this host knows no name for it.
pub(crate) async fn named(uid: u32) -> String {
    match name(uid).await {
        Some(name) => format!("{name} (uid {uid})"),
        None => format!("uid {uid}"),
    }
}

fn login() -> Option<u32> {
    let login = fs::read_to_string("/proc/self/loginuid").ok()?.trim().parse().ok()?;
    (login != NO_LOGIN).then_some(login)
}

/// Asks every source of users that the system is set up with, as no file does.
async fn name(uid: u32) -> Option<String> {
    let mut ask = Command::new("getent");
    ask.args(["passwd", &uid.to_string()]).stdin(Stdio::null()).kill_on_drop(true);
    let told = timeout(PATIENCE, ask.output()).await.ok()?.ok()?;
    let told = String::from_utf8(told.stdout).ok()?;
    let name = told.split(':').next()?;
    (!name.is_empty() && !name.chars().any(char::is_control)).then(|| name.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_user_without_a_name_is_a_number() {
        assert_eq!(named(0).await, "root (uid 0)");
        assert_eq!(named(4_000_000_001).await, "uid 4000000001");
    }
}
