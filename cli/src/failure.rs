//! Failures of commands.

use std::fmt;

/// A failure, in words for people.
#[derive(Debug)]
pub(crate) enum Failure {
    /// The file or the command line is wrong.
    Input(String),
    /// It could not be done.
    Run(String),
}

impl Failure {
    pub(crate) fn run(error: impl fmt::Display) -> Failure {
        Failure::Run(error.to_string())
    }

    pub(crate) fn exit_status(&self) -> u8 {
        match self {
            Failure::Input(_) => 2,
            Failure::Run(_) => 1,
        }
    }

    /// A word for programs.
    pub(crate) fn status(&self) -> &'static str {
        match self {
            Failure::Input(_) => "invalid",
            Failure::Run(_) => "failed",
        }
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Failure::Input(words) | Failure::Run(words) => f.write_str(words),
        }
    }
}
