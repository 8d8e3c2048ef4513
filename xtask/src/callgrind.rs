//! Reads the files that Callgrind writes.
//!
//! A file has a block for each function: where it lies, which instructions it executed, and which
//! functions it called. Code that the compiler inlined belongs to the block of its surrounding
//! function, under the name of the file that it comes from. Names are written once and referred to
//! by number afterwards.

use std::collections::{BTreeMap, BTreeSet};

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context as _, bail, ensure};

use crate::host::Host;

/// The path of Valgrind. Prints a message of `command` if it is not installed.
pub(crate) fn valgrind(host: &Host, command: &str) -> Option<PathBuf> {
    let found = host.which("valgrind");
    if found.is_none() {
        eprintln!("{command}: valgrind is not installed (Debian: apt install valgrind)");
    }
    found
}

/// A command that runs a program under Callgrind and writes the profile to `dump`. The caller adds
/// further options of Callgrind, the program and its arguments.
pub(crate) fn command(host: &Host, valgrind: &Path, dump: &Path) -> Command {
    let mut command = host.command(valgrind);
    command.args(["--tool=callgrind", "--quiet", "--demangle=no"]);
    command.arg(format!("--callgrind-out-file={}", dump.display())).stdout(Stdio::null());
    command
}

/// Runs the command.
///
/// # Errors
/// When the program does not start or fails.
pub(crate) fn run(mut command: Command) -> anyhow::Result<()> {
    let status = command.status().context("could not start valgrind")?;
    ensure!(status.success(), "the program under Callgrind failed ({status})");
    Ok(())
}

/// Reads the profile in a file.
///
/// # Errors
/// When it cannot be read.
pub(crate) fn read(path: &Path) -> anyhow::Result<Profile> {
    let text = std::fs::read_to_string(path).with_context(|| format!("no file {}", path.display()))?;
    parse(&text).with_context(|| path.display().to_string())
}

/// A function, by its number within a [`Profile`].
pub(crate) type FunctionId = usize;

/// A file, by its number within a [`Profile`].
pub(crate) type FileId = usize;

/// A function of a profile.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Function {
    /// The name as the linker knows it.
    pub(crate) symbol: String,
    /// The library or program.
    pub(crate) object: String,
    /// The file where it is written; unknown for a function that is only called.
    pub(crate) file: Option<FileId>,
}

/// A dump.
#[derive(Debug, Default)]
pub(crate) struct Profile {
    pub(crate) files: Vec<String>,
    pub(crate) functions: Vec<Function>,
    /// The executed code: a function, and the file that a part of its code comes from.
    pub(crate) code: BTreeSet<(FunctionId, FileId)>,
    /// The calls from such code to functions.
    pub(crate) calls: BTreeSet<((FunctionId, FileId), FunctionId)>,
    /// The instructions that were executed.
    pub(crate) instructions: u64,
}

/// Names by number, for one kind of name.
#[derive(Default)]
struct Names(BTreeMap<String, String>);

impl Names {
    /// The name that `(1) name`, `(1)` or `name` stands for.
    fn resolve(&mut self, text: &str) -> anyhow::Result<String> {
        let Some((number, name)) = text.strip_prefix('(').and_then(|rest| rest.split_once(')')) else {
            return Ok(text.to_owned());
        };
        match name.trim() {
            "" => self.0.get(number).cloned().with_context(|| format!("no name has the number {number}")),
            name => {
                self.0.insert(number.to_owned(), name.to_owned());
                Ok(name.to_owned())
            }
        }
    }
}

/// What the lines before the present one have set.
#[derive(Default)]
struct Reader {
    profile: Profile,
    file_ids: BTreeMap<String, FileId>,
    function_ids: BTreeMap<(String, String), FunctionId>,
    objects: Names,
    files: Names,
    functions: Names,
    object: String,
    /// The file of the present function.
    home: FileId,
    /// The function, and the file of the present code.
    place: Option<(FunctionId, FileId)>,
    callee_object: Option<String>,
    callee: Option<FunctionId>,
    /// The next line of costs is that of a call.
    is_call: bool,
}

impl Reader {
    fn file(&mut self, text: &str) -> anyhow::Result<FileId> {
        let name = self.files.resolve(text)?;
        let files = &mut self.profile.files;
        Ok(*self.file_ids.entry(name).or_insert_with_key(|name| {
            files.push(name.clone());
            files.len() - 1
        }))
    }

    fn function(&mut self, text: &str, object: String) -> anyhow::Result<FunctionId> {
        let symbol = self.functions.resolve(text)?;
        let functions = &mut self.profile.functions;
        Ok(*self.function_ids.entry((object, symbol)).or_insert_with_key(|(object, symbol)| {
            functions.push(Function { symbol: symbol.clone(), object: object.clone(), file: None });
            functions.len() - 1
        }))
    }

    fn line(&mut self, line: &str) -> anyhow::Result<()> {
        if line.starts_with(|first: char| first.is_ascii_digit() || "+-*".contains(first)) {
            return self.costs(line);
        }
        let Some((key, value)) = line.split_once('=') else { return Ok(()) };
        match key {
            "ob" => self.object = self.objects.resolve(value)?,
            "fl" => self.home = self.file(value)?,
            "fn" => {
                let function = self.function(value, self.object.clone())?;
                self.profile.functions[function].file = Some(self.home);
                self.place = Some((function, self.home));
            }
            "fi" | "fe" => {
                let file = self.file(value)?;
                self.place.as_mut().context("code of no function")?.1 = file;
            }
            "cob" => self.callee_object = Some(self.objects.resolve(value)?),
            // A number may get its name here. The callee's own block says where it lies.
            "cfi" | "cfl" => drop(self.files.resolve(value)?),
            "cfn" => {
                let object = self.callee_object.take().unwrap_or_else(|| self.object.clone());
                self.callee = Some(self.function(value, object)?);
            }
            "calls" => {
                let caller = self.place.context("a call by no function")?;
                let callee = self.callee.take().context("a call of no function")?;
                self.profile.calls.insert((caller, callee));
                self.is_call = true;
            }
            _ => {}
        }
        Ok(())
    }

