//! The unit that the stand-in has, as its properties tell it.

use super::*;

pub(super) struct Unit(pub(super) Shared);

#[zbus::interface(name = "org.freedesktop.systemd1.Unit")]
impl Unit {
    #[zbus(property)]
    fn load_state(&self) -> String {
        locked(&self.0).load.into()
    }

    #[zbus(property)]
    fn active_state(&self) -> String {
        locked(&self.0).active.into()
    }

    #[zbus(property)]
    fn sub_state(&self) -> String {
        locked(&self.0).sub.into()
    }

    #[zbus(property)]
    fn unit_file_state(&self) -> String {
        "disabled".into()
    }

    #[zbus(property)]
    fn need_daemon_reload(&self) -> bool {
        false
    }

    #[zbus(property)]
    fn job(&self) -> (u32, OwnedObjectPath) {
        let id = locked(&self.0).job;
        (id, if id == 0 { ObjectPath::try_from("/").unwrap().into() } else { job_path(id) })
    }

    #[zbus(property, name = "InvocationID")]
    fn invocation_id(&self) -> Vec<u8> {
        vec![locked(&self.0).invocation; 16]
    }

    #[zbus(property)]
    fn condition_result(&self) -> bool {
        locked(&self.0).on_start != OnStart::NotMet
    }

    #[zbus(property)]
    fn drop_in_paths(&self) -> Vec<String> {
        let machine = locked(&self.0);
        let path = machine.drop_in();
        (!machine.loaded.is_empty()).then(|| path.display().to_string()).into_iter().collect()
    }
}

pub(super) struct Service(pub(super) Shared);

type Exec = (String, Vec<String>, bool, u64, u64, u64, u64, u32, i32, i32);

fn exec(words: &str) -> Vec<Exec> {
    let words: Vec<String> = words.split(' ').map(str::to_owned).collect();
    vec![(words[0].clone(), words, false, 0, 0, 0, 0, 0, 0, 0)]
}

#[zbus::interface(name = "org.freedesktop.systemd1.Service")]
impl Service {
    #[zbus(property, name = "Type")]
    fn kind(&self) -> String {
        "exec".into()
    }

    #[zbus(property)]
    fn result(&self) -> String {
        locked(&self.0).result.into()
    }

    #[zbus(property, name = "MainPID")]
    fn main_pid(&self) -> u32 {
        locked(&self.0).pid()
    }

    #[zbus(property, name = "ControlPID")]
    fn control_pid(&self) -> u32 {
        0
    }

    #[zbus(property)]
    fn exec_main_code(&self) -> i32 {
        i32::from(locked(&self.0).result == "exit-code")
    }

    #[zbus(property)]
    fn exec_main_status(&self) -> i32 {
        3
    }

    #[zbus(property)]
    fn restart(&self) -> String {
        "on-failure".into()
    }

    #[zbus(property, name = "RestartUSec")]
    fn restart_usec(&self) -> u64 {
        2_000_000
    }

    #[zbus(property, name = "TimeoutStopUSec")]
    fn timeout_stop_usec(&self) -> u64 {
        u64::MAX
    }

    #[zbus(property)]
    fn kill_mode(&self) -> String {
        "mixed".into()
    }

    #[zbus(property, name = "SendSIGKILL")]
    fn send_sigkill(&self) -> bool {
        false
    }

    #[zbus(property)]
    fn user(&self) -> String {
        String::new()
    }

    #[zbus(property)]
    fn environment(&self) -> Vec<String> {
        let machine = locked(&self.0);
        let mut environment = machine.loaded.clone();
        if let Some(name) = machine.overridden {
            environment.retain(|pair| !pair.starts_with(name));
            environment.push(format!("{name}=something else"));
        }
        environment
    }

    #[zbus(property)]
    fn protect_system(&self) -> String {
        locked(&self.0).protect_system.into()
    }

    #[zbus(property)]
    fn exec_start(&self) -> Vec<Exec> {
        exec(
            // What is there on every host stands for both.
            "/bin/sh guard --broker 1 --exec --user kafka -- /bin/sh ${UNDERSTUDY_PROPERTIES}",
        )
    }

    #[zbus(property)]
    fn exec_stop(&self) -> Vec<Exec> {
        locked(&self.0).exec_stop.map(exec).unwrap_or_default()
    }

    #[zbus(property)]
    fn exec_condition(&self) -> Vec<Exec> {
        exec("/usr/bin/understudy guard --broker 1")
    }
}
