//! Finds the plugins of a machine.
//!
//! Input: [`Sources`], which say where to look. Nothing else is read, so a test can provide its
//! own. Output: a [`Discovery`], which lists every candidate in order of preference, with the
//! reason why it can or cannot be used.
//!
//! Looking loads nothing. Loading runs a plugin's code and may take a device, so it is done for the
//! first usable candidate only ([`Discovery::first_usable`]), or for all on request
//! ([`Discovery::try_all`]).
//!
//! A plugin that the user named (an explicit path, or `FUSELINE_PJRT_PLUGIN`) is the only one
//! considered: running on another device than requested without notice would be worse than an
//! error.

use std::ffi::{OsStr, OsString};
use std::fmt;
use std::io::Read as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::mpsc;
use std::time::Duration;

use fuseline_fusion::Printable;
use fuseline_sync::thread;

use super::open_error::OpenError;
use super::plugin::{Plugin, check_file};

/// Variable with the path of the plugin to use.
pub const PLUGIN_VARIABLE: &str = "FUSELINE_PJRT_PLUGIN";

/// JAX's variable with a list of plugins, `name:path,name:path`.
pub const NAMES_AND_PATHS_VARIABLE: &str = "PJRT_NAMES_AND_LIBRARY_PATHS";

/// Variable with the folder of this project's setup, which has `plugins/<name>/<file>.so`. If it is
/// not set, its value at compile time is used.
pub const SETUP_DIR_VARIABLE: &str = "FUSELINE_SETUP_DIR";

/// Maximum time for Python to answer.
const PYTHON_LIMIT: Duration = Duration::from_secs(10);

/// Where to look for plugins. `None` entries are not searched.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Sources {
    /// A path that was given to the program.
    pub explicit: Option<PathBuf>,
    /// Value of [`PLUGIN_VARIABLE`].
    pub plugin_variable: Option<OsString>,
    /// Value of [`NAMES_AND_PATHS_VARIABLE`].
    pub names_and_paths: Option<OsString>,
    /// The Python interpreter to ask for installed plugins. It is run once.
    pub python: Option<PathBuf>,
    /// The folder of the setup.
    pub setup_dir: Option<PathBuf>,
}

impl Sources {
    /// The sources of this process: its environment, `python3`, and the setup's folder.
    #[must_use]
    pub fn of_process() -> Sources {
        let set = |name| std::env::var_os(name).filter(|value| !value.is_empty());
        let compiled = option_env!("FUSELINE_SETUP_DIR").map(PathBuf::from);
        Sources {
            explicit: None,
            plugin_variable: set(PLUGIN_VARIABLE),
            names_and_paths: set(NAMES_AND_PATHS_VARIABLE),
            python: Some("python3".into()),
            setup_dir: set(SETUP_DIR_VARIABLE).map(PathBuf::from).or(compiled),
        }
    }

    /// Sets a path that was given to the program.
    #[must_use]
    pub fn with_explicit(self, path: Option<PathBuf>) -> Sources {
        Sources { explicit: path, ..self }
    }
}

/// Where a candidate was found, in the order of preference.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum Source {
    /// [`Sources::explicit`].
    Explicit,
    /// [`Sources::plugin_variable`].
    PluginVariable,
    /// [`Sources::names_and_paths`].
    NamesAndPaths,
    /// [`Sources::python`].
    Python,
    /// [`Sources::setup_dir`].
    Setup,
}

impl Source {
    /// True when the user named the plugin, so that no other is acceptable.
    #[must_use]
    pub fn is_decisive(self) -> bool {
        matches!(self, Source::Explicit | Source::PluginVariable)
    }
}

impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Source::Explicit => "explicit path",
            Source::PluginVariable => PLUGIN_VARIABLE,
            Source::NamesAndPaths => NAMES_AND_PATHS_VARIABLE,
            Source::Python => "Python packages",
            Source::Setup => "setup folder",
        })
    }
}

