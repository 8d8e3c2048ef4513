//! The contents of a region's key: names, frees, interleavings and values of scalars do not change
//! it, and every change of the computation does. The encoding under the key has one reading.
//!
//! Programs are made from choices, so that a failure shrinks to a small one.
#![allow(missing_docs, reason = "a test")]

mod support;

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::sync::Arc;

use fuseline_fusion::canon::{CanonRegion, EnvFingerprint, decode};
use fuseline_fusion::limits::MAX_BODY_DEPTH;
use fuseline_fusion::{Attrs, Body, DType, Graph, OpCode, TensorType};
use fuseline_testgen::Seeded;
use proptest::test_runner::TestCaseError;
use support::draft::{CHANGES, Draft, every_change_is_told, has_one_reading};
use support::recording::{is_read_back, keeps_its_keys, sample};
use support::{choices, from, runner};

#[test]
fn names_frees_and_interleavings_change_no_key() {
    let regions = Cell::new(0);
    let outcome = runner(1_000).run(&(choices(300), choices(40), 1..20_usize), |(list, how, ops)| {
        let program = sample(&mut from(&list), ops);
        let made = keeps_its_keys(&program, &mut from(&how)).map_err(TestCaseError::fail)?;
        regions.set(regions.get() + made);
        Ok(())
    });
    outcome.unwrap_or_else(|error| panic!("{error}"));
    assert!(regions.get() > 1_000, "only {} regions were compared", regions.get());
}

#[test]
fn what_is_lowered_is_read_back_as_the_region() {
    let outcome = runner(1_000).run(&(choices(300), choices(40), 1..20_usize), |(list, how, ops)| {
        let program = sample(&mut from(&list), ops);
        is_read_back(&program, &mut from(&how)).map_err(TestCaseError::fail)
    });
    outcome.unwrap_or_else(|error| panic!("{error}"));
}

#[test]
fn every_change_changes_the_key() {
    let counts: RefCell<HashMap<&str, u32>> = RefCell::default();
    let case = (choices(200), choices(600), 1..8_usize);
    let outcome = runner(600).run(&case, |(list, how, ops)| {
        let program = sample(&mut from(&list), ops);
        let count = |what| *counts.borrow_mut().entry(what).or_default() += 1;
        every_change_is_told(&program, &mut from(&how), 6, count).map_err(TestCaseError::fail)
    });
    outcome.unwrap_or_else(|error| panic!("{error}"));
    let counts = counts.into_inner();
    for what in CHANGES {
        assert!(counts.get(what).copied().unwrap_or(0) >= 50, "{what} was hardly changed: {counts:?}");
    }
}

/// The environment is part of the key like the region.
#[test]
fn every_environment_has_keys_of_its_own() {
    let program = sample(&mut Seeded::new(3), 6);
    let region = Draft::of(&program, &[]).region().expect("a sampled program is accepted");
    let mut keys = HashMap::new();
    let description = b"plugin 1, device 0, flags none";
    let mut descriptions = vec![description.to_vec(), Vec::new(), [&description[..], b"\0"].concat()];
    for bit in 0..description.len() * 8 {
        let mut flipped = description.to_vec();
        flipped[bit / 8] ^= 1 << (bit % 8);
        descriptions.push(flipped);
    }
    for description in descriptions {
        let environment = EnvFingerprint::of(&description);
        assert_eq!(environment, EnvFingerprint::of(&description));
        let earlier = keys.insert(region.key(&environment), description.clone());
        assert!(earlier.is_none(), "{earlier:?} and {description:?} have one key");
    }
}

#[test]
fn canonical_bytes_have_one_reading() {
    let case = (choices(200), proptest::collection::vec(proptest::num::u32::ANY, 60), 0..8_usize);
    let outcome = runner(300).run(&case, |(list, noise, ops)| {
        let program = sample(&mut from(&list), ops);
        has_one_reading(&program, &mut from(&noise), 4096).map_err(TestCaseError::fail)
    });
    outcome.unwrap_or_else(|error| panic!("{error}"));
}

/// Bodies at the depth limit of a call can be decoded.
#[test]
fn the_deepest_bodies_are_read_back() {
    let ty = TensorType::scalar(DType::I32);
    let within = |bodies: &[Arc<Body>]| {
        let mut graph = Graph::new();
        let params = [graph.param(ty.clone()), graph.param(ty.clone())];
        let results = graph.push(OpCode::Case, Attrs::none(), bodies, &[params[0], params[0], params[1]]);
        results.map(|results| (results, graph))
    };
    let mut body = Arc::new(Body::binary(OpCode::Add, ty.clone()).expect("it adds"));
    let mut depth = 1;
    let mut deepest = None;
    while let Ok((results, graph)) = within(&[body]) {
        body = Arc::new(Body::new(graph.clone(), &results).expect("it returns what it made"));
        deepest = Some(graph);
        depth += 1;
    }
    assert_eq!(depth, MAX_BODY_DEPTH + 1, "the bodies, and the graph around them");
    let region = CanonRegion::new(deepest.expect("the first is not too deep"), Box::new([false; 2]));
    let read = decode(region.bytes()).expect("it is a region");
    assert_eq!(read.bytes(), region.bytes());
}

#[test]
fn noise_is_no_region() {
    let bytes = proptest::collection::vec(proptest::num::u8::ANY, 0..64);
    let outcome = runner(20_000).run(&bytes, |mut bytes| {
        for format in [None, Some(fuseline_fusion::canon::FORMAT)] {
            if let (Some(first), Some(format)) = (bytes.first_mut(), format) {
                *first = format;
            }
            if let Ok(region) = decode(&bytes)
                && region.bytes() != bytes
            {
                return Err(TestCaseError::fail("two spellings"));
            }
        }
        Ok(())
    });
    outcome.unwrap_or_else(|error| panic!("{error}"));
}
