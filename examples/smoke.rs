use fuseline::*;
use std::time::Instant;
fn main() -> Result<()> {
    let log = std::env::args().nth(1).is_some();
    let mut config = EngineConfig::new();
    if log {
        config = config.event_sink(|e: &Event| println!("{e}"));
    }
    let engine = config.build()?;
    for n in [16u64, 1024, 65536] {
        let x = engine.tensor(&vec![1.0f32; n as usize], &[n])?;
        let y = engine.tensor(&vec![1.0001f32; n as usize], &[n])?;
        let run = |k: usize| -> Result<()> {
            for _ in 0..k {
                let mut z = x.clone();
                for i in 0..50 {
                    z = if i % 2 == 0 { z.mul(&y)? } else { z.add(&y)? };
                }
                z.wait()?;
            }
            Ok(())
        };
        run(100)?;
        let before = engine.counters();
        let t = Instant::now();
        run(2000)?;
        println!("n={n}: {:.2} us per chain of 50", t.elapsed().as_secs_f64() * 1e6 / 2000.0);
        println!("{:?}", engine.counters().since(&before));
        if n == 1024 {
            // record only
            let t = Instant::now();
            let mut z = x.clone();
            for _ in 0..100_000 {
                z = z.add(&y)?;
            }
            let e = t.elapsed();
            z.wait()?;
            println!(
                "record {:.1} ns/op, total {:.1}",
                e.as_secs_f64() * 1e9 / 1e5,
                t.elapsed().as_secs_f64() * 1e9 / 1e5
            );
        }
    }
    Ok(())
}
