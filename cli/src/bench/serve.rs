//! `fuseline bench --serve CASE`: runs a program for the harness, which exchanges lines of JSON
//! with it. `benches/peers/worker.py` does the same for the peers.
//!
//! - `{"do": "make"}` sets up the engine and the data; the answer has `versions`.
//! - `{"do": "steps", "count": N}`; the answer has `nanoseconds`, one for each step, and
//!   `counters`, the engine's counters so far. The last step includes the wait for everything still
//!   in flight.
//! - `{"do": "outputs"}`; the answer has `outputs`: names, and elements as base64 of little-endian
//!   `f32`.
//!
//! A failure is answered with `error`. With `--floor` the steps are those of [`Floor`], which have
//! no outputs (`null`).

use std::io::{BufRead as _, Write as _};
use std::time::Instant;

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use serde_json::{Value, json};

use super::Warming;
use super::bare_execution::Floor;
use super::programs::{Case, Program};
use crate::Status;
use crate::cli::BenchArgs;
use crate::device::{Watch, Watched};
use crate::failure::Failure;
use crate::options::ModeChoice;

pub(super) fn serve(args: &BenchArgs, case: &Case) -> Result<Status, Failure> {
    let mut served = Served { args, case, running: None };
    let mut answers = std::io::stdout().lock();
    for line in std::io::stdin().lock().lines() {
        let line = line.map_err(Failure::run)?;
        let ask: Value = serde_json::from_str(&line).map_err(|error| Failure::Input(error.to_string()))?;
        let answer = served.answer(&ask).unwrap_or_else(|error| json!({"error": error.to_string()}));
        writeln!(answers, "{answer}").and_then(|()| answers.flush()).map_err(Failure::run)?;
    }
    Ok(Status::Good)
}

/// What runs the steps.
enum Steps {
    Program(Box<dyn Program>),
    Floor(Floor),
}

impl Steps {
    fn step(&mut self) -> Result<(), Failure> {
        match self {
            Steps::Program(program) => program.step().map_err(Failure::run),
            Steps::Floor(floor) => floor.step(),
        }
    }
}

struct Served<'a> {
    args: &'a BenchArgs,
    case: &'a Case,
    running: Option<(Steps, Watched, Warming)>,
}

impl Served<'_> {
    fn answer(&mut self, ask: &Value) -> Result<Value, Failure> {
        match ask["do"].as_str() {
            Some("make") => self.make(),
            Some("steps") => self.steps(ask["count"].as_u64().unwrap_or(1)),
            Some("outputs") => self.outputs(),
            _ => Err(Failure::Input(format!("unknown request {ask}"))),
        }
    }

    fn running(&mut self) -> Result<&mut (Steps, Watched, Warming), Failure> {
        self.running
            .as_mut()
            .ok_or_else(|| Failure::Input("there is no program yet: request `make` first".to_owned()))
    }

    fn make(&mut self) -> Result<Value, Failure> {
        let mode = self.args.mode.unwrap_or(ModeChoice::Fused);
        let (place, contract) = (&self.args.place, self.args.contract);
        let watched = match self.args.floor {
            // Every region has its best executable from the first step on.
            true => Watched::afresh(place, contract, mode.into(), Watch { events: true, times: false })?,
            false => Watched::with_tiers(place, contract, mode.into(), self.args.compile_first)?,
        };
        let steps = match self.args.floor {
            true => Steps::Floor(Floor::of(&watched, self.case)?),
            false => Steps::Program(self.case.make(&watched.engine).map_err(Failure::run)?),
        };
        let place = watched.place_json();
        self.running = Some((steps, watched, Warming::default()));
        Ok(json!({"versions": {"fuseline": env!("CARGO_PKG_VERSION")}, "device": place}))
    }

    fn steps(&mut self, count: u64) -> Result<Value, Failure> {
        let (steps, watched, warming) = self.running()?;
        let mut times = Vec::new();
        let mut compiles = Vec::new();
        for left in (0..count).rev() {
            let start = Instant::now();
            steps.step()?;
            if left == 0 {
                watched.engine.synchronize().map_err(Failure::run)?;
            }
            times.push(start.elapsed().as_nanos() as u64);
            compiles.push(warming.after_step(&watched.engine));
        }
        let did = watched.engine.counters();
        Ok(json!({
            "nanoseconds": times,
            "compiles": compiles,
            "counters": {
                "ops": did.ops,
                "regions": did.regions,
                "executions": did.executions,
                "compiles": did.compiles,
                "compile_s": did.compile_time.as_secs_f64(),
                "executables": did.cached_executables,
                "cache_bytes": did.cached_bytes.0,
                "bytes_up": did.bytes_up,
                "bytes_down": did.bytes_down,
                "donations": did.donations,
                "fallbacks": did.fallbacks,
                "stalls": did.stalls,
                "longest_stall_ns": did.longest_stall.as_nanos() as u64,
            },
        }))
    }

    fn outputs(&mut self) -> Result<Value, Failure> {
        let (Steps::Program(program), ..) = self.running()? else { return Ok(json!({"outputs": null})) };
        let outputs = program.outputs().map_err(Failure::run)?;
        let output = |(name, data): (&str, Vec<f32>)| {
            let bytes: Vec<u8> = data.iter().flat_map(|number| number.to_le_bytes()).collect();
            json!({"name": name, "data": BASE64_STANDARD.encode(bytes)})
        };
        Ok(json!({"outputs": outputs.into_iter().map(output).collect::<Vec<_>>()}))
    }
}
