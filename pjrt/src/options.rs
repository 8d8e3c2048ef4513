//! Options of a compile.
//!
//! - OPTION-1: equal options have equal bytes, in every process, so the bytes can be part of a
//!   cache key. (A protobuf map has no order; here it is written in the order of its keys.)

use std::collections::BTreeMap;
use std::fmt;

use pjrt_sys::protos::xla::device_assignment_proto::ComputationDevice;
use pjrt_sys::protos::xla::option_override_proto::Value as Override;
use pjrt_sys::protos::xla::{
    CompileOptionsProto, DeviceAssignmentProto, ExecutableBuildOptionsProto, OptionOverrideProto,
};
use prost::Message;

use super::error::Error;

/// Value of a compiler flag. XLA checks the type: a bool flag rejects the string `"false"`, and an
/// enum flag takes the name of the variant as a string.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
#[allow(missing_docs, reason = "the variants are the types")]
pub enum Flag {
    Bool(bool),
    Int(i64),
    Float(f64),
    String(String),
}

impl fmt::Display for Flag {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Flag::Bool(value) => value.fmt(f),
            Flag::Int(value) => value.fmt(f),
            Flag::Float(value) => value.fmt(f),
            Flag::String(value) => f.write_str(value),
        }
    }
}

macro_rules! from {
    ($($ty:ty => $variant:ident),*) => {$(
        impl From<$ty> for Flag {
            fn from(value: $ty) -> Flag {
                Flag::$variant(value.into())
            }
        }
    )*};
}
from!(bool => Bool, i64 => Int, i32 => Int, f64 => Float, &str => String, String => String);

/// Options for [`super::Client::compile`]. Default: one replica and one partition on the default
/// device.
#[derive(Clone, Debug, PartialEq)]
pub struct CompileOptions {
    replicas: u32,
    partitions: u32,
    devices: Vec<i64>,
    device_ordinal: Option<i64>,
    portable: bool,
    flags: BTreeMap<String, Flag>,
}

impl Default for CompileOptions {
    fn default() -> CompileOptions {
        CompileOptions::new()
    }
}

impl CompileOptions {
    /// The defaults.
    #[must_use]
    pub fn new() -> CompileOptions {
        CompileOptions {
            replicas: 1,
            partitions: 1,
            devices: Vec::new(),
            device_ordinal: None,
            portable: false,
            flags: BTreeMap::new(),
        }
    }

    /// Compiles for one device, by its id.
    #[must_use]
    pub fn device(self, id: i64) -> CompileOptions {
        CompileOptions { replicas: 1, partitions: 1, devices: vec![id], ..self }
    }

    /// Compiles for several devices, which then run together. `ids` are device ids, with the
    /// partitions of a replica next to each other: `ids[replica * partitions + partition]`. If
    /// empty, the plugin chooses.
    ///
    /// # Errors
    /// When the number of ids is neither zero nor `replicas * partitions`, or one of those is zero.
    pub fn devices(self, replicas: u32, partitions: u32, ids: &[i64]) -> Result<CompileOptions, Error> {
        let asked = u64::from(replicas) * u64::from(partitions);
        if asked == 0 || asked > i32::MAX as u64 || !(ids.is_empty() || ids.len() as u64 == asked) {
            let text = format!("{} device ids for {replicas} replicas of {partitions} partitions", ids.len());
            return Err(Error::invalid("PJRT_Client_Compile", text));
        }
        Ok(CompileOptions { replicas, partitions, devices: ids.to_vec(), ..self })
    }

    /// Compiles for this device, counted from 0 among those of the process, without binding the
    /// executable to it.
    #[must_use]
    pub fn device_ordinal(mut self, ordinal: i64) -> CompileOptions {
        self.device_ordinal = Some(ordinal);
        self
    }

    /// Creates an executable that is bound to no device: every execution names one
    /// ([`super::ExecuteOptions::device`]). One replica and one partition only.
    #[must_use]
    pub fn portable(mut self, portable: bool) -> CompileOptions {
        self.portable = portable;
        self
    }

    /// Sets a compiler flag for this compilation, by XLA's name without dashes
    /// (`xla_cpu_multi_thread_eigen`).
    #[must_use]
    pub fn flag(mut self, name: impl Into<String>, value: impl Into<Flag>) -> CompileOptions {
        self.flags.insert(name.into(), value.into());
        self
    }

    /// The flags, in the order of their names.
    pub fn flags(&self) -> impl Iterator<Item = (&str, &Flag)> {
        self.flags.iter().map(|(name, value)| (name.as_str(), value))
    }

    /// Number of replicas.
    #[must_use]
    pub fn replicas(&self) -> u32 {
        self.replicas
    }

