//! Options that several commands have.

use std::ffi::OsString;
use std::path::PathBuf;

use clap::{Args, ValueEnum};
use fuseline::pjrt::Value;
use fuseline::{Mode, Numerics};

/// The device to run on.
#[derive(Debug, Args)]
pub(crate) struct DeviceOptions {
    /// `reference`, or the path of a PJRT plugin [default: the first that is found, see `doctor`]
    #[arg(long, value_name = "DEVICE", value_parser = device)]
    pub(crate) device: Option<DeviceChoice>,
    /// An option for the plugin's client, such as preallocate=false on CUDA; may be repeated
    #[arg(long = "client-option", value_name = "NAME=VALUE", value_parser = client_option)]
    pub(crate) options: Vec<(String, Value)>,
}

/// The numerics of regions.
#[derive(Clone, Copy, Debug, Default, Args)]
pub(crate) struct Contract {
    /// How far regions may differ from their ops run one by one
    #[arg(long, value_enum, default_value_t = NumericsChoice::Fast)]
    pub(crate) numerics: NumericsChoice,
    /// Compare each new region once with its ops, and do not fuse those that differ; always on with
    /// `--numerics exact`
    #[arg(long)]
    pub(crate) compare: bool,
    /// Whether an index, a label or a probability out of range is an error of the next read
    /// [default: true]
    #[arg(long, value_name = "BOOL")]
    pub(crate) check_indices: Option<bool>,
}

#[derive(Clone, Copy, Debug, Default, ValueEnum)]
pub(crate) enum NumericsChoice {
    /// Within the tolerance of the element type
    #[default]
    Fast,
    /// Not at all
    Exact,
}

impl From<NumericsChoice> for Numerics {
    fn from(choice: NumericsChoice) -> Numerics {
        match choice {
            NumericsChoice::Fast => Numerics::Fast,
            NumericsChoice::Exact => Numerics::Exact,
        }
    }
}

/// A device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum DeviceChoice {
    Reference,
    Plugin(PathBuf),
}

#[expect(clippy::unnecessary_wraps, reason = "clap's type of a parser")]
fn device(text: &str) -> Result<DeviceChoice, String> {
    Ok(match text {
        "reference" => DeviceChoice::Reference,
        path => DeviceChoice::Plugin(OsString::from(path).into()),
    })
}

#[derive(Clone, Copy, Debug, ValueEnum)]
pub(crate) enum ModeChoice {
    /// Regions as large as the boundaries allow
    Fused,
    /// One op per region
    Strict,
    /// One op per region, synchronous and checked
    Debug,
}

impl From<ModeChoice> for Mode {
    fn from(choice: ModeChoice) -> Mode {
        match choice {
            ModeChoice::Fused => Mode::Fused,
            ModeChoice::Strict => Mode::Strict,
            ModeChoice::Debug => Mode::Debug,
        }
    }
}

/// Parses a client option: a number or a boolean if it looks like one, otherwise text.
pub(crate) fn client_option(text: &str) -> Result<(String, Value), String> {
    let (name, value) = text.split_once('=').ok_or("expected NAME=VALUE")?;
    if name.is_empty() {
        return Err("expected NAME=VALUE".to_owned());
    }
    let value = if let Ok(truth) = value.parse() {
        Value::Bool(truth)
    } else if let Ok(number) = value.parse() {
        Value::Int(number)
    } else if let Ok(number) = value.parse() {
        Value::Float(number)
    } else {
        Value::String(value.to_owned())
    };
    Ok((name.to_owned(), value))
}
