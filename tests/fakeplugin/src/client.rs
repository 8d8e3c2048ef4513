//! Clients with their devices and memories, and topologies of devices that are absent.

use std::ffi::c_char;
use std::sync::{Arc, OnceLock};

use fuseline_fusion::{DType, TensorType};
use pjrt_sys::protos::xla::CompileOptionsProto;
use pjrt_sys::*;
use prost::Message as _;

use crate::event::Thread;
use crate::plan::{FAILED_PRECONDITION, Failure, UNIMPLEMENTED};
use crate::registry::{Handle, Kind, insert};

/// A client. Its options set its name and the number of devices.
pub(crate) struct Client {
    pub(crate) platform: String,
    pub(crate) version: String,
    pub(crate) unknown_flags: UnknownFlags,
    /// Devices and memories, one for each, as handle arrays for C.
    pub(crate) devices: OnceLock<Vec<Handle>>,
    pub(crate) memories: OnceLock<Vec<Handle>>,
    /// The thread for executions.
    pub(crate) work: Thread,
    /// The thread for transfers.
    pub(crate) copies: Thread,
}

/// Devices that are absent. Their kind is the requested name.
pub(crate) struct Topology {
    pub(crate) platform: String,
    pub(crate) version: String,
    pub(crate) devices: OnceLock<Vec<Handle>>,
}

/// A device and its description.
pub(crate) struct Device {
    pub(crate) index: usize,
    /// Its number on the machine.
    pub(crate) hardware: usize,
    /// Its place in the topology, as attributes.
    pub(crate) attributes: Attributes,
    /// Its client or topology.
    pub(crate) client: Handle,
    pub(crate) kind: String,
    pub(crate) words: String,
}

/// Attributes of a device: `coords`, its row and column.
pub(crate) struct Attributes {
    named: Box<[PJRT_NamedValue]>,
    /// What they point to.
    _coords: Box<[i64; 2]>,
}

// SAFETY: nobody changes what the pointers point to, and it lives as long as they.
unsafe impl Send for Attributes {}
// SAFETY: as above.
unsafe impl Sync for Attributes {}

impl Attributes {
    fn at(coords: [i64; 2]) -> Attributes {
        const NAME: &str = "coords";
        let coords = Box::new(coords);
        let mut value = PJRT_NamedValue {
            struct_size: PJRT_NamedValue_STRUCT_SIZE as usize,
            name: NAME.as_ptr().cast(),
            name_size: NAME.len(),
            type_: PJRT_NamedValue_Type_PJRT_NamedValue_kInt64List,
            value_size: coords.len(),
            ..Default::default()
        };
        value.__bindgen_anon_1.int64_array_value = coords.as_ptr();
        Attributes { named: Box::new([value]), _coords: coords }
    }

    pub(crate) fn list(&self) -> &[PJRT_NamedValue] {
        &self.named
    }
}

/// The memory of a device.
pub(crate) struct Memory {
    pub(crate) index: usize,
    pub(crate) words: String,
    /// Its device, as an array for C.
    pub(crate) device: [Handle; 1],
}

/// The options of a client.
struct Options {
    platform: String,
    version: String,
    /// The kind of the devices; by default the platform.
    kind: Option<String>,
    devices: i64,
    /// The numbers of those that a client has; by default all.
    visible: Option<Vec<i64>>,
    /// The number of devices in a row of the topology.
    columns: i64,
    unknown_flags: UnknownFlags,
}

/// The compiler flags that a client refuses.
#[derive(Clone, Debug, Default)]
pub(crate) struct UnknownFlags {
    names: Vec<String>,
    /// Whether the error quotes the flag.
    is_quoted: bool,
}

impl UnknownFlags {
    /// Names separated by commas. After a leading `~`, errors do not quote the flag.
    fn parse(text: &str) -> UnknownFlags {
        let (names, is_quoted) = text.strip_prefix('~').map_or((text, true), |names| (names, false));
        let names = names.split(',').filter(|name| !name.is_empty()).map(str::to_owned).collect();
        UnknownFlags { names, is_quoted }
    }

