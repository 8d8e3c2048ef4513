//! Runs tests in a process each, without nextest: for builds that nextest is not used for (loom,
//! shuttle, the sanitizers) and for machines that lack it.
//!
//! A test that hangs is killed, a crash does not affect other tests, and the output of a failed
//! test is shown.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;

use super::tally::Tally;
use crate::host::Host;
use crate::skip::skip_reason;
use crate::time;

/// How often running tests are polled.
const LOOK_EVERY: Duration = Duration::from_millis(5);

/// A test binary that cargo built.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Binary {
    /// The target's name.
    pub(crate) name: String,
    pub(crate) path: PathBuf,
    /// The package's folder, which is the working folder of its tests.
    pub(crate) folder: PathBuf,
}

/// A test of a binary.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Test {
    pub(crate) name: String,
    pub(crate) ignored: bool,
}

/// The result of a test.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Outcome {
    Passed,
    Skipped(String),
    Failed { why: String, output: String },
    TimedOut { output: String },
}

/// Builds test binaries with a cargo command that accepts `--message-format`. Passes its errors
/// through.
pub(crate) fn build(command: Command) -> Result<Vec<Binary>, String> {
    built(command, |message| message["profile"]["test"] == true)
}

/// Like [`build`], for programs that behave like test binaries, but are not tests to cargo.
pub(crate) fn build_programs(command: Command) -> Result<Vec<Binary>, String> {
    built(command, |message| message["profile"]["test"] == false)
}

fn built(mut command: Command, is_meant: fn(&Value) -> bool) -> Result<Vec<Binary>, String> {
    command.stdout(Stdio::piped()).stderr(Stdio::inherit());
    let output = command
        .spawn()
        .and_then(Child::wait_with_output)
        .map_err(|error| format!("could not start cargo: {error}"))?;
    if !output.status.success() {
        return Err(format!("the build failed ({})", output.status));
    }
    Ok(binaries(&String::from_utf8_lossy(&output.stdout), is_meant))
}

/// The matching binaries in cargo's messages, which do not mark those of build scripts.
fn binaries(messages: &str, is_meant: fn(&Value) -> bool) -> Vec<Binary> {
    let artifacts = messages.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
    artifacts
        .filter(|message| message["reason"] == "compiler-artifact" && is_meant(message))
        .filter_map(|message| {
            let name = message["target"]["name"].as_str()?.to_owned();
            let path = PathBuf::from(message["executable"].as_str()?);
            let folder = Path::new(message["manifest_path"].as_str()?).parent()?.to_path_buf();
            Some(Binary { name, path, folder })
        })
        .collect()
}

/// Lists the tests of a binary whose own name, or that of a module above, starts with `prefix`.
pub(crate) fn list(host: &Host, binary: &Binary, prefix: &str) -> Result<Vec<Test>, String> {
    let ask = |arguments: &[&str]| -> Result<Vec<String>, String> {
        let output = command(host, binary).args(arguments).output().map_err(|error| error.to_string())?;
        if !output.status.success() {
            let said = String::from_utf8_lossy(&output.stderr);
            return Err(format!(
                "{} does not list its tests ({}): {}",
                binary.name,
                output.status,
                said.trim()
            ));
        }
        let lines = String::from_utf8_lossy(&output.stdout).into_owned();
        Ok(lines.lines().filter_map(|line| line.strip_suffix(": test")).map(str::to_owned).collect())
    };
    let ignored = ask(&["--list", "--format", "terse", "--ignored"])?;
    let all = ask(&["--list", "--format", "terse"])?;
    let wanted = |name: &String| name.split("::").any(|part| part.starts_with(prefix));
    Ok(all.into_iter().filter(wanted).map(|name| Test { ignored: ignored.contains(&name), name }).collect())
}

fn command(host: &Host, binary: &Binary) -> Command {
    let mut command = host.command(&binary.path);
    command.current_dir(&binary.folder).env("CARGO_MANIFEST_DIR", &binary.folder);
    command.env("FUSELINE_SETUP_DIR", host.setup_dir());
    command
}

/// A running test.
struct Running {
    index: usize,
    child: Child,
    start: Instant,
    output: PathBuf,
}

