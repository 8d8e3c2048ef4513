//! `cargo xtask soak`: runs the long runs one after the other and prints a table of their results.
//!
//! A long run is an ignored test or a fuzz target. [`SOAKS`] lists the tests; add a line for a new
//! one. A test reports its figures in lines that begin with `figures:`, and with `skipped:` why it
//! cannot run. The duration follows from `FUSELINE_MINUTES` and the variables in its line.
//! cargo-fuzz runs the fuzz targets; without it they are skipped with a message (`mutations` needs
//! nothing).

use std::ffi::OsString;
use std::io::{BufRead as _, BufReader};
use std::process::{Command, ExitCode, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail};

use crate::host::Host;
use crate::skip::skip_reason;
use crate::time;

/// A long run of an ignored test.
struct Soak {
    /// Its name on the command line.
    name: &'static str,
    what: &'static str,
    package: &'static str,
    /// The test binary and the test, as `cargo test` takes them.
    binary: &'static str,
    test: &'static str,
    /// Variables that set its length, besides `FUSELINE_MINUTES`.
    vars: &'static [(&'static str, &'static str)],
}

/// The long runs: name, what it tests, the test, its length.
const SOAKS: &[Soak] = &[
    Soak {
        name: "memory-reference",
        what: "slope of memory over 10,000 regions on the reference device, results compared",
        package: "fuseline",
        binary: "robustness",
        test: "soak_memory::soak_on_the_reference_device",
        vars: &[],
    },
    Soak {
        name: "memory-plugin",
        what: "the same on the CPU plugin",
        package: "fuseline",
        binary: "robustness",
        test: "soak_memory::soak_on_the_plugin",
        vars: &[],
    },
    Soak {
        name: "memory-default",
        what: "the same on the default engine, over 200 regions",
        package: "fuseline",
        binary: "robustness",
        test: "soak_memory::soak_on_the_default_engine",
        vars: &[("FUSELINE_REGIONS", "200")],
    },
    Soak {
        name: "compiles",
        what: "20,000 distinct regions compiled in one process with default budgets, with mappings and memory reported",
        package: "fuseline",
        binary: "robustness",
        test: "soak_memory::soak_compiles_with_default_budgets",
        vars: &[("FUSELINE_REGIONS", "20000")],
    },
    Soak {
        name: "tiers",
        what: "20,000 programs of special values through every tier, bit by bit",
        package: "fuseline",
        binary: "ops",
        test: "numerics::tiers::soak_special_values_in_every_tier",
        vars: &[("FUSELINE_PROGRAMS", "10")],
    },
    Soak {
        name: "default-engine",
        what: "20,000 random programs on the engine as it ships, 14 runs each, half of them with masks",
        package: "fuseline",
        binary: "ops",
        test: "programs::soak_programs_on_the_default_engine",
        vars: &[("FUSELINE_PROGRAMS", "40")],
    },
    Soak {
        name: "varying-sizes",
        what: "700 random programs in five sizes each on four engines, padded, interpreted and compiled",
        package: "fuseline",
        binary: "ops",
        test: "varying_sizes::soak_programs_whose_sizes_vary",
        vars: &[("FUSELINE_PROGRAMS", "20")],
    },
    Soak {
        name: "hostile-sizes",
        what: "ten million calls with hostile sizes and attributes, within 1 MiB each",
        package: "fuseline",
        binary: "robustness",
        test: "hostile::soak_hostile_sizes_are_answered_without_memory",
        vars: &[("FUSELINE_HOSTILE", "10000000")],
    },
    Soak {
        name: "allocations",
        what: "every allocation of five scenarios fails once, each in a process of its own",
        package: "fuseline",
        binary: "robustness",
        test: "allocation::soak_every_allocation_is_refused",
        vars: &[],
    },
    Soak {
        name: "mutations",
        what: "every fuzz target on inputs changed at random, without coverage, for --minutes each",
        package: "fuseline",
        binary: "fuzz_regressions",
        test: "soak_mutations",
        vars: &[],
    },
    Soak {
        name: "poison",
        what: "20,000 more random programs with ops that fail, the poisoned set compared with the oracle's",
        package: "fuseline",
        binary: "engine",
        test: "poison::soak_a_failure_reaches_its_dependants",
        vars: &[],
    },
    Soak {
        name: "forks",
        what: "a thousand forks under load",
        package: "fuseline",
        binary: "engine",
        test: "fork::soak_children_are_told",
        vars: &[],
    },
    Soak {
        name: "plugin-compiles",
        what: "10,000 new regions, each requested by many threads, compiled once each",
        package: "fuseline",
        binary: "pjrt",
        test: "plugin::compiles::ten_thousand_new_regions_are_compiled_once_each",
        vars: &[],
    },
    Soak {
        name: "plugin-orders",
        what: "everything dropped in 10,000 random orders, the plugin's objects counted",
        package: "fuseline",
        binary: "pjrt",
        test: "plugin::orders::ten_thousand_orders",
        vars: &[],
    },
    Soak {
        name: "plugin-ends",
        what: "an engine dropped 10,000 times with work in flight",
        package: "fuseline",
        binary: "pjrt",
        test: "plugin::orders::an_engine_is_dropped_ten_thousand_times",
        vars: &[],
    },
    Soak {
        name: "plugin-poison",
        what: "10,000 random programs with executions that fail in the plugin",
        package: "fuseline",
        binary: "pjrt",
        test: "plugin::faults::ops_that_fail_in_ten_thousand_programs",
        vars: &[],
    },
    Soak {
        name: "plugin-sweep",
        what: "every call of a program to the plugin fails in every way",
        package: "fuseline",
        binary: "pjrt",
        test: "plugin::sweep::every_call_fails_in_every_way",
        vars: &[],
    },
    Soak {
        name: "disk-kills",
        what: "a thousand writers killed, entries checked after each",
        package: "fuseline-cache",
        binary: "disk_processes",
        test: "a_thousand_writers_that_are_killed_leave_whole_entries",
        vars: &[],
    },
    Soak {
        name: "disk-folder",
        what: "eight processes share a folder for ten minutes, with sweeps and kills",
        package: "fuseline-cache",
        binary: "disk_processes",
        test: "eight_processes_share_a_folder_for_long",
        vars: &[],
    },
    Soak {
        name: "disk-damage",
        what: "10,000 random damages of a large entry",
        package: "fuseline-cache",
        binary: "disk_damage",
        test: "much_random_damage_of_a_large_entry_is_found",
        vars: &[],
    },
];

