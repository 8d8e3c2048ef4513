//! Loads a PJRT plugin into the process.
//!
//! Input: the path of a shared library. Output: a [`Plugin`], shared by everybody who opens the
//! same file.
//!
//! A plugin is never unloaded, and its record is never freed. Plugins start threads, register exit
//! handlers and keep thread-local state with destructors in the library. None of these can be shown
//! to survive `dlclose`, and the process hardly needs the memory. It also lets every handle refer
//! to the plugin without counting references.
//!
//! Invariants:
//! - PLUGIN-1. `PJRT_Plugin_Initialize` is called at most once per library in a process. Its
//!   failure is remembered.
//! - PLUGIN-2. Two opens of the same file, by whatever path or link, return the same plugin.
//! - P12, P13: `origin.rs`.

use std::ffi::c_void;
use std::fmt;
use std::io::Read as _;
use std::path::Path;
use std::sync::{Arc, LazyLock};

use fuseline_sync::fork::note_plugin;
use fuseline_sync::{Mutex, Rank};
use libloading::os::unix::{Library, RTLD_LOCAL, RTLD_NOW, Symbol};
use pjrt_sys::*;

use super::abi;
use super::api::{Api, StructSizes, call};
use super::error::Error;
use super::open_error::{OpenError, OpenFault};
use super::origin::{Loading, Origin};
use super::value::{Value, read_named_values};
use super::version::ApiVersion;

/// A loaded and initialized plugin. Copies are the same plugin. It stays loaded until the process
/// ends.
#[derive(Clone, Copy)]
pub struct Plugin(&'static Inner);

struct Inner {
    api: Api,
    origin: Arc<Origin>,
    attributes: Vec<(String, Value)>,
    extensions: Vec<Extension>,
    /// The registered handlers, with their platforms.
    handlers: Mutex<Vec<(String, String)>>,
}

// SAFETY: holds because the raw pointers inside (the extension chain) are only read while the
// plugin is opened, and the functions of a plugin may be called from any thread (see the
// thread-safety section of the module `pjrt`).
unsafe impl Send for Inner {}
// SAFETY: holds for the same reason.
unsafe impl Sync for Inner {}

/// An entry of the plugin's extension chain.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Extension {
    /// Number of the extension type in the C header.
    pub number: u32,
    /// Name of the type, as of API 0.114; `None` for types added since.
    pub name: Option<&'static str>,
}

/// Extension types by number, from the 0.114 header.
const EXTENSIONS: [&str; 25] = [
    "Gpu_Custom_Call",
    "Profiler",
    "Custom_Partitioner",
    "Stream",
    "Layouts",
    "FFI",
    "MemoryDescriptions",
    "Triton",
    "RawBuffer",
    "PhaseCompile",
    "Example",
    "Unknown",
    "CrossHostTransfers",
    "ExecutableMetadata",
    "Callback",
    "HostAllocator",
    "TpuTopology",
    "TpuExecutable",
    "Megascale",
    "Shardings",
    "AbiVersion",
    "Collectives",
    "MultiSlice",
    "HostMemoryAllocator",
    "XlaTransform",
];

/// Settings for opening an unusual plugin.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct OpenOptions {
    sizes: StructSizes,
}

impl OpenOptions {
    /// Defaults: every argument struct is padded.
    #[must_use]
    pub fn new() -> OpenOptions {
        OpenOptions::default()
    }

    /// Sets the `struct_size` of one argument struct to `bytes`, for a plugin that requires it to
    /// equal its own size. The struct is named as in the C header (`PJRT_Client_Create_Args`).
    ///
    /// # Errors
    /// When no such struct is used, or it has no room for that many bytes.
    pub fn struct_size(mut self, name: &str, bytes: usize) -> Result<OpenOptions, Error> {
        const FUNCTION: &str = "GetPjrtApi";
        let Some(&(name, most)) = abi::STRUCTS.iter().find(|row| row.0 == name) else {
            return Err(Error::invalid(FUNCTION, format!("there is no argument struct named {name}")));
        };
        if bytes > most || bytes < size_of::<usize>() {
            let text = format!("the size of {name} can be set from 8 to {most} bytes, not to {bytes}");
            return Err(Error::invalid(FUNCTION, text));
        }
        self.sizes.retain(|row| row.0 != name);
        self.sizes.push((name, bytes));
        Ok(self)
    }
}

