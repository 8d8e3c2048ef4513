//! Failing executions and transfers: their dependents are lost, and nothing else.

use std::collections::BTreeSet;

use fuseline::pjrt::Code;
use fuseline::{Mode, Origin, Stage, Tensor};
use fuseline_testgen::{Entropy, Seeded};

use super::{EXECUTE, Found, Graph, Node, is_right, three};

use crate::support::fakeplugin::FakePlugin;
use crate::support::{block_on, vector};

const UPLOAD: &str = "PJRT_Client_BufferFromHostBuffer";
const DOWNLOAD: &str = "PJRT_Buffer_ToHostBuffer";
const RUN: &str = "Run";

/// The indices of the ops of a graph, in recording order.
fn ops(graph: &Graph) -> Vec<usize> {
    (0..graph.nodes.len()).filter(|&place| matches!(graph.nodes[place], Node::Op(..))).collect()
}

/// The ways in which an execution fails.
const WAYS: [(&str, &str); 2] = [
    // The call is refused.
    (EXECUTE, "fail(INTERNAL, \"planned: no luck\")"),
    // The call is accepted, and an event reports that the computation failed.
    (RUN, "fail(DATA_LOSS, \"planned: a bit fell over\")"),
];

/// Each error names the op, its call site, its region and the plugin's message.
#[track_caller]
fn say_what_is_lost(found: &Found, lost: &BTreeSet<usize>, words: &str) {
    for place in lost {
        let error = found[*place].as_ref().unwrap_err();
        let text = error.to_string();
        assert_eq!((error.stage(), error.origin()), (Stage::Execute, Origin::Device), "{text}");
        assert!(error.op_name().is_some() && error.region().is_some(), "{text}");
        assert!(
            error.site().is_some_and(|site| site.to_string().contains("tests/pjrt/plugin/mod.rs")),
            "{text}"
        );
        assert!(text.contains(words), "{text}");
    }
}

/// Op by op, one execution fails: exactly the dependents of its op are lost.
fn single_ops(plugin: &FakePlugin, seeds: std::ops::Range<u64>) {
    let engine = plugin.config().mode(Mode::Strict).build().unwrap();
    for seed in seeds {
        let mut random = Seeded::new(seed);
        let count = 3 + random.draw(30) as usize;
        let graph = Graph::sample(&mut random, count);
        let ops = ops(&graph);
        let victim = random.draw(ops.len() as u32) as usize;
        for (way, (point, action)) in WAYS.into_iter().enumerate() {
            let before = plugin.fired(point);
            plugin.plan(&format!("{point}@{} = {action}", victim + 1));
            let found = graph.run(&engine);
            assert_eq!(plugin.fired(point) - before, 1, "program {seed}");
            let lost = graph.lost(&found);
            assert_eq!(lost, graph.dependants([ops[victim]]), "program {seed}, {point}: {graph:?}");
            say_what_is_lost(
                &found,
                &lost,
                ["INTERNAL: planned: no luck", "DATA_LOSS: planned: a bit fell over"][way],
            );
            plugin.heal();
            assert!(graph.lost(&graph.run(&engine)).is_empty(), "program {seed}: the engine works on");
        }
    }
    drop(engine);
    plugin.assert_clean();
}

#[test]
fn an_op_that_fails_takes_what_depends_on_it_and_nothing_else() {
    single_ops(&FakePlugin::alone(), 0..150);
}

#[test]
#[ignore = "soak: `cargo xtask soak plugin-poison`"]
fn ops_that_fail_in_ten_thousand_programs() {
    single_ops(&FakePlugin::alone(), 1_000..11_000);
}

/// The guarantee for a computation that fails after the plugin has accepted it, when regions that
/// read its results may already be launched: its whole region is lost, and so is each later region
/// with an op that reads a lost value; nothing else is.
fn whole_regions(graph: &Graph, chunks: &[Vec<usize>], victim: usize) -> BTreeSet<usize> {
    let mut lost: BTreeSet<usize> = chunks[victim].iter().copied().collect();
    for chunk in &chunks[victim + 1..] {
        let depends = graph.dependants(lost.iter().copied());
        if chunk.iter().any(|op| depends.contains(op)) {
            lost.extend(chunk);
        }
    }
    lost
}