/// The result of a run.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Ended {
    Passed(Vec<String>),
    Skipped(String),
    Failed(String),
}

/// The output of `--list`.
fn list(targets: &[String]) -> String {
    let tests = SOAKS.iter().map(|soak| (soak.name.to_owned(), soak.what.to_owned()));
    let fuzz = targets.iter().map(|name| {
        (format!("fuzz-{name}"), format!("cargo fuzz run {name}, for --minutes (needs cargo-fuzz)"))
    });
    tests.chain(fuzz).map(|(name, what)| format!("{name:<20}{what}\n")).collect()
}

/// The fuzz targets, by their files.
fn targets(host: &Host) -> anyhow::Result<Vec<String>> {
    let folder = host.root.join("fuzz/fuzz_targets");
    let mut names = Vec::new();
    for entry in std::fs::read_dir(&folder).with_context(|| format!("{} cannot be read", folder.display()))? {
        let name = entry?.file_name().to_string_lossy().into_owned();
        names.extend(name.strip_suffix(".rs").map(str::to_owned));
    }
    names.sort();
    Ok(names)
}

/// The options of the command line.
#[derive(Debug, Default, PartialEq)]
struct SoakOptions {
    list: bool,
    /// Minutes of each run that is limited by time.
    minutes: Option<f64>,
    names: Vec<String>,
}

fn parse(arguments: &[OsString]) -> anyhow::Result<SoakOptions> {
    let mut wanted = SoakOptions::default();
    let mut arguments = arguments.iter().map(|argument| argument.to_string_lossy().into_owned());
    while let Some(argument) = arguments.next() {
        match argument.as_str() {
            "--list" => wanted.list = true,
            "--minutes" => {
                let minutes = arguments.next().and_then(|text| text.parse::<f64>().ok());
                let minutes = minutes.filter(|minutes| *minutes > 0.0 && minutes.is_finite());
                wanted.minutes = Some(minutes.context("--minutes takes a number above 0")?);
            }
            flag if flag.starts_with('-') => bail!("soak has no option {flag}, only --list and --minutes N"),
            _ => wanted.names.push(argument),
        }
    }
    Ok(wanted)
}