    /// A line with a position and costs.
    fn costs(&mut self, line: &str) -> anyhow::Result<()> {
        if std::mem::take(&mut self.is_call) {
            return Ok(());
        }
        let Some(instructions) = line.split_whitespace().nth(1) else { return Ok(()) };
        let instructions: u64 = instructions.parse().context("costs are numbers")?;
        self.profile.instructions += instructions;
        self.profile.code.insert(self.place.context("costs of no function")?);
        Ok(())
    }
}

/// Parses a dump.
pub(crate) fn parse(text: &str) -> anyhow::Result<Profile> {
    let mut reader = Reader::default();
    for (index, line) in text.lines().enumerate() {
        reader.line(line).with_context(|| format!("line {}: {line}", index + 1))?;
    }
    if reader.profile.functions.is_empty() {
        bail!("the file names no function");
    }
    Ok(reader.profile)
}

/// The path of a function that the compiler has encoded in a symbol, without the hash.
pub(crate) fn demangle(symbol: &str) -> String {
    let Some(mut rest) = symbol.strip_prefix("_ZN") else { return symbol.to_owned() };
    let mut parts: Vec<&str> = Vec::new();
    while rest.starts_with(|first: char| first.is_ascii_digit()) {
        let digits = rest.find(|c: char| !c.is_ascii_digit()).unwrap_or(rest.len());
        let length = rest[..digits].parse().unwrap_or(usize::MAX);
        let Some(part) = rest[digits..].get(..length) else { return symbol.to_owned() };
        rest = &rest[digits + length..];
        parts.push(part);
    }
    let is_hash = |part: &&str| part.len() == 17 && part.starts_with('h');
    if parts.last().is_some_and(is_hash) {
        parts.pop();
    }
    let mut path = parts.join("::");
    for (code, text) in [
        ("$LT$", "<"),
        ("$GT$", ">"),
        ("$RF$", "&"),
        ("$BP$", "*"),
        ("$LP$", "("),
        ("$RP$", ")"),
        ("$C$", ","),
        ("$SP$", "@"),
        ("$u20$", " "),
        ("$u27$", "'"),
        ("$u5b$", "["),
        ("$u5d$", "]"),
        ("$u7b$", "{"),
        ("$u7d$", "}"),
        ("$u7e$", "~"),
        ("$u3b$", ";"),
        ("$u2b$", "+"),
        ("..", "::"),
        ("::_<", "::<"),
    ] {
        path = path.replace(code, text);
    }
    path.strip_prefix("_<").map_or(path.clone(), |rest| format!("<{rest}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    const DUMP: &str = include_str!("trip/callgrind.out");

    #[test]
    fn names_code_and_calls_are_read() {
        let profile = parse(DUMP).expect("a dump");
        let name = |function: FunctionId| demangle(&profile.functions[function].symbol);
        let code: Vec<(String, &str)> =
            profile.code.iter().map(|&(function, file)| (name(function), &*profile.files[file])).collect();
        assert_eq!(code.len(), 7);
        for (function, file) in [
            ("xtask::trip::Driver::drive", "xtask/src/trip.rs"),
            ("xtask::trip::Driver::drive", "xtask/src/time.rs"),
            ("core::ops::function::FnOnce::call_once", "/rustc/59807616/library/core/src/ops/function.rs"),
            ("interp::run", "interp/src/lib.rs"),
        ] {
            assert!(code.contains(&(function.to_owned(), file)), "{function} in {file}");
        }
        let calls: Vec<(String, &str, String)> = profile
            .calls
            .iter()
            .map(|&((function, file), callee)| (name(function), &*profile.files[file], name(callee)))
            .collect();
        assert_eq!(calls.len(), 4);
        let inlined = "/rustc/59807616/library/core/src/option.rs";
        let callee = "core::ops::function::FnOnce::call_once".to_owned();
        assert!(calls.contains(&("xtask::trip::Driver::drive".to_owned(), inlined, callee)));
        // Without the costs of calls, which are those of the callees.
        assert_eq!(profile.instructions, 66);
        let plugin = profile.functions.iter().find(|function| function.object.ends_with("libplugin.so"));
        assert_eq!(plugin.map(|function| demangle(&function.symbol)), Some("interp::run".to_owned()));
    }

    #[test]
    fn what_is_not_a_dump_is_refused() {
        for text in ["", "10 5", "fn=(1)", "fl=(1) a.rs\nfn=(1) f\ncalls=1 2"] {
            assert!(parse(text).is_err(), "{text}");
        }
    }

    #[test]
    fn symbols_become_paths() {
        for (symbol, path) in [
            ("main", "main"),
            ("_ZN3log4pushE", "log::push"),
            ("_ZN3log4push17h0123456789abcdefE.llvm.7", "log::push"),
            ("_ZN38_$LT$a..B$u20$as$u20$c..D$LT$E$GT$$GT$3run17h0123456789abcdefE", "<a::B as c::D<E>>::run"),
            ("_ZN99short", "_ZN99short"),
        ] {
            assert_eq!(demangle(symbol), path);
        }
    }
}