/// In Fused mode, with known regions: a refused call costs speed, and a failed computation loses
/// its region and the dependents.
fn regions(plugin: &FakePlugin, seeds: std::ops::Range<u64>) {
    for seed in seeds {
        let mut random = Seeded::new(seed);
        let count = 6 + random.draw(20) as usize;
        let graph = Graph::sample(&mut random, count);
        // A region ends after a fixed number of ops.
        let mut chunks: Vec<Vec<usize>> = vec![Vec::new()];
        for op in ops(&graph) {
            chunks.last_mut().unwrap().push(op);
            if random.draw(3) == 0 {
                chunks.push(Vec::new());
            }
        }
        chunks.retain(|chunk| !chunk.is_empty());
        let victim = random.draw(chunks.len() as u32) as usize;
        for (way, (point, action)) in WAYS.into_iter().enumerate() {
            let engine = plugin.config().build().unwrap();
            let before = plugin.fired(point);
            plugin.plan(&format!("{point}@{} = {action}", victim + 1));
            let made = graph.record_with(&engine, |place| {
                if chunks.iter().any(|chunk| chunk.last() == Some(&place)) {
                    engine.stream().flush();
                }
            });
            let found: Found = made.iter().map(Tensor::item::<i32>).collect();
            assert_eq!(plugin.fired(point) - before, 1, "program {seed}");
            let lost = graph.lost(&found);
            let is_refused = way == 0;
            let wanted = match is_refused {
                true if chunks[victim].len() > 1 => BTreeSet::new(),
                true => graph.dependants(chunks[victim].iter().copied()),
                false => whole_regions(&graph, &chunks, victim),
            };
            assert_eq!(lost, wanted, "program {seed}, {point}, {chunks:?}: {graph:?}");
            if !is_refused {
                say_what_is_lost(&found, &lost, "DATA_LOSS: planned: a bit fell over");
                // The error names the value's own op.
                for error in lost.iter().filter_map(|&place| found[place].as_ref().err()) {
                    let ops = error.region().unwrap().ops;
                    let words = format!("does not say which of the {ops} ops");
                    assert_eq!(error.to_string().contains(&words), ops > 1, "{error}");
                }
            }
            let counters = engine.counters();
            let fallbacks = u64::from(is_refused && wanted.is_empty());
            assert!(counters.fallbacks >= fallbacks, "program {seed}: {counters:?}");
            plugin.heal();
            assert!(graph.lost(&graph.run(&engine)).is_empty(), "program {seed}: the engine works on");
            drop((made, found, engine));
            plugin.assert_clean();
        }
    }
}

#[test]
fn a_region_that_fails_takes_what_depends_on_it_and_nothing_else() {
    regions(&FakePlugin::alone(), 0..150);
}

#[test]
#[ignore = "soak: cargo test --release --test pjrt plugin::regions_that_fail_in_ten_thousand -- --ignored"]
fn regions_that_fail_in_ten_thousand_programs() {
    regions(&FakePlugin::alone(), 1_000..11_000);
}

/// In Debug mode the call that records the op reports it.
#[test]
fn in_debug_mode_the_call_that_records_an_op_fails() {
    let plugin = FakePlugin::alone();
    let engine = plugin.config().mode(Mode::Debug).build().unwrap();
    for (point, action) in WAYS {
        let x = vector(&engine, &[1.0]);
        let before = plugin.fired(point);
        plugin.plan(&format!("{point}@2 = {action}"));
        let fine = x.neg().unwrap();
        let line = line!() + 1;
        let error = x.abs().unwrap_err();
        let text = error.to_string();
        assert!(text.contains(&format!("abs, recorded at {}:{line}, failed", file!())), "{text}");
        assert!(text.contains("planned"), "{text}");
        assert_eq!(plugin.fired(point) - before, 1);
        assert_eq!(x.abs().unwrap().to_vec::<f32>().unwrap(), [1.0]);
        assert_eq!(fine.to_vec::<f32>().unwrap(), [-1.0]);
    }
    drop(engine);
    plugin.assert_clean();
}

/// The error of the plugin's call that an error stems from.
#[track_caller]
fn plugin_error(error: &fuseline::Error) -> &fuseline::pjrt::Error {
    let source = std::error::Error::source(error).and_then(|source| source.downcast_ref());
    source.unwrap_or_else(|| panic!("{error} does not say which call failed"))
}

