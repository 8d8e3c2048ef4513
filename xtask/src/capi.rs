//! `cargo xtask capi`: builds the C library and installs it where compilers find it.
//!
//! ```text
//! FOLDER/include/fuseline.h, fuseline.hpp
//! FOLDER/lib/libfuseline.so -> libfuseline.so.0, libfuseline.a, pkgconfig/fuseline.pc
//! ```

use std::path::Path;
use std::process::ExitCode;

use anyhow::Context as _;

use crate::host::Host;

/// The soname of the shared library. The number is that of `capi/build.rs`.
const NAME: &str = "libfuseline.so.0";

const HEADERS: [&str; 2] = ["fuseline.h", "fuseline.hpp"];

/// Builds the library and installs it below `prefix`.
pub(crate) fn run(host: &Host, prefix: &Path) -> anyhow::Result<ExitCode> {
    anyhow::ensure!(
        host.os == "linux",
        "the C library can be installed on Linux only; `cargo build -p fuseline-capi` builds it"
    );
    host.build(&["--release", "--package", "fuseline-capi"])?;
    let prefix =
        std::path::absolute(prefix).with_context(|| format!("{} is not a valid path", prefix.display()))?;
    let (include, lib) = (prefix.join("include"), prefix.join("lib"));
    for folder in [&include, &lib.join("pkgconfig")] {
        std::fs::create_dir_all(folder).with_context(|| format!("could not create {}", folder.display()))?;
    }
    for header in HEADERS {
        copy(&host.root.join("capi/include").join(header), &include.join(header))?;
    }
    let built = host.target_dir().join("release");
    copy(&built.join("libfuseline.so"), &lib.join(NAME))?;
    copy(&built.join("libfuseline.a"), &lib.join("libfuseline.a"))?;
    let link = lib.join("libfuseline.so");
    drop(std::fs::remove_file(&link));
    std::os::unix::fs::symlink(NAME, &link)
        .with_context(|| format!("could not create {}", link.display()))?;
    let description = lib.join("pkgconfig/fuseline.pc");
    let text = pkg_config(&prefix, env!("CARGO_PKG_VERSION"));
    std::fs::write(&description, text)
        .with_context(|| format!("could not write {}", description.display()))?;
    println!("capi: installed libfuseline {} in {}", env!("CARGO_PKG_VERSION"), prefix.display());
    Ok(ExitCode::SUCCESS)
}

fn copy(from: &Path, to: &Path) -> anyhow::Result<()> {
    // A running program may have the old file open.
    drop(std::fs::remove_file(to));
    std::fs::copy(from, to)
        .with_context(|| format!("could not copy {} to {}", from.display(), to.display()))?;
    Ok(())
}

/// The `pkg-config` file.
fn pkg_config(prefix: &Path, version: &str) -> String {
    format!(
        "prefix={}\nName: fuseline\nDescription: eager tensor ops, fused and compiled by XLA\nVersion: {version}\n\
         Cflags: -I${{prefix}}/include\nLibs: -L${{prefix}}/lib -lfuseline\nLibs.private: -lpthread -ldl -lm\n",
        prefix.display()
    )
}