/// Runs tests of a binary, one per core at a time, each for at most `limit`. Calls `ended` for
/// each, in the order in which they end. If that returns false, the remaining tests are not run.
pub(crate) fn run(
    host: &Host,
    binary: &Binary,
    tests: &[Test],
    limit: Duration,
    vars: &[(&str, &str)],
    mut ended: impl FnMut(&Test, Outcome, Duration) -> bool,
) -> std::io::Result<()> {
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let folder = host.target_dir().join("xtask").join(std::process::id().to_string());
    fs::create_dir_all(&folder)?;
    let mut running: Vec<Running> = Vec::new();
    let mut waiting = 0..tests.len();
    let mut go_on = true;
    while go_on {
        while running.len() < cores {
            let Some(index) = waiting.next() else { break };
            let output = folder.join(format!("{index}.txt"));
            let file = File::create(&output)?;
            let mut command = command(host, binary);
            command.envs(vars.iter().copied()).args(["--exact", &tests[index].name, "--nocapture"]);
            command.stdin(Stdio::null()).stdout(file.try_clone()?).stderr(file);
            running.push(Running { index, child: command.spawn()?, start: Instant::now(), output });
        }
        if running.is_empty() {
            break;
        }
        let mut still = Vec::new();
        for mut test in running {
            let took = test.start.elapsed();
            let outcome = match test.child.try_wait()? {
                Some(status) => Some(judge(status.success(), &status.to_string(), read(&test.output))),
                None if took >= limit => {
                    test.child.kill()?;
                    test.child.wait()?;
                    Some(Outcome::TimedOut { output: read(&test.output) })
                }
                None => None,
            };
            match outcome {
                Some(outcome) => go_on &= ended(&tests[test.index], outcome, took),
                None => still.push(test),
            }
        }
        running = still;
        std::thread::sleep(LOOK_EVERY);
    }
    for mut test in running {
        test.child.kill()?;
        test.child.wait()?;
    }
    fs::remove_dir_all(&folder)
}

fn read(path: &Path) -> String {
    String::from_utf8_lossy(&fs::read(path).unwrap_or_default()).into_owned()
}

fn judge(success: bool, status: &str, output: String) -> Outcome {
    if !success {
        let tells = |line: &&str| {
            line.contains("panicked at")
                || ["WARNING: ThreadSanitizer", "failed: "].iter().any(|start| line.starts_with(start))
        };
        let why = output.lines().find(tells).map(|line| line.strip_prefix("failed: ").unwrap_or(line));
        return Outcome::Failed { why: why.unwrap_or(status).to_owned(), output };
    }
    match skip_reason(&output) {
        Some(reason) => Outcome::Skipped(reason.to_owned()),
        None => Outcome::Passed,
    }
}

/// Runs the tests of all binaries that match `prefix` (see [`list`]), and prints a line for each.
pub(crate) fn run_all(
    host: &Host,
    binaries: &[Binary],
    prefix: &str,
    limit: Duration,
    vars: &[(&str, &str)],
) -> Tally {
    let mut tally = Tally::default();
    for binary in binaries {
        let tests = match list(host, binary, prefix) {
            Ok(tests) => tests,
            Err(why) => {
                tally.fail(&binary.name, why);
                continue;
            }
        };
        let (ignored, tests): (Vec<Test>, Vec<Test>) = tests.into_iter().partition(|test| test.ignored);
        for test in ignored {
            tally.skip(format!("{} {}", binary.name, test.name), "ignored");
        }
        let ran = run(host, binary, &tests, limit, vars, |test, outcome, took| {
            let name = format!("{} {}", binary.name, test.name);
            let took = time::human(took);
            match outcome {
                Outcome::Passed => {
                    println!("    PASS [{took:>10}] {name}");
                    tally.pass();
                }
                Outcome::Skipped(why) => {
                    println!("    SKIP [{took:>10}] {name}: {why}");
                    tally.skip(name, why);
                }
                Outcome::Failed { why, output } => {
                    println!("    FAIL [{took:>10}] {name}\n{output}");
                    tally.fail(name, why);
                }
                Outcome::TimedOut { output } => {
                    println!("    HANG [{took:>10}] {name}\n{output}");
                    tally.fail(name, format!("killed after {took}"));
                }
            }
            true
        });
        if let Err(error) = ran {
            tally.fail(&binary.name, format!("could not run its tests: {error}"));
        }
    }
    tally
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    /// A script that behaves like a test binary.
    fn fake(folder: &Path, script: &str) -> (Host, Binary) {
        let path = folder.join("binary");
        fs::write(&path, format!("#!/bin/sh\n{script}\n")).expect("write");
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).expect("make executable");
        let host = Host { root: folder.to_owned(), ..Host::detect().expect("this machine") };
        (host, Binary { name: "fake".to_owned(), path, folder: folder.to_owned() })
    }

    const SCRIPT: &str = r#"