/// An opened library: the address of its table, and the outcome. The loader recognizes a library by
/// whatever path or link it is opened, so the table identifies it.
struct Opened {
    table: usize,
    options: OpenOptions,
    outcome: Result<Plugin, OpenFault>,
}

/// The libraries opened so far.
#[derive(Default)]
struct LibraryTable {
    opened: Vec<Opened>,
    /// The origin of each library by the loader's handle. It is known only the first time.
    loaded: Vec<(usize, Arc<Origin>)>,
}

/// Every library opened so far. The lock is held while a library loads, so that no library is
/// initialized twice. So two different plugins are opened one after the other.
static KNOWN: LazyLock<Mutex<LibraryTable>> =
    LazyLock::new(|| Mutex::new(Rank::Plugins, LibraryTable::default()));

impl Plugin {
    /// Loads and initializes the plugin at `path`, or returns the one already loaded from that
    /// file.
    ///
    /// Loading runs the library's code in this process. Trust a path only as far as a program to
    /// run.
    ///
    /// # Errors
    /// See [`OpenFault`]. After a failed initialization the library stays loaded, and every further
    /// open fails in the same way.
    pub fn open(path: impl AsRef<Path>) -> Result<Plugin, OpenError> {
        Plugin::open_with(path, &OpenOptions::default())
    }

    /// [`Plugin::open`] with settings for an unusual plugin.
    ///
    /// # Errors
    /// As [`Plugin::open`], and when the plugin is already open with other options.
    pub fn open_with(path: impl AsRef<Path>, options: &OpenOptions) -> Result<Plugin, OpenError> {
        let path = path.as_ref();
        let refuse = |fault| OpenError::new(path, fault);
        check_file(path).map_err(refuse)?;
        // A name without a slash would be searched for in the system's folders.
        let real = path.canonicalize().map_err(|error| refuse(OpenFault::Missing(error.to_string())))?;
        note_plugin();
        let mut known = KNOWN.lock();
        let loading = Loading::begin(&real).map_err(|error| refuse(OpenFault::Missing(error.to_string())))?;
        // SAFETY: holds because a library that is loaded already runs no code by that.
        let was_loaded =
            unsafe { Library::open(Some(&real), RTLD_NOW | RTLD_LOCAL | libc::RTLD_NOLOAD) }.is_ok();
        // `RTLD_NOW` finds missing symbols here and not in the middle of a computation.
        // SAFETY: holds because the caller asked for this code to be run, as documented.
        let library = unsafe { Library::open(Some(&real), RTLD_NOW | RTLD_LOCAL) }
            .map_err(|error| refuse(OpenFault::CannotLoad(error.to_string())))?;
        // SAFETY: holds because that is the type the C header gives the symbol.
        let entry = unsafe { library.get::<unsafe extern "C" fn() -> *const c_void>(b"GetPjrtApi\0") };
        let entry: Symbol<_> = entry.map_err(|_| refuse(OpenFault::NoEntryPoint))?;
        // SAFETY: holds because the function takes nothing and returns the library's static table.
        let table = unsafe { entry() };
        let code = (*entry as *const ()).addr();
        // From here on the library has run its own code, so it stays.
        let handle = library.into_raw().addr();
        if let Some(known) = known.opened.iter().find(|known| known.table == table.addr()) {
            if known.options != *options {
                return Err(refuse(OpenFault::OtherOptions));
            }
            return known.outcome.clone().map_err(refuse);
        }
        let earlier =
            known.loaded.iter().find(|(other, _)| *other == handle).map(|(_, origin)| origin.clone());
        let origin = earlier.unwrap_or_else(|| {
            let origin = if was_loaded { loading.end_of_loaded(&real, code) } else { loading.end(&real) };
            let origin = Arc::new(origin);
            known.loaded.push((handle, origin.clone()));
            origin
        });
        // SAFETY: holds because the table came from `GetPjrtApi` and was not met before.
        let outcome = unsafe { Plugin::of_table(table, path, options, origin) };
        super::plugin_scope::register();
        super::plugin_scope::register_at_thread_end();
        let fault = outcome.as_ref().copied().map_err(|error| error.fault().clone());
        known.opened.push(Opened { table: table.addr(), options: options.clone(), outcome: fault });
        outcome
    }

