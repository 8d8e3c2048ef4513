//! Certificates: what a plugin computes, op by op, as `fuseline qualify` found it.
//!
//! Input: the text of a certificate, or the findings of a qualification. Output: a verdict for each
//! op and element type. The module runs nothing and reads no file.
//!
//! Invariants:
//! - CERT-1. [`Certificate::to_json`] is a function of the certificate alone, with one line per
//!   row: two certificates with equal contents have equal text.
//! - CERT-2. A certificate holds only for an equal [`CertificateKey`]. Whatever can change a result
//!   is a part of the key: the plugin's file, the device, the processor, the compile options, the
//!   lowering and the sample set.
//! - CERT-3. [`Certificate::parse`] accepts only the present [`FORMAT`] and the names of the
//!   present op table.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use fuseline_fusion::canon;
use fuseline_fusion::lower::LOWERING;
use fuseline_fusion::op::{Evidence, OPS, Workaround, WorkaroundSet};
use fuseline_fusion::{DType, OpCode};
use serde_json::{Map, Value, json};

/// The version of the text format.
pub const FORMAT: u64 = 2;

/// The digest of the calls that a qualification makes. A test of `fuseline-qualify` compares it
/// with the calls, and names the new value after a change.
pub const SAMPLES: &str = "01fe1743ec162f9cbedebd6b056ec8154f6e60724400d731c2a8b535edef36bb";

/// How much was tried.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Level {
    /// The ops and element types of common programs, with a few calls each.
    Quick,
    /// Every op on every element type, random programs, donation, subnormal numbers, collectives.
    Full,
}

impl Level {
    /// `quick` or `full`.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Level::Quick => "quick",
            Level::Full => "full",
        }
    }

    /// The level of this name.
    #[must_use]
    pub fn from_name(name: &str) -> Option<Level> {
        [Level::Quick, Level::Full].into_iter().find(|level| level.name() == name)
    }
}

/// How operands get to the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum OperandKind {
    /// As inputs of the region.
    Uploaded,
    /// As constants, which XLA folds at compile time.
    Constant,
}

impl OperandKind {
    /// `uploaded` or `constants`.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            OperandKind::Uploaded => "uploaded",
            OperandKind::Constant => "constants",
        }
    }

    /// The value of this name.
    #[must_use]
    pub fn from_name(name: &str) -> Option<OperandKind> {
        [OperandKind::Uploaded, OperandKind::Constant]
            .into_iter()
            .find(|operand_kind| operand_kind.name() == name)
    }
}

/// What was found, from best to worst. Each finding that is not right has the call that shows it:
/// signature and attributes.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Finding {
    /// All results are right, within the documented rounding of the op.
    Right,
    /// Results are close, but further off than the documented rounding.
    RoundsDifferently {
        /// The largest difference, in units in the last place of the right result, rounded up.
        steps: u64,
        /// The call.
        call: String,
    },
    /// The plugin does not compile or run the call.
    Refused {
        /// The plugin's message.
        message: String,
        /// The call.
        call: String,
    },
    /// A result is wrong.
    Wrong {
        /// The wrong element, the right one and the operands.
        example: String,
        /// The call.
        call: String,
    },
    /// The process ended, or did not answer in time.
    Crashes {
        /// The status of the process, and its last output.
        how: String,
        /// The call.
        call: String,
    },
}

impl Finding {
    /// The kinds of findings, from best to worst.
    pub const KINDS: [&'static str; 5] = ["right", "rounds differently", "refused", "wrong", "crashes"];

    /// The position of the kind in [`Finding::KINDS`]: the greater, the worse.
    #[must_use]
    pub fn severity(&self) -> usize {
        match self {
            Finding::Right => 0,
            Finding::RoundsDifferently { .. } => 1,
            Finding::Refused { .. } => 2,
            Finding::Wrong { .. } => 3,
            Finding::Crashes { .. } => 4,
        }
    }

    /// The kind, one of [`Finding::KINDS`].
    #[must_use]
    pub fn kind(&self) -> &'static str {
        Finding::KINDS[self.severity()]
    }

