//! The worker: a process that tries items on a plugin, and may die of it.
//!
//! It reads lines from its standard input and answers each by one line on its standard output,
//! after [`MARK`], because the plugin may print too. The first line is the [`Setup`]. Each later
//! one is a list of items, a question for the environment, or a question for the subnormal numbers.

use std::io::{self, BufRead, Write};
use std::path::PathBuf;

use fuseline::aot::Environment;
use fuseline::fusion::DTypeSet;
use fuseline::fusion::op::WorkaroundSet;
use fuseline::interp::{Arithmetic, SumOrder};
use fuseline::pjrt::Value as OptionValue;
use fuseline::qualification::{Finding, Level, OperandKind};
use fuseline::{DType, DiskCacheConfig, Engine, EngineConfig, ShapeClasses};
use serde_json::{Value, json};

use crate::calls::{Call, Pair, pairs};
use crate::checks::{self, cut};
use crate::compare::{Case, Outcome, run};
use crate::exceptions::excuse;
use crate::item::{Item, Unit};
use crate::plan::unit_calls;

/// The text before each answer.
pub const MARK: &str = "fuseline-qualify:";

/// The number of replicas with which collectives are tried.
const REPLICAS: usize = 2;

/// The largest number of calls of a unit that are tried alone after a difference.
const ALONE: usize = 3;

/// What a worker needs to know before the first item.
#[derive(Clone, Debug)]
pub struct Setup {
    /// The plugin; `None` for the first that is found.
    pub plugin: Option<PathBuf>,
    /// Options of the plugin's client.
    pub client_options: Vec<(String, OptionValue)>,
    /// The level.
    pub level: Level,
    /// The float types of which the device flushes subnormal numbers.
    pub flushed: DTypeSet,
    /// Whether ops are given to the plugin without the workarounds of the lowering.
    pub is_plain: bool,
}

impl Setup {
    /// The configuration of the product, with one executable per region, which is compiled before
    /// its first run.
    fn config(&self) -> EngineConfig {
        let mut config = EngineConfig::new()
            .interpret_cold_regions(false)
            .quick_compiles(false)
            .shape_classes(ShapeClasses::Off)
            .without_disk_cache();
        if let Some(plugin) = &self.plugin {
            config = config.plugin(plugin);
        }
        for (name, value) in &self.client_options {
            config = config.client_option(name, value.clone());
        }
        let left_out = match self.is_plain {
            true => WorkaroundSet::all_shown_by_calls(),
            false => WorkaroundSet::NONE,
        };
        config.leave_out_workarounds(left_out)
    }

    pub(crate) fn to_json(&self) -> Value {
        let options = self.client_options.iter().map(|(name, value)| {
            let (ty, text) = value.to_typed_text();
            json!([name, ty, text])
        });
        json!({
            "plugin": self.plugin.as_ref().map(|path| path.to_string_lossy()),
            "client options": options.collect::<Vec<_>>(),
            "level": self.level.name(),
            "flushed": self.flushed.iter().map(DType::mlir).collect::<Vec<_>>(),
            "plain": self.is_plain,
        })
    }

    fn from_json(value: &Value) -> Option<Setup> {
        let option = |row: &Value| {
            let value = OptionValue::parse(row[1].as_str()?, row[2].as_str()?).ok()?;
            Some((row[0].as_str()?.to_owned(), value))
        };
        let dtypes = value["flushed"].as_array()?.iter().map(|name| DType::from_mlir(name.as_str()?));
        Some(Setup {
            plugin: value["plugin"].as_str().map(PathBuf::from),
            client_options: value["client options"].as_array()?.iter().map(option).collect::<Option<_>>()?,
            level: Level::from_name(value["level"].as_str()?)?,
            flushed: DTypeSet::of(&dtypes.collect::<Option<Vec<_>>>()?),
            is_plain: value["plain"].as_bool()?,
        })
    }
}

/// Serves a parent until the end of `input`.
///
/// # Errors
/// When `input` or `output` fails.
pub fn serve(input: impl BufRead, mut output: impl Write) -> io::Result<()> {
    let mut lines = input.lines();
    let Some(first) = lines.next().transpose()? else { return Ok(()) };
    let setup = serde_json::from_str(&first).ok().and_then(|value| Setup::from_json(&value));
    let mut answer = |value: &Value| {
        // A line of its own, even if the plugin has printed a part of one.
        writeln!(output, "\n{MARK}{value}")?;
        output.flush()
    };
    let Some(setup) = setup else { return answer(&json!({"error": "the first line is no set-up"})) };
    let engine = match setup.config().build() {
        Ok(engine) => engine,
        Err(error) => return answer(&json!({"error": error.to_string()})),
    };
    let mut worker = Worker::new(setup, engine);
    answer(&json!({"ready": true}))?;
    for line in lines {
        answer(&worker.answer(&line?))?;
    }
    Ok(())
}