    /// Uses a function table that is already in memory, such as that of a plugin linked into the
    /// program, and initializes the plugin. Messages use `path` as its name. Nothing that it
    /// compiles is stored for other processes, because its code is not identified.
    ///
    /// # Safety
    /// `table` is null or points to a `PJRT_Api` that is readable up to its own `struct_size`. The
    /// table's functions do what the C header says and stay valid for the life of the process. The
    /// plugin was not initialized before.
    ///
    /// # Errors
    /// As [`Plugin::open`].
    pub unsafe fn from_table(
        table: *const c_void,
        path: impl AsRef<Path>,
        options: &OpenOptions,
    ) -> Result<Plugin, OpenError> {
        // SAFETY: holds because the caller guarantees the requirements on the table.
        unsafe { Plugin::of_table(table, path.as_ref(), options, Arc::new(Origin::unknown())) }
    }

    /// [`Plugin::from_table`], for a library that was loaded from a file.
    ///
    /// # Safety
    /// As for [`Plugin::from_table`].
    unsafe fn of_table(
        table: *const c_void,
        path: &Path,
        options: &OpenOptions,
        origin: Arc<Origin>,
    ) -> Result<Plugin, OpenError> {
        // SAFETY: holds because the caller guarantees the requirements on the table.
        let api = unsafe { Api::load(table, path, options.sizes.clone()) }?;
        if api.has::<PJRT_Plugin_Initialize_Args>() {
            // SAFETY: holds because there are no arguments, and the caller says that this is the
            // first time.
            unsafe { call!(api, PJRT_Plugin_Initialize_Args {}) }
                .map_err(|error| OpenError::new(path, OpenFault::Initialise(error)))?;
        }
        let attributes = read_attributes(&api);
        let extensions = read_extensions(&api);
        Ok(Plugin(Box::leak(Box::new(Inner {
            api,
            origin,
            attributes,
            extensions,
            handlers: Mutex::new(Rank::Handlers, Vec::new()),
        }))))
    }

    pub(super) fn api(self) -> &'static Api {
        &self.0.api
    }

    /// The file that it was loaded from, and the variables that it saw.
    #[doc(hidden)]
    pub fn origin(self) -> &'static Origin {
        &self.0.origin
    }

    /// An entry of the extension chain, by its number in the C header.
    pub(super) fn extension(self, number: u32) -> Option<*const PJRT_Extension_Base> {
        chain(self.api()).find(|base| {
            // SAFETY: holds because the chain of a plugin is made of `PJRT_Extension_Base`s that
            // live with the table.
            unsafe { (**base).type_ == number }
        })
    }

    /// The registered handlers, with their platforms.
    pub(super) fn handlers(self) -> &'static Mutex<Vec<(String, String)>> {
        &self.0.handlers
    }

    /// The file of the plugin, as it was first requested.
    #[must_use]
    pub fn path(&self) -> &'static Path {
        self.0.api.path()
    }

    /// Version of the plugin's API.
    #[must_use]
    pub fn api_version(&self) -> ApiVersion {
        self.0.api.version()
    }

    /// Notes for users on the plugin's version: older or newer than the versions that this crate
    /// was checked with, functions that it lacks. May be empty.
    #[must_use]
    pub fn version_notes(&self) -> Vec<String> {
        self.0.api.version_notes()
    }

    /// The plugin's attributes; may be empty.
    #[must_use]
    pub fn attributes(&self) -> &'static [(String, Value)] {
        &self.0.attributes
    }

    /// One attribute by name.
    #[must_use]
    pub fn attribute(&self, name: &str) -> Option<&'static Value> {
        self.0.attributes.iter().find(|row| row.0 == name).map(|row| &row.1)
    }

    /// The newest StableHLO version that the plugin reads, as `[major, minor, patch]`. Not every
    /// plugin reports it.
    #[must_use]
    pub fn stablehlo_current_version(&self) -> Option<[i64; 3]> {
        self.version_attribute("stablehlo_current_version")
    }

    /// The oldest StableHLO version that the plugin reads, as `[major, minor, patch]`. Not every
    /// plugin reports it.
    #[must_use]
    pub fn stablehlo_minimum_version(&self) -> Option<[i64; 3]> {
        self.version_attribute("stablehlo_minimum_version")
    }

    fn version_attribute(&self, name: &str) -> Option<[i64; 3]> {
        match self.attribute(name)? {
            Value::IntList(numbers) => numbers.as_slice().try_into().ok(),
            _ => None,
        }
    }

    /// The plugin's extension chain, in its order.
    #[must_use]
    pub fn extensions(&self) -> &'static [Extension] {
        &self.0.extensions
    }
}

