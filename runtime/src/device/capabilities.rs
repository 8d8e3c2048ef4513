//! The capabilities of a plugin, as it shows them.
//!
//! Input: a plugin and its devices. Output: [`Capabilities`]: the compiler flags that it accepts,
//! and the float types whose subnormal numbers the device flushes to zero. No option and no
//! attribute of a plugin reports these, so small modules find out. The result is kept on disk under
//! what it depends on, because a compile takes about 10 ms.
//!
//! Invariants:
//! - CAPABILITY-1: a flag is set only if the plugin has accepted it.
//! - CAPABILITY-2: stored capabilities are used only with the plugin file, the environment
//!   variables, the client options, the devices, the processor and the flags with which they were
//!   found.

use std::collections::BTreeSet;

use fuseline_fusion::DTypeSet;
use fuseline_fusion::encode::{Reader, Writer};
use fuseline_fusion::lower::Numerics;
use fuseline_pjrt::{ClientOptions, CompileOptions, Error, Flag};

use super::compiler_flags::{COMPILER_FLAGS, CompilerFlag};
use super::machine::Machine;
use super::probe::PROBED_FLOATS;

/// The version of the encoding.
const FORMAT: u8 = 1;

/// The smallest module, to ask a compiler about its flags.
const IDENTITY: &str =
    "module { func.func public @main(%a: tensor<f32>) -> tensor<f32> { return %a : tensor<f32> } }";

/// What a plugin was found to do.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Capabilities {
    platform: String,
    refused: BTreeSet<String>,
    flushed: Option<DTypeSet>,
    /// Whether the plugin compiles the smallest module at all.
    is_complete: bool,
}

/// A function that compiles a module, only to find out whether the options are accepted.
pub(super) type ProbeCompile<'a> = &'a dyn Fn(&str, &CompileOptions) -> Result<(), Error>;

impl Capabilities {
    /// Finds out which flags a compiler accepts on top of `base`.
    pub(super) fn probe(platform: &str, base: &CompileOptions, ask: ProbeCompile<'_>) -> Capabilities {
        let names: BTreeSet<&str> =
            COMPILER_FLAGS.iter().filter(|row| row.platform == platform).map(|row| row.name).collect();
        let mut refused = BTreeSet::new();
        let all: Vec<&str> = names.into_iter().collect();
        let is_complete = all.is_empty() || find_refused(&all, base, ask, &mut refused);
        Capabilities { platform: platform.to_owned(), refused, flushed: None, is_complete }
    }

    /// Whether the plugin accepts a flag of [`COMPILER_FLAGS`].
    #[must_use]
    pub fn accepts(&self, flag: &CompilerFlag) -> bool {
        self.is_complete && !self.refused.contains(flag.name)
    }

