//! Ports of the host that a Java is told to listen on, beside Kafka's own listeners: those of JMX, of agents
//! such as Prometheus' exporter, of a debugger. Two Kafkas of one host cannot have the same. Pure.

use std::collections::BTreeMap;

use recovery::model::BrokerId;

/// Each port, with the setting that names it.
pub(super) type Named = BTreeMap<u16, String>;

/// The ports in an environment, and in the words of a command.
pub(super) fn named(environment: &BTreeMap<String, String>, command: &[String]) -> Named {
    let mut found = Named::new();
    if let Some(port) = environment.get("JMX_PORT").and_then(|value| port(value.trim())) {
        found.insert(port, "JMX_PORT".to_owned());
    }
    let values = environment.iter().map(|(name, value)| (name.as_str(), value));
    for (name, value) in values.chain(command.iter().map(|word| ("the command", word))) {
        for (option, port) in
            value.split_whitespace().filter_map(|word| in_option(word.trim_matches(['"', '\''])))
        {
            found.entry(port).or_insert_with(|| format!("{option} in {name}"));
        }
    }
    found
}

/// The port that an option of Java names, with the option's own name.
fn in_option(word: &str) -> Option<(&'static str, u16)> {
    for jmx in ["-Dcom.sun.management.jmxremote.port", "-Dcom.sun.management.jmxremote.rmi.port"] {
        if let Some(value) = word.strip_prefix(jmx).and_then(|rest| rest.strip_prefix('=')) {
            return Some((jmx, port(value)?));
        }
    }
    // `JAR=[ADDRESS:]PORT:CONFIGURATION`, or `JAR=port=PORT,…`.
    if let Some((_, arguments)) = word.strip_prefix("-javaagent:").and_then(|agent| agent.split_once('=')) {
        let mut pairs = arguments.split(',').filter_map(|pair| pair.strip_prefix("port="));
        let mut parts = arguments.split(':').collect::<Vec<_>>();
        parts.pop();
        return Some((
            "-javaagent:",
            pairs.next().and_then(port).or_else(|| parts.into_iter().find_map(port))?,
        ));
    }
    let debugger = word.strip_prefix("-agentlib:jdwp=")?;
    let address = debugger.split(',').find_map(|pair| pair.strip_prefix("address="))?;
    Some(("-agentlib:jdwp=", port(address.rsplit(':').next().unwrap_or(address))?))
}

/// Port 0 is any that is free.
fn port(text: &str) -> Option<u16> {
    text.parse().ok().filter(|port| *port != 0)
}

/// That two brokers' Kafkas are told the same port; `None` if they are not.
pub(super) fn shared(own: &Named, (other, theirs): (BrokerId, &Named)) -> Option<String> {
    let told: Vec<String> = own
        .iter()
        .filter(|(port, _)| theirs.contains_key(port))
        .map(|(port, setting)| format!("{setting} names port {port}"))
        .collect();
    (!told.is_empty()).then(|| {
        format!(
            "{}, and for broker {other} too: where both run here, the second Kafka ends with \"Address already in use\"",
            told.join(", ")
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ports_are_found_wherever_java_is_told_of_them() {
        let jmx = "-Dcom.sun.management.jmxremote.port";
        for (name, value, expected) in [
            ("JMX_PORT", "9999", Some((9999, "JMX_PORT"))),
            ("JMX_PORT", " 9999 ", Some((9999, "JMX_PORT"))),
            ("JMX_PORT", "0", None),
            (
                "KAFKA_JMX_OPTS",
                "-Dcom.sun.management.jmxremote -Dcom.sun.management.jmxremote.port=9010",
                Some((9010, jmx)),
            ),
            ("KAFKA_OPTS", "-javaagent:/opt/jmx.jar=7071:/etc/jmx.yml", Some((7071, "-javaagent:"))),
            (
                "KAFKA_OPTS",
                "-Xlog:gc -javaagent:/opt/jmx.jar=0.0.0.0:7071:/etc/jmx.yml",
                Some((7071, "-javaagent:")),
            ),
            ("KAFKA_OPTS", "\"-javaagent:/opt/jmx.jar=[::]:7071:/etc/jmx.yml\"", Some((7071, "-javaagent:"))),
            ("KAFKA_OPTS", "-javaagent:/opt/jolokia.jar=host=0.0.0.0,port=8778", Some((8778, "-javaagent:"))),
            ("KAFKA_OPTS", "-javaagent:/opt/trace.jar", None),
            ("KAFKA_OPTS", "-javaagent:/opt/trace.jar=rate=100", None),
            (
                "JAVA_TOOL_OPTIONS",
                "-agentlib:jdwp=transport=dt_socket,server=y,address=*:5005",
                Some((5005, "-agentlib:jdwp=")),
            ),
            ("KAFKA_HEAP_OPTS", "-Xmx6g -Xms6g", None),
            ("KAFKA_LISTENER", "9092", None),
        ] {
            let environment = BTreeMap::from([(name.to_owned(), value.to_owned())]);
            let found = named(&environment, &[]);
            let expected = expected.map(|(port, option)| match option {
                "JMX_PORT" => (port, option.to_owned()),
                option => (port, format!("{option} in {name}")),
            });
            assert_eq!(found.into_iter().next(), expected, "{name}={value}");
        }
        let command = ["java", "-javaagent:/j.jar=7071:/c"].map(str::to_owned);
        assert_eq!(named(&BTreeMap::new(), &command)[&7071], "-javaagent: in the command");
    }

    #[test]
    fn one_port_for_two_brokers_is_told_with_its_setting() {
        let of = |port: &str| named(&BTreeMap::from([("JMX_PORT".to_owned(), port.to_owned())]), &[]);
        let told = shared(&of("9999"), (BrokerId(2), &of("9999"))).unwrap();
        assert!(told.starts_with("JMX_PORT names port 9999, and for broker 2 too"), "{told}");
        assert_eq!(shared(&of("9991"), (BrokerId(2), &of("9992"))), None);
    }
}