impl PartialEq for Plugin {
    fn eq(&self, other: &Plugin) -> bool {
        std::ptr::eq(self.0, other.0)
    }
}

impl Eq for Plugin {}

impl fmt::Debug for Plugin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Plugin({}, API {})", self.path().display(), self.api_version())
    }
}

/// Checks whether `path` can be a shared library, without loading it.
pub(super) fn check_file(path: &Path) -> Result<(), OpenFault> {
    let missing = |error: std::io::Error| OpenFault::Missing(error.to_string());
    // Checked before opening: opening a pipe would wait for its other end.
    if !std::fs::metadata(path).map_err(missing)?.is_file() {
        return Err(OpenFault::Missing("it is not a file".into()));
    }
    let mut magic = [0; 4];
    let mut file = std::fs::File::open(path).map_err(missing)?;
    let library = match file.read_exact(&mut magic) {
        Err(_) => false,
        // ELF; Mach-O of 64 bits, and of several architectures.
        Ok(()) => {
            matches!(magic, [0x7f, b'E', b'L', b'F'] | [0xcf, 0xfa, 0xed, 0xfe] | [0xca, 0xfe, 0xba, 0xbe])
        }
    };
    if library { Ok(()) } else { Err(OpenFault::NotALibrary) }
}

/// The plugin's attributes. Empty when it has no such function, or that fails.
fn read_attributes(api: &Api) -> Vec<(String, Value)> {
    // SAFETY: holds because there are no arguments to fill.
    match unsafe { call!(api, PJRT_Plugin_Attributes_Args {}) } {
        // SAFETY: holds because the plugin's list lives as long as the process.
        Ok(out) => unsafe { read_named_values(out.attributes, out.num_attributes) },
        Err(_) => Vec::new(),
    }
}

/// The entries of the extension chain.
fn chain(api: &Api) -> impl Iterator<Item = *const PJRT_Extension_Base> {
    /// Far more than plugins have. Ends a cyclic chain.
    const MOST: usize = 64;
    let some = |base: *const PJRT_Extension_Base| (!base.is_null()).then_some(base);
    // SAFETY: holds because the chain of a plugin is made of `PJRT_Extension_Base`s that live with
    // the table.
    std::iter::successors(some(api.extension_start()), move |base| some(unsafe { (**base).next })).take(MOST)
}

fn read_extensions(api: &Api) -> Vec<Extension> {
    let extension = |base: *const PJRT_Extension_Base| {
        // SAFETY: holds for the same reason as in `chain`.
        let number = unsafe { (*base).type_ };
        Extension { number, name: EXTENSIONS.get(number as usize).copied() }
    };
    chain(api).map(extension).collect()
}
