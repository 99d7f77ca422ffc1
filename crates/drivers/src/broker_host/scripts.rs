//! What Kafka's own scripts do in a command as sites write it. Pure.
//!
//! A command is a list of words, as systemd and the configuration have it. A word may be a whole script for a
//! shell: so each is read as a shell would part it, quotes aside.

use recovery::model::BrokerId;

/// Becomes Kafka, or leaves it behind with `-daemon`.
const START: &str = "kafka-server-start";
/// What the former becomes first.
const RUN: &str = "kafka-run-class";
/// Sends SIGTERM to every Kafka of the host, whoever runs it.
const STOP: &str = "kafka-server-stop";

/// How `kafka-server-stop.sh` in this command ends a Kafka that is not `broker`'s; `None` if it does not.
/// `at_once` brokers may run on this host.
///
/// Kafka 3.7 and later read `--node-id=N`, and `--process-role=ROLE`, both with the `=` only. All that
/// several brokers of one host have in common is their role.
pub(super) fn ends_others(words: &[String], broker: BrokerId, at_once: usize) -> Option<String> {
    let commands = commands(words);
    if let Some(by_name) = commands.iter().find_map(|command| kills_by_name(command, broker)) {
        return Some(by_name);
    }
    let (script, arguments) = commands.iter().find_map(|command| runs(command, STOP))?;
    let value = |option: &str| {
        let mut values = arguments.iter().filter_map(|word| word.strip_prefix(option)?.strip_prefix('='));
        values.next().filter(|value| !value.is_empty())
    };
    let (id, role) = (value("--node-id"), value("--process-role"));
    match (id, role) {
        // What a variable holds is not known here.
        (Some(id), _) if id == broker.to_string() || id.contains('$') => None,
        (Some(id), _) => Some(format!("runs {script} --node-id={id}, which ends another broker's Kafka")),
        (None, Some(_)) if at_once < 2 => None,
        (None, Some(role)) => Some(format!(
            "runs {script} --process-role={role}, which ends every Kafka of that role on this host"
        )),
        (None, None) => Some(format!("runs {script}, which ends every Kafka of this host")),
    }
}

/// How `pkill` or `killall` ends what has a name that every Kafka has. One that says the broker's number, a variable
/// or whose children it means is not judged here.
fn kills_by_name(command: &[&str], broker: BrokerId) -> Option<String> {
    let name = |word: &&str| matches!(word.rsplit('/').next(), Some("pkill" | "killall"));
    let at = command.iter().position(name)?;
    let (program, arguments) = (command[at].rsplit('/').next()?, &command[at + 1..]);
    let id = broker.to_string();
    let picks =
        |word: &&str| word.contains('$') || word.split(|c: char| !c.is_ascii_digit()).any(|part| part == id);
    let narrows = |word: &&str| {
        ["-F", "--pidfile", "-P", "--parent", "-s", "--session", "-g", "--pgroup"].contains(word)
    };
    let signal = |word: &str| word.strip_prefix('-').is_some_and(|rest| rest.parse::<u8>().is_ok());
    if arguments.iter().any(|word| (picks(word) && !signal(word)) || narrows(word)) {
        return None;
    }
    let pattern = arguments.iter().find(|word| {
        let word = word.to_ascii_lowercase();
        !word.starts_with('-') && (word.contains("kafka") || word.contains("java"))
    })?;
    Some(format!("runs {program} {pattern}, which ends every Kafka of this host"))
}

/// How this command ends at once and leaves Kafka behind; `None` if it stays, as far as can be seen.
pub(super) fn leaves_kafka(words: &[String]) -> Option<String> {
    for command in commands(words) {
        let Some((script, arguments)) = runs(&command, START).or_else(|| runs(&command, RUN)) else {
            continue;
        };
        if arguments.contains(&"-daemon") {
            return Some(format!("runs {script} -daemon, which ends at once and leaves Kafka behind"));
        }
    }
    if let Some(by) = commands(words).iter().find_map(|command| detaches(command)) {
        return Some(format!("starts Kafka by `{by}`, which ends at once and leaves it behind"));
    }
    let left = words.iter().any(|word| script_of(word).is_some_and(in_background));
    left.then(|| "leaves Kafka in the background of a shell, by `&`, and ends at once".to_owned())
}

