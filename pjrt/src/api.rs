//! A plugin's function table: read with bounds, checked once, called in one place.
//!
//! Input: the pointer that `GetPjrtApi` returned. Output: an [`Api`] that returns an error for
//! absent functions instead of calling null.
//!
//! Invariants:
//! - API-1. No byte of the table past `PJRT_Api::struct_size` is read, and no half of a function
//!   pointer is kept.
//! - API-2. A `PJRT_Error` is read once and destroyed once, in [`Api::take_error`].
//! - API-3. An [`Api`] has every function that `abi::functions` marks `must`.

use std::ffi::{c_char, c_int, c_void};
use std::fmt;
use std::path::{Path, PathBuf};

use pjrt_sys::*;

use super::abi::{self, Block, Call, Struct};
use super::error::{Code, Error};
use super::open_error::{OpenError, OpenFault};
use super::version::{ApiVersion, OUR_VERSION};

/// The newest header whose structs were compared with ours field by field: for each of the 87
/// structs that are used here, the order of its fields, and their offsets and sizes as a C compiler
/// gives them; for the function table, the offsets of its entries; for enumerations, the numbers.
/// From 0.54 over 0.81 to 0.114, 6 of these structs grew at the end, and nothing moved
/// (docs/plugins.md).
const COMPARED_UP_TO: ApiVersion = ApiVersion { major: 0, minor: 114 };

/// Values for `struct_size` instead of the padded sizes, by struct name, for plugins that require
/// their own size.
pub(super) type StructSizes = Vec<(&'static str, usize)>;

/// The checked copy of a plugin's table.
pub(super) struct Api {
    table: PJRT_Api,
    sizes: StructSizes,
    path: PathBuf,
    version: ApiVersion,
}

impl Api {
    /// Copies and checks the table at `table`.
    ///
    /// # Safety
    /// `table` is null or points to a `PJRT_Api` that is readable up to its own `struct_size`.
    pub(super) unsafe fn load(
        table: *const c_void,
        path: &Path,
        sizes: StructSizes,
    ) -> Result<Api, OpenError> {
        let refuse = |fault| Err(OpenError::new(path, fault));
        if table.is_null() || !table.cast::<usize>().is_aligned() {
            return refuse(OpenFault::BadTable("GetPjrtApi returned no table".into()));
        }
        // SAFETY: holds because every table begins with its size.
        let theirs = unsafe { table.cast::<usize>().read() };
        let versioned = std::mem::offset_of!(PJRT_Api, PJRT_Error_Destroy);
        if theirs < versioned {
            let text = format!("the function table is {theirs} bytes long and ends before its version");
            return refuse(OpenFault::BadTable(text));
        }
        let ours = size_of::<PJRT_Api>();
        // API-1: whole words only, so that no half of a pointer is copied from a table that ends
        // within one.
        let copied = theirs.min(ours) / size_of::<usize>() * size_of::<usize>();
        let mut copy = PJRT_Api::default();
        let to = std::ptr::from_mut(&mut copy).cast::<u8>();
        // SAFETY: holds because `copied` is at most the size of either side, and both are aligned
        // and do not overlap; function pointers that were not copied stay null, which is `None`.
        unsafe { std::ptr::copy_nonoverlapping(table.cast::<u8>(), to, copied) };
        let version = ApiVersion {
            major: copy.pjrt_api_version.major_version,
            minor: copy.pjrt_api_version.minor_version,
        };
        if version.major != OUR_VERSION.major {
            return refuse(OpenFault::Version { theirs: version, missing: Vec::new() });
        }
        let missing =
            |must: bool| abi::functions(&copy).filter(move |row| row.1 == must && !row.2).map(|row| row.0);
        let needed: Vec<_> = missing(true).collect();
        if !needed.is_empty() {
            return refuse(OpenFault::Version { theirs: version, missing: needed });
        }
        Ok(Api { table: copy, sizes, path: path.to_owned(), version })
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    pub(super) fn version(&self) -> ApiVersion {
        self.version
    }

    pub(super) fn extension_start(&self) -> *const PJRT_Extension_Base {
        self.table.extension_start
    }

    /// Functions that this layer could use and the plugin lacks.
    pub(super) fn absent(&self) -> Vec<&'static str> {
        abi::functions(&self.table).filter(|row| !row.2).map(|row| row.0).collect()
    }

    /// Notes for users on the plugin's version; may be empty.
    pub(super) fn version_notes(&self) -> Vec<String> {
        let mut notes = Vec::new();
        if self.version < OUR_VERSION {
            notes.push(format!(
                "the plugin's PJRT API {} is older than {OUR_VERSION}, the version that this build was written for",
                self.version
            ));
        }
        if self.version > COMPARED_UP_TO {
            notes.push(format!(
                "the plugin's PJRT API {} is newer than {COMPARED_UP_TO}, the newest version whose \
                 header this build was compared with; fields and functions added since are not used",
                self.version
            ));
        }
        let absent = self.absent();
        if !absent.is_empty() {
            notes.push(format!("the plugin lacks {}", absent.join(", ")));
        }
        notes
    }

    /// A zeroed argument block of the size for this plugin.
    #[inline]
    pub(super) fn block<T: Struct>(&self) -> Block<T> {
        if self.sizes.is_empty() {
            return Block::new(None);
        }
        Block::new(self.sizes.iter().find(|row| row.0 == T::NAME).map(|row| row.1))
    }

    /// The description of a StableHLO module, as text or as bytecode. The plugin reads the module
    /// through it, so it must not outlive the module.
    pub(super) fn program(&self, module: &[u8]) -> Block<PJRT_Program> {
        const FORMAT: &str = "mlir";
        let mut program = self.block::<PJRT_Program>();
        // The C field is in and out, but the functions that compile take the program as const.
        program.code = module.as_ptr().cast::<c_char>().cast_mut();
        program.code_size = module.len();
        program.format = FORMAT.as_ptr().cast();
        program.format_size = FORMAT.len();
        program
    }

    /// Calls the function that takes `args`.
    ///
    /// # Safety
    /// Every pointer in `args` meets what the C header asks of that field.
    #[inline]
    pub(super) unsafe fn call<A: Call>(&self, args: &mut Block<A>) -> Result<(), Error> {
        let Some(entry) = A::entry(&self.table) else { return Err(self.unsupported(A::FUNCTION)) };
        // SAFETY: holds because the entry came from the table of an initialized plugin, the block
        // is as large as its `struct_size` says, and the caller guarantees the requirements on the
        // fields.
        let error = unsafe { entry(args.as_mut_ptr()) };
        if error.is_null() {
            return Ok(());
        }
        // SAFETY: holds because a function returns an error that only its caller owns.
        Err(unsafe { self.take_error(error, A::FUNCTION) })
    }

    /// True when the plugin has the function that takes `A`.
    pub(super) fn has<A: Call>(&self) -> bool {
        A::entry(&self.table).is_some()
    }

    #[cold]
    pub(super) fn unsupported(&self, function: &'static str) -> Error {
        let (path, version) = (self.path.display(), self.version);
        let text = format!("the plugin {path} (PJRT API {version}) does not implement {function}");
        Error::layer(Code::Unimplemented, function, text)
    }

    /// Reads a plugin's error object and destroys it.
    ///
    /// # Safety
    /// `error` is a live `PJRT_Error` of this plugin that nobody else will destroy.
    #[cold]
    pub(super) unsafe fn take_error(&self, error: *mut PJRT_Error, function: &'static str) -> Error {
        let mut code = self.block::<PJRT_Error_GetCode_Args>();
        code.error = error;
        let mut number = 0;
        if let Some(entry) = self.table.PJRT_Error_GetCode {
            // SAFETY: holds because `error` is live and the block is padded.
            let second = unsafe { entry(code.as_mut_ptr()) };
            if second.is_null() {
                number = code.code;
            } else {
                // SAFETY: holds because the error about the error is ours alone.
                unsafe { self.destroy_error(second) };
            }
        }
        let mut words = self.block::<PJRT_Error_Message_Args>();
        words.error = error;
        if let Some(entry) = self.table.PJRT_Error_Message {
            // SAFETY: holds because `error` is live and the block is padded.
            unsafe { entry(words.as_mut_ptr()) };
        }
        // SAFETY: holds because the message lives as long as `error`, which is destroyed below.
        let message = unsafe { text(words.message, words.message_size) };
        // SAFETY: holds because the caller gave the error to us, and nothing borrows from it any
        // more.
        unsafe { self.destroy_error(error) };
        Error::plugin(Code::from_number(number), function, message)
    }

    /// # Safety
    /// As [`Api::take_error`].
    unsafe fn destroy_error(&self, error: *mut PJRT_Error) {
        let mut args = self.block::<PJRT_Error_Destroy_Args>();
        args.error = error;
        if let Some(entry) = self.table.PJRT_Error_Destroy {
            // SAFETY: holds because the caller owns `error` and gives it up.
            unsafe { entry(args.as_mut_ptr()) };
        }
    }
}

impl fmt::Debug for Api {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Api")
            .field("path", &self.path)
            .field("version", &self.version)
            .finish_non_exhaustive()
    }
}