/// The state of a candidate.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// It looks like a shared library and has not been loaded.
    Untried,
    /// It was loaded and can be used.
    Usable(Plugin),
    /// It cannot be used, for this reason.
    Unusable(String),
}

/// A possible plugin, or an entry that should have named one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Candidate {
    /// The source that listed it.
    pub source: Source,
    /// Its name in the source, if that has names.
    pub name: Option<String>,
    /// The file; `None` for a malformed entry.
    pub path: Option<PathBuf>,
    /// Its state.
    pub verdict: Verdict,
}

impl Candidate {
    fn file(source: Source, name: Option<String>, path: PathBuf) -> Candidate {
        let verdict = match check_file(&path) {
            Ok(()) => Verdict::Untried,
            Err(fault) => Verdict::Unusable(OpenError::new(&path, fault).to_string()),
        };
        Candidate { source, name, path: Some(path), verdict }
    }

    fn malformed(source: Source, entry: &str, why: &str) -> Candidate {
        let verdict = Verdict::Unusable(format!("the entry {entry:?} {why}"));
        Candidate { source, name: None, path: None, verdict }
    }

    /// Loads the candidate unless that was done before. Afterwards its verdict is never
    /// [`Verdict::Untried`].
    fn try_it(&mut self) -> Option<Plugin> {
        if let (Verdict::Untried, Some(path)) = (&self.verdict, &self.path) {
            self.verdict = match Plugin::open(path) {
                Ok(plugin) => Verdict::Usable(plugin),
                Err(error) => Verdict::Unusable(error.to_string()),
            };
        }
        match &self.verdict {
            Verdict::Usable(plugin) => Some(*plugin),
            _ => None,
        }
    }
}

impl fmt::Display for Candidate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: ", self.source)?;
        if let Some(name) = &self.name {
            write!(f, "{}: ", Printable(name))?;
        }
        match (&self.verdict, &self.path) {
            (Verdict::Unusable(reason), _) => Printable(reason).fmt(f),
            (Verdict::Usable(plugin), Some(path)) => {
                write!(f, "{} is usable, API {}", Printable(path.display()), plugin.api_version())
            }
            (_, Some(path)) => write!(f, "{} was not tried", Printable(path.display())),
            (_, None) => f.write_str("nothing"),
        }
    }
}

/// Every candidate, in order of preference. `Display` lists them, one per line, and then the
/// sources without candidates.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Discovery {
    candidates: Vec<Candidate>,
    notes: Vec<(Source, String)>,
}

/// No plugin can be used. The message lists the candidates with the reasons.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NoPlugin(Discovery);

impl NoPlugin {
    /// The candidates that were considered.
    #[must_use]
    pub fn discovery(&self) -> &Discovery {
        &self.0
    }
}

impl fmt::Display for NoPlugin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0.candidates.iter().find(|candidate| candidate.source.is_decisive()) {
            Some(named) => write!(f, "the requested PJRT plugin cannot be used\n  {named}"),
            None => write!(f, "no usable PJRT plugin was found\n{}", self.0),
        }
    }
}

impl std::error::Error for NoPlugin {}

impl Discovery {
    /// Looks for plugins without loading any. Runs [`Sources::python`] once, for at most 10
    /// seconds.
    #[must_use]
    pub fn look(sources: &Sources) -> Discovery {
        let mut found = Discovery::default();
        let named = |path: &OsStr| path.to_owned().into();
        match &sources.explicit {
            Some(path) => found.candidates.push(Candidate::file(Source::Explicit, None, path.clone())),
            None => found.note(Source::Explicit, "none was given"),
        }
        match &sources.plugin_variable {
            Some(path) => {
                found.candidates.push(Candidate::file(Source::PluginVariable, None, named(path)));
            }
            None => found.note(Source::PluginVariable, "not set"),
        }
        match &sources.names_and_paths {
            Some(text) => found.names_and_paths(text),
            None => found.note(Source::NamesAndPaths, "not set"),
        }
        match &sources.python {
            Some(program) => found.python(program),
            None => found.note(Source::Python, "not examined"),
        }
        match &sources.setup_dir {
            Some(dir) => found.setup(dir),
            None => found.note(Source::Setup, "not known"),
        }
        found
    }

