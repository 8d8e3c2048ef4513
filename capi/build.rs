//! Gives the shared library its name and its symbols a version, where the linker can.
//!
//! The name says which generation of the interface it is: programs linked with one do not start
//! with another.

use std::process::{Command, Stdio};

/// Raised when something is taken away or changes its meaning; with it the name in `src/lib.rs`.
const GENERATION: u32 = 0;

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    let target = |name: &str| std::env::var(format!("CARGO_CFG_TARGET_{name}")).unwrap_or_default();
    if target("OS") != "linux" || target("ENV") != "gnu" {
        return;
    }
    println!("cargo::rustc-cdylib-link-arg=-Wl,-soname,libfuseline.so.{GENERATION}");
    // Crates that this one is made of may have symbols for C of their own, which are none of this
    // library's.
    println!("cargo::rustc-cdylib-link-arg=-Wl,--exclude-libs,ALL");
    // Rust's own list of symbols has no version, and other linkers take no second list. This one
    // gives all of them that of the library's name.
    let has_linker =
        Command::new("ld.bfd").arg("--version").stdout(Stdio::null()).stderr(Stdio::null()).status();
    if has_linker.is_ok_and(|status| status.success()) {
        println!("cargo::rustc-cdylib-link-arg=-fuse-ld=bfd");
        println!("cargo::rustc-cdylib-link-arg=-Wl,--default-symver");
    } else {
        println!("cargo::warning=ld.bfd is not here: the symbols of libfuseline.so have no versions");
    }
}