    /// Whether the op may run on the plugin: it is right or rounds differently.
    #[must_use]
    pub fn is_usable(&self) -> bool {
        matches!(self, Finding::Right | Finding::RoundsDifferently { .. })
    }

    /// The call that shows it, and what it shows; `None` if it is right.
    #[must_use]
    pub fn evidence(&self) -> Option<(&str, String)> {
        match self {
            Finding::Right => None,
            Finding::RoundsDifferently { steps, call } => {
                let unit = if *steps == 1 { "unit" } else { "units" };
                Some((call, format!("{steps} {unit} in the last place")))
            }
            Finding::Refused { message: what, call }
            | Finding::Wrong { example: what, call }
            | Finding::Crashes { how: what, call } => Some((call, what.clone())),
        }
    }

    /// The finding as members of a JSON object: `finding`, and those of its kind.
    #[must_use]
    pub fn to_json(&self) -> Value {
        let kind = self.kind();
        match self {
            Finding::Right => json!({"finding": kind}),
            Finding::RoundsDifferently { steps, call } => {
                json!({"finding": kind, "steps": steps, "call": call})
            }
            Finding::Refused { message, call } => json!({"finding": kind, "message": message, "call": call}),
            Finding::Wrong { example, call } => json!({"finding": kind, "example": example, "call": call}),
            Finding::Crashes { how, call } => json!({"finding": kind, "how": how, "call": call}),
        }
    }

    /// Reads what [`Finding::to_json`] writes; `None` if a member is missing.
    #[must_use]
    pub fn from_json(value: &Value) -> Option<Finding> {
        let text = |key: &str| Some(value[key].as_str()?.to_owned());
        let call = || text("call");
        Some(match value["finding"].as_str()? {
            "right" => Finding::Right,
            "rounds differently" => {
                Finding::RoundsDifferently { steps: value["steps"].as_u64()?, call: call()? }
            }
            "refused" => Finding::Refused { message: text("message")?, call: call()? },
            "wrong" => Finding::Wrong { example: text("example")?, call: call()? },
            "crashes" => Finding::Crashes { how: text("how")?, call: call()? },
            _ => return None,
        })
    }
}

/// The finding on an op and an element type.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Row {
    /// The op.
    pub op: OpCode,
    /// The element type of the first operand, or of the result if there is no operand.
    pub dtype: DType,
    /// Another type of the call: one that an attribute names, or that of the operands among which
    /// the first one selects.
    pub other: Option<DType>,
    /// How the operands got to the device.
    pub operand_kind: OperandKind,
    /// The finding.
    pub finding: Finding,
}

/// The finding of a check that is not about a single op: random programs, donation, subnormal
/// numbers, collectives.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Check {
    /// The name of the check.
    pub name: String,
    /// How many cases it has.
    pub cases: u64,
    /// The finding. Its call is a description of the case.
    pub finding: Finding,
}

/// Whether a plugin needs a workaround of the lowering: a finding on the ops that it replaces, when
/// they are given to the plugin as they are.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct WorkaroundNeed {
    /// The workaround.
    pub workaround: Workaround,
    /// The finding. The plugin does not need the workaround if it is [`Finding::Right`].
    pub finding: Finding,
}

/// What a certificate is valid for (CERT-2).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CertificateKey {
    /// The BLAKE3 digest of the plugin's file, in hexadecimal digits.
    pub plugin: String,
    /// The name of the platform: `cpu`.
    pub platform: String,
    /// The version of the platform, as the plugin states it.
    pub platform_version: String,
    /// The version of the PJRT API: `0.81`.
    pub api_version: String,
    /// The kind of the device.
    pub device_kind: String,
    /// The digest of the processor's features, if the code depends on them; otherwise empty.
    pub processor: String,
    /// The digest of the compile options in effect, and of the environment variables that the
    /// plugin reads.
    pub compile_options: String,
    /// The digest of the lowering rules: their version and the op table.
    pub lowering: String,
    /// The digest of the sample set.
    pub samples: String,
}