struct Worker {
    setup: Setup,
    engine: Engine,
    /// Made for the first collective; or why there is none.
    replicated: Option<Result<Engine, String>>,
    pairs: Vec<Pair>,
    arithmetic: Arithmetic,
}

impl Worker {
    fn new(setup: Setup, engine: Engine) -> Worker {
        let arithmetic = Arithmetic { sums: SumOrder::InOrder, flushed: setup.flushed };
        Worker { setup, engine, replicated: None, pairs: pairs(), arithmetic }
    }

    fn answer(&mut self, line: &str) -> Value {
        match line {
            "environment" => match self.environment() {
                Ok(environment) => json!({"environment": environment.parts().collect::<Vec<_>>()}),
                Err(error) => json!({"error": error}),
            },
            "flushed" => match checks::flushed(&self.engine) {
                Ok(flushed) => json!({"flushed": flushed.iter().map(DType::mlir).collect::<Vec<_>>()}),
                Err(error) => json!({"error": error.to_string()}),
            },
            line => {
                let texts: Vec<String> = serde_json::from_str(line).unwrap_or_default();
                let items: Result<Vec<Item>, _> = texts.iter().map(|text| text.parse()).collect();
                match items {
                    Ok(items) => {
                        let findings = self.findings(&items);
                        let findings = findings.iter().map(|finding| match finding {
                            Some(finding) => finding.to_json(),
                            None => Value::Null,
                        });
                        json!({"findings": findings.collect::<Vec<_>>()})
                    }
                    Err(error) => json!({"error": error.to_string()}),
                }
            }
        }
    }

    /// The environment of the engine's executables. It is known to engines with a disk cache, so
    /// one is opened for a moment on an empty folder.
    fn environment(&self) -> Result<Environment, String> {
        let folder = std::env::temp_dir().join(format!("fuseline-qualify-{}", std::process::id()));
        let cache = DiskCacheConfig::new().folder(&folder).key([0; 32]);
        let engine = self.setup.config().disk_cache(cache).build().map_err(|error| error.to_string());
        let environment = engine.and_then(|engine| {
            let why = engine.why_no_disk_cache().unwrap_or("the plugin's executables have no environment");
            engine.cache_environment().ok_or_else(|| why.to_owned())
        });
        // A folder that stays in the temporary folder does no harm.
        drop(std::fs::remove_dir_all(&folder));
        environment
    }

    /// A finding on each item; `None` if there is nothing to try.
    fn findings(&mut self, items: &[Item]) -> Vec<Option<Finding>> {
        let mut units = Vec::new();
        let mut seeds = Vec::new();
        for item in items {
            match item {
                Item::Calls(unit) => units.push(*unit),
                Item::Program(seed) => seeds.push(*seed),
                _ => {}
            }
        }
        if units.len() == items.len() {
            return self.units(&units);
        }
        if seeds.len() == items.len() {
            return checks::programs(&self.engine, &seeds).into_iter().map(Some).collect();
        }
        items.iter().map(|item| self.finding(item)).collect()
    }

    fn finding(&mut self, item: &Item) -> Option<Finding> {
        match item {
            Item::Calls(unit) => self.units(&[*unit]).pop().flatten(),
            Item::Program(seed) => checks::programs(&self.engine, &[*seed]).pop(),
            Item::Update(dtype) => Some(checks::update(&self.engine, *dtype)),
            Item::Subnormal(dtype) => Some(checks::subnormals(&self.engine, *dtype, self.arithmetic)),
            Item::Quotient(dtype) => Some(checks::quotients(&self.engine, *dtype)),
            Item::Collective(op, dtype) => {
                let config = || self.setup.config().replicas(REPLICAS);
                let engine = self
                    .replicated
                    .get_or_insert_with(|| config().build().map_err(|error| error.to_string()));
                // A plugin with one device has no collectives.
                engine.as_ref().ok().map(|engine| checks::collective(engine, *op, *dtype))
            }
            Item::Case(path) => Some(checks::case(&self.engine, path)),
        }
    }