    /// The candidates, in order of preference.
    #[must_use]
    pub fn candidates(&self) -> &[Candidate] {
        &self.candidates
    }

    /// The sources without candidates, with the reasons.
    #[must_use]
    pub fn notes(&self) -> &[(Source, String)] {
        &self.notes
    }

    /// Loads every candidate to find out which can be used. Loading runs their code and may take
    /// devices.
    pub fn try_all(&mut self) {
        for candidate in &mut self.candidates {
            candidate.try_it();
        }
    }

    /// Loads candidates in order until one can be used. If the user named one, no other is tried.
    ///
    /// # Errors
    /// When none can be used.
    pub fn first_usable(&mut self) -> Result<Plugin, NoPlugin> {
        for candidate in &mut self.candidates {
            if let Some(plugin) = candidate.try_it() {
                return Ok(plugin);
            }
            if candidate.source.is_decisive() {
                break;
            }
        }
        Err(NoPlugin(self.clone()))
    }

    fn note(&mut self, source: Source, text: impl Into<String>) {
        self.notes.push((source, text.into()));
    }

    /// Entries `name:path`, separated by commas. So paths may contain colons but no commas.
    fn names_and_paths(&mut self, text: &OsStr) {
        const SOURCE: Source = Source::NamesAndPaths;
        let Some(text) = text.to_str() else {
            let why = "is not UTF-8";
            return self.candidates.push(Candidate::malformed(SOURCE, &text.to_string_lossy(), why));
        };
        for entry in text.split(',').map(str::trim) {
            self.candidates.push(
                match entry.split_once(':').map(|(name, path)| (name.trim(), path.trim())) {
                    None => Candidate::malformed(SOURCE, entry, "has no colon; it should read name:path"),
                    Some(("", _)) => {
                        Candidate::malformed(SOURCE, entry, "has no name; it should read name:path")
                    }
                    Some((_, "")) => {
                        Candidate::malformed(SOURCE, entry, "has no path; it should read name:path")
                    }
                    Some((name, path)) => Candidate::file(SOURCE, Some(name.into()), path.into()),
                },
            );
        }
    }

    fn python(&mut self, program: &Path) {
        match list_python_plugins(program) {
            Ok(found) if found.is_empty() => {
                self.note(Source::Python, format!("{} finds none", program.display()));
            }
            Ok(found) => {
                let candidates = found.into_iter();
                let candidates =
                    candidates.map(|(name, path)| Candidate::file(Source::Python, Some(name), path));
                self.candidates.extend(candidates);
            }
            Err(why) => {
                self.note(Source::Python, format!("{} could not be queried: {why}", program.display()));
            }
        }
    }

    fn setup(&mut self, dir: &Path) {
        let before = self.candidates.len();
        let plugins = dir.join("plugins");
        for folder in sorted_entries(&plugins) {
            let name = folder.file_name().map(|name| name.to_string_lossy().into_owned());
            for file in sorted_entries(&folder) {
                if matches!(file.extension().and_then(OsStr::to_str), Some("so" | "dylib")) {
                    self.candidates.push(Candidate::file(Source::Setup, name.clone(), file));
                }
            }
        }
        if self.candidates.len() == before {
            self.note(Source::Setup, format!("nothing in {}", plugins.display()));
        }
    }
}

impl fmt::Display for Discovery {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for candidate in &self.candidates {
            writeln!(f, "  {candidate}")?;
        }
        for (source, text) in &self.notes {
            writeln!(f, "  {source}: {}", Printable(text))?;
        }
        Ok(())
    }
}