impl CertificateKey {
    /// The key for an environment, given the names and values of its parts
    /// (`aot::Environment::parts`).
    pub fn of_parts<'a>(parts: impl IntoIterator<Item = (&'a str, &'a str)>) -> CertificateKey {
        let mut key =
            CertificateKey { lowering: lowering(), samples: SAMPLES.to_owned(), ..CertificateKey::default() };
        let (mut processor, mut options) = (String::new(), String::new());
        for (name, value) in parts {
            match name {
                "plugin file" => value.clone_into(&mut key.plugin),
                "platform" => value.clone_into(&mut key.platform),
                "platform version" => value.clone_into(&mut key.platform_version),
                "PJRT version" => value.clone_into(&mut key.api_version),
                // `ID KIND`. Engines have devices of one kind.
                "device" => {
                    value.split_once(' ').map_or(value, |(_, kind)| kind).clone_into(&mut key.device_kind)
                }
                // A full qualification tries the ops with and without workarounds.
                "workarounds left out" => {}
                // None changes what an op computes; the versions are in the lowering's digest.
                "client options" | "topology" | "threads" | "fuseline" | "formats" => {}
                name if name.starts_with("plugin's ") => {}
                name if name == "architecture" || name.starts_with("processor ") => {
                    processor += &format!("{name}={value}\n");
                }
                _ => options += &format!("{name}={value}\n"),
            }
        }
        if !processor.is_empty() {
            key.processor = digest(processor.as_bytes());
        }
        key.compile_options = digest(options.as_bytes());
        key
    }

    /// The parts: name and value, in a fixed order.
    #[must_use]
    pub fn parts(&self) -> [(&'static str, &str); 9] {
        [
            ("plugin", &self.plugin),
            ("platform", &self.platform),
            ("platform version", &self.platform_version),
            ("api version", &self.api_version),
            ("device kind", &self.device_kind),
            ("processor", &self.processor),
            ("compile options", &self.compile_options),
            ("lowering", &self.lowering),
            ("samples", &self.samples),
        ]
    }

    /// The names of the parts in which two keys differ.
    #[must_use]
    pub fn differences(&self, other: &CertificateKey) -> Vec<&'static str> {
        let pairs = self.parts().into_iter().zip(other.parts());
        pairs.filter(|(here, there)| here.1 != there.1).map(|(here, _)| here.0).collect()
    }

    fn read(value: &Value) -> Option<CertificateKey> {
        let text = |name: &str| Some(value[name].as_str()?.to_owned());
        Some(CertificateKey {
            plugin: text("plugin")?,
            platform: text("platform")?,
            platform_version: text("platform version")?,
            api_version: text("api version")?,
            device_kind: text("device kind")?,
            processor: text("processor")?,
            compile_options: text("compile options")?,
            lowering: text("lowering")?,
            samples: text("samples")?,
        })
    }
}

/// The BLAKE3 digest of bytes, in hexadecimal digits.
#[must_use]
pub fn digest(bytes: &[u8]) -> String {
    blake3::hash(bytes).to_hex().to_string()
}

/// The digest of the lowering rules: their version, that of the canonical form, and the op table.
fn lowering() -> String {
    let mut text = format!("canonical form {}, lowering {LOWERING}\n", canon::FORMAT);
    for def in &OPS {
        text += &format!("{} {} {:?} {:?}\n", def.code.number(), def.name, def.dtypes, def.rounding);
    }
    digest(text.as_bytes())
}

/// An invalid certificate, in words.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CertificateError(String);

impl fmt::Display for CertificateError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the certificate is not valid: {}", self.0)
    }
}

impl std::error::Error for CertificateError {}

/// The result of a qualification.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Certificate {
    key: CertificateKey,
    level: Level,
    date: String,
    rows: Vec<Row>,
    checks: Vec<Check>,
    workarounds: Vec<WorkaroundNeed>,
}

impl Certificate {
    /// Makes a certificate. `date` is the day of the qualification, `YYYY-MM-DD`.
    #[must_use]
    pub fn new(
        key: CertificateKey,
        level: Level,
        date: String,
        mut rows: Vec<Row>,
        mut checks: Vec<Check>,
    ) -> Certificate {
        rows.sort();
        checks.sort();
        Certificate { key, level, date, rows, checks, workarounds: Vec::new() }
    }

