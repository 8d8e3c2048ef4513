//! What the tests of the PJRT layer share: the real plugin, if there is one, and small modules.
#![allow(dead_code, reason = "each test binary uses a part")]
#![allow(
    clippy::disallowed_types,
    clippy::print_stdout,
    reason = "tests, under no model checker; how one says that it skips"
)]

use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};

use fuseline::pjrt::discover::{Discovery, Sources};
use fuseline::pjrt::{Buffer, Client, ClientOptions, CompileOptions, Executable, Plugin, bytes_of};
use fuseline_fusion::{Element, TensorType};

pub(crate) mod fake;

/// The first plugin of this machine. Each test says so when there is none.
///
/// # Panics
/// When there is one and it cannot be used: then skipping would hide it.
pub(crate) fn plugin() -> Option<Plugin> {
    static PLUGIN: OnceLock<Result<Plugin, String>> = OnceLock::new();
    let look = || {
        let mut found = Discovery::look(&Sources::of_process());
        let is_there = !found.candidates().is_empty();
        found.first_usable().map_err(|error| {
            assert!(!is_there, "there is a plugin, and it cannot be used: {error}");
            error.to_string()
        })
    };
    match PLUGIN.get_or_init(look) {
        Ok(plugin) => Some(*plugin),
        Err(why) => {
            println!("skipped: no plugin: {why}");
            None
        }
    }
}

/// A new client with `devices` devices, if there is a plugin.
pub(crate) fn client(devices: i64) -> Option<Client> {
    let plugin = plugin()?;
    let options = ClientOptions::new().set("cpu_device_count", devices);
    Some(plugin.client(&options).expect("a client"))
}

pub(crate) fn ty<T: Element>(dims: &[u64]) -> TensorType {
    TensorType::of(T::DTYPE, dims).expect("a small type")
}

/// A buffer on the first device.
pub(crate) fn upload<T: Element>(client: &Client, dims: &[u64], data: &[T]) -> Buffer {
    let device = &client.devices()[0];
    client.buffer_from_host(&ty::<T>(dims), bytes_of(data), device).expect("a buffer")
}

/// The elements of a buffer.
pub(crate) fn download<T: Element>(buffer: &Buffer) -> Vec<T> {
    elements(&buffer.to_host().expect("a copy"))
}

pub(crate) fn elements<T: Element>(bytes: &[u8]) -> Vec<T> {
    bytes.chunks_exact(T::DTYPE.size()).map(T::read_le).collect()
}

/// `a + b` on vectors of `n` f32; `attributes` are those of the first parameter.
pub(crate) fn add_module(n: usize, attributes: &str) -> String {
    format!(
        "module @add {{ func.func public @main(%a: tensor<{n}xf32> {{{attributes}}}, %b: tensor<{n}xf32>) \
         -> tensor<{n}xf32> {{ %0 = stablehlo.add %a, %b : tensor<{n}xf32> return %0 : tensor<{n}xf32> }} }}"
    )
}

pub(crate) fn add(client: &Client, n: usize) -> Executable {
    client.compile(add_module(n, ""), &CompileOptions::new()).expect("add compiles")
}

/// Multiplies an `n` by `n` matrix with itself `times` times: a computation that takes a while.
pub(crate) fn slow(client: &Client, n: usize, times: usize) -> Executable {
    let ty = format!("tensor<{n}x{n}xf32>");
    let mut body = String::new();
    for i in 0..times {
        body += &format!(
            "%{} = stablehlo.dot_general %{i}, %{i}, contracting_dims = [1] x [0] : ({ty}, {ty}) -> {ty}\n",
            i + 1
        );
    }
    let body = body.replace("%0,", "%a,");
    let module = format!(
        "module @slow {{ func.func public @main(%a: {ty}) -> {ty} {{ {body} return %{times} : {ty} }} }}"
    );
    client.compile(module, &CompileOptions::new()).expect("slow compiles")
}

/// A folder that goes when this does.
pub(crate) struct TempDir(PathBuf);

impl TempDir {
    pub(crate) fn new(name: &str) -> TempDir {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let path = std::env::temp_dir().join(format!("pjrt-{name}-{}-{number}", std::process::id()));
        std::fs::create_dir_all(&path).expect("a temporary folder");
        TempDir(path)
    }

    pub(crate) fn path(&self) -> &Path {
        &self.0
    }

    /// Writes a file, and the folders above it.
    pub(crate) fn file(&self, name: &str, content: &[u8]) -> PathBuf {
        let path = self.0.join(name);
        std::fs::create_dir_all(path.parent().expect("a folder")).expect("folders");
        std::fs::write(&path, content).expect("a file");
        path
    }
}

impl Drop for TempDir {
    fn drop(&mut self) {
        drop(std::fs::remove_dir_all(&self.0));
    }
}

/// A generator of reproducible choices (SplitMix64).
pub(crate) struct Choices(pub(crate) u64);

impl Choices {
    pub(crate) fn below(&mut self, n: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((z ^ (z >> 31)) % n as u64) as usize
    }

    pub(crate) fn shuffle<T>(&mut self, items: &mut [T]) {
        for i in (1..items.len()).rev() {
            items.swap(i, self.below(i + 1));
        }
    }
}