    /// The findings on units, whose calls are tried in one region, and alone if they are not right.
    fn units(&self, units: &[Unit]) -> Vec<Option<Finding>> {
        let made: Vec<Vec<Call>> =
            units.iter().map(|unit| unit_calls(*unit, &self.pairs, self.setup.level)).collect();
        let Some(operand_kind) = units.first().map(|unit| unit.operand_kind) else { return Vec::new() };
        let flat: Vec<&Call> = made.iter().flatten().collect();
        let mut outcomes = run(&self.engine, &flat, operand_kind, self.arithmetic).into_iter();
        self.engine.clear_cache();
        let mut findings = Vec::new();
        for (unit, calls) in units.iter().zip(&made) {
            let outcomes = outcomes.by_ref().take(calls.len());
            let (pair, mut worst, mut alone) = (&self.pairs[unit.pair], Finding::Right, 0);
            for (call, outcome) in calls.iter().zip(outcomes.collect::<Vec<_>>()) {
                let mut found = judged(pair, call, outcome);
                if !found.is_usable() && flat.len() > 1 && alone < ALONE {
                    alone += 1;
                    found = self.alone(pair, call, operand_kind, found);
                }
                if found > worst {
                    worst = found;
                }
            }
            findings.push((!calls.is_empty()).then_some(worst));
        }
        findings
    }

    /// The finding on a call by itself. A difference that only the region shows stays one.
    fn alone(&self, pair: &Pair, call: &Call, operand_kind: OperandKind, in_region: Finding) -> Finding {
        let outcome = run(&self.engine, &[call], operand_kind, self.arithmetic).pop();
        self.engine.clear_cache();
        match (outcome.map(|outcome| judged(pair, call, outcome)), in_region) {
            (Some(Finding::Right | Finding::RoundsDifferently { .. }), Finding::Wrong { example, call }) => {
                Finding::Wrong { example: format!("in a region with other calls: {example}"), call }
            }
            (Some(found), _) => found,
            (None, in_region) => in_region,
        }
    }
}

/// The finding on a call. Differences with an accepted reason do not count.
fn judged(pair: &Pair, call: &Call, outcome: Outcome) -> Finding {
    let cases = match outcome {
        Outcome::Refused(message) | Outcome::Failed(message) => {
            return Finding::Refused { message: cut(&message), call: call.to_string() };
        }
        Outcome::Ran(cases) => cases,
    };
    let cases: Vec<Case> = cases.into_iter().filter(|case| excuse(pair, case).is_none()).collect();
    if let Some(case) = cases.iter().find(|case| !case.is_near()) {
        let example = format!("{} elements differ: {}", cases.len(), case.element());
        return Finding::Wrong { example: cut(&example), call: call.to_string() };
    }
    // The distance of a subnormal number from zero has no such unit.
    let steps = |case: &Case| if case.is_about_subnormals() { 1.0 } else { case.steps };
    let most = cases.iter().map(steps).fold(0.0, f64::max);
    match cases.is_empty() {
        true => Finding::Right,
        false => Finding::RoundsDifferently { steps: most.ceil().max(1.0) as u64, call: call.to_string() },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_setup_is_a_line() {
        let setup = Setup {
            plugin: Some(PathBuf::from("/a b/c.so")),
            client_options: vec![
                ("a".to_owned(), OptionValue::Int(2)),
                ("b".to_owned(), OptionValue::Bool(true)),
                ("c".to_owned(), OptionValue::Float(0.5)),
                ("d".to_owned(), OptionValue::String("x".to_owned())),
                ("e".to_owned(), OptionValue::IntList(vec![1, 2])),
            ],
            level: Level::Quick,
            flushed: DTypeSet::of(&[DType::F32]),
            is_plain: true,
        };
        let text = setup.to_json().to_string();
        let read = serde_json::from_str(&text).ok().and_then(|value| Setup::from_json(&value));
        assert_eq!(read.map(|setup| format!("{setup:?}")), Some(format!("{setup:?}")), "{text}");
    }

    #[test]
    fn a_worker_answers_each_line() {
        let mut output = Vec::new();
        serve("nonsense\n".as_bytes(), &mut output).expect("memory");
        let text = String::from_utf8(output).expect("text");
        assert!(text.contains(MARK) && text.contains("no set-up"), "{text}");
    }
}
