//! Only the intended module reaches a plugin: the text printed for a region reads back as the
//! region, including names from users.
//!
//! A program a quarter of the time, otherwise a name or a configuration: about 1 ms an execution.

use std::sync::Once;

use fuseline_fusion::canon::CanonRegion;
use fuseline_fusion::handler::{self, Config, ConfigValue, Handler, HandlerCall};
use fuseline_fusion::lower::{Aliases, Numerics, lower};
use fuseline_fusion::op::attrs;
use fuseline_fusion::{Attrs, Body, DType, Graph, OpCode, TensorType, attr};
use fuseline_testgen::Entropy as _;

use super::bytes::Bytes;
use super::recording::{is_read_back, sample};

pub(super) fn run(data: &[u8]) {
    let (mut program, mut how) = Bytes::halves(data);
    match how.draw(4) {
        0 => {
            let ops = program.ops(10, &mut how);
            let program = sample(&mut program, ops);
            if let Err(error) = is_read_back(&program, &mut how) {
                panic!("{error} in {}", program.to_json());
            }
        }
        // The bytes are names. Half of the time each is made of characters that a name may have,
        // and one more.
        1 => composite(&name(program)),
        2 => target(&name(program)),
        _ => {
            let key = name(Bytes::new(&data[..data.len() / 2]));
            let value = Bytes::new(&data[data.len() / 2..]).text();
            config(&key, value);
        }
    }
}

fn name(mut bytes: Bytes<'_>) -> String {
    if bytes.draw(2) == 0 {
        return bytes.text();
    }
    let pieces =
        ["a", ".", "-", "/", ":", "_", "Z9", "\"", "\n", "}", "@", "\\", "é", "\0", " ", "%", "<", ">", "("];
    let count = 1 + bytes.draw(12);
    (0..count).map(|_| pieces[bytes.draw(pieces.len() as u32) as usize]).collect()
}

fn ty() -> TensorType {
    TensorType::of(DType::F32, &[2]).expect("small")
}

/// A call that the table may refuse. If accepted, its module is read back.
fn call(op: OpCode, attrs: Attrs, bodies: &[std::sync::Arc<Body>]) -> bool {
    let mut graph = Graph::new();
    let x = graph.param(ty());
    if graph.push(op, attrs, bodies, &[x]).is_err() {
        return false;
    }
    let region = CanonRegion::new(graph, Box::new([false]));
    for numerics in [Numerics::Fast, Numerics::Exact] {
        let module = lower(&region, &[0], &Aliases::none(), numerics);
        if let Err(error) = module.clone().verify() {
            panic!("{error} in {module}");
        }
    }
    true
}

fn composite(name: &str) {
    let mut graph = Graph::new();
    let x = graph.param(ty());
    let y = graph.push(OpCode::Tanh, Attrs::none(), &[], &[x]).expect("fits the table")[0];
    let body = Body::new(graph, &[y]).expect("it exists");
    let taken = call(OpCode::Composite, attrs::composite(name), &[body.into()]);
    assert_eq!(taken, attr::is_name(name), "{name:?}");
}

struct Copies;

impl Handler for Copies {
    fn results(&self, operands: &[TensorType], _: &Config) -> Result<Vec<TensorType>, String> {
        Ok(operands.to_vec())
    }

    fn run(&self, _: HandlerCall<'_>) -> Result<(), String> {
        Ok(())
    }
}

fn target(name: &str) {
    // A program can name registered handlers only, and registering checks the name.
    let known = handler::target(name).is_some();
    let taken = call(OpCode::CustomCall, attrs::custom_call(name, Config::none(), false), &[]);
    assert_eq!(taken, known, "{name:?}");
    if !attr::is_name(name) {
        assert!(handler::register(name, Copies).is_err(), "{name:?} is no name");
    }
}

fn config(key: &str, value: String) {
    static REGISTERED: Once = Once::new();
    REGISTERED.call_once(|| drop(handler::register("fuzz.copies", Copies)));
    let ints = value.bytes().map(|byte| i64::from(byte) << 56).collect::<Vec<i64>>();
    for value in [ConfigValue::Text(value.into()), ConfigValue::Ints(ints.into())] {
        let config = Config::of([(key, value)]);
        let is_sound = config.is_sound();
        let taken = call(OpCode::CustomCall, attrs::custom_call("fuzz.copies", config, false), &[]);
        assert_eq!(taken, is_sound, "{key:?}");
    }
}
