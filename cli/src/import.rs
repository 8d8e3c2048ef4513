//! `fuseline import`: StableHLO modules as program files.

use fuseline_cache::disk::write_given;

use crate::cli::ImportArgs;
use crate::failure::Failure;
use crate::{Status, load};

pub(crate) fn run(args: &ImportArgs, out: &mut String) -> Result<Status, Failure> {
    let program = load::program(&args.module)?;
    let json = program.to_json() + "\n";
    match &args.output {
        Some(path) => write_given(path, json.as_bytes())
            .map_err(|error| Failure::Run(format!("{} cannot be written: {error}", path.display())))?,
        None => out.push_str(&json),
    }
    Ok(Status::Good)
}
