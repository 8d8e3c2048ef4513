//! The committed header matches the source.
#![allow(missing_docs, clippy::unwrap_used, reason = "a test")]

mod support;

use std::path::Path;

#[test]
fn the_header_is_that_of_the_source() {
    let made = support::header();
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("include").join("fuseline.h");
    if std::env::var_os("FUSELINE_BLESS").is_some() {
        std::fs::write(&file, &made).unwrap();
    }
    let found = std::fs::read_to_string(&file).unwrap_or_default();
    assert!(
        found == made,
        "include/fuseline.h is not that of the source: run this test with FUSELINE_BLESS=1 and look at what changed"
    );
}