/// The paths in a folder, sorted. Empty if it cannot be read.
fn sorted_entries(folder: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(folder).into_iter().flatten();
    let mut paths: Vec<_> = entries.filter_map(|entry| Some(entry.ok()?.path())).collect();
    paths.sort();
    paths
}

/// The prefix of the answer, which separates it from anything else that Python prints.
const MARK: &str = "fuseline-pjrt-plugins:";

/// The packages with XLA's CPU backend, the preferred first: see `docs/plugins.md`. The plugins of
/// all other packages come before them, because those need a device that the user has installed.
const CPU_PACKAGES: [&str; 3] = ["fastatomstruct_xla_cpu", "xla_plugins.xla_cpu_pjrt", "lammps_jax_pjrt_cpu"];

/// The place of a package in the order of preference.
fn preference(package: &str) -> usize {
    CPU_PACKAGES.iter().position(|name| *name == package).map_or(0, |place| place + 1)
}

/// Lists the shared libraries of the packages that contain plugins. It imports none of them, and
/// does not look in the current folder.
const SCRIPT: &str = r#"
import sys
sys.path = [entry for entry in sys.path if entry not in ("", ".")]
import importlib.util, json, os

def folders(package):
    try:
        spec = importlib.util.find_spec(package)
    except Exception:
        return []
    return [str(path) for path in (getattr(spec, "submodule_search_locations", None) or [])]

def entries(folder):
    try:
        return sorted(os.listdir(folder))
    except OSError:
        return []

found = []
for package in ("xla_plugins", "jax_plugins"):
    for root in folders(package):
        for name in entries(root):
            folder = os.path.join(root, name)
            for file in entries(folder) if os.path.isdir(folder) else []:
                extension_module = ".cpython-" in file or ".abi3." in file
                if file.endswith((".so", ".dylib")) and not extension_module:
                    found.append([package + "." + name, os.path.join(folder, file)])
for root in folders("libtpu"):
    path = os.path.join(root, "libtpu.so")
    if os.path.exists(path):
        found.append(["libtpu", path])
for package in sys.argv[1:]:
    for root in folders(package):
        for file in entries(root):
            if file.endswith(".so"):
                found.append([package, os.path.join(root, file)])
print("\nfuseline-pjrt-plugins:" + json.dumps(found))
"#;

/// Asks an interpreter for the installed plugins: package names and files.
fn list_python_plugins(program: &Path) -> Result<Vec<(String, PathBuf)>, String> {
    let mut child = Command::new(program)
        .args(["-c", SCRIPT])
        .args(CPU_PACKAGES.iter().filter(|name| !name.contains('.')))
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .map_err(|error| error.to_string())?;
    let stdout = child.stdout.take();
    let (send, receive) = mpsc::channel();
    let reader = thread::spawn("pjrt-ask-python".into(), move || {
        let mut bytes = Vec::new();
        let read = stdout.map(|mut stdout| stdout.read_to_end(&mut bytes));
        // The receiver is gone when the time is up.
        drop(send.send(read.map(|read| read.map(|_| bytes))));
    });
    let answer = match reader {
        Ok(_) => receive.recv_timeout(PYTHON_LIMIT).map_err(|_| "it took too long".to_owned()),
        Err(error) => Err(error.to_string()),
    };
    // It has answered, or never will. Both calls can only fail if it has ended already.
    drop(child.kill());
    drop(child.wait());
    let bytes = match answer? {
        Some(Ok(bytes)) => bytes,
        Some(Err(error)) => return Err(error.to_string()),
        None => return Err("it produced no output".into()),
    };
    let text = String::from_utf8_lossy(&bytes);
    let answer = text.lines().find_map(|line| line.strip_prefix(MARK)).ok_or("it did not answer")?;
    let mut found: Vec<(String, String)> = serde_json::from_str(answer).map_err(|error| error.to_string())?;
    found.sort_by_key(|(package, _)| preference(package));
    Ok(found.into_iter().map(|(name, path)| (name, path.into())).collect())
}
