//! The header is what the source says, and what is promised of it stays.
#![allow(missing_docs, clippy::unwrap_used, reason = "a test")]

use std::path::Path;

/// In the order in which the header has them.
const FILES: [&str; 15] = [
    "lib", "error", "types", "ops", "attrs", "callback", "config", "session", "event", "site", "value",
    "record", "host", "trace", "custom",
];

#[test]
fn the_header_is_that_of_the_source() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut builder = cbindgen::Builder::new()
        .with_config(cbindgen::Config::from_file(root.join("cbindgen.toml")).unwrap());
    for file in FILES.into_iter().chain(["cache"]) {
        builder = builder.with_src(root.join("src").join(file).with_extension("rs"));
    }
    let mut made = Vec::new();
    builder.generate().unwrap().write(&mut made);
    let made = String::from_utf8(made).unwrap();
    let file = root.join("include").join("fuseline.h");
    if std::env::var_os("FUSELINE_BLESS").is_some() {
        std::fs::write(&file, &made).unwrap();
    }
    let found = std::fs::read_to_string(&file).unwrap_or_default();
    assert!(
        found == made,
        "include/fuseline.h is not that of the source: run this test with FUSELINE_BLESS=1 and look at what changed"
    );
}
