//! What the answer to `status` says of a host's power. Only a word that is a state counts, with the exit code that
//! means the same: an exit code alone is also how a shell fails, and a word in prose is also how a program explains
//! itself (`Usage: fence {on|off}`).

/// What `status` says of a host.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Power {
    On,
    Off,
    Unknown(Why),
}

/// Why an answer to `status` tells neither.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Why {
    /// The exit code is neither 0 (on) nor 2 (off).
    Code,
    /// Exit code 2, and no word on standard output that is a state.
    NoWord,
    /// Exit code 0, and no word, of a program that must say it.
    Silent,
    /// The word is `off`, and the exit code 0 means on.
    OffWithZero,
    /// The word is `on`, and the exit code 2 means off.
    OnWithTwo,
    /// Standard output says both.
    Both,
    /// It told how it is used: it has not understood.
    Usage,
}

impl Why {
    /// What is wrong with the answer, and what to print instead.
    pub(super) fn remedy(self) -> &'static str {
        match self {
            Self::Code => "it does not say whether it is on or off: 0 (on) or 2 (off) would be an answer",
            Self::NoWord => {
                "exit code 2 means off, but no line of its output is a state such as `off` or `Status: OFF`"
            }
            Self::Silent => {
                "it said nothing that is a state (exit 0): print `on` or `off`, and exit with 2 for off; it reads its \
                 action from standard input"
            }
            Self::OffWithZero => {
                "it says off, and its exit code says on: let it exit with 2 when it says off"
            }
            Self::OnWithTwo => "it says on, and its exit code says off: let it exit with 0 when it says on",
            Self::Both => "its output says on and off: let it say one of them",
            Self::Usage => {
                "it says how it is used, and no state: it does not know `status`, or does not read its action from \
                            standard input"
            }
        }
    }
}

/// The words that may stand around `on` and `off` in a line that tells a state: `Chassis Power is off`.
const AROUND: [&str; 17] = [
    "chassis", "current", "device", "domain", "host", "instance", "is", "machine", "now", "outlet", "plug",
    "power", "server", "state", "status", "system", "the",
];

/// Reads an answer by its exit code and its standard output. `names` are what the device calls the host: they may
/// stand in such a line too. A fence agent is on where it exits with 0, in whatever words; a site's own program must
/// `say_on`: `/bin/true`, and a program that does not read its action, exit with 0 as well.
pub(super) fn read(code: Option<i32>, stdout: &str, names: &[&str], say_on: bool) -> Power {
    let says = |state| stdout.lines().any(|line| tells(line, state, names));
    if matches!(code, Some(0 | 2)) && stdout.lines().any(is_usage) {
        return Power::Unknown(Why::Usage);
    }
    match (code, says("on"), says("off")) {
        (Some(0 | 2), true, true) => Power::Unknown(Why::Both),
        (Some(0), false, false) if say_on => Power::Unknown(Why::Silent),
        (Some(0), _, false) => Power::On,
        (Some(0), false, true) => Power::Unknown(Why::OffWithZero),
        (Some(2), false, true) => Power::Off,
        (Some(2), true, false) => Power::Unknown(Why::OnWithTwo),
        (Some(2), false, false) => Power::Unknown(Why::NoWord),
        _ => Power::Unknown(Why::Code),
    }
}

/// `Usage: fence {on|off}`, as the C library's and Python's helpers begin it: what follows lists words, and tells no state.
fn is_usage(line: &str) -> bool {
    line.trim_start().get(..5).is_some_and(|head| head.eq_ignore_ascii_case("usage"))
}

/// Whether `line` says that the host is in `state`, and nothing else.
fn tells(line: &str, state: &str, names: &[&str]) -> bool {
    let words = line.split(|c: char| c.is_whitespace() || matches!(c, ':' | '=' | '"' | '\'' | ','));
    let mut words = words.map(|word| word.trim_end_matches('.')).filter(|word| !word.is_empty());
    let last = words.next_back();
    last.is_some_and(|word| word.eq_ignore_ascii_case(state))
        && words.all(|word| {
            AROUND.iter().any(|known| known.eq_ignore_ascii_case(word))
                || names.iter().any(|name| name.eq_ignore_ascii_case(word))
        })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_that_is_a_state_counts_with_the_code_that_means_the_same() {
        for line in [
            "off",
            "OFF",
            "Status: OFF",
            "Chassis Power is off",
            "power=off",
            "Power state: off.",
            "k-1: off",
        ] {
            assert_eq!(read(Some(2), line, &["k-1"], false), Power::Off, "{line}");
            assert_eq!(read(Some(0), line, &["k-1"], false), Power::Unknown(Why::OffWithZero), "{line}");
            assert_eq!(read(Some(1), line, &["k-1"], false), Power::Unknown(Why::Code), "{line}");
        }
        assert_eq!(read(Some(2), "connecting to 10.0.0.1\nStatus: OFF\n", &[], false), Power::Off);
        assert_eq!(read(Some(0), "Status: ON", &[], false), Power::On);
        assert_eq!(read(Some(0), "", &[], false), Power::On);
        assert_eq!(read(Some(2), "Status: ON", &[], false), Power::Unknown(Why::OnWithTwo));
        assert_eq!(read(Some(2), "outlet on\noutlet off", &[], false), Power::Unknown(Why::Both));
    }

    #[test]
    fn a_sites_own_program_must_say_that_a_host_is_on() {
        for line in ["on", "Status: ON", "kafka-1 is on", "asking\npower: on"] {
            assert_eq!(read(Some(0), line, &["kafka-1"], true), Power::On, "{line}");
        }
        for line in ["", "ok", "kafka-2 is on"] {
            assert_eq!(read(Some(0), line, &["kafka-1"], true), Power::Unknown(Why::Silent), "{line}");
        }
        assert_eq!(read(Some(0), "off", &[], true), Power::Unknown(Why::OffWithZero));
        assert_eq!(read(Some(2), "off", &[], true), Power::Off);
        assert_eq!(read(Some(1), "on", &[], true), Power::Unknown(Why::Code));
    }

    #[test]
    fn prose_and_silence_are_no_state() {
        for said in [
            "",
            "cannot tell whether the power is off",
            "not off",
            "turned off",
            "switch off",
            "off 3 of 4",
            "offline",
            "kafka-2 is off",
        ] {
            assert_eq!(read(Some(2), said, &["kafka-1"], false), Power::Unknown(Why::NoWord), "{said}");
        }
        assert_eq!(read(None, "off", &[], false), Power::Unknown(Why::Code), "killed");
        for said in [
            "Usage: fence {on|off}",
            "Usage: ./site-fence on|off",
            "usage: power off",
            "usage: fence ACTION\nActions, one of\n  off\n",
            "fence: bad action\n\n  Usage:\n  off\n",
        ] {
            for (code, say_on) in [(0, false), (0, true), (2, false), (2, true)] {
                let read = read(Some(code), said, &["kafka-1"], say_on);
                assert_eq!(read, Power::Unknown(Why::Usage), "{code} {said}");
            }
        }
    }
}