/// Data that does not arrive on the device is lost; earlier results are not.
#[test]
fn an_upload_that_fails() {
    let plugin = FakePlugin::alone();
    let engine = plugin.config().build().unwrap();
    let x = vector(&engine, &[1.0, 2.0]);
    is_right(&three(&x).unwrap(), &[1.0, 2.0]);
    // The call is refused: nothing was made.
    plugin.plan(&format!("{UPLOAD}@1 = fail(UNAVAILABLE, \"planned: the bus is on strike\")"));
    let error = engine.tensor(&[3.0f32, 4.0], &[2]).unwrap_err();
    assert_eq!((error.stage(), error.origin()), (Stage::Transfer, Origin::Device));
    assert!(error.to_string().contains("UNAVAILABLE: planned: the bus is on strike"), "{error}");
    let source = plugin_error(&error);
    assert_eq!((source.code(), source.function()), (Code::Unavailable, "PJRT_Client_BufferFromHostBuffer"));
    assert_eq!(source.message(), "planned: the bus is on strike");
    // The call is accepted and the data never arrives.
    for plan in [
        "CopyIn@1 = fail(DATA_LOSS, \"planned: lost\")",
        "Client_BufferFromHostBuffer@1 = event_error(DATA_LOSS, \"planned: lost\")",
    ] {
        plugin.plan(plan);
        let y = engine.tensor(&[3.0f32, 4.0], &[2]).unwrap();
        let (lost, kept) = (x.add(&y).unwrap(), x.mul(&x).unwrap());
        for value in [&y, &lost] {
            let error = value.to_vec::<f32>().unwrap_err();
            assert!(error.to_string().contains("DATA_LOSS: planned: lost"), "{error}");
        }
        let error = lost.to_vec::<f32>().unwrap_err();
        assert_eq!((error.op_name(), error.region().is_some()), (Some("add"), true), "{error}");
        assert_eq!(plugin_error(&error).code(), Code::DataLoss);
        // In one region with a lost value it is lost too; op by op it is not.
        drop(kept);
        let kept = x.mul(&x).unwrap();
        assert_eq!(kept.to_vec::<f32>().unwrap(), [1.0, 4.0]);
    }
    assert_eq!((plugin.fired(UPLOAD), plugin.fired("CopyIn")), (2, 1));
    plugin.heal();
    is_right(&three(&vector(&engine, &[3.0, 4.0])).unwrap(), &[3.0, 4.0]);
    drop((x, engine));
    plugin.assert_clean();
}

/// A failed copy to the host is an error of that read. The next read still gets the value.
#[test]
fn a_download_that_fails() {
    let plugin = FakePlugin::alone();
    let engine = plugin.config().build().unwrap();
    let y = three(&vector(&engine, &[1.0, 2.0])).unwrap();
    let plans = [
        "Buffer_ToHostBuffer@1 = fail(UNAVAILABLE, \"planned\")",
        "Buffer_ToHostBuffer@1 = event_error(UNAVAILABLE, \"planned\")",
        "CopyOut@1 = fail(UNAVAILABLE, \"planned\")",
    ];
    for plan in plans {
        type Reading = fn(&Tensor) -> fuseline::Result<Vec<f32>>;
        let reads: [Reading; 2] = [|value| value.to_vec(), |value| Ok(block_on(value.read())?.to_vec()?)];
        for (way, read) in reads.into_iter().enumerate() {
            let before = plugin.fired(DOWNLOAD) + plugin.fired("CopyOut");
            plugin.plan(plan);
            let error = read(&y).unwrap_err();
            assert_eq!(plugin.fired(DOWNLOAD) + plugin.fired("CopyOut") - before, 1);
            assert!(error.to_string().contains("UNAVAILABLE: planned"), "{plan}, read {way}: {error}");
            assert_eq!(plugin_error(&error).code(), Code::Unavailable, "{plan}, read {way}: {error}");
            // An asynchronous read gets the error from an event, which does not say whether the
            // copy or the computation failed.
            let unknown = way == 1 && error.stage() == Stage::Execute;
            assert!(error.stage() == Stage::Transfer || unknown, "{plan}, read {way}: {error}");
            assert_eq!((error.op_name(), error.region().is_some()), (Some("subtract"), true), "{error}");
            is_right(&y, &[1.0, 2.0]);
        }
    }
    drop((y, engine));
    plugin.assert_clean();
}