    /// Number of partitions.
    #[must_use]
    pub fn partitions(&self) -> u32 {
        self.partitions
    }

    /// The options as a serialized `CompileOptionsProto`, as the compiler gets them. They are
    /// stable enough for a key (BODY-1).
    #[must_use]
    pub fn to_bytes(&self) -> Vec<u8> {
        let partitions = self.partitions as usize;
        // Grouped by partition: each lists the device of every replica.
        let device_assignment = (!self.devices.is_empty()).then(|| DeviceAssignmentProto {
            replica_count: self.replicas as i32,
            computation_count: self.partitions as i32,
            computation_devices: (0..partitions)
                .map(|partition| ComputationDevice {
                    replica_device_ids: self
                        .devices
                        .iter()
                        .skip(partition)
                        .step_by(partitions)
                        .copied()
                        .collect(),
                })
                .collect(),
        });
        let build = ExecutableBuildOptionsProto {
            device_ordinal: self.device_ordinal.unwrap_or(-1),
            num_replicas: i64::from(self.replicas),
            num_partitions: i64::from(self.partitions),
            device_assignment,
            ..Default::default()
        };
        let options = CompileOptionsProto {
            executable_build_options: Some(build),
            compile_portable_executable: self.portable,
            ..Default::default()
        };
        let flags = Flags {
            entries: self
                .flags
                .iter()
                .map(|(key, value)| FlagEntry {
                    key: key.clone(),
                    value: Some(OptionOverrideProto { value: Some(value.to_proto()) }),
                })
                .collect(),
        };
        // Two concatenated serialized messages are one message with the fields of both.
        let mut bytes = options.encode_to_vec();
        bytes.extend(flags.encode_to_vec());
        bytes
    }
}

impl Flag {
    fn to_proto(&self) -> Override {
        match self {
            Flag::Bool(value) => Override::BoolField(*value),
            Flag::Int(value) => Override::IntField(*value),
            Flag::Float(value) => Override::DoubleField(*value),
            Flag::String(value) => Override::StringField(value.clone()),
        }
    }
}

/// `CompileOptionsProto` with only `env_option_overrides`, as a list of entries, which is the wire
/// format of a map.
#[derive(Clone, PartialEq, Message)]
struct Flags {
    #[prost(message, repeated, tag = "7")]
    entries: Vec<FlagEntry>,
}

#[derive(Clone, PartialEq, Message)]
struct FlagEntry {
    #[prost(string, tag = "1")]
    key: String,
    #[prost(message, optional, tag = "2")]
    value: Option<OptionOverrideProto>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_order_of_flags_does_not_matter() {
        let names: Vec<String> = (0..50).map(|i| format!("flag_{i}")).collect();
        let forward = names.iter().fold(CompileOptions::new(), |options, name| options.flag(name, true));
        let backward =
            names.iter().rev().fold(CompileOptions::new(), |options, name| options.flag(name, true));
        assert_eq!(forward.to_bytes(), backward.to_bytes());
        assert_ne!(forward.to_bytes(), CompileOptions::new().to_bytes());
    }

    #[test]
    fn the_bytes_are_a_compile_options_proto() {
        let options = CompileOptions::new()
            .devices(2, 3, &[0, 1, 2, 3, 4, 5])
            .expect("six devices")
            .flag("b", false)
            .flag("i", 7)
            .flag("f", 0.5)
            .flag("s", "word");
        let proto = CompileOptionsProto::decode(options.to_bytes().as_slice()).expect("a proto");
        let build = proto.executable_build_options.expect("build options");
        assert_eq!((build.num_replicas, build.num_partitions, build.device_ordinal), (2, 3, -1));
        let devices = build.device_assignment.expect("an assignment").computation_devices;
        let ids: Vec<_> = devices.iter().map(|device| device.replica_device_ids.as_slice()).collect();
        assert_eq!(ids, [[0, 3], [1, 4], [2, 5]]);
        let values = proto.env_option_overrides;
        let value = |name: &str| values[name].value.clone();
        assert_eq!(value("b"), Some(Override::BoolField(false)));
        assert_eq!(value("i"), Some(Override::IntField(7)));
        assert_eq!(value("f"), Some(Override::DoubleField(0.5)));
        assert_eq!(value("s"), Some(Override::StringField("word".into())));
    }

    #[test]
    fn device_lists_of_the_wrong_length_are_refused() {
        for (replicas, partitions, ids) in [(2, 1, &[0i64][..]), (0, 1, &[]), (1, 0, &[]), (u32::MAX, 2, &[])]
        {
            assert!(CompileOptions::new().devices(replicas, partitions, ids).is_err());
        }
    }
}