    /// The certificate with findings on the workarounds of the lowering.
    #[must_use]
    pub fn with_workarounds(mut self, mut workarounds: Vec<WorkaroundNeed>) -> Certificate {
        workarounds.sort();
        self.workarounds = workarounds;
        self
    }

    /// The findings on the workarounds of the lowering. Empty if they were not tried.
    #[must_use]
    pub fn workarounds(&self) -> &[WorkaroundNeed] {
        &self.workarounds
    }

    /// The workarounds that the plugin does not need. Those whose need does not show in calls are
    /// ignored. A certificate of an earlier version may list them.
    #[must_use]
    pub fn unneeded_workarounds(&self) -> WorkaroundSet {
        let unneeded = self
            .workarounds
            .iter()
            .filter(|need| need.finding == Finding::Right && need.workaround.evidence() == Evidence::Calls);
        unneeded.fold(WorkaroundSet::NONE, |set, need| set.with(need.workaround))
    }

    /// What it is valid for.
    #[must_use]
    pub fn key(&self) -> &CertificateKey {
        &self.key
    }

    /// How much was tried.
    #[must_use]
    pub fn level(&self) -> Level {
        self.level
    }

    /// The day of the qualification.
    #[must_use]
    pub fn date(&self) -> &str {
        &self.date
    }

    /// The findings, sorted by op and element type.
    #[must_use]
    pub fn rows(&self) -> &[Row] {
        &self.rows
    }

    /// The findings that are not about a single op.
    #[must_use]
    pub fn checks(&self) -> &[Check] {
        &self.checks
    }

    /// The worst finding on an op with first operands of an element type, however its operands got
    /// to the device. `None` if the op was not tried on that type.
    #[must_use]
    pub fn verdict(&self, op: OpCode, dtype: DType) -> Option<&Finding> {
        let start = self.rows.partition_point(|row| (row.op, row.dtype) < (op, dtype));
        let rows = self.rows[start..].iter().take_while(|row| (row.op, row.dtype) == (op, dtype));
        rows.map(|row| &row.finding).max_by_key(|finding| finding.severity())
    }

