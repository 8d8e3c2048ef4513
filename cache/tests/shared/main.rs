//! The shared tier with real servers: an S3 server in a process that is killed, and servers with
//! wrong answers.
#![allow(
    clippy::disallowed_methods,
    clippy::disallowed_types,
    clippy::print_stdout,
    clippy::unwrap_used,
    reason = "a test, on real threads"
)]

mod liar;
mod lies;
mod s3;
mod store;
mod support;