/// A temporary lack of memory is solved by freeing and retrying. A region that does not fit runs in
/// parts, and an op that does not fit is an error.
#[test]
fn memory_that_runs_out() {
    let plugin = FakePlugin::alone();
    let points = [
        "Client_Compile@1 = oom",
        "LoadedExecutable_Execute@1 = oom",
        "LoadedExecutable_Execute@size 2.. = oom",
        "Client_BufferFromHostBuffer@1 = oom",
        "Buffer_ToHostBuffer@1 = oom",
        "CopyOut@1 = oom",
    ];
    for plan in points {
        let point = plan.split(['@', ' ']).next().unwrap();
        let engine = plugin.config().build().unwrap();
        let before = plugin.fired(point);
        plugin.plan(plan);
        is_right(&three(&vector(&engine, &[1.0, 2.0])).unwrap(), &[1.0, 2.0]);
        assert!(plugin.fired(point) > before, "{plan}");
        let counters = engine.counters();
        assert_eq!((counters.poisoned, counters.fallbacks), (0, 0), "{plan}: {counters:?}");
        assert!(counters.out_of_memory > 0, "{plan}: {counters:?}");
        let partitioned = plan.contains("size");
        assert_eq!(counters.partitioned > 0, partitioned, "{plan}: {counters:?}");
        drop(engine);
        plugin.assert_clean();
    }
    let engine = plugin.config().build().unwrap();
    let x = vector(&engine, &[1.0, 2.0]);
    let y = x.neg().unwrap();
    let beside = engine.new_stream().from_literal(&x.to_literal().unwrap()).unwrap();
    plugin.plan("LoadedExecutable_Execute = oom");
    let lost = three(&y).unwrap();
    let error = lost.to_vec::<f32>().unwrap_err();
    assert!(error.is_resource_exhausted() && error.is_retryable(), "{error}");
    assert_eq!(error.stage(), Stage::Execute);
    assert!(error.to_string().contains("planned: no memory is left"), "{error}");
    plugin.heal();
    assert_eq!(beside.to_vec::<f32>().unwrap(), [1.0, 2.0]);
    is_right(&three(&x).unwrap(), &[1.0, 2.0]);
    drop((x, y, lost, beside, engine));
    plugin.assert_clean();
}

/// Executions in flight, one of which fails: later ones that do not depend on it are right.
#[test]
fn streams_fail_apart() {
    let plugin = FakePlugin::alone();
    let engine = plugin.config().build().unwrap();
    let streams: Vec<_> = (0..4).map(|_| engine.new_stream()).collect();
    let literal = fuseline::Literal::from_slice(&[2], &[1.0f32, 2.0]).unwrap();
    let inputs: Vec<Tensor> = streams.iter().map(|stream| stream.from_literal(&literal).unwrap()).collect();
    // Each stream reads the results of the previous one.
    let record = || {
        let made: Vec<Tensor> = inputs.iter().map(|x| three(x).unwrap()).collect();
        let joined: Vec<Tensor> = made.windows(2).map(|pair| pair[0].add(&pair[1]).unwrap()).collect();
        (made, joined)
    };
    plugin.plan(&format!("{RUN}@1 = delay(20); {RUN}@2 = fail(ABORTED, \"planned\")"));
    let (made, joined) = record();
    let is_lost: Vec<bool> = made.iter().map(|value| value.to_vec::<f32>().is_err()).collect();
    assert_eq!(is_lost.iter().filter(|lost| **lost).count(), 1, "{is_lost:?}");
    for (place, value) in joined.iter().enumerate() {
        assert_eq!(
            value.to_vec::<f32>().is_err(),
            is_lost[place] || is_lost[place + 1],
            "{place}: {is_lost:?}"
        );
    }
    assert_eq!(plugin.fired(RUN), 2);
    plugin.heal();
    let (healed, _) = record();
    healed.iter().for_each(|value| is_right(value, &[1.0, 2.0]));
    drop((healed, made, joined, inputs, streams, engine));
    plugin.assert_clean();
}
