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
    /// An option for the plugin's client, such as preallocate=false on CUDA; may be repeated.
    /// NAME:TYPE=VALUE sets the type too: bool, int, ints (visible_devices:ints=0,1), float, string
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

/// Parses a client option. `NAME=VALUE` is a boolean or a number if it looks like one, otherwise
/// text. `NAME:TYPE=VALUE` has the type that is named.
pub(crate) fn client_option(text: &str) -> Result<(String, Value), String> {
    let (name, value) = text.split_once('=').ok_or("expected NAME=VALUE or NAME:TYPE=VALUE")?;
    let (name, ty) = name.split_once(':').map_or((name, None), |(name, ty)| (name, Some(ty)));
    if name.is_empty() {
        return Err("expected NAME=VALUE or NAME:TYPE=VALUE".to_owned());
    }
    let value = match ty {
        Some(ty) => Value::parse(ty, value)?,
        None => untyped(value),
    };
    Ok((name.to_owned(), value))
}

fn untyped(value: &str) -> Value {
    if let Ok(truth) = value.parse() {
        Value::Bool(truth)
    } else if let Ok(number) = value.parse() {
        Value::Int(number)
    } else if let Ok(number) = value.parse() {
        Value::Float(number)
    } else {
        Value::String(value.to_owned())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn value(text: &str) -> Value {
        let (name, value) = client_option(text).expect("an option");
        assert_eq!(name, "name");
        value
    }

    #[test]
    fn values_have_the_type_that_they_look_like() {
        assert_eq!(value("name=true"), Value::Bool(true));
        assert_eq!(value("name=-3"), Value::Int(-3));
        assert_eq!(value("name=0.5"), Value::Float(0.5));
        assert_eq!(value("name=0,1"), Value::from("0,1"));
        assert_eq!(value("name="), Value::from(""));
        assert_eq!(value("name=a:int=b"), Value::from("a:int=b"));
    }

    #[test]
    fn a_type_that_is_named_counts() {
        assert_eq!(value("name:bool=false"), Value::Bool(false));
        assert_eq!(value("name:int=7"), Value::Int(7));
        assert_eq!(value("name:ints=0"), Value::IntList(vec![0]));
        assert_eq!(value("name:ints=0, 1,-2"), Value::IntList(vec![0, 1, -2]));
        assert_eq!(value("name:ints="), Value::IntList(Vec::new()));
        assert_eq!(value("name:float=1"), Value::Float(1.0));
        assert_eq!(value("name:string=1"), Value::from("1"));
        assert_eq!(value("name:string=a=b:c"), Value::from("a=b:c"));
    }

    #[test]
    fn what_is_no_option_is_refused() {
        for (text, words) in [
            ("name", "NAME=VALUE"),
            ("=1", "NAME=VALUE"),
            (":int=1", "NAME=VALUE"),
            ("name:int=1.5", "`1.5` is not an integer"),
            ("name:ints=0;1", "is not a list of integers"),
            ("name:float=much", "is not a number"),
            ("name:bool=1", "is not true or false"),
            ("name:list=1", "`list` is no type of options; expected bool, int, ints, float or string"),
        ] {
            let error = client_option(text).expect_err(text);
            assert!(error.contains(words), "{text}: {error}");
        }
    }
}
