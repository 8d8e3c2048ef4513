//! Generates the header from the source.

use std::path::Path;

/// The source files, in the order of their items in the header.
const FILES: [&str; 16] = [
    "lib", "error", "types", "ops", "attrs", "callback", "config", "session", "event", "site", "value",
    "record", "host", "trace", "custom", "cache",
];

/// The text of the header.
pub(crate) fn header() -> String {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let config = cbindgen::Config::from_file(root.join("cbindgen.toml")).unwrap();
    let mut builder = cbindgen::Builder::new().with_config(config);
    for file in FILES {
        builder = builder.with_src(root.join("src").join(file).with_extension("rs"));
    }
    let mut made = Vec::new();
    builder.generate().unwrap().write(&mut made);
    String::from_utf8(made).unwrap()
}