    /// Refuses compile options with one of the flags, in the words of XLA.
    pub(crate) fn check(&self, options: &[u8]) -> Result<(), Failure> {
        let Ok(options) = CompileOptionsProto::decode(options) else { return Ok(()) };
        match self.names.iter().find(|name| options.env_option_overrides.contains_key(*name)) {
            None => Ok(()),
            Some(name) if self.is_quoted => {
                Err(Failure::invalid(format!("No such compile option: '{name}'")))
            }
            Some(_) => Err(Failure::invalid("unsupported compile options")),
        }
    }
}

/// The largest number of devices.
const MOST: i64 = 64;

impl Options {
    /// Reads the caller's options. Unknown ones are refused, as in real plugins.
    unsafe fn read(options: *const PJRT_NamedValue, count: usize) -> Result<Options, Failure> {
        let or = |name: &str, otherwise: &str| std::env::var(name).unwrap_or_else(|_| otherwise.to_owned());
        let mut read = Options {
            platform: or("FUSELINE_FAKE_PLATFORM", "fake"),
            version: or("FUSELINE_FAKE_VERSION", "1"),
            kind: None,
            devices: 1,
            visible: None,
            columns: MOST,
            unknown_flags: UnknownFlags::parse(&or("FUSELINE_FAKE_UNKNOWN_FLAGS", "")),
        };
        let options = unsafe { list(options, count) };
        let unknown = unsafe { unknown_options(options) };
        for option in options {
            let name = unsafe { text(option.name, option.name_size) };
            let value = &option.__bindgen_anon_1;
            let is_text = option.type_ == PJRT_NamedValue_Type_PJRT_NamedValue_kString;
            let is_number = option.type_ == PJRT_NamedValue_Type_PJRT_NamedValue_kInt64;
            let is_list = option.type_ == PJRT_NamedValue_Type_PJRT_NamedValue_kInt64List;
            match name.as_str() {
                known if unknown.split(',').any(|name| name == known) => {
                    return Err(Failure::invalid(format!("unknown option {name}, as planned")));
                }
                UNKNOWN_OPTIONS if is_text => {}
                "columns" if is_number => read.columns = unsafe { value.int64_value },
                // As in XLA's plugin for CUDA.
                "visible_devices" if is_list => {
                    let numbers = unsafe { list(value.int64_array_value, option.value_size) };
                    read.visible = Some(numbers.to_vec());
                }
                "platform" if is_text => {
                    read.platform = unsafe { text(value.string_value, option.value_size) };
                }
                "version" if is_text => {
                    read.version = unsafe { text(value.string_value, option.value_size) };
                }
                // The second is the name in XLA's CPU plugin.
                "devices" | "cpu_device_count" if is_number => read.devices = unsafe { value.int64_value },
                "unknown_flags" if is_text => {
                    let names = unsafe { text(value.string_value, option.value_size) };
                    read.unknown_flags = UnknownFlags::parse(&names);
                }
                "kind" if is_text => read.kind = Some(unsafe { text(value.string_value, option.value_size) }),
                _ => {
                    let text = format!(
                        "unknown option {name}, or one of another type; there are platform, version, kind, devices, \
                         columns, visible_devices, unknown_flags, unknown_options"
                    );
                    return Err(Failure::invalid(text));
                }
            }
        }
        match (read.devices, read.columns) {
            (1..=MOST, 1..=MOST) => Ok(read),
            (devices, columns) => Err(Failure::invalid(format!(
                "{devices} devices, {columns} in a row; there can be 1 to {MOST}"
            ))),
        }
    }

    /// The numbers of the devices that a client has.
    fn numbers(&self) -> Vec<usize> {
        let is_visible =
            |number: &usize| self.visible.as_ref().is_none_or(|visible| visible.contains(&(*number as i64)));
        (0..self.devices as usize).filter(is_visible).collect()
    }
}

/// The option with names of options that are refused.
const UNKNOWN_OPTIONS: &str = "unknown_options";

