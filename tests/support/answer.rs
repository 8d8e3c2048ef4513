//! Output of the command-line tool.
#![allow(dead_code, missing_docs, reason = "each test uses a part")]

use std::process::Output;

use serde_json::Value;

/// The output and the status of the tool.
pub(crate) struct Answer {
    pub(crate) status: Option<i32>,
    pub(crate) out: String,
    pub(crate) err: String,
}

impl Answer {
    pub(crate) fn of(output: Output) -> Answer {
        Answer {
            status: output.status.code(),
            out: String::from_utf8(output.stdout).expect("UTF-8"),
            err: String::from_utf8(output.stderr).expect("UTF-8"),
        }
    }

    /// Checks the exit status, and that nothing panicked.
    #[track_caller]
    pub(crate) fn ends_with(self, status: i32) -> Answer {
        assert!(!self.err.contains("panicked"), "{}", self.err);
        assert_eq!(self.status, Some(status), "{}\n{}", self.out, self.err);
        self
    }

    /// The answer as one JSON document, which must be all of standard output.
    #[track_caller]
    pub(crate) fn json(&self) -> Value {
        serde_json::from_str(&self.out).unwrap_or_else(|error| panic!("{error}: {}", self.out))
    }

    #[track_caller]
    pub(crate) fn says(&self, words: &[&str]) {
        for words in words {
            assert!(self.out.contains(words), "{words:?} is not in\n{}", self.out);
        }
    }

    /// Like [`Answer::says`], for standard output or standard error.
    #[track_caller]
    pub(crate) fn mentions(&self, words: &[&str]) {
        for words in words {
            assert!(
                self.out.contains(words) || self.err.contains(words),
                "{words:?} is not in\n{}{}",
                self.out,
                self.err
            );
        }
    }
}
