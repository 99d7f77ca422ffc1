#![allow(clippy::unwrap_used, reason = "a failed unwrap fails the test")]

use super::super::spans::tests::takeover;
use super::*;

/// Every element that is opened is closed, inside the one that it was opened in.
fn is_nested(svg: &str) -> bool {
    let mut open = Vec::new();
    for tag in svg.split('<').skip(1).filter_map(|rest| rest.split_once('>')).map(|(tag, _)| tag) {
        match (tag.strip_prefix('/'), tag.ends_with('/')) {
            (Some(name), _) if open.pop() != Some(name) => return false,
            (None, false) => open.push(tag.split(' ').next().unwrap()),
            _ => {}
        }
    }
    open.is_empty()
}

#[test]
fn bars_stand_where_their_time_is() {
    let mut journal = takeover();
    journal.claim.plan.from = "<b1>".into();
    let picture = Picture::of(&journal, Vec::new());
    let svg = picture.to_string();
    assert!(is_nested(&svg), "{svg}");
    assert!(svg.contains("&lt;b1&gt; → standby-1, epoch 2: not ended yet"), "{svg}");
    assert_eq!(svg.matches("<rect class=\"bar\"").count(), 5, "{svg}");
    assert_eq!(svg.matches("<rect class=\"failed\"").count(), 1);
    assert_eq!(svg.matches("<rect class=\"beside\"").count(), 1);
    assert!(!svg.contains("records/s"));
    // Two seconds are twice as long as one, from where the fault is.
    let zero = picture.x_of(0.0);
    let ratio = (picture.x_of(2.0) - zero) / (picture.x_of(1.0) - zero);
    assert!((ratio - 2.0).abs() < 1e-9, "{ratio}");
    assert!(picture.x_of(-1.0) >= LEFT && picture.x_of(picture.end) <= WIDTH - RIGHT);
}

#[test]
fn a_rate_is_read_and_drawn_and_a_bad_line_named() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("rate");
    fs::write(&file, "1700000001.5,0\n\n 1700000000.5, 300.25 \n1600000000,9999\n").unwrap();
    let rate = read_rate(&file).unwrap();
    assert_eq!(rate[2], ("2023-11-14T22:13:21.5Z".parse().unwrap(), 0.0), "in the order of time");
    let svg = Picture::of(&takeover(), rate).to_string();
    assert!(is_nested(&svg) && svg.contains("≤ 300 records/s"), "what is outside does not count: {svg}");
    for bad in ["1", "x,1", "1,-1", "1,NaN", "1e300,1"] {
        fs::write(&file, format!("1,2\n{bad}\n")).unwrap();
        let said = read_rate(&file).unwrap_err().to_string();
        assert!(said.contains("line 2") && said.contains("SECONDS,RATE"), "{bad}: {said}");
    }
    assert!(read_rate(&dir.path().join("none")).unwrap_err().to_string().contains("cannot read"));
}