unsafe fn unknown_options(options: &[PJRT_NamedValue]) -> String {
    let is_it = |option: &&PJRT_NamedValue| unsafe { text(option.name, option.name_size) } == UNKNOWN_OPTIONS;
    let is_text = |option: &&PJRT_NamedValue| option.type_ == PJRT_NamedValue_Type_PJRT_NamedValue_kString;
    let found = options.iter().find(|option| is_it(option) && is_text(option));
    found.map_or_else(String::new, |option| unsafe {
        text(option.__bindgen_anon_1.string_value, option.value_size)
    })
}

impl Client {
    /// Starts a client. The caller owns the handle.
    pub(crate) unsafe fn create(options: *const PJRT_NamedValue, count: usize) -> Result<Handle, Failure> {
        let options = unsafe { Options::read(options, count) }?;
        let (numbers, columns) = (options.numbers(), options.columns);
        if numbers.is_empty() {
            return Err(Failure::new(FAILED_PRECONDITION, "No visible devices."));
        }
        let Options { platform, version, kind, unknown_flags, .. } = options;
        let client = Arc::new(Client {
            platform: platform.clone(),
            version,
            unknown_flags,
            devices: OnceLock::new(),
            memories: OnceLock::new(),
            work: Thread::start("fake-device")?,
            copies: Thread::start("fake-copies")?,
        });
        let handle = insert(Kind::Client, client.clone(), 0);
        let kind = kind.unwrap_or_else(|| platform.clone());
        let devices = Device::several(&numbers, columns, handle, &platform, &kind);
        let memory = |(index, device): (usize, &Handle)| {
            let memory = Memory { index, words: format!("memory of device {index}"), device: [*device] };
            insert(Kind::Memory, Arc::new(memory), handle)
        };
        let memories = devices.iter().enumerate().map(memory).collect();
        client.memories.set(memories).expect("it was just made");
        client.devices.set(devices).expect("it was just made");
        Ok(handle)
    }

    pub(crate) fn devices(&self) -> &[Handle] {
        self.devices.get().map_or(&[], Vec::as_slice)
    }

    pub(crate) fn memories(&self) -> &[Handle] {
        self.memories.get().map_or(&[], Vec::as_slice)
    }

    /// Whether buffers lie in memory that the host can read.
    pub(crate) fn is_cpu(&self) -> bool {
        self.platform == "cpu"
    }

    /// Does all work that was started, and ends the threads.
    pub(crate) fn finish(&self) {
        self.work.finish();
        self.copies.finish();
    }
}

impl Device {
    /// Makes devices of a client or topology, which are numbered anew.
    fn several(numbers: &[usize], columns: i64, owner: Handle, platform: &str, kind: &str) -> Vec<Handle> {
        let device = |(index, &hardware): (usize, &usize)| {
            let words = format!("{platform} device {index}");
            let attributes = Attributes::at([hardware as i64 / columns, hardware as i64 % columns]);
            let kind = kind.to_owned();
            let device = Device { index, hardware, attributes, client: owner, kind, words };
            insert(Kind::Device, Arc::new(device), owner)
        };
        numbers.iter().enumerate().map(device).collect()
    }
}

impl Topology {
    /// Makes the devices of a kind, given by name. The caller owns the handle. There are none for a
    /// CPU, as in XLA's plugin, and none without a name.
    pub(crate) unsafe fn create(
        name: &str,
        options: *const PJRT_NamedValue,
        count: usize,
    ) -> Result<Handle, Failure> {
        let options = unsafe { Options::read(options, count) }?;
        let (numbers, columns) = (options.numbers(), options.columns);
        let Options { platform, version, kind, .. } = options;
        if platform == "cpu" {
            return Err(Failure::new(UNIMPLEMENTED, "Topology not supported for CPU compilation."));
        }
        if name.is_empty() || kind.is_some() {
            return Err(Failure::invalid("a topology has a name, which is the kind of its devices"));
        }
        let topology = Arc::new(Topology { platform: platform.clone(), version, devices: OnceLock::new() });
        let handle = insert(Kind::Topology, topology.clone(), 0);
        let devices = Device::several(&numbers, columns, handle, &platform, name);
        topology.devices.set(devices).expect("it was just made");
        Ok(handle)
    }