/// Fills an argument block, calls its function and returns the block for its out fields. Use it in
/// an `unsafe` block: the fields must meet the requirements of the C header ([`Api::call`]).
macro_rules! call {
    ($api:expr, $args:ident { $($field:ident: $value:expr),* $(,)? }) => {{
        let mut block = $api.block::<pjrt_sys::$args>();
        $(block.$field = $value;)*
        $api.call(&mut block).map(|()| block)
    }};
}
pub(super) use call;

/// Copies a C string with a length; bytes that are not UTF-8 become replacement characters.
///
/// # Safety
/// `size` bytes can be read at `start`, or one of the two is zero.
pub(super) unsafe fn text(start: *const c_char, size: usize) -> String {
    // SAFETY: holds because the caller guarantees that `size` bytes are readable.
    let bytes = unsafe { list(start.cast::<u8>(), size) };
    String::from_utf8_lossy(bytes).into_owned()
}

/// A C array as a slice; empty when the pointer is null.
///
/// # Safety
/// `len` elements can be read at `start` for as long as `'a`, or one of the two is zero.
pub(super) unsafe fn list<'a, T>(start: *const T, len: usize) -> &'a [T] {
    if start.is_null() || len == 0 {
        return &[];
    }
    // SAFETY: holds because the caller guarantees that `len` elements are readable.
    unsafe { std::slice::from_raw_parts(start, len) }
}

/// Converts an id of the C API.
pub(super) fn id(number: c_int) -> i64 {
    i64::from(number)
}