/// The program before Kafka's script that puts it into the background.
fn detaches(command: &[&str]) -> Option<String> {
    let (_, after) = runs(command, START).or_else(|| runs(command, RUN))?;
    let before = &command[..command.len() - after.len() - 1];
    let program = |name: &str| before.iter().position(|word| word.rsplit('/').next() == Some(name));
    let has_after =
        |at: usize, options: &[&str]| before[at..].iter().find(|word| options.contains(*word)).copied();
    if let Some(at) = program("setsid") {
        // It is the leader of a group where it comes first, and forks then.
        return match has_after(at, &["-f", "--fork"]) {
            Some(fork) => Some(format!("setsid {fork}")),
            None => ((at == 0 || before[at - 1] == "--") && has_after(at, &["-w", "--wait"]).is_none())
                .then(|| "setsid".to_owned()),
        };
    }
    if let Some(at) = program("start-stop-daemon") {
        return has_after(at, &["-b", "--background"]).map(|option| format!("start-stop-daemon {option}"));
    }
    program("daemonize").map(|_| "daemonize".to_owned())
}

/// Whether Kafka is not started by its own script, or Java, right away: what stands before it may set variables.
pub(super) fn is_of_the_site(words: &[String]) -> bool {
    let name = words.first().and_then(|word| word.rsplit('/').next()).unwrap_or_default();
    ![START, RUN, "java"].contains(&name.strip_suffix(".sh").unwrap_or(name))
}

/// Whether a shell stays before Kafka, so that it, and not Kafka, is what gets a signal.
pub(super) fn stays_behind_shell(words: &[String]) -> bool {
    let is_script = |word: &&String| script_of(word).is_some();
    let mut commands = words.iter().filter(is_script).flat_map(|word| commands(std::slice::from_ref(word)));
    commands.any(|command| runs(&command, START).is_some() && !command.contains(&"exec"))
}

/// What of the rendered configuration was fenced, mounted and verified: a Kafka that is told otherwise writes where
/// nobody looked, or is another broker.
const VERIFIED: [&str; 9] = [
    "node.id",
    "broker.id",
    "log.dirs",
    "log.dir",
    "metadata.log.dir",
    "process.roles",
    "listeners",
    "advertised.listeners",
    "controller.quorum.voters",
];

/// What Kafka is told in its command that contradicts what is rendered for it and verified.
pub(super) fn contradicts(words: &[String]) -> Option<String> {
    let commands = commands(words);
    let all: Vec<&str> = commands.into_iter().flatten().collect();
    let pairs = all.iter().enumerate().filter_map(|(n, word)| match word.strip_prefix("--override")? {
        "" => all.get(n + 1).copied(),
        joined => joined.strip_prefix('='),
    });
    let names = pairs.map(|pair| pair.split_once('=').map_or(pair, |(name, _)| name.trim()));
    let name = names.into_iter().find(|name| VERIFIED.contains(name))?;
    Some(format!(
        "has `--override {name}=…`, so that Kafka runs with another {name} than was fenced, mounted and verified: remove it. \
         Log dirs and node id come from the section of the broker, other keys of one broker belong in [broker.properties]"
    ))
}

/// What a shell is given that starts Kafka, from the start on.
fn script_of(word: &str) -> Option<&str> {
    word.contains(char::is_whitespace).then(|| word.split_once(START).map(|(_, after)| after)).flatten()
}

/// Whether a `&` ends the command: one that is no part of `&&`, `>&` or `&>`; and nothing waits for it.
fn in_background(script: &str) -> bool {
    let letters: Vec<char> = script.chars().collect();
    let at = |n: Option<usize>| n.and_then(|n| letters.get(n)).copied();
    let ends = |n: usize| {
        let (before, after) = (at(n.checked_sub(1)), at(n.checked_add(1)));
        letters[n] == '&' && !matches!(before, Some('&' | '>' | '<')) && !matches!(after, Some('&' | '>'))
    };
    (0..letters.len()).any(ends) && !script.split(|c: char| !c.is_alphanumeric()).any(|word| word == "wait")
}

/// The commands in these words, each as its own words.
fn commands(words: &[String]) -> Vec<Vec<&str>> {
    let mut all = vec![Vec::new()];
    for word in words {
        for (n, command) in word.split([';', '&', '|', '(', ')', '`', '\n']).enumerate() {
            if n > 0 {
                all.push(Vec::new());
            }
            let parts = command.split(|c: char| c.is_whitespace() || c == '"' || c == '\'');
            all.last_mut()
                .into_iter()
                .for_each(|last| last.extend(parts.clone().filter(|part| !part.is_empty())));
        }
    }
    all
}