    pub(crate) fn devices(&self) -> &[Handle] {
        self.devices.get().map_or(&[], Vec::as_slice)
    }
}

/// A C string with a length.
pub(crate) unsafe fn text(start: *const c_char, len: usize) -> String {
    String::from_utf8_lossy(unsafe { list(start.cast::<u8>(), len) }).into_owned()
}

/// A C array; an empty one may have a null address.
pub(crate) unsafe fn list<'a, T>(start: *const T, len: usize) -> &'a [T] {
    if start.is_null() || len == 0 { &[] } else { unsafe { std::slice::from_raw_parts(start, len) } }
}

/// Numbers of `PJRT_Buffer_Type`, in the order of [`DType::ALL`]. The last ones are newer than the
/// header of `pjrt-sys`.
const TYPES: [PJRT_Buffer_Type; 28] = [
    PJRT_Buffer_Type_PJRT_Buffer_Type_PRED,
    PJRT_Buffer_Type_PJRT_Buffer_Type_S8,
    PJRT_Buffer_Type_PJRT_Buffer_Type_S16,
    PJRT_Buffer_Type_PJRT_Buffer_Type_S32,
    PJRT_Buffer_Type_PJRT_Buffer_Type_S64,
    PJRT_Buffer_Type_PJRT_Buffer_Type_U8,
    PJRT_Buffer_Type_PJRT_Buffer_Type_U16,
    PJRT_Buffer_Type_PJRT_Buffer_Type_U32,
    PJRT_Buffer_Type_PJRT_Buffer_Type_U64,
    PJRT_Buffer_Type_PJRT_Buffer_Type_F16,
    PJRT_Buffer_Type_PJRT_Buffer_Type_BF16,
    PJRT_Buffer_Type_PJRT_Buffer_Type_F32,
    PJRT_Buffer_Type_PJRT_Buffer_Type_F64,
    PJRT_Buffer_Type_PJRT_Buffer_Type_S2,
    PJRT_Buffer_Type_PJRT_Buffer_Type_S4,
    PJRT_Buffer_Type_PJRT_Buffer_Type_U2,
    PJRT_Buffer_Type_PJRT_Buffer_Type_U4,
    PJRT_Buffer_Type_PJRT_Buffer_Type_C64,
    PJRT_Buffer_Type_PJRT_Buffer_Type_C128,
    PJRT_Buffer_Type_PJRT_Buffer_Type_F8E4M3FN,
    PJRT_Buffer_Type_PJRT_Buffer_Type_F8E5M2,
    26,
    27,
    PJRT_Buffer_Type_PJRT_Buffer_Type_F8E4M3FNUZ,
    PJRT_Buffer_Type_PJRT_Buffer_Type_F8E5M2FNUZ,
    PJRT_Buffer_Type_PJRT_Buffer_Type_F8E4M3B11FNUZ,
    28,
    29,
];

pub(crate) fn number_of(dtype: DType) -> PJRT_Buffer_Type {
    let place = DType::ALL.iter().position(|other| *other == dtype).expect("all of them are there");
    TYPES[place]
}

/// A type from C's numbers.
pub(crate) unsafe fn type_of(
    number: PJRT_Buffer_Type,
    dims: *const i64,
    rank: usize,
) -> Result<TensorType, Failure> {
    let place = TYPES.iter().position(|other| *other == number);
    let dtype = place.map(|place| DType::ALL[place]);
    let dtype = dtype.ok_or_else(|| Failure::new(UNIMPLEMENTED, format!("element type {number}")))?;
    let dims: Result<Vec<u64>, _> =
        unsafe { list(dims, rank) }.iter().map(|dim| u64::try_from(*dim)).collect();
    let dims = dims.map_err(|error| Failure::invalid(format!("a size: {error}")))?;
    TensorType::of(dtype, &dims).map_err(|error| Failure::invalid(error.to_string()))
}
