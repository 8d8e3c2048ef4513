//! `cargo xtask env`: what a crate outside of this checkout needs in its environment to be built
//! with Fuseline as a dependency.
//!
//! In: a machine that is set up. Out: the variables of `.cargo/config.toml` with absolute paths, on
//! standard output for a shell, or in the Cargo configuration of another crate.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, bail};

use crate::host::{CONFIGURED, Host};

/// Where set-up puts things: below the checkout, or, where this program was installed and has none,
/// below the user's folder for data.
pub(crate) fn host() -> anyhow::Result<Host> {
    if std::env::var_os("CARGO_MANIFEST_DIR").is_some() {
        return Host::detect();
    }
    let folder = |name: &str| std::env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute());
    let data = folder("XDG_DATA_HOME").or_else(|| Some(folder("HOME")?.join(".local/share")));
    let root = data.context("neither XDG_DATA_HOME nor HOME is set to an absolute path")?.join("fuseline");
    fs::create_dir_all(&root).with_context(|| format!("could not create {}", root.display()))?;
    Ok(Host::below(root))
}

/// The variables with their values.
fn variables(root: &Path) -> anyhow::Result<Vec<(&'static str, String)>> {
    let value = |(name, place): (&'static str, &str)| {
        let path = root.join(place);
        let path = path.to_str().with_context(|| format!("{} is not UTF-8", path.display()))?;
        Ok((name, path.to_owned()))
    };
    CONFIGURED.into_iter().map(value).collect()
}

/// `export` commands, to be evaluated by a shell.
pub(crate) fn exports(root: &Path) -> anyhow::Result<String> {
    let line = |(name, path): (&str, String)| format!("export {name}='{}'\n", path.replace('\'', r"'\''"));
    Ok(variables(root)?.into_iter().map(line).collect())
}

/// An `[env]` table of a Cargo configuration.
fn table(root: &Path) -> anyhow::Result<String> {
    let line = |(name, path): (&str, String)| {
        format!("{name} = \"{}\"\n", path.replace('\\', r"\\").replace('"', "\\\""))
    };
    let lines: String = variables(root)?.into_iter().map(line).collect();
    Ok(format!(
        "# What the dependencies of fuseline need to be built, and where its PJRT plugin is (`xtask env`).\n\
         [env]\n{lines}"
    ))
}

/// Puts the variables into the Cargo configuration of the crate in a folder; what it holds stays.
///
/// Returns the path of the file.
pub(crate) fn configure(root: &Path, folder: &Path) -> anyhow::Result<PathBuf> {
    let table = table(root)?;
    let path = folder.join(".cargo/config.toml");
    let before = match fs::read_to_string(&path) {
        Ok(text) => text,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => String::new(),
        Err(error) => return Err(error).with_context(|| format!("could not read {}", path.display())),
    };
    if before.contains(&table) {
        return Ok(path);
    }
    if before.lines().any(|line| line.trim_start().starts_with("[env")) {
        bail!("{} already has an [env] table: add these lines to it\n\n{table}", path.display());
    }
    let gap = if before.is_empty() { "" } else { "\n" };
    fs::create_dir_all(folder.join(".cargo"))
        .and_then(|()| fs::write(&path, format!("{before}{gap}{table}")))
        .with_context(|| format!("could not write {}", path.display()))?;
    Ok(path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_form_has_every_variable_with_its_path() {
        let root = Path::new("/opt/fuseline");
        let (shell, cargo) = (exports(root).expect("UTF-8"), table(root).expect("UTF-8"));
        for (name, place) in CONFIGURED {
            assert!(shell.lines().any(|line| line == format!("export {name}='/opt/fuseline/{place}'")));
            assert!(cargo.lines().any(|line| line == format!("{name} = \"/opt/fuseline/{place}\"")));
        }
    }

    /// A shell reads what is written as what was meant, whatever the path holds.
    #[test]
    fn a_shell_reads_the_paths_back() {
        for root in ["/plain", "/with space", "/it's $HOME", "/\"quoted\" \\ back"] {
            let script = exports(Path::new(root)).expect("UTF-8") + "printf %s \"$PROTOC\"";
            let said = std::process::Command::new("sh").args(["-c", &script]).output().expect("a shell runs");
            assert_eq!(String::from_utf8_lossy(&said.stdout), format!("{root}/.setup/bin/protoc"));
        }
    }

    #[test]
    fn quotes_and_backslashes_are_escaped_for_cargo() {
        let text = table(Path::new("/a \"b\" \\c")).expect("UTF-8");
        assert!(text.contains(r#"PROTOC = "/a \"b\" \\c/.setup/bin/protoc""#), "{text}");
    }

    #[test]
    fn a_configuration_keeps_what_it_holds() {
        let folder = tempfile::tempdir().expect("a scratch folder");
        let root = Path::new("/fuseline");
        let path = configure(root, folder.path()).expect("there is none yet");
        let fresh = fs::read_to_string(&path).expect("a file");
        assert_eq!(fresh, table(root).expect("UTF-8"));
        // A second time changes nothing.
        configure(root, folder.path()).expect("it is there");
        assert_eq!(fs::read_to_string(&path).expect("a file"), fresh);

        fs::write(&path, "[build]\njobs = 1\n").expect("write");
        configure(root, folder.path()).expect("there is no [env]");
        let both = fs::read_to_string(&path).expect("a file");
        assert_eq!(both, format!("[build]\njobs = 1\n\n{fresh}"));

        // An [env] of the user's is the user's to change.
        let own = "[env]\nPROTOC = \"/opt/protoc\"\n";
        fs::write(&path, own).expect("write");
        let error = configure(root, folder.path()).expect_err("there is an [env]").to_string();
        assert!(error.contains("already has an [env] table") && error.contains("LIBCLANG_PATH"), "{error}");
        assert_eq!(fs::read_to_string(&path).expect("a file"), own);
    }
}