case "$*" in
  *--ignored*) echo 'deep::loom_slow: test' ;;
  *--list*) printf 'deep::loom_good: test\ndeep::loom_bad: test\nloom_gpu: test\ndeep::loom_slow: test\nother_loom_x: test\nb: bench\n' ;;
  *loom_good*) echo 'test deep::loom_good ... ok' ;;
  *loom_gpu*) echo 'skipped: no plugin' ;;
  *loom_bad*) echo "thread 'x' panicked at src/a.rs:1:1:"; exit 101 ;;
  *hang*) exec sleep 600 ;;
esac"#;

    #[test]
    fn tests_are_chosen_by_the_start_of_a_name() {
        let folder = tempfile::tempdir().expect("a scratch folder");
        let (host, binary) = fake(folder.path(), SCRIPT);
        let names: Vec<String> =
            list(&host, &binary, "loom_").expect("a list").into_iter().map(|test| test.name).collect();
        assert_eq!(names, ["deep::loom_good", "deep::loom_bad", "loom_gpu", "deep::loom_slow"]);
    }

    #[test]
    fn every_outcome_is_counted() {
        let folder = tempfile::tempdir().expect("a scratch folder");
        let (host, binary) = fake(folder.path(), SCRIPT);
        let tally = run_all(&host, &[binary], "loom_", Duration::from_secs(60), &[]);
        assert_eq!(tally.counts(), "1 passed, 1 failed, 2 skipped");
        assert_eq!(tally.failed[0].why, "thread 'x' panicked at src/a.rs:1:1:");
        assert!(tally.skipped.iter().any(|note| note.name == "fake loom_gpu" && note.why == "no plugin"));
        assert!(
            tally.skipped.iter().any(|note| note.name == "fake deep::loom_slow" && note.why == "ignored")
        );
    }

    #[test]
    fn the_reason_of_a_failure_is_what_is_told_first() {
        let why = |output: &str| match judge(false, "exit status: 1", output.to_owned()) {
            Outcome::Failed { why, .. } => why,
            other => panic!("{other:?}"),
        };
        assert_eq!(why("a line\nfailed: it hangs\nthread 'x' panicked at a.rs:1:1:\n"), "it hangs");
        assert_eq!(why("a line\nthread 'x' panicked at a.rs:1:1:\n"), "thread 'x' panicked at a.rs:1:1:");
        assert_eq!(why("it failed: no\n"), "exit status: 1");
    }

    #[test]
    fn a_test_that_hangs_is_killed() {
        let folder = tempfile::tempdir().expect("a scratch folder");
        let (host, binary) = fake(folder.path(), SCRIPT);
        let hang = [Test { name: "hang".to_owned(), ignored: false }];
        let start = Instant::now();
        let mut outcomes = Vec::new();
        run(&host, &binary, &hang, Duration::from_millis(50), &[], |_, outcome, _| {
            outcomes.push(outcome);
            true
        })
        .expect("runs");
        assert_eq!(outcomes, [Outcome::TimedOut { output: String::new() }]);
        assert!(start.elapsed() < Duration::from_secs(60));
    }

    #[test]
    fn the_rest_is_not_run_when_enough_is_known() {
        let folder = tempfile::tempdir().expect("a scratch folder");
        let (host, binary) = fake(folder.path(), SCRIPT);
        let bad = Test { name: "loom_bad".to_owned(), ignored: false };
        let mut count = 0;
        run(&host, &binary, &vec![bad; 1000], Duration::from_secs(60), &[], |_, _, _| {
            count += 1;
            false
        })
        .expect("runs");
        assert!(count < 1000, "{count}");
    }

    #[test]
    fn test_binaries_are_found_among_cargos_messages() {
        let messages = r#"{"reason":"compiler-artifact","profile":{"test":false},"target":{"name":"a"},"executable":"/t/a","manifest_path":"/ws/Cargo.toml"}
{"reason":"compiler-artifact","profile":{"test":true},"target":{"name":"fuseline"},"executable":"/t/deps/fuseline-1","manifest_path":"/ws/cache/Cargo.toml"}
{"reason":"compiler-artifact","profile":{"test":true},"target":{"name":"lib"},"executable":null,"manifest_path":"/ws/Cargo.toml"}
{"reason":"build-finished","success":true}"#;
        let names = |is_meant| {
            binaries(messages, is_meant).into_iter().map(|binary| binary.name).collect::<Vec<String>>()
        };
        assert_eq!(names(|message| message["profile"]["test"] == false), ["a"]);
        assert_eq!(
            binaries(messages, |message| message["profile"]["test"] == true),
            [Binary {
                name: "fuseline".to_owned(),
                path: "/t/deps/fuseline-1".into(),
                folder: "/ws/cache".into()
            }]
        );
    }
}
