//! Functions exported by JAX, with inputs and JAX's results: `data/text` and `data/text.json`,
//! which `data/generate_text.py` writes.
#![allow(dead_code, unreachable_pub, reason = "each test uses a part")]

use std::fs;
use std::path::Path;

use fuseline_fusion::program::Check;
use fuseline_fusion::text::TextModule;
use fuseline_fusion::{DType, Literal, Scalar, TensorType};
use serde_json::Value;

/// A function and a call of it.
pub struct Exported {
    pub name: String,
    pub text: String,
    pub module: TextModule,
    pub inputs: Vec<Literal>,
    pub outputs: Vec<Literal>,
}

/// Numbers as a tensor, of a type that holds each of them exactly.
fn literal(value: &Value, ty: &TensorType) -> Literal {
    let number = |value: &Value| match value {
        Value::Bool(flag) => f64::from(u8::from(*flag)),
        Value::String(words) => words.parse().expect("inf or nan"),
        value => value.as_f64().expect("a number"),
    };
    let elements = value["data"].as_array().expect("a list").iter().map(number);
    let bytes = elements
        .flat_map(|x| Scalar::from_f64(ty.dtype(), x).expect("a real type").to_literal().into_bytes());
    let data = Literal::from_bytes(ty.clone(), bytes.collect()).expect("as many as the type has");
    let dims: Vec<u64> = value["dims"].as_array().expect("a list").iter().filter_map(Value::as_u64).collect();
    assert_eq!(data.dims(), dims);
    data
}

/// All exported functions.
pub fn exported() -> Vec<Exported> {
    let data = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/data"));
    // The tests of `fusion` use the same data.
    let data =
        if data.exists() { data } else { Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../tests/data")) };
    let read =
        |name: &str| fs::read_to_string(data.join(name)).unwrap_or_else(|error| panic!("{name}: {error}"));
    let calls: Value = serde_json::from_str(&read("text.json")).expect("JSON");
    let exported = calls["cases"].as_array().expect("a list").iter().map(|call| {
        let name = call["name"].as_str().expect("a name").to_owned();
        let text = read(&format!("text/{name}.mlir"));
        let module = TextModule::parse(&text).unwrap_or_else(|error| panic!("{name}: {error}"));
        let typed = |key: &str, types: Vec<&TensorType>| -> Vec<Literal> {
            let values = call[key].as_array().expect("a list");
            assert_eq!(values.len(), types.len(), "{name}");
            values.iter().zip(types).map(|(value, ty)| literal(value, ty)).collect()
        };
        let inputs = typed("inputs", module.main().graph().params().iter().collect());
        let outputs = typed("outputs", module.main().return_types().collect());
        Exported { name, text, module, inputs, outputs }
    });
    exported.collect()
}

/// Compares a result with JAX's: sums and functions of floats may round differently, all else is
/// equal.
pub fn check(actual: &Literal, expected: &Literal) -> Result<(), String> {
    let check = match expected.dtype() {
        DType::F32 => {
            let data = expected.to_vec::<f32>().expect("f32");
            let largest = data.iter().filter(|x| x.is_finite()).fold(0f32, |largest, x| largest.max(x.abs()));
            Check::almost(1e-5 * f64::from(1.0 + largest)).expect("not negative")
        }
        _ => Check::Exact,
    };
    check.compare(actual, expected).map_err(|mismatch| mismatch.to_string())
}
