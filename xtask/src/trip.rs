//! `cargo xtask trip`: follows an op from its call to its execution, and checks that it visits the
//! stages in their order.
//!
//! A small program (`benches/micro/trip.rs`) runs under Callgrind. Each file of the workspace whose
//! code ran belongs to a stage, by the table in `ARCHITECTURE.md`. A call must lead to the same
//! stage or to a later one. The table names the exceptions.
//!
//! Callgrind knows the file of inlined code, but not the functions that it was inlined through.
//! Such code counts as called by the function that surrounds it. Functions of other crates are
//! passed through: what they call counts as called by their callers. An exception are functions of
//! the standard library that exist once and call whatever they are given ([`SHARED_FUNCTIONS`]).

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsStr;
use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context as _, bail, ensure};

use crate::callgrind::{self, FileId, FunctionId, Profile, demangle};
use crate::host::Host;

/// The document with the table of stages.
const DOCUMENT: &str = "ARCHITECTURE.md";

/// The first cell of the header of that table.
const HEADER: &str = "| stage |";

/// The package of the program.
const PACKAGE: &str = "fuseline-micro";

/// The function whose calls separate the phases.
const MARK: &str = "trip_phase";

/// The phases that are looked at, by the number of the dump that ends with them.
const PHASES: [(usize, &str); 3] = [(2, "first recording"), (3, "warm-up"), (4, "steady")];

/// Parts of the symbols of functions of the standard library that many callers share. What they
/// call says nothing about a certain caller.
const SHARED_FUNCTIONS: [&str; 3] = ["4core3fmt", "5alloc3fmt", "3std3sys4sync4once"];

