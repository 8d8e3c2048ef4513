//! Sets the soname of the shared library, and symbol versions if the linker supports them.
//!
//! The soname has the generation of the interface, so programs linked with one generation do not
//! start with another.

use std::process::{Command, Stdio};

/// Raise this when an item is removed or changes its meaning, together with the version in
/// `src/lib.rs`.
const GENERATION: u32 = 0;

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    let target = |name: &str| std::env::var(format!("CARGO_CFG_TARGET_{name}")).unwrap_or_default();
    if target("OS") != "linux" || target("ENV") != "gnu" {
        return;
    }
    println!("cargo::rustc-cdylib-link-arg=-Wl,-soname,libfuseline.so.{GENERATION}");
    // Dependencies may define C symbols of their own, which are not part of this library.
    println!("cargo::rustc-cdylib-link-arg=-Wl,--exclude-libs,ALL");
    // Rust's version script names no version, and other linkers accept only one script. GNU ld
    // gives all symbols the version of the soname.
    let has_linker =
        Command::new("ld.bfd").arg("--version").stdout(Stdio::null()).stderr(Stdio::null()).status();
    if has_linker.is_ok_and(|status| status.success()) {
        println!("cargo::rustc-cdylib-link-arg=-fuse-ld=bfd");
        println!("cargo::rustc-cdylib-link-arg=-Wl,--default-symver");
    } else {
        println!("cargo::warning=ld.bfd was not found: the symbols of libfuseline.so have no versions");
    }
}
