//! What of a unit is needed to start its Kafka by itself, beside everything, and the unit that does so.
//!
//! The agent's own unit forbids memory that is written and then executed, which no Java can do without, and
//! whatever the agent starts has its confinement. So `understudy warm` runs in a unit of its own that is
//! shipped beside the agent's: a file that an operator can read, change and mask, with the priorities and
//! limits that systemd keeps best. A transient unit would be neither.

use std::collections::BTreeMap;
use std::time::Duration;

use super::super::class_data::Recipe;
use super::super::environment_of;
use super::super::problem::Problem;
use super::super::user::User;
use super::bus::{Bus, JobEnd, Verb};
use super::unit::{Unit, kafkas_own};
use super::{BROKER, SystemdConfig, drop_in};
use recovery::model::BrokerId;

/// The shipped unit that runs `understudy warm`.
const MAKER: &str = "understudy-warm.service";

/// What systemd gives a unit that names no other.
const PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// The units of this host's brokers.
pub(in super::super) struct Units {
    config: SystemdConfig,
    bus: Bus,
}

impl Units {
    pub(in super::super) fn new(config: SystemdConfig) -> Self {
        Self { config, bus: Bus::new(None) }
    }

    /// How the broker's unit starts Kafka.
    pub(in super::super) async fn recipe(&self, broker: BrokerId) -> Result<Recipe, Problem> {
        let name = self.config.unit.replace(BROKER, &broker.to_string());
        let unit = self.bus.look(&name, self.config.timeout).await?;
        if unit.load_state != "loaded" {
            return Err(Problem::Refused(super::check::not_loaded(&unit)));
        }
        let user = self.config.user.as_deref().map(User::look_up).transpose();
        let user = user.map_err(|why| Problem::Refused(format!("broker_host.user: {why}")))?;
        let configured = environment_of(&self.config.environment, broker);
        let mut environment = BTreeMap::from([("PATH".to_owned(), PATH.to_owned())]);
        environment.extend(given(&unit, configured));
        let command = unit
            .exec_start
            .first()
            .map(|words| expanded(kafkas_own(words), &environment))
            .unwrap_or_default();
        Ok(Recipe { command, environment, user, from: format!("ExecStart= of {name}") })
    }

    /// Starts the unit that makes an archive, and waits for its end.
    pub(in super::super) async fn run_maker(&self, limit: Duration) -> Result<(), Problem> {
        let maker = self.bus.look(MAKER, self.config.timeout).await?;
        if maker.load_state != "loaded" {
            return Err(Problem::Refused(format!(
                "there is no {MAKER} on this host: install it (deploy/systemd has it), or run `understudy warm` yourself"
            )));
        }
        match self.bus.job(Verb::Start, MAKER, limit).await? {
            JobEnd::Told(result) if result != "done" => Err(Problem::Refused(format!(
                "{MAKER} ended with `{result}`: see `journalctl --unit={MAKER}`"
            ))),
            // Whoever asked looks at what there is.
            _ => Ok(()),
        }
    }
}

/// What a unit's Kafka gets, as systemd puts it together; an `EnvironmentFile=` wins.
pub(super) fn given(unit: &Unit, configured: BTreeMap<String, String>) -> BTreeMap<String, String> {
    let mut environment = unit.environment.clone();
    environment.extend(configured);
    for (file, _) in &unit.environment_files {
        let text = std::fs::read_to_string(file).unwrap_or_default();
        environment.extend(variables(&text));
    }
    environment
}

/// A command's words as systemd expands them, but for the place of the configuration.
fn expanded(words: &[String], environment: &BTreeMap<String, String>) -> Vec<String> {
    let value = |name: &str| match name {
        drop_in::PROPERTIES => "{properties}".to_owned(),
        name => environment.get(name).cloned().unwrap_or_default(),
    };
    let mut all = Vec::new();
    for word in words {
        // A variable that is a word of its own is parted at blanks, or is no word at all.
        if let Some(name) = word.strip_prefix('$').filter(|name| !name.starts_with(['{', '$'])) {
            all.extend(value(name).split_whitespace().map(str::to_owned));
            continue;
        }
        let mut whole = String::new();
        let mut rest = word.as_str();
        while let Some((before, after)) = rest.split_once("${") {
            let Some((name, left)) = after.split_once('}') else { break };
            whole.push_str(before);
            whole.push_str(&value(name));
            rest = left;
        }
        whole.push_str(rest);
        // A shell that is the word's reader would put it in.
        all.push(whole.replace("$$", "$").replace(&format!("${}", drop_in::PROPERTIES), "{properties}"));
    }
    all
}

/// The variables of an `EnvironmentFile=`: a line each, without what only a shell would understand. What is
/// read otherwise than systemd does makes an archive that Java does not take, and no more.
pub(super) fn variables(text: &str) -> BTreeMap<String, String> {
    let lines = text.lines().map(str::trim).filter(|line| !line.starts_with(['#', ';']));
    let pair = |line: &str| {
        let (name, value) = line.split_once('=')?;
        let value = value.trim();
        let bare = |quote: char| value.strip_prefix(quote)?.strip_suffix(quote);
        let value = bare('"').or_else(|| bare('\'')).unwrap_or(value);
        Some((name.trim().to_owned(), value.to_owned()))
    };
    lines.filter_map(pair).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_is_expanded_as_systemd_does_and_gets_another_configuration() {
        let pair = |(name, value): (&str, &str)| (name.to_owned(), value.to_owned());
        let environment = [("FLAGS", "-a  -b"), ("DIR", "/opt/kafka"), ("UNDERSTUDY_PROPERTIES", "/etc/x")];
        let environment = environment.map(pair).into();
        let words = ["${DIR}/bin/start.sh", "$FLAGS", "$NONE", "--x=${FLAGS}-$$", "${UNDERSTUDY_PROPERTIES}"];
        let expected = ["/opt/kafka/bin/start.sh", "-a", "-b", "--x=-a  -b-$", "{properties}"];
        assert_eq!(expanded(&words.map(str::to_owned), &environment), expected);
        assert_eq!(expanded(&["$UNDERSTUDY_PROPERTIES".to_owned()], &environment), ["{properties}"]);
        for script in ["exec /k/start.sh $$UNDERSTUDY_PROPERTIES", "exec /k/start.sh $UNDERSTUDY_PROPERTIES"]
        {
            assert_eq!(expanded(&[script.to_owned()], &environment), ["exec /k/start.sh {properties}"]);
        }
    }

    #[test]
    fn an_environment_file_is_read_line_by_line() {
        let read = variables("# A=no\n; B=no\nC=one two\nD=\"quoted # not\"\n E = 'x' \nnothing\n");
        let pairs: Vec<_> = read.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect();
        assert_eq!(pairs, [("C", "one two"), ("D", "quoted # not"), ("E", "x")]);
    }
}