/// Runs the long runs with these names, or all.
pub(crate) fn run(host: &Host, arguments: &[OsString]) -> anyhow::Result<ExitCode> {
    let targets = targets(host)?;
    let wanted = parse(arguments)?;
    if wanted.list {
        print!("{}", list(&targets));
        return Ok(ExitCode::SUCCESS);
    }
    let known = |name: &String| {
        SOAKS.iter().any(|soak| soak.name == *name)
            || name.strip_prefix("fuzz-").is_some_and(|name| targets.iter().any(|target| target == name))
    };
    if let Some(unknown) = wanted.names.iter().find(|name| !known(name)) {
        bail!("there is no long run {unknown}; the long runs are\n{}", list(&targets));
    }
    crate::set_up(host)?;
    let is_wanted = |name: &str| wanted.names.is_empty() || wanted.names.iter().any(|wanted| wanted == name);
    let mut rows = Vec::new();
    let mut add = |name: String, run: &mut dyn FnMut() -> Ended| {
        println!("\n=== {name}");
        let start = Instant::now();
        let ended = run();
        rows.push((name, start.elapsed(), ended));
    };
    for soak in SOAKS.iter().filter(|soak| is_wanted(soak.name)) {
        add(soak.name.to_owned(), &mut || test(host, soak, wanted.minutes));
    }
    for target in &targets {
        let name = format!("fuzz-{target}");
        if is_wanted(&name) {
            add(name, &mut || fuzz(host, target, wanted.minutes.unwrap_or(1.0)));
        }
    }
    println!("\nlong runs of {}\n{}", today(host), table(&rows));
    let failed = rows.iter().any(|(_, _, ended)| matches!(ended, Ended::Failed(_)));
    Ok(if failed { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

/// The output of a program, if it succeeds.
fn output_of(host: &Host, program: &str, arguments: &[&str]) -> Option<String> {
    let output = host.command(program).args(arguments).stderr(Stdio::null()).output().ok()?;
    output.status.success().then(|| String::from_utf8_lossy(&output.stdout).trim().to_owned())
}

/// Today's date, as `2026-11-27`.
pub(crate) fn day(host: &Host) -> String {
    output_of(host, "date", &["-u", "+%Y-%m-%d"]).unwrap_or_default()
}

fn commit(host: &Host) -> Option<String> {
    output_of(host, "git", &["rev-parse", "--short", "HEAD"])
}

/// The commit of a checkout without changes.
pub(crate) fn clean_commit(host: &Host) -> Option<String> {
    let changes = output_of(host, "git", &["status", "--porcelain", "--untracked-files=no"])?;
    commit(host).filter(|_| changes.is_empty())
}

/// The date and the commit.
fn today(host: &Host) -> String {
    format!("{}, commit {}, {}", day(host), commit(host).unwrap_or_default(), host.platform())
}

fn table(rows: &[(String, Duration, Ended)]) -> String {
    let mut text = String::new();
    for (name, took, ended) in rows {
        let (word, lines) = match ended {
            Ended::Passed(figures) => ("passed", figures.clone()),
            Ended::Skipped(why) => ("skipped", vec![why.clone()]),
            Ended::Failed(why) => ("FAILED", vec![why.clone()]),
        };
        text += &format!("{name:<20}{word:<9}{:>13}\n", time::human(*took));
        for line in lines {
            text += &format!("    {line}\n");
        }
    }
    text
}

/// Runs an ignored test.
fn test(host: &Host, soak: &Soak, minutes: Option<f64>) -> Ended {
    let mut command = host.cargo();
    command.args(["test", "--locked", "--release", "--package", soak.package, "--test", soak.binary, "--"]);
    command.args(["--ignored", "--exact", soak.test, "--nocapture"]);
    command.envs(soak.vars.iter().copied());
    if let Some(minutes) = minutes {
        command.env("FUSELINE_MINUTES", minutes.to_string());
    }
    run_test(command)
}

/// Runs a command that runs one test.
pub(crate) fn run_test(command: Command) -> Ended {
    match spoken(command) {
        Ok((true, lines)) => judge(&lines),
        Ok((false, lines)) => Ended::Failed(lines.last().cloned().unwrap_or_default()),
        Err(error) => Ended::Failed(error.to_string()),
    }
}

/// The text after a mark, in each line that has it.
fn after(lines: &[String], mark: &str) -> Vec<String> {
    lines.iter().filter_map(|line| Some(line.split_once(mark)?.1.trim().to_owned())).collect()
}

/// The result of a test that passed. A test that does not exist also passes, but prints nothing.
fn judge(lines: &[String]) -> Ended {
    if let Some(why) = lines.iter().find_map(|line| skip_reason(line)) {
        return Ended::Skipped(why.to_owned());
    }
    let figures = after(lines, "figures: ");
    let ran = lines.iter().any(|line| line.contains("test result: ok. 1 passed"));
    match figures.is_empty() {
        // A test without figures only asserts.
        true if ran => Ended::Passed(vec!["no failures".to_owned()]),
        true => Ended::Failed("no test ran: does the test exist?".to_owned()),
        false => Ended::Passed(figures),
    }
}

/// Fuzz targets whose inputs are a format. For them libFuzzer traces comparisons. The inputs of the
/// others are choices, for which traces are useless and take half of the time.
const FORMATS: [&str; 4] = ["canon_decode", "entry_parse", "program_json", "text"];

/// The targets that run an engine, which has unsafe code.
const ENGINES: [&str; 2] = ["api_program", "fault_plan"];

/// Runs a fuzz target. Targets with an engine run under the address sanitizer. The others do not:
/// it halves the executions and finds nothing in safe code. `FUSELINE_FUZZ_SANITIZER` overrides
/// this with `none` or a name that cargo-fuzz accepts.
fn fuzz(host: &Host, target: &str, minutes: f64) -> Ended {
    if host.which("cargo-fuzz").is_none() {
        let why = "there is no cargo-fuzz (cargo install cargo-fuzz)";
        println!("skipped: {why}");
        return Ended::Skipped(why.to_owned());
    }
    let seconds = (minutes * 60.0).ceil() as u64;
    let mut command = host.cargo();
    // Only code with these flags is built with it: stable compilers reject libFuzzer's flags.
    command.env("RUSTC_BOOTSTRAP", "1").arg("fuzz");
    // New inputs do not go to the committed ones.
    let scratch = host.root.join("fuzz/target/corpus").join(target);
    if let Err(error) = std::fs::create_dir_all(&scratch) {
        return Ended::Failed(error.to_string());
    }
    let usual = if ENGINES.contains(&target) { "address" } else { "none" };
    let sanitizer = std::env::var("FUSELINE_FUZZ_SANITIZER").unwrap_or_else(|_| usual.to_owned());
    command.args(["run", "--sanitizer", &sanitizer]);
    if !FORMATS.contains(&target) {
        command.arg("--no-trace-compares");
    }
    // Other flags need another build folder.
    let build = match (FORMATS.contains(&target), &*sanitizer) {
        (true, "none") => "fuzz/target".to_owned(),
        (false, "none") => "fuzz/target/choices".to_owned(),
        (true, other) => format!("fuzz/target/{other}"),
        (false, other) => format!("fuzz/target/{other}-choices"),
    };
    command.arg("--target-dir").arg(host.root.join(build));
    command.arg(target).arg(&scratch).arg(host.root.join("fuzz/corpus").join(target)).arg("--");
    command.args([
        &format!("-max_total_time={seconds}"),
        "-timeout=20",
        "-len_control=0",
        "-print_final_stats=1",
    ]);
    if !FORMATS.contains(&target) {
        // Entropic scheduling takes as long as the engine or longer, and long inputs are hard to
        // read.
        command.args(["-entropic=0", "-max_len=400"]);
    }
    match spoken(command) {
        Ok((true, lines)) => match executions(&lines) {
            Some(count) => Ended::Passed(vec![format!("{count} executions, 0 failures")]),
            None => Ended::Failed("libFuzzer did not report its number of executions".to_owned()),
        },
        Ok((false, lines)) => {
            let artifact = lines.iter().rev().find(|line| line.contains("Test unit written to"));
            Ended::Failed(artifact.or(lines.last()).cloned().unwrap_or_default())
        }
        Err(error) => Ended::Failed(error.to_string()),
    }
}

/// The number of executions that libFuzzer reports at its end.
fn executions(lines: &[String]) -> Option<u64> {
    let line = lines.iter().rev().find_map(|line| line.strip_prefix("stat::number_of_executed_units:"))?;
    line.trim().parse().ok()
}

/// Runs a command, and passes on and keeps its output. Returns whether it succeeded, and the lines.
fn spoken(mut command: Command) -> std::io::Result<(bool, Vec<String>)> {
    let (reader, writer) = std::io::pipe()?;
    command.stdin(Stdio::null()).stdout(writer.try_clone()?).stderr(writer);
    let mut child = command.spawn()?;
    // The command holds the writing end; the pipe closes with its last owner.
    drop(command);
    let mut lines = Vec::new();
    for line in BufReader::new(reader).split(b'\n') {
        let line = String::from_utf8_lossy(&line?).into_owned();
        println!("{line}");
        lines.push(line);
    }
    Ok((child.wait()?.success(), lines))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(line: &str) -> anyhow::Result<SoakOptions> {
        parse(&line.split_whitespace().map(OsString::from).collect::<Vec<_>>())
    }

    #[test]
    fn the_command_line_is_read() {
        let wanted = |list, minutes, names: &[&str]| SoakOptions {
            list,
            minutes,
            names: names.iter().map(|&name| name.to_owned()).collect(),
        };
        assert_eq!(parsed("").unwrap(), wanted(false, None, &[]));
        assert_eq!(parsed("--list").unwrap(), wanted(true, None, &[]));
        assert_eq!(parsed("--minutes 2.5 mutations").unwrap(), wanted(false, Some(2.5), &["mutations"]));
        for wrong in ["--minutes", "--minutes soon", "--minutes 0", "--hours 3"] {
            assert!(parsed(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn what_a_test_said_is_judged() {
        let lines = |said: &[&str]| said.iter().map(|&line| line.to_owned()).collect::<Vec<_>>();
        let figures = judge(&lines(&["running 1 test", "test a ... figures: 3 of 3", "ok"]));
        assert_eq!(figures, Ended::Passed(vec!["3 of 3".to_owned()]));
        let skipped = judge(&lines(&["skipped: no plugin", "test a ... ok"]));
        assert_eq!(skipped, Ended::Skipped("no plugin".to_owned()));
        let counted = judge(&lines(&["test a ... figures: skipped: 0, hits: 3", "Counters { skipped: 0 }"]));
        assert_eq!(counted, Ended::Passed(vec!["skipped: 0, hits: 3".to_owned()]));
        assert!(matches!(judge(&lines(&["test a ... skipped: no plugin"])), Ended::Skipped(_)));
        // A renamed test must not count as passed.
        assert!(matches!(judge(&lines(&["running 0 tests"])), Ended::Failed(_)));
    }

    #[test]
    fn executions_are_counted_by_their_line() {
        let line = "stat::number_of_executed_units: 68387".to_owned();
        assert_eq!(executions(&["DONE".to_owned(), line]), Some(68_387));
        assert_eq!(executions(&["DONE".to_owned()]), None);
    }

    #[test]
    fn every_long_run_names_a_test_that_is_there() {
        let root = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("the workspace");
        for soak in SOAKS {
            let folder = root.join(if soak.package == "fuseline-cache" { "cache/tests" } else { "tests" });
            let (path, test) = match soak.test.rsplit_once("::") {
                Some((module, test)) => {
                    let file = format!("{}.rs", module.replace("::", "/"));
                    (folder.join(soak.binary).join(file), test)
                }
                None => (folder.join(format!("{}.rs", soak.binary)), soak.test),
            };
            let code =
                std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
            assert!(code.contains(&format!("fn {test}()")), "{} has no test {test}", path.display());
            let how = format!("cargo xtask soak {}", soak.name);
            assert!(code.contains(&how), "{} does not say how {test} is run", path.display());
        }
    }

    #[test]
    fn the_table_has_a_row_for_each_run() {
        let rows = [
            ("a".to_owned(), Duration::from_secs(3), Ended::Passed(vec!["x".to_owned(), "y".to_owned()])),
            ("b".to_owned(), Duration::from_secs(4), Ended::Failed("broken".to_owned())),
        ];
        let text = table(&rows);
        let lines: Vec<&str> = text.lines().collect();
        assert!(lines[0].starts_with("a ") && lines[0].contains("passed"), "{text}");
        assert_eq!(lines[1..3], ["    x", "    y"]);
        assert!(lines[3].contains("FAILED") && lines[4] == "    broken", "{text}");
    }
}