    /// The number of rows and checks of each kind, in the order of [`Finding::KINDS`].
    #[must_use]
    pub fn counts(&self) -> [(&'static str, usize); 5] {
        let all =
            || self.rows.iter().map(|row| &row.finding).chain(self.checks.iter().map(|check| &check.finding));
        Finding::KINDS.map(|kind| (kind, all().filter(|finding| finding.kind() == kind).count()))
    }

    /// Whether nothing is wrong and nothing crashes.
    #[must_use]
    pub fn is_clean(&self) -> bool {
        self.counts()[3..].iter().all(|(_, count)| *count == 0)
    }

    /// The text: JSON with one line per row (CERT-1).
    #[must_use]
    pub fn to_json(&self) -> String {
        let key: Vec<String> =
            self.key.parts().map(|(name, value)| format!("{}: {}", json!(name), json!(value))).to_vec();
        let counts: Vec<String> =
            self.counts().map(|(kind, count)| format!("{}: {count}", json!(kind))).to_vec();
        let row = |row: &Row| {
            let mut line =
                format!("{{\"op\": {}, \"dtype\": {}", json!(row.op.name()), json!(row.dtype.mlir()));
            if let Some(other) = row.other {
                line += &format!(", \"other\": {}", json!(other.mlir()));
            }
            line + &format!(", \"operands\": {}, {}}}", json!(row.operand_kind.name()), members(&row.finding))
        };
        let check = |check: &Check| {
            let (name, cases) = (json!(check.name), check.cases);
            format!("{{\"check\": {name}, \"cases\": {cases}, {}}}", members(&check.finding))
        };
        let findings: Vec<String> =
            self.rows.iter().filter(|row| row.finding != Finding::Right).map(row).collect();
        let checks: Vec<String> = self.checks.iter().map(check).collect();
        let mut text = format!(
            "{{\n\"format\": {FORMAT},\n\"level\": {},\n\"date\": {},\n",
            json!(self.level.name()),
            json!(self.date)
        );
        text += &format!("\"key\": {},\n", lines('{', &key, '}'));
        text += &format!("\"counts\": {{{}}},\n", counts.join(", "));
        text += &format!("\"findings\": {},\n", lines('[', &findings, ']'));
        text += &format!("\"checks\": {},\n", lines('[', &checks, ']'));
        let need = |need: &WorkaroundNeed| {
            format!("{{\"workaround\": {}, {}}}", json!(need.workaround.name()), members(&need.finding))
        };
        let workarounds: Vec<String> = self.workarounds.iter().map(need).collect();
        text += &format!("\"workarounds\": {},\n", lines('[', &workarounds, ']'));
        for operand_kind in [OperandKind::Uploaded, OperandKind::Constant] {
            let end = if operand_kind == OperandKind::Uploaded { "," } else { "\n}" };
            let name = format!("right, {}", operand_kind.name());
            text += &format!("{}: {}{end}\n", json!(name), lines('{', &self.right(operand_kind), '}'));
        }
        text
    }

    /// A line for each op with the element types on which it is right.
    fn right(&self, operand_kind: OperandKind) -> Vec<String> {
        let mut types: BTreeMap<OpCode, Vec<String>> = BTreeMap::new();
        for row in
            self.rows.iter().filter(|row| row.operand_kind == operand_kind && row.finding == Finding::Right)
        {
            let other = row.other.map(|other| format!("/{}", other.mlir())).unwrap_or_default();
            types.entry(row.op).or_default().push(format!("{}{other}", row.dtype.mlir()));
        }
        types.iter().map(|(op, types)| format!("{}: {}", json!(op.name()), json!(types.join(" ")))).collect()
    }

    /// Reads a certificate.
    ///
    /// # Errors
    /// When the text is not JSON, has another format version, lacks a member, or names an op or an
    /// element type that the op table does not have (CERT-3).
    pub fn parse(text: &str) -> Result<Certificate, CertificateError> {
        let wrong = |what: &str| CertificateError(what.to_owned());
        let value: Value = serde_json::from_str(text).map_err(|error| CertificateError(error.to_string()))?;
        match value["format"].as_u64() {
            Some(FORMAT) => {}
            Some(other) => return Err(CertificateError(format!("its format is {other}, not {FORMAT}"))),
            None => return Err(wrong("it has no format")),
        }
        let key = CertificateKey::read(&value["key"]).ok_or_else(|| wrong("its key lacks a part"))?;
        let level = value["level"].as_str().and_then(Level::from_name);
        let level = level.ok_or_else(|| wrong("its level is neither quick nor full"))?;
        let date = value["date"].as_str().ok_or_else(|| wrong("it has no date"))?.to_owned();
        let list = |name: &str| value[name].as_array().ok_or_else(|| wrong(&format!("it has no {name}")));
        let mut rows = Vec::new();
        for row in list("findings")? {
            rows.push(read_row(row).ok_or_else(|| CertificateError(format!("a finding is {row}")))?);
        }
        for operand_kind in [OperandKind::Uploaded, OperandKind::Constant] {
            let name = format!("right, {}", operand_kind.name());
            let right = value[&name].as_object().ok_or_else(|| wrong(&format!("it has no \"{name}\"")))?;
            rows.extend(read_right(right, operand_kind).map_err(CertificateError)?);
        }
        let mut checks = Vec::new();
        for check in list("checks")? {
            checks.push(read_check(check).ok_or_else(|| CertificateError(format!("a check is {check}")))?);
        }
        let pairs: BTreeSet<_> =
            rows.iter().map(|row| (row.op, row.dtype, row.other, row.operand_kind)).collect();
        if pairs.len() < rows.len() {
            return Err(wrong("it has two findings on one op and element type"));
        }
        let needs = list("workarounds")?.iter().map(|need| {
            let workaround = need["workaround"].as_str().and_then(Workaround::from_name);
            let (workaround, finding) = workaround.zip(Finding::from_json(need))?;
            Some(WorkaroundNeed { workaround, finding })
        });
        let needs = needs.collect::<Option<Vec<_>>>().ok_or_else(|| wrong("a workaround is unknown"))?;
        Ok(Certificate::new(key, level, date, rows, checks).with_workarounds(needs))
    }
}

/// The members of a finding without the braces, in the order in which they are written.
fn members(finding: &Finding) -> String {
    let value = finding.to_json();
    let order = ["finding", "steps", "message", "example", "how", "call"];
    let present = order.iter().filter_map(|name| Some((name, value.get(name)?)));
    present.map(|(name, value)| format!("{}: {value}", json!(name))).collect::<Vec<_>>().join(", ")
}

/// A list or an object with one line per item.
fn lines(open: char, items: &[String], close: char) -> String {
    if items.is_empty() {
        format!("{open}{close}")
    } else {
        format!("{open}\n{}\n{close}", items.join(",\n"))
    }
}

fn read_dtype(value: &Value) -> Option<DType> {
    DType::from_mlir(value.as_str()?)
}

fn read_row(value: &Value) -> Option<Row> {
    let other = value.get("other");
    Some(Row {
        op: OpCode::from_name(value["op"].as_str()?)?,
        dtype: read_dtype(&value["dtype"])?,
        other: match other {
            Some(other) => Some(read_dtype(other)?),
            None => None,
        },
        operand_kind: OperandKind::from_name(value["operands"].as_str()?)?,
        finding: Finding::from_json(value).filter(|finding| *finding != Finding::Right)?,
    })
}

fn read_check(value: &Value) -> Option<Check> {
    Some(Check {
        name: value["check"].as_str()?.to_owned(),
        cases: value["cases"].as_u64()?,
        finding: Finding::from_json(value)?,
    })
}

/// Reads the lines of [`Certificate::right`].
fn read_right(right: &Map<String, Value>, operand_kind: OperandKind) -> Result<Vec<Row>, String> {
    let mut rows = Vec::new();
    for (name, types) in right {
        let op = OpCode::from_name(name).ok_or_else(|| format!("there is no op {name}"))?;
        for word in types.as_str().unwrap_or_default().split(' ') {
            let (dtype, other) = match word.split_once('/') {
                Some((dtype, other)) => (DType::from_mlir(dtype), Some(DType::from_mlir(other))),
                None => (DType::from_mlir(word), None),
            };
            match (dtype, other) {
                (Some(dtype), None | Some(Some(_))) => {
                    let other = other.flatten();
                    rows.push(Row { op, dtype, other, operand_kind, finding: Finding::Right });
                }
                _ => return Err(format!("there is no element type {word}")),
            }
        }
    }
    Ok(rows)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn certificate() -> Certificate {
        let row = |op, dtype, other, operand_kind, finding| Row { op, dtype, other, operand_kind, finding };
        let call = || "atan(f32[4])".to_owned();
        let rows = vec![
            row(OpCode::Add, DType::F32, None, OperandKind::Uploaded, Finding::Right),
            row(OpCode::Add, DType::BF16, None, OperandKind::Uploaded, Finding::Right),
            row(OpCode::Convert, DType::F32, Some(DType::I32), OperandKind::Uploaded, Finding::Right),
            row(OpCode::Atan, DType::F32, None, OperandKind::Uploaded, Finding::Right),
            row(
                OpCode::Atan,
                DType::F32,
                None,
                OperandKind::Constant,
                Finding::Wrong { example: "0 in place of \"1\"\nof 2".to_owned(), call: call() },
            ),
            row(
                OpCode::Exponential,
                DType::F64,
                None,
                OperandKind::Uploaded,
                Finding::RoundsDifferently { steps: 9, call: call() },
            ),
            row(
                OpCode::Fft,
                DType::F64,
                None,
                OperandKind::Uploaded,
                Finding::Crashes { how: "signal 6".to_owned(), call: call() },
            ),
        ];
        let checks = vec![Check { name: "random programs".to_owned(), cases: 500, finding: Finding::Right }];
        let parts = [("plugin file", "ab"), ("platform", "cpu"), ("device", "0 cpu")];
        let needs = vec![
            WorkaroundNeed { workaround: Workaround::Sinh, finding: Finding::Right },
            WorkaroundNeed { workaround: Workaround::RealConj, finding: Finding::Right },
            WorkaroundNeed {
                workaround: Workaround::Mulhi,
                finding: Finding::Refused {
                    message: "no mulhi".to_owned(),
                    call: "mulhi(i32[4])".to_owned(),
                },
            },
        ];
        let key = CertificateKey::of_parts(parts);
        Certificate::new(key, Level::Full, "2026-11-28".to_owned(), rows, checks).with_workarounds(needs)
    }

    #[test]
    fn what_is_written_can_be_read() {
        let certificate = certificate();
        let text = certificate.to_json();
        assert_eq!(Certificate::parse(&text), Ok(certificate), "{text}");
    }

    #[test]
    fn a_row_is_a_line() {
        let text = certificate().to_json();
        for line in [
            "{\"op\": \"atan\", \"dtype\": \"f32\", \"operands\": \"constants\", \"finding\": \"wrong\", \
             \"example\": \"0 in place of \\\"1\\\"\\nof 2\", \"call\": \"atan(f32[4])\"}",
            "\"counts\": {\"right\": 5, \"rounds differently\": 1, \"refused\": 0, \"wrong\": 1, \"crashes\": 1},",
            "{\"check\": \"random programs\", \"cases\": 500, \"finding\": \"right\"}",
        ] {
            assert!(text.lines().any(|found| found == line), "{line} is not in\n{text}");
        }
    }

    #[test]
    fn a_workaround_is_unneeded_if_the_plain_op_is_right() {
        let unneeded = certificate().unneeded_workarounds();
        assert_eq!(unneeded, WorkaroundSet::NONE.with(Workaround::RealConj));
    }

    #[test]
    fn a_workaround_whose_need_does_not_show_in_calls_is_kept() {
        assert_eq!(Workaround::Sinh.evidence(), Evidence::Program);
        assert!(!certificate().unneeded_workarounds().contains(Workaround::Sinh));
    }

    #[test]
    fn the_verdict_is_the_worst_finding() {
        let certificate = certificate();
        let kind = |op, dtype| certificate.verdict(op, dtype).map(Finding::kind);
        assert_eq!(kind(OpCode::Add, DType::F32), Some("right"));
        assert_eq!(kind(OpCode::Atan, DType::F32), Some("wrong"));
        assert_eq!(kind(OpCode::Fft, DType::F64), Some("crashes"));
        assert_eq!(kind(OpCode::Add, DType::F64), None);
        assert!(!certificate.is_clean());
    }

    #[test]
    fn a_key_has_what_changes_results() {
        let key = |parts: &[(&'static str, &'static str)]| CertificateKey::of_parts(parts.iter().copied());
        let here = key(&[("plugin file", "a"), ("device", "0 x y"), ("compile options 0", "q")]);
        assert_eq!(here.device_kind, "x y");
        let there = key(&[("plugin file", "b"), ("device", "1 x y"), ("XLA_FLAGS", "z")]);
        assert_eq!(here.differences(&there), ["plugin", "compile options"]);
        assert_eq!(
            here,
            key(&[("plugin file", "a"), ("device", "0 x y"), ("compile options 0", "q"), ("threads", "9")])
        );
    }

    #[test]
    fn other_texts_are_refused() {
        let text = certificate().to_json();
        for (from, to, words) in [
            ("\"format\": 2", "\"format\": 3", "its format is 3"),
            ("\"level\": \"full\"", "\"level\": \"half\"", "its level"),
            ("\"device kind\"", "\"kind\"", "its key"),
            ("\"op\": \"atan", "\"op\": \"atam", "a finding is"),
            ("bf16 f32", "bf17 f32", "no element type bf17"),
            ("bf16 f32", "f32 f32", "two findings"),
            ("\"how\"", "\"who\"", "a finding is"),
            ("{", "", "trailing characters"),
        ] {
            let changed = text.replacen(from, to, 1);
            assert_ne!(changed, text, "{from}");
            let error = Certificate::parse(&changed).expect_err(words).to_string();
            assert!(error.contains(words), "{error} has no {words:?}");
        }
    }
}
