//! A secret that stands anywhere in a configuration, in the right place or in a wrong one, is in no message
//! about it.

use std::fs;
use std::path::{Path, PathBuf};

use understudy::config::Config;

const SECRET: &str = "hunter2";

/// Keys that name a secret's file, hold it, or hold what may be one.
const SECRET_KEYS: [&str; 6] = ["pass", "secret", "token", "options", "properties", "environment"];

fn examples() -> Vec<PathBuf> {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../deploy/examples");
    let all = fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path());
    all.filter(|path| path.extension().is_some_and(|extension| extension == "toml")).collect()
}

/// Everything that is written about a text that is no configuration.
fn said(text: &str) -> String {
    match Config::parse(Path::new("u.toml"), text) {
        Ok(config) => format!("{:?}", config.warnings),
        Err(error) => format!("{error} {error:?} {}", serde_json::to_string(&error).unwrap()),
    }
}

/// The text with its line `at` replaced.
fn with(lines: &[&str], at: usize, line: &str) -> String {
    let mut lines: Vec<&str> = lines.to_vec();
    lines[at] = line;
    lines.join("\n")
}

/// What people write when they mean a password.
fn mistakes(key: &str) -> Vec<String> {
    vec![
        format!("{key}x = \"{SECRET}\""),
        format!("{key}.passwrd = \"{SECRET}\""),
        format!("{key} = {{ fle = \"{SECRET}\" }}"),
        format!("{key} = [{{ passwd = \"{SECRET}\" }}]"),
        format!("{key} = \"{SECRET}"),
        format!("{key} = {SECRET}"),
        format!("{key} = \"https://admin:{SECRET}@filer\""),
        format!("{key} = \"\"\"\n{SECRET}\n"),
    ]
}

#[test]
fn a_secret_in_the_place_of_any_value_is_in_no_message() {
    let mut tried = 0;
    for path in examples() {
        let text = fs::read_to_string(&path).unwrap();
        let lines: Vec<&str> = text.lines().collect();
        let (mut header, mut told) = (String::new(), String::new());
        for (at, line) in lines.iter().enumerate() {
            if line.starts_with('[') {
                (*line).clone_into(&mut header);
            }
            let Some((key, _)) = line.split_once(" = ").filter(|_| !line.starts_with('#')) else { continue };
            let mut wrong = mistakes(key);
            if SECRET_KEYS.iter().any(|word| key.contains(word) || header.contains(word)) {
                wrong.extend([
                    format!("{key} = \"{SECRET}\""),
                    format!("{key} = \"{SECRET}\\n\""),
                    format!("{key} = [\"{SECRET}\"]"),
                ]);
            }
            for mistake in wrong {
                told = said(&with(&lines, at, &mistake));
                assert!(!told.contains(SECRET), "{} {header} `{mistake}`:\n{told}", path.display());
                tried += 1;
            }
        }
        assert!(!told.is_empty(), "{} has no values", path.display());
    }
    assert!(tried > 500, "{tried} were tried");
}

#[test]
fn a_secret_under_a_key_that_is_none_is_in_no_message() {
    for path in examples() {
        let text = fs::read_to_string(&path).unwrap();
        let lines: Vec<&str> = text.lines().collect();
        let tables = lines.iter().enumerate().filter(|(_, line)| line.starts_with('['));
        for (at, header) in tables {
            for key in ["password", "passwd", "api_token", "hostx"] {
                let told = said(&with(&lines, at, &format!("{header}\n{key} = \"{SECRET}\"")));
                assert!(!told.contains(SECRET), "{} {header} {key}:\n{told}", path.display());
            }
        }
    }
}
