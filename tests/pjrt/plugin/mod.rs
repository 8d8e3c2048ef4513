//! Everything that a plugin can do wrong, on a plugin that does it on request (`tests/fakeplugin`).
//!
//! Each test has the plugin to itself ([`FakePlugin::alone`]), and checks with the plugin's counts
//! that the planned faults happened. The long versions are ignored tests:
//! `cargo test --release --test pjrt plugin:: -- --ignored`.

mod callbacks;
mod capabilities;
mod clients;
mod compiles;
mod conformance;
mod crash;
mod environment;
mod faults;
mod forks;
mod orders;
mod qualification;
mod quarantine;
mod sweep;
mod tables;
mod targets;

use std::collections::BTreeSet;

use fuseline::{Engine, Result, Tensor};
use fuseline_testgen::{Entropy, Seeded};

const COMPILE: &str = "PJRT_Client_Compile";
const EXECUTE: &str = "PJRT_LoadedExecutable_Execute";

/// A region of three ops.
fn three(x: &Tensor) -> Result<Tensor> {
    x.add(x)?.mul(x)?.sub(x)
}

/// The results of [`three`] for one number.
fn three_of(x: f32) -> f32 {
    (x + x) * x - x
}

/// Reads the results of [`three`] for some numbers.
#[track_caller]
fn is_right(value: &Tensor, numbers: &[f32]) {
    let wanted: Vec<f32> = numbers.iter().copied().map(three_of).collect();
    assert_eq!(value.to_vec::<f32>().unwrap(), wanted);
}

/// One value of a [`Graph`].
#[derive(Clone, Copy, Debug)]
enum Node {
    Input(i32),
    /// An op: sum, difference, maximum, or negation of the first operand.
    Op(u32, usize, usize),
}

/// A program of small integers, whose results are exact. Each value depends on earlier ones.
#[derive(Debug)]
struct Graph {
    nodes: Vec<Node>,
    values: Vec<i32>,
}

/// The outcome of each value.
type Found = Vec<Result<i32>>;

impl Graph {
    fn sample(random: &mut Seeded, ops: usize) -> Graph {
        let mut nodes: Vec<Node> =
            (0..1 + random.draw(3)).map(|_| Node::Input(random.draw(100) as i32)).collect();
        for _ in 0..ops {
            let any = |random: &mut Seeded| random.draw(nodes.len() as u32) as usize;
            nodes.push(Node::Op(random.draw(4), any(random), any(random)));
        }
        let mut values: Vec<i32> = Vec::new();
        for node in &nodes {
            values.push(match *node {
                Node::Input(value) => value,
                Node::Op(0, a, b) => values[a].wrapping_add(values[b]),
                Node::Op(1, a, b) => values[a].wrapping_sub(values[b]),
                Node::Op(2, a, b) => values[a].max(values[b]),
                Node::Op(_, a, _) => values[a].wrapping_neg(),
            });
        }
        Graph { nodes, values }
    }

    /// Uploads the inputs and records all ops.
    fn record(&self, engine: &Engine) -> Vec<Tensor> {
        self.record_with(engine, |_| ())
    }

    /// Like [`Graph::record`]; calls `after` when a value is recorded.
    fn record_with(&self, engine: &Engine, after: impl Fn(usize)) -> Vec<Tensor> {
        let mut made: Vec<Tensor> = Vec::new();
        for (place, node) in self.nodes.iter().enumerate() {
            made.push(match *node {
                Node::Input(value) => engine.tensor(&[value], &[1]).unwrap(),
                Node::Op(0, a, b) => made[a].add(&made[b]).unwrap(),
                Node::Op(1, a, b) => made[a].sub(&made[b]).unwrap(),
                Node::Op(2, a, b) => made[a].maximum(&made[b]).unwrap(),
                Node::Op(_, a, _) => made[a].neg().unwrap(),
            });
            after(place);
        }
        made
    }

    /// Runs it and reads every value.
    fn run(&self, engine: &Engine) -> Found {
        let made = self.record(engine);
        made.iter().map(Tensor::item::<i32>).collect()
    }

    /// The values that are errors. Asserts that the others are right.
    #[track_caller]
    fn lost(&self, found: &Found) -> BTreeSet<usize> {
        let mut lost = BTreeSet::new();
        for (place, (found, wanted)) in found.iter().zip(&self.values).enumerate() {
            match found {
                Ok(found) => assert_eq!(found, wanted, "value {place} of {self:?}"),
                Err(_) => drop(lost.insert(place)),
            }
        }
        lost
    }

    /// These values and their dependents.
    fn dependants(&self, of: impl IntoIterator<Item = usize>) -> BTreeSet<usize> {
        let mut all: BTreeSet<usize> = of.into_iter().collect();
        for (place, node) in self.nodes.iter().enumerate() {
            let depends = match *node {
                Node::Input(_) => false,
                Node::Op(3, a, _) => all.contains(&a),
                Node::Op(_, a, b) => all.contains(&a) || all.contains(&b),
            };
            if depends {
                all.insert(place);
            }
        }
        all
    }

    /// Whether all dependents of these values are among them.
    fn is_closed(&self, lost: &BTreeSet<usize>) -> bool {
        self.dependants(lost.iter().copied()) == *lost
    }
}