/// Where a command has Kafka's script of this name: the script's name as it is, and what follows.
fn runs<'a, 'b>(command: &'b [&'a str], script: &str) -> Option<(&'a str, &'b [&'a str])> {
    let name = |word: &'a str| word.rsplit('/').next().unwrap_or(word);
    let is_script = |word: &&'a str| name(word).strip_suffix(".sh").unwrap_or(name(word)) == script;
    let at = command.iter().position(is_script)?;
    Some((name(command[at]), &command[at + 1..]))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Words parted at blanks, but for what is between single quotes.
    fn words(text: &str) -> Vec<String> {
        let parts = text.split('\'').enumerate().flat_map(|(n, part)| match n % 2 {
            0 => part.split_whitespace().map(str::to_owned).collect(),
            _ => vec![part.to_owned()],
        });
        parts.collect()
    }

    #[test]
    fn a_start_that_contradicts_what_was_verified_is_known() {
        let start = "/opt/kafka/bin/kafka-server-start.sh ${UNDERSTUDY_PROPERTIES}";
        for (more, found) in [
            ("--override log.dirs=/other", Some("log.dirs")),
            ("--override node.id=9", Some("node.id")),
            ("--override=log.dir=/other", Some("log.dir")),
            ("--override num.io.threads=8 --override broker.id=%i", Some("broker.id")),
            ("--override num.io.threads=8", None),
            ("", None),
        ] {
            for command in [format!("{start} {more}"), format!("/bin/sh -c 'exec {start} {more}'")] {
                let told = contradicts(&words(&command));
                let expected = found.map(|name| format!("`--override {name}=…`"));
                assert_eq!(told.is_some(), expected.is_some(), "{command}: {told:?}");
                assert!(
                    told.zip(expected).is_none_or(|(told, expected)| told.contains(&expected)),
                    "{command}"
                );
            }
        }
    }

    #[test]
    fn a_start_that_leaves_kafka_behind_is_known_however_it_is_written() {
        let guard = "/usr/bin/understudy guard --broker 1 --wait 30s --exec --user kafka --";
        let file = "${UNDERSTUDY_PROPERTIES}";
        for (command, leaves) in [
            (format!("{guard} /opt/kafka/bin/kafka-server-start.sh {file}"), false),
            (format!("{guard} /opt/kafka/bin/kafka-server-start.sh -daemon {file}"), true),
            (format!("/usr/bin/kafka-server-start -daemon {file}"), true),
            (format!("{guard} /bin/sh -c '/opt/kafka/bin/kafka-server-start.sh -daemon {file}'"), true),
            (
                format!("/bin/bash -c 'cd /opt/kafka; exec \"bin/kafka-server-start.sh\" -daemon {file}'"),
                true,
            ),
            (format!("/opt/kafka/bin/kafka-run-class.sh -daemon -name kafkaServer kafka.Kafka {file}"), true),
            (format!("/bin/sh -c 'nohup /k/kafka-server-start.sh {file} > /k/log 2>&1 &'"), true),
            (format!("/bin/sh -c '/k/kafka-server-start.sh {file} & echo $! > /run/kafka.pid'"), true),
            (format!("/bin/sh -c '/k/kafka-server-start.sh {file} & wait $!'"), false),
            (format!("/usr/bin/setsid -f /k/kafka-server-start.sh {file}"), true),
            (format!("/bin/sh -c 'exec setsid --fork /k/kafka-server-start.sh {file}'"), true),
            (format!("/usr/bin/setsid /k/kafka-server-start.sh {file}"), true),
            (format!("{guard} setsid /k/kafka-server-start.sh {file}"), true),
            (format!("/usr/bin/setsid --wait /k/kafka-server-start.sh {file}"), false),
            (format!("/bin/sh -c 'setsid /k/kafka-server-start.sh {file}'"), false),
            (
                format!(
                    "/sbin/start-stop-daemon --start --background --exec /k/kafka-server-start.sh -- {file}"
                ),
                true,
            ),
            (format!("/sbin/start-stop-daemon --start --exec /k/kafka-server-start.sh -- {file}"), false),
            (format!("/usr/bin/daemonize /k/kafka-server-start.sh {file}"), true),
            (format!("/bin/sh -c '/k/kafka-server-start.sh {file} > /k/log 2>&1'"), false),
            (format!("/bin/sh -c 'cd /k && exec bin/kafka-server-start.sh {file} &> /k/log'"), false),
            (format!("/usr/local/bin/start-kafka -daemon {file}"), false),
        ] {
            let found = leaves_kafka(&words(&command));
            assert_eq!(found.is_some(), leaves, "{command}: {found:?}");
        }
    }

    #[test]
    fn kafkas_own_script_is_told_from_one_of_the_site() {
        for (command, of_the_site) in [
            ("/opt/kafka/bin/kafka-server-start.sh $P", false),
            ("/usr/bin/kafka-server-start $P", false),
            ("/usr/bin/java -Xmx1g kafka.Kafka $P", false),
            ("/usr/local/bin/start-kafka $P", true),
            ("/bin/sh -c 'A=b exec kafka-server-start.sh $P'", true),
            ("/usr/bin/env A=b /opt/kafka/bin/kafka-server-start.sh $P", true),
        ] {
            assert_eq!(is_of_the_site(&words(command)), of_the_site, "{command}");
        }
    }

    #[test]
    fn a_shell_that_does_not_become_kafka_stays_before_it() {
        for (command, stays) in [
            ("/bin/sh -c '/k/kafka-server-start.sh $P > /k/kafka.log 2>&1'", true),
            ("/bin/sh -c 'exec /k/kafka-server-start.sh $P > /k/kafka.log 2>&1'", false),
            ("/bin/sh -c 'exec 3>/k/log; /k/kafka-server-start.sh $P'", true),
            ("/k/kafka-server-start.sh $P", false),
        ] {
            assert_eq!(stays_behind_shell(&words(command)), stays, "{command}");
        }
    }

    #[test]
    fn a_stop_that_ends_more_than_one_broker_is_known_however_it_is_written() {
        let every = Some("which ends every Kafka of this host");
        for (command, two, one) in [
            ("/opt/kafka/bin/kafka-server-stop.sh", every, every),
            ("/usr/bin/kafka-server-stop", every, every),
            ("/opt/kafka/bin/kafka-server-stop.sh /etc/kafka/1.properties", every, every),
            ("/bin/sh -c '/opt/kafka/bin/kafka-server-stop.sh'", every, every),
            (
                "/bin/bash -c 'cd /opt/kafka && ( \"bin/kafka-server-stop.sh\" > stop.log 2>&1 )'",
                every,
                every,
            ),
            ("/bin/sh -c 'kafka-server-stop.sh; echo --node-id=1'", every, every),
            ("/usr/bin/sudo -u kafka /opt/kafka/bin/kafka-server-stop.sh", every, every),
            ("/k/kafka-server-stop.sh --node-id 1", every, every),
            ("/k/kafka-server-stop.sh --node-id=", every, every),
            ("/k/kafka-server-stop.sh --node-id=1", None, None),
            ("/k/kafka-server-stop.sh --process-role=broker --node-id=1", None, None),
            ("/bin/sh -c '/k/kafka-server-stop.sh --node-id=1'", None, None),
            ("/k/kafka-server-stop.sh --node-id=${UNDERSTUDY_BROKER}", None, None),
            ("/k/kafka-server-stop.sh --node-id=11", Some("another broker's"), Some("another broker's")),
            ("/k/kafka-server-stop.sh --process-role=broker", Some("of that role"), None),
            ("/bin/kill -s TERM $MAINPID", None, None),
            ("/usr/bin/pkill -f kafka.Kafka", every, every),
            ("/usr/bin/pkill -TERM -u kafka java", every, every),
            ("/bin/sh -c 'pkill -9 -f kafka-server'", every, every),
            ("/bin/sh -c 'pkill -1 -f kafka-server'", every, every),
            ("/usr/bin/killall java", every, every),
            ("/usr/bin/pkill -f broker-1/server.properties", None, None),
            ("/usr/bin/pkill -f kafka.$BROKER", None, None),
            ("/usr/bin/pkill -P 77 java", None, None),
            ("/usr/bin/pkill jmx_exporter", None, None),
            ("/usr/local/sbin/my-kafka-server-stop.sh 1", None, None),
        ] {
            for (at_once, expected) in [(2, two), (1, one)] {
                let found = ends_others(&words(command), BrokerId(1), at_once);
                assert_eq!(found.is_some(), expected.is_some(), "{command}: {found:?}");
                let told = found.unwrap_or_default();
                assert!(told.contains(expected.unwrap_or_default()), "{command}: {told}");
            }
        }
    }
}