    /// The flags that the engine sets on the platform, and whether the plugin accepts them.
    pub fn flags(&self) -> impl Iterator<Item = (&'static CompilerFlag, bool)> + '_ {
        let rows = COMPILER_FLAGS.iter().filter(|row| row.platform == self.platform);
        rows.map(|row| (row, self.accepts(row)))
    }

    /// The flags that the plugin refuses and for which no other flag stands in.
    pub fn missing_flags(&self) -> impl Iterator<Item = &'static CompilerFlag> + '_ {
        let missing = |&(row, is_accepted): &(&CompilerFlag, bool)| !is_accepted && !self.has_substitute(row);
        self.flags().filter(missing).map(|(row, _)| row)
    }

    /// Whether another row has the effect of a refused one.
    fn has_substitute(&self, row: &CompilerFlag) -> bool {
        self.flags().any(|(other, is_accepted)| {
            is_accepted && (other.successor == Some(row.name) || row.successor == Some(other.name))
        })
    }

    /// The float types whose subnormal numbers the device flushes to zero. `None` if the plugin did
    /// not run the probe.
    #[must_use]
    pub fn flushed(&self) -> Option<DTypeSet> {
        self.flushed
    }

    pub(super) fn set_flushed(&mut self, flushed: DTypeSet) {
        self.flushed = Some(flushed);
    }

    /// Whether the plugin answered, so that the capabilities may be kept.
    pub(super) fn is_complete(&self) -> bool {
        self.is_complete
    }

    /// The bytes under which the capabilities are stored. `None` if it is unknown what they depend
    /// on.
    pub(super) fn request(
        machine: &Machine,
        client_options: &ClientOptions,
        base: &CompileOptions,
        numerics: Numerics,
    ) -> Option<Vec<u8>> {
        let origin = machine.plugin().origin();
        let mut out = Writer::new();
        out.bytes(b"capabilities");
        out.byte(FORMAT);
        out.bytes(&origin.identity().ok()?);
        for (name, value) in origin.variables().ok()?.into_iter().chain(machine.parts()) {
            out.bytes(name.as_bytes());
            out.bytes(value.as_bytes());
        }
        out.bytes(format!("{:?}", client_options.values()).as_bytes());
        out.bytes(&base.to_bytes());
        out.bytes(numerics.to_string().as_bytes());
        for row in COMPILER_FLAGS {
            out.bytes(format!("{} {}={}", row.platform, row.name, row.value()).as_bytes());
        }
        Some(out.into_vec())
    }

    pub(super) fn encode(&self) -> Vec<u8> {
        let mut out = Writer::new();
        out.len(self.refused.len());
        self.refused.iter().for_each(|name| out.bytes(name.as_bytes()));
        let flushed = self.flushed.map(|set| PROBED_FLOATS.map(|dtype| u8::from(set.contains(dtype))));
        out.bytes(flushed.as_ref().map_or(&[], |each| each.as_slice()));
        out.into_vec()
    }

    pub(super) fn decode(platform: &str, bytes: &[u8]) -> Option<Capabilities> {
        let mut reader = Reader::new(bytes);
        let count = reader.count().ok()?;
        let mut text = || String::from_utf8(reader.bytes().ok()?.to_vec()).ok();
        let refused = (0..count).map(|_| text()).collect::<Option<BTreeSet<String>>>()?;
        let flushed = match reader.bytes().ok()? {
            [] => None,
            each if each.len() == PROBED_FLOATS.len() => {
                let flushed = PROBED_FLOATS.into_iter().zip(each).filter(|(_, is)| **is == 1);
                Some(flushed.fold(DTypeSet::NONE, |set, (dtype, _)| set.or(DTypeSet::of(&[dtype]))))
            }
            _ => return None,
        };
        reader.finish().ok()?;
        Some(Capabilities { platform: platform.to_owned(), refused, flushed, is_complete: true })
    }
}

/// Adds the names that the compiler refuses. Returns whether it compiles the module without them.
///
/// One compile asks about all names. XLA's message about an unknown flag quotes it, so one more
/// compile follows for each unknown flag. If a message quotes none, the names are halved.
fn find_refused<'a>(
    names: &[&'a str],
    base: &CompileOptions,
    ask: ProbeCompile<'_>,
    refused: &mut BTreeSet<String>,
) -> bool {
    let mut left: Vec<&'a str> = names.to_vec();
    loop {
        let Err(error) = ask(IDENTITY, &with_flags(base, &left)) else { return true };
        let message = error.to_string();
        let quoted =
            |name: &str| ['\'', '"'].iter().any(|quote| message.contains(&format!("{quote}{name}{quote}")));
        match left.iter().position(|name| quoted(name)) {
            Some(place) => {
                refused.insert(left.remove(place).to_owned());
            }
            None if left.is_empty() => return false,
            None if left.len() == 1 => {
                refused.insert(left.remove(0).to_owned());
            }
            None => {
                let (first, second) = left.split_at(left.len() / 2);
                return find_refused(first, base, ask, refused) && find_refused(second, base, ask, refused);
            }
        }
    }
}

/// `base` with one value for each of these flags, except where it has one.
fn with_flags(base: &CompileOptions, names: &[&str]) -> CompileOptions {
    let given = |name: &str| base.flags().any(|(other, _)| other == name);
    let row = |name: &&str| COMPILER_FLAGS.iter().find(|row| row.name == *name);
    let rows = names.iter().filter(|name| !given(name)).filter_map(row);
    rows.fold(base.clone(), |options, row| options.flag(row.name, row.value()))
}

/// The flags of the user on top of the defaults.
pub(super) fn base_options(devices: &[i64], flags: &[(String, Flag)]) -> Result<CompileOptions, Error> {
    let base = CompileOptions::new().devices(devices.len() as u32, 1, devices)?;
    Ok(flags.iter().fold(base, |base, (name, value)| base.flag(name.clone(), value.clone())))
}

/// Checks that the compiler accepts the flags of the user.
///
/// # Errors
/// The compiler's refusal.
pub(super) fn check_user_flags(base: &CompileOptions, ask: ProbeCompile<'_>) -> Result<(), Error> {
    if base.flags().next().is_some() { ask(IDENTITY, base) } else { Ok(()) }
}
