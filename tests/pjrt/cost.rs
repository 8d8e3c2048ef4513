//! Measures the cost of the PJRT layer. No checks: run with `--release -- --ignored --nocapture`.

use std::hint::black_box;
use std::sync::Arc;
use std::time::Instant;

use fuseline::pjrt::{AlignedBytes, ClientOptions, CompileOptions, ExecuteOptions, HostData, bytes_of};
use fuseline::{DiskCacheConfig, EngineConfig};

use crate::fixtures::*;

/// Prints the best of 9 rounds, in microseconds per call.
fn time<R>(name: &str, calls: usize, mut call: impl FnMut() -> R) {
    let mut best = f64::MAX;
    for _ in 0..9 {
        let start = Instant::now();
        for _ in 0..calls {
            black_box(call());
        }
        best = best.min(start.elapsed().as_secs_f64() / calls as f64);
    }
    println!("{name:<40} {:8.3} us", best * 1e6);
}

#[test]
#[ignore = "prints figures"]
fn figures() {
    let Some(client) = client(1) else { return };
    let device = &client.devices()[0];
    let plain = ExecuteOptions::default();
    let event = ExecuteOptions { want_completion_event: true, ..plain };
    let module = "module @add { func.func public @main(%a: tensor<f32>, %b: tensor<f32>) -> tensor<f32> { \
                  %0 = stablehlo.add %a, %b : tensor<f32> return %0 : tensor<f32> } }";
    let add = client.compile(module, &CompileOptions::new()).expect("compiles");
    let one = upload(&client, &[], &[1.0f32]);
    time("execute scalar add", 50_000, || add.execute(&[&one, &one], &plain).expect("runs"));
    time("execute scalar add, event", 50_000, || add.execute(&[&one, &one], &event).expect("runs"));
    time("execute scalar add, event, wait", 50_000, || {
        add.execute(&[&one, &one], &event).expect("runs").done.expect("asked for").wait()
    });
    time("execute scalar add, event, callback", 50_000, || {
        let done = add.execute(&[&one, &one], &event).expect("runs").done.expect("asked for");
        done.on_ready(|outcome| drop(black_box(outcome)));
    });
    struct Shared(Arc<AlignedBytes>);
    impl AsRef<[u8]> for Shared {
        fn as_ref(&self) -> &[u8] {
            (*self.0).as_ref()
        }
    }
    for n in [16usize, 1_024, 65_536] {
        let ty = ty::<f32>(&[n as u64]);
        let data = vec![1.0f32; n];
        let aligned = Arc::new(AlignedBytes::copy_of(bytes_of(&data)));
        time(&format!("buffer_from_host {n}"), 5_000, || {
            client.buffer_from_host(&ty, bytes_of(&data), device).expect("a buffer")
        });
        time(&format!("buffer_from_owned, zero copy {n}"), 5_000, || {
            let data = HostData::zero_copy(Shared(Arc::clone(&aligned)));
            client.buffer_from_owned(&ty, data, device).expect("a buffer")
        });
        let buffer = upload(&client, &[n as u64], &data);
        time(&format!("to_host {n}"), 5_000, || buffer.to_host().expect("read"));
        time(&format!("to_host_async, wait {n}"), 2_000, || {
            buffer.to_host_async().expect("starts").wait().expect("read")
        });
    }
    for count in [1usize, 8, 64, 65] {
        let parameters: Vec<_> = (0..count).map(|i| format!("%a{i}: tensor<f32>")).collect();
        let module = format!(
            "module @m {{ func.func public @main({}) -> tensor<f32> {{ return %a0 : tensor<f32> }} }}",
            parameters.join(", ")
        );
        let executable = client.compile(module, &CompileOptions::new()).expect("compiles");
        let arguments = vec![&one; count];
        time(&format!("execute, {count} arguments"), 10_000, || {
            executable.execute(&arguments, &plain).expect("runs")
        });
    }
}

/// Prints the median time of 21 calls, in milliseconds. It does not include the drop of results.
fn print_median<R>(name: &str, mut start: impl FnMut() -> R) {
    let mut times: Vec<f64> = (0..21)
        .map(|_| {
            let since = Instant::now();
            let started = start();
            let took = since.elapsed();
            drop(started);
            took.as_secs_f64() * 1e3
        })
        .collect();
    times.sort_by(f64::total_cmp);
    println!("{name:<40} {:8.2} ms", times[times.len() / 2]);
}

/// The time that an engine takes to start, with and without a probe of the plugin.
#[test]
#[ignore = "prints figures"]
fn figures_of_the_start() {
    let Some(plugin) = plugin() else { return };
    let folder = tempfile::tempdir().expect("a folder");
    let config = || EngineConfig::new().plugin(plugin.path());
    let stored = || config().disk_cache(DiskCacheConfig::new().folder(folder.path().join("cache")));
    print_median("client alone", || plugin.client(&ClientOptions::new()).expect("a client"));
    print_median("engine, probes the plugin", || config().without_disk_cache().build().expect("an engine"));
    drop(stored().build().expect("an engine"));
    print_median("engine, reads what a probe has found", || stored().build().expect("an engine"));
}
