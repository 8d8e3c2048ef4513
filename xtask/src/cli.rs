//! The command line.

use std::ffi::OsString;
use std::path::PathBuf;

use crate::test::{Selection, Stage};

/// The output of `cargo xtask help`.
pub(crate) const USAGE: &str = "\
usage: cargo xtask COMMAND

  demo [ARGUMENTS...]           set up, then build and run the example `digits` with these arguments
  bench [ARGUMENTS...]          set up, then measure Fuseline beside JAX, PyTorch and NumPy (see --help)
  micro [ARGUMENTS...]          set up, then measure Fuseline's own stages, in time and in instructions
  micro --outside               set up, then compare what recording costs here and in a crate outside of this workspace
  trip                          set up, then check that an op visits the stages of ARCHITECTURE.md in their order
  capi --prefix FOLDER          set up, build the C library, and install it with its headers
  test [STAGE...] [--quick]     set up, then run all stages, the named ones, or the quick ones
  test --list                   list the stages
  test full [--shard K/N]       run the exhaustive forms of sampled tests; resumes an earlier run
  soak [--minutes N] [NAME...]  run all long runs, or the named ones, N minutes each if limited by time
  soak --list                   list the long runs
  setup                         set up only: provide libclang, protoc and the CPU plugin for plain cargo commands
  env [--cargo FOLDER]          set up for crates outside of this checkout: print the variables that they need, for a
                                shell, or put them into the Cargo configuration of the crate in FOLDER";

/// A command with its arguments.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Command {
    Help,
    Setup,
    Env(Option<PathBuf>),
    Demo(Vec<OsString>),
    Bench(Vec<OsString>),
    Micro(Vec<OsString>),
    Outside,
    Trip,
    Soak(Vec<OsString>),
    Capi(PathBuf),
    ListStages,
    Test(Selection),
    TestFull(Vec<OsString>),
}

/// Parses the arguments after the program's name. An error is a sentence for the user.
pub(crate) fn parse(mut arguments: Vec<OsString>) -> Result<Command, String> {
    if arguments.is_empty() {
        return Err("no command was given".to_owned());
    }
    let rest = arguments.split_off(1);
    match arguments[0].to_str() {
        Some("help" | "--help" | "-h") => Ok(Command::Help),
        Some("setup") => match rest.first() {
            None => Ok(Command::Setup),
            Some(extra) => Err(format!("setup takes no arguments, but got {}", extra.display())),
        },
        Some("env") => match &*rest {
            [] => Ok(Command::Env(None)),
            [flag, folder] if flag == "--cargo" => Ok(Command::Env(Some(PathBuf::from(folder)))),
            _ => Err("env takes --cargo FOLDER or nothing".to_owned()),
        },
        Some("demo") => Ok(Command::Demo(passed_on(rest))),
        Some("bench") => Ok(Command::Bench(passed_on(rest))),
        Some("micro") if *rest == ["--outside"] => Ok(Command::Outside),
        Some("micro") => Ok(Command::Micro(passed_on(rest))),
        Some("trip") => match rest.first() {
            None => Ok(Command::Trip),
            Some(extra) => Err(format!("trip takes no arguments, but got {}", extra.display())),
        },
        Some("soak") => Ok(Command::Soak(rest)),
        Some("capi") => match &*rest {
            [flag, prefix] if flag == "--prefix" => Ok(Command::Capi(PathBuf::from(prefix))),
            _ => Err("capi takes --prefix FOLDER".to_owned()),
        },
        Some("test") if rest.first().is_some_and(|first| first == "full") => {
            Ok(Command::TestFull(rest[1..].to_vec()))
        }
        Some("test") => parse_test(&rest),
        _ => Err(format!("there is no command {}", arguments[0].display())),
    }
}

/// Arguments to pass on. Like cargo, `demo -- ARGUMENTS` drops the `--`.
fn passed_on(mut arguments: Vec<OsString>) -> Vec<OsString> {
    if arguments.first().is_some_and(|first| first == "--") {
        arguments.remove(0);
    }
    arguments
}

fn parse_test(arguments: &[OsString]) -> Result<Command, String> {
    let mut stages = Vec::new();
    let mut quick = false;
    for argument in arguments {
        match argument.to_str() {
            Some("--help" | "-h") => return Ok(Command::Help),
            Some("--list") => return Ok(Command::ListStages),
            Some("--quick") => quick = true,
            Some(name) => match Stage::ALL.into_iter().find(|stage| stage.name() == name) {
                Some(stage) => stages.push(stage),
                None => {
                    let known: Vec<&str> = Stage::ALL.iter().map(|stage| stage.name()).collect();
                    return Err(format!("there is no stage {name}; the stages are {}", known.join(", ")));
                }
            },
            None => return Err(format!("there is no stage {}", argument.display())),
        }
    }
    match (stages.is_empty(), quick) {
        (true, true) => Ok(Command::Test(Selection::Quick)),
        (true, false) => Ok(Command::Test(Selection::All)),
        (false, false) => Ok(Command::Test(Selection::These(stages))),
        (false, true) => Err("--quick cannot be combined with stage names".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(line: &str) -> Result<Command, String> {
        parse(line.split_whitespace().map(OsString::from).collect())
    }

    #[test]
    fn commands_are_told_apart() {
        assert_eq!(parsed("setup"), Ok(Command::Setup));
        assert_eq!(parsed("env"), Ok(Command::Env(None)));
        assert_eq!(parsed("env --cargo ."), Ok(Command::Env(Some(".".into()))));
        assert_eq!(parsed("demo --steps 3"), Ok(Command::Demo(vec!["--steps".into(), "3".into()])));
        assert_eq!(parsed("demo -- --steps 3"), parsed("demo --steps 3"));
        assert_eq!(parsed("bench --quick"), Ok(Command::Bench(vec!["--quick".into()])));
        assert_eq!(parsed("micro --save"), Ok(Command::Micro(vec!["--save".into()])));
        assert_eq!(parsed("micro --outside"), Ok(Command::Outside));
        assert_eq!(parsed("trip"), Ok(Command::Trip));
        assert_eq!(parsed("soak --list"), Ok(Command::Soak(vec!["--list".into()])));
        assert_eq!(parsed("capi --prefix out"), Ok(Command::Capi("out".into())));
        assert_eq!(parsed("test"), Ok(Command::Test(Selection::All)));
        assert_eq!(parsed("test --quick"), Ok(Command::Test(Selection::Quick)));
        assert_eq!(parsed("test --list"), Ok(Command::ListStages));
        assert_eq!(
            parsed("test full --shard 1/2"),
            Ok(Command::TestFull(vec!["--shard".into(), "1/2".into()]))
        );
        assert_eq!(
            parsed("test tidy fmt"),
            Ok(Command::Test(Selection::These(vec![Stage::Tidy, Stage::Fmt])))
        );
    }

    #[test]
    fn what_is_not_understood_is_said() {
        for (line, says) in [
            ("", "no command was given"),
            ("tset", "no command tset"),
            ("setup now", "no arguments"),
            ("trip now", "no arguments"),
            ("env --cargo", "--cargo FOLDER or nothing"),
            ("capi", "--prefix FOLDER"),
            ("test frmt", "no stage frmt; the stages are fmt, "),
            ("test --fast", "no stage --fast"),
            ("test fmt --quick", "cannot be combined"),
        ] {
            let error = parsed(line).expect_err(line);
            assert!(error.contains(says), "{line}: {error}");
        }
    }
}