/// Runs the program and checks its calls.
pub(crate) fn run(host: &Host) -> anyhow::Result<ExitCode> {
    let document = fs::read_to_string(host.root.join(DOCUMENT)).context(DOCUMENT)?;
    let stages = Stages::read(&document)?;
    let Some(valgrind) = callgrind::valgrind(host, "trip") else { return Ok(ExitCode::FAILURE) };
    host.build(&["--release", "--package", PACKAGE, "--bin", "trip"])?;
    host.build(&["--release", "--package", "fuseline-fakeplugin", "--lib"])?;
    let folder = host.target_dir().join("trip");
    let phases = PHASES
        .iter()
        .zip(profile(host, &valgrind, &folder)?)
        .map(|((_, name), profile)| (*name, Trip::of(&profile, &host.root)))
        .collect::<Vec<_>>();
    let report = Report::of(&stages, &phases)?;
    print!("{}", report.text);
    report.findings.iter().for_each(|finding| eprintln!("trip: {finding}"));
    Ok(if report.findings.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Runs the program under Callgrind. Returns the profiles of the phases.
fn profile(host: &Host, valgrind: &Path, folder: &Path) -> anyhow::Result<Vec<Profile>> {
    if folder.exists() {
        fs::remove_dir_all(folder).with_context(|| format!("{} cannot be removed", folder.display()))?;
    }
    fs::create_dir_all(folder).with_context(|| format!("{} cannot be made", folder.display()))?;
    let built = host.target_dir().join("release");
    let dump = folder.join("callgrind.out");
    let mut command = callgrind::command(host, valgrind, &dump);
    command.arg(format!("--dump-before=*{MARK}*"));
    command.arg(built.join("trip")).arg(built.join("libfuseline_fakeplugin.so"));
    command.env("FUSELINE_CACHE", "off");
    callgrind::run(command)?;
    let dumps = PHASES.iter().map(|(number, _)| PathBuf::from(format!("{}.{number}", dump.display())));
    dumps.map(|path| callgrind::read(&path)).collect()
}

/// A row of the table.
#[derive(Debug, PartialEq, Eq)]
struct Stage {
    name: String,
    /// Files, and folders with a slash at the end.
    places: Vec<String>,
    /// Earlier stages that this one may call.
    calls_back: Vec<String>,
}

/// The stages in their order.
#[derive(Debug)]
struct Stages(Vec<Stage>);

impl Stages {
    /// Reads the first table of the document whose header begins with `| stage |`. Its columns are
    /// the name, the files, and what is called back.
    fn read(document: &str) -> anyhow::Result<Stages> {
        let rows = document.lines().skip_while(|line| !line.starts_with(HEADER)).skip(2);
        let mut stages = Vec::new();
        for row in rows.take_while(|line| line.starts_with('|')) {
            let cells: Vec<&str> = row.trim_matches('|').split('|').map(str::trim).collect();
            let [name, .., files, back] = cells[..] else { bail!("{DOCUMENT}: not a stage: {row}") };
            let places = files.split('`').skip(1).step_by(2).map(str::to_owned).collect();
            let calls_back = match back.split_once(':').map_or(back, |(names, _)| names) {
                "" => Vec::new(),
                names => names.split(", ").map(str::to_owned).collect(),
            };
            stages.push(Stage { name: name.trim_matches('*').to_owned(), places, calls_back });
        }
        ensure!(!stages.is_empty(), "{DOCUMENT} has no table of stages: no line begins with {HEADER}");
        let stages = Stages(stages);
        for (index, stage) in stages.0.iter().enumerate() {
            for back in &stage.calls_back {
                let earlier = stages.0[..index].iter().any(|earlier| earlier.name == *back);
                ensure!(earlier, "{DOCUMENT}: {} cannot call {back} back: no earlier stage", stage.name);
            }
        }
        Ok(stages)
    }

    /// The number of the stage of a file: that of the longest path that fits.
    fn of(&self, file: &str) -> Option<usize> {
        let fits = |place: &&String| match place.ends_with('/') {
            true => file.starts_with(place.as_str()),
            false => file == *place,
        };
        let longest = |stage: &Stage| stage.places.iter().filter(fits).map(String::len).max();
        let found = self.0.iter().enumerate().filter_map(|(index, stage)| Some((longest(stage)?, index)));
        found.max_by_key(|(length, _)| *length).map(|(_, index)| index)
    }
}

/// Code of the workspace: the function, and the file that the code comes from.
type Code = (FunctionId, FileId);

/// A call between two files of the workspace. The text names the functions.
type Call = (String, String);

/// What a phase did, without the code of other crates.
#[derive(Debug, Default)]
struct Trip {
    /// Each file of the workspace whose code ran, with the functions that are written there and
    /// were not inlined everywhere.
    files: BTreeMap<String, BTreeSet<String>>,
    /// Calls between files, each with an example.
    calls: BTreeMap<Call, String>,
}

impl Trip {
    fn of(profile: &Profile, root: &Path) -> Trip {
        let own: Vec<Option<String>> = profile.files.iter().map(|file| own_file(file, root)).collect();
        let is_own = |code: &Code| own[code.1].is_some();
        // The plugin is beyond the last stage. It is built of crates of the workspace too.
        let is_program = |function: FunctionId| {
            Path::new(&profile.functions[function].object).file_name() == Some(OsStr::new("trip"))
        };
        let mut next: BTreeMap<Code, BTreeSet<Code>> = BTreeMap::new();
        let body = |function: FunctionId| Some((function, profile.functions[function].file?));
        for &(function, file) in profile.code.iter().filter(|(function, _)| is_program(*function)) {
            if let Some(body) = body(function).filter(|body| body.1 != file) {
                next.entry(body).or_default().insert((function, file));
            }
        }
        let is_shared_function = |(function, _): Code| {
            let symbol = &profile.functions[function].symbol;
            SHARED_FUNCTIONS.iter().any(|part| symbol.contains(part))
        };
        let calls = profile.calls.iter().filter(|(caller, _)| !is_shared_function(*caller));
        for &(code, callee) in calls.filter(|(_, callee)| is_program(*callee)) {
            if let Some(callee) = body(callee) {
                next.entry(code).or_default().insert(callee);
            }
        }
        let mut trip = Trip::default();
        for &(function, file) in profile.code.iter().filter(|(function, _)| is_program(*function)) {
            let Some(path) = &own[file] else { continue };
            let functions = trip.files.entry(path.clone()).or_default();
            if profile.functions[function].file == Some(file) {
                functions.insert(demangle(&profile.functions[function].symbol));
            }
        }
        let callers = next.keys().copied().filter(is_own).collect::<Vec<_>>();
        for from in callers {
            for to in callees(&next, from, is_own) {
                let (Some(caller), Some(callee)) = (&own[from.1], &own[to.1]) else { continue };
                if caller != callee {
                    let name = |code: Code| demangle(&profile.functions[code.0].symbol);
                    let example = || match from.0 == to.0 {
                        true => format!("inlined into {}", name(from)),
                        false => format!("{} calls {}", name(from), name(to)),
                    };
                    trip.calls.entry((caller.clone(), callee.clone())).or_insert_with(example);
                }
            }
        }
        trip
    }
}

/// The code of the workspace that is called next, through code of other crates.
fn callees(
    next: &BTreeMap<Code, BTreeSet<Code>>,
    from: Code,
    is_own: impl Fn(&Code) -> bool,
) -> BTreeSet<Code> {
    let (mut seen, mut found, mut open) = (BTreeSet::new(), BTreeSet::new(), vec![from]);
    while let Some(code) = open.pop() {
        for &to in next.get(&code).into_iter().flatten().filter(|to| seen.insert(**to)) {
            match is_own(&to) {
                true => drop(found.insert(to)),
                false => open.push(to),
            }
        }
    }
    found
}

/// The path of a file below the workspace. `None` for files of other crates and for the program.
fn own_file(file: &str, root: &Path) -> Option<String> {
    let path = Path::new(file);
    let path = path.strip_prefix(root).unwrap_or(path);
    let is_own = path.is_relative() && path.extension() == Some(OsStr::new("rs"));
    let is_inside = is_own && !path.starts_with("target") && !path.starts_with("benches");
    (is_inside && root.join(path).is_file()).then(|| path.to_string_lossy().into_owned())
}

/// The result of a run.
#[derive(Debug)]
struct Report {
    text: String,
    findings: Vec<String>,
}

impl Report {
    fn of(stages: &Stages, phases: &[(&str, Trip)]) -> anyhow::Result<Report> {
        let mut whole = Trip::default();
        for (_, trip) in phases {
            for (file, functions) in &trip.files {
                whole.files.entry(file.clone()).or_default().extend(functions.iter().cloned());
            }
            for (call, example) in &trip.calls {
                whole.calls.entry(call.clone()).or_insert_with(|| example.clone());
            }
        }
        let findings = findings(stages, &whole);
        let mut text = String::new();
        let all: Vec<(&str, &Trip)> = phases
            .iter()
            .filter(|(name, _)| *name != "warm-up")
            .map(|(name, trip)| (*name, trip))
            .chain([("whole", &whole)])
            .collect();
        write!(text, "{:<20}", "stage")?;
        all.iter().try_for_each(|(name, _)| write!(text, "{name:>24}"))?;
        writeln!(text)?;
        let row = |text: &mut String, name: &str, is_in: &dyn Fn(&str) -> bool| {
            write!(text, "{name:<20}")?;
            for (_, trip) in &all {
                let files = trip.files.iter().filter(|(file, _)| is_in(file));
                let functions: usize = files.clone().map(|(_, functions)| functions.len()).sum();
                write!(text, "{:>10} files, {functions:>3} fns", files.count())?;
            }
            writeln!(text)
        };
        for (index, stage) in stages.0.iter().enumerate() {
            row(&mut text, &stage.name, &|file| stages.of(file) == Some(index))?;
        }
        row(&mut text, "total", &|_| true)?;
        Ok(Report { text, findings })
    }
}

/// What contradicts the table.
fn findings(stages: &Stages, trip: &Trip) -> Vec<String> {
    let mut findings = Vec::new();
    for file in trip.files.keys().filter(|file| stages.of(file).is_none()) {
        findings.push(format!("{file} belongs to no stage of {DOCUMENT}"));
    }
    let mut unused: BTreeSet<(usize, &str)> = BTreeSet::new();
    for (index, stage) in stages.0.iter().enumerate() {
        unused.extend(stage.calls_back.iter().map(|back| (index, back.as_str())));
    }
    for ((caller, callee), example) in &trip.calls {
        let (Some(from), Some(to)) = (stages.of(caller), stages.of(callee)) else { continue };
        let back = &stages.0[to].name;
        unused.remove(&(from, back.as_str()));
        if to < from && !stages.0[from].calls_back.contains(back) {
            findings.push(format!(
                "{} calls {back}, an earlier stage: {caller} to {callee} ({example})",
                stages.0[from].name
            ));
        }
    }
    for (index, back) in unused {
        let name = &stages.0[index].name;
        findings.push(format!("{name} does not call {back} back: remove that from {DOCUMENT}"));
    }
    findings
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Two stages and what they share, in the form of the document.
    const TABLE: &str = "\
# Architecture

| stage | job | files | calls back |
|---|---|---|---|
| log | keeps entries | `xtask/src/host.rs` | |
| driver | reads the log | `xtask/src/trip.rs`, `xtask/src/test/` | BACK |
| shared | | `xtask/src/` | |

| other | table |
|---|---|
";

    /// A part of a dump of the program: `drive` in `trip.rs` calls `push` in `host.rs` through a
    /// function of the standard library, and has code of `time.rs` inlined. The plugin is a library
    /// of its own.
    const DUMP: &str = include_str!("trip/callgrind.out");

    fn stages(back: &str) -> anyhow::Result<Stages> {
        Stages::read(&TABLE.replace("BACK", back))
    }

    fn root() -> PathBuf {
        Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("the workspace").to_path_buf()
    }

    fn trip() -> Trip {
        Trip::of(&callgrind::parse(DUMP).expect("it is a dump"), &root())
    }

    #[test]
    fn files_of_the_workspace_and_their_functions_are_found() {
        let files: Vec<(String, Vec<String>)> =
            trip().files.into_iter().map(|(file, names)| (file, names.into_iter().collect())).collect();
        let expected = [
            ("xtask/src/host.rs", vec!["xtask::host::push"]),
            ("xtask/src/time.rs", vec![]),
            ("xtask/src/trip.rs", vec!["xtask::trip::Driver::drive", "xtask::trip::wait"]),
        ];
        let expected: Vec<(String, Vec<String>)> = expected
            .into_iter()
            .map(|(file, names)| (file.to_owned(), names.into_iter().map(str::to_owned).collect()))
            .collect();
        assert_eq!(files, expected);
    }

    #[test]
    fn a_call_to_an_earlier_stage_is_found_unless_the_table_has_it() {
        let found = findings(&stages("").expect("a table"), &trip());
        let [finding] = &found[..] else { panic!("{found:?}") };
        assert!(finding.contains("driver calls log, an earlier stage"), "{finding}");
        assert!(finding.contains("xtask::trip::Driver::drive calls xtask::host::push"), "{finding}");
        assert_eq!(findings(&stages("log: it reads entries").expect("a table"), &trip()), [""; 0]);
    }

    #[test]
    fn an_exception_that_excuses_nothing_is_found() {
        let table =
            TABLE.replace("| | `xtask/src/` | |", "| | `xtask/src/` | driver |").replace("BACK", "log");
        let found = findings(&Stages::read(&table).expect("a table"), &trip());
        assert_eq!(found, ["shared does not call driver back: remove that from ARCHITECTURE.md"]);
    }

    #[test]
    fn a_file_without_a_stage_is_found() {
        let table = TABLE.replace("`xtask/src/` |", "`fusion/src/` |").replace("BACK", "log");
        let found = findings(&Stages::read(&table).expect("a table"), &trip());
        assert_eq!(found, ["xtask/src/time.rs belongs to no stage of ARCHITECTURE.md"]);
    }

    #[test]
    fn only_earlier_stages_are_called_back() {
        assert!(stages("shared").is_err());
        assert!(stages("nobody").is_err());
        assert!(Stages::read("no table").is_err());
    }

    #[test]
    fn the_longest_path_decides() {
        let stages = stages("").expect("a table");
        assert_eq!(stages.of("xtask/src/trip.rs"), Some(1));
        assert_eq!(stages.of("xtask/src/test/mod.rs"), Some(1));
        assert_eq!(stages.of("xtask/src/time.rs"), Some(2));
        assert_eq!(stages.of("src/lib.rs"), None);
    }

    #[test]
    fn the_document_has_the_table() {
        let stages = Stages::read(include_str!("../../ARCHITECTURE.md")).expect("a table");
        assert_eq!(stages.of("record/src/log.rs").map(|index| stages.0[index].name.as_str()), Some("log"));
        assert!(stages.0.iter().all(|stage| !stage.places.is_empty()));
    }
}
