//! Saves tensors to a file in the `safetensors` format and loads them again, bit for bit.
//!
//! `cargo run --example safetensors -- [FILE]`. On a machine without a plugin, add
//! `--device reference`.
#![allow(clippy::print_stdout, reason = "an example talks to its user")]

mod common;

use std::path::PathBuf;

use anyhow::{Context as _, ensure};
use clap::Parser;
use common::{Device, checkpoint};
use fuseline::{EngineConfig, Tensor};
use half::{bf16, f16};

/// Saves tensors to a safetensors file and loads them again, bit for bit.
#[derive(Parser)]
struct Options {
    /// The file. The default is a temporary file, which is removed at the end.
    file: Option<PathBuf>,
    /// Where to compute.
    #[arg(long, value_enum, default_value = "auto")]
    device: Device,
}

fn main() -> anyhow::Result<()> {
    let options = Options::parse();
    let engine = options.device.build(EngineConfig::new())?;

    // Values whose bits are easily lost in conversions: NaN with a payload, -0, subnormal numbers,
    // the limits of the ranges.
    let nan = f32::from_bits(0x7fc1_2345);
    let weights =
        engine.tensor(&[1.0f32, -0.0, f32::MIN_POSITIVE / 2.0, nan, f32::INFINITY, -1.5], &[2, 3])?;
    let halves = engine.tensor(&[f16::MAX, f16::from_bits(0x0001), f16::NEG_ZERO], &[3])?;
    let brains = engine.tensor(&[bf16::MAX, bf16::from_bits(0x0001), bf16::from_f32(0.1)], &[3, 1])?;
    let steps = engine.tensor(&[i64::MIN, i64::MAX], &[2])?;
    let mask = engine.tensor(&[true, false, true, true], &[4])?;
    let scalar = engine.tensor(&[std::f64::consts::PI], &[])?;
    let empty = engine.tensor::<u8>(&[], &[0, 7])?;
    // Not computed yet: saving computes it.
    let product = weights.narrow(1, 0, 2)?.matmul(&engine.tensor(&[2.0f32, 0.0, 0.0, 2.0], &[2, 2])?)?;
    let tensors: [(&str, &Tensor); 8] = [
        ("weights", &weights),
        ("halves", &halves),
        ("brains", &brains),
        ("steps", &steps),
        ("mask", &mask),
        ("scalar", &scalar),
        ("empty", &empty),
        ("product", &product),
    ];

    let (path, temporary) = match options.file {
        Some(path) => (path, false),
        None => {
            let name = format!("fuseline-{}.safetensors", std::process::id());
            (std::env::temp_dir().join(name), true)
        }
    };
    checkpoint::save(&path, tensors)?;
    let size = std::fs::metadata(&path)?.len();
    let loaded = checkpoint::load(&engine, &path)?;
    if temporary {
        std::fs::remove_file(&path)?;
    }

    ensure!(
        loaded.len() == tensors.len(),
        "{} tensors were saved, but {} were loaded",
        tensors.len(),
        loaded.len()
    );
    for (name, saved) in tensors {
        let loaded = loaded.get(name).with_context(|| format!("`{name}` is not in the file"))?;
        let (before, after) = (saved.to_literal()?, loaded.to_literal()?);
        ensure!(before.ty() == after.ty(), "`{name}` was {} and came back as {}", before.ty(), after.ty());
        ensure!(before.bytes() == after.bytes(), "`{name}` came back with different bits");
        println!("{name:<8} {:<10} {:>3} bytes, the same", after.ty().to_string(), after.bytes().len());
    }
    println!("{} tensors went through a file of {size} bytes and came back bit for bit.", tensors.len());

    // A type that Fuseline lacks is refused, with the name of the tensor.
    let foreign = foreign_file()?;
    match checkpoint::from_bytes(&engine, &foreign) {
        Ok(_) => anyhow::bail!("a file with 8-bit floats was accepted"),
        Err(error) => println!("A file with 8-bit floats is rejected: {error:#}."),
    }
    Ok(())
}

/// A file with a tensor of a type that Fuseline lacks.
fn foreign_file() -> anyhow::Result<Vec<u8>> {
    let view = safetensors::tensor::TensorView::new(safetensors::Dtype::F8_E5M2, vec![2], &[0, 1])?;
    Ok(safetensors::serialize([("tiny", view)], None)?)
}
